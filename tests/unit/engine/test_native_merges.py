"""Native merging gives the library's ids, for any vocabulary and any text, and takes long texts and hostile ones."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.pieces import Pieces, pieces_of
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.texts import LENGTH_BYTES, Texts
from taximeter.engine.weights.vocabulary import Vocabulary
from tests.unit.engine.small_vocabularies import by_score, byte_level

_native = pytest.importorskip("taximeter._native")

MARK = "\u2581"


def by_the_library(vocabulary: Vocabulary) -> Pieces:
    """The same as where no native code was built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "is_built", lambda: False)
        return pieces_of(vocabulary)


SOME_TEXT = st.text(st.sampled_from("abcé漢 \n\U0001f600") | st.characters(codec="utf-8"), max_size=40)
ROUND_TEXT = st.text(st.sampled_from("aab bc"), max_size=60)
WORDS = st.text(st.sampled_from(f"abc{MARK}é漢"), min_size=2, max_size=5)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(WORDS, unique=True, max_size=12), text=SOME_TEXT | ROUND_TEXT, has_bytes=st.booleans())
def test_scores_merge_as_the_library_does(pieces: list[str], text: str, has_bytes: bool) -> None:
    """Where its rule and SentencePiece's are one: every part of a piece is a piece, and no two scores are equal."""
    parts = {piece[at:end] for piece in pieces for at, end in itertools.combinations(range(len(piece) + 1), 2)}
    ranked = sorted(parts, key=lambda part: (part not in pieces, part))
    vocabulary = by_score({part: -float(rank) for rank, part in enumerate(ranked)})
    if not has_bytes:
        types = [2 if kind == 6 else kind for kind in vocabulary.token_types]  # then they are unknown, like id 0
        vocabulary = Vocabulary(
            kind="spm",
            tokens=vocabulary.tokens,
            scores=vocabulary.scores,
            token_types=tuple(types),
            unk_id=0,
        )
    assert pieces_of(vocabulary).merge(text) == by_the_library(vocabulary).merge(text)


@settings(max_examples=200, deadline=None)
@given(pieces=st.dictionaries(WORDS, st.sampled_from([-1.0, -2.0, -3.0]), max_size=12), text=ROUND_TEXT)
def test_scores_merge_by_the_letter_of_the_rule(pieces: dict[str, float], text: str) -> None:
    """Whatever the scores, equal ones too: the best pair first, the leftmost of equals."""
    vocabulary = by_score(pieces)
    names = vocabulary.tokens
    parts = list(text.replace(" ", MARK))
    while pairs := [(-pieces[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in pieces]:
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    expected = [
        name for part in parts for name in ([part] if part in pieces else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]
    assert [names[token_id] for token_id in pieces_of(vocabulary).merge(text)] == expected


ALL_RULES = ("default", "gpt-2", "llama-bpe", "qwen2", "deepseek-r1-qwen", "tekken", "smollm")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ġ Ġ", "o Ġ", "Ġ h", "Ċ Ċ", "a a", "aa a", "aa aa", "Ã ©")
BYTE_TEXT = st.text(st.sampled_from("helo aa12\n\t.'sSé\u0301漢\U0001f600") | st.characters(codec="utf-8"), max_size=40)


@pytest.mark.parametrize("pre", ALL_RULES)
def test_ranks_merge_as_the_library_does(pre: str) -> None:
    """By every splitting rule; with a user-defined word, one that merges do not reach, and merges that lead nowhere."""
    merges = (*MERGES, "nowhere near", "x", " y", "h q")
    tokens = byte_level(merges=MERGES, user_defined=("hehe",), mistyped=("word",))
    vocabulary = Vocabulary(
        kind="bpe", tokens=tokens.tokens, merges=merges, token_types=tokens.token_types, pre=pre, bos_id=None
    )
    ours, theirs = pieces_of(vocabulary), by_the_library(vocabulary)

    @settings(max_examples=100, deadline=None)
    @given(BYTE_TEXT)
    def same(text: str) -> None:
        assert ours.merge(text) == theirs.merge(text)

    same()
    assert ours.merge("word hello") == theirs.merge("word hello")


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_vocabularies_give_the_librarys_ids(request: pytest.FixtureRequest, model: str) -> None:
    """Over text of every script; what tokens are called, say and are known as is the same too."""
    path: Path = request.getfixturevalue(f"{model}_path")
    vocabulary = open_checkpoint(path).vocabulary()
    ours, theirs = pieces_of(vocabulary), by_the_library(vocabulary)
    assert (ours.control, ours.user_defined) == (theirs.control, theirs.user_defined)
    assert (len(ours.names), ours.names.longest_characters) == (len(theirs.names), theirs.names.longest_characters)
    for token_id in range(0, len(ours.names), 37):
        assert (ours.names[token_id], ours.utf8(token_id)) == (theirs.names[token_id], theirs.utf8(token_id))

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=60) | st.text(st.sampled_from("etaoin  shr\n\n=-.ETAOIN'"), max_size=200))
    def same(text: str) -> None:
        assert ours.merge(text) == theirs.merge(text)

    same()
    text = (Path(__file__).parents[2] / "golden" / "llama_cpp" / "text.txt").read_text() * 20
    assert ours.merge(text) == theirs.merge(text)


@pytest.mark.parametrize("unit", ["a", "=", "ab", "\U0001f600"])
def test_a_megabyte_of_one_letter_takes_no_square_of_its_length(unit: str) -> None:
    """A second at the most; by the square it would be hours."""
    score = by_score({"a": -9.0, "b": -9.0, "aa": -1.0, "ab": -1.0, "aaaa": -2.0, "=" * 32: -3.0})
    rank = byte_level(merges=("a a", "aa aa", "a b", "ab ab"))
    for vocabulary in (score, rank):
        tokenizer = Tokenizer.from_vocabulary(vocabulary)
        text = unit * ((1 << 20) // len(unit))
        began = time.process_time()
        ids = tokenizer.encode(text, specials=False)
        assert time.process_time() - began < 20
        says = {token_id: tokenizer.token_bytes(token_id) for token_id in set(ids)}
        assert b"".join(map(says.__getitem__, ids)).decode() == text


def starts(*texts: bytes) -> tuple[np.ndarray, np.ndarray]:
    records = b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts)
    ends = np.cumsum([0, *(LENGTH_BYTES + len(text) for text in texts)], dtype=np.int64)
    return np.frombuffer(records, np.uint8), ends


@given(st.lists(st.binary(max_size=6), max_size=6), st.binary(max_size=12), st.integers(0, 8), st.integers(0, 8))
def test_strings_are_found_or_the_whole_is_refused(texts: list[bytes], rest: bytes, count: int, longest: int) -> None:
    """Where each begins, if they are all there, short enough and UTF-8; otherwise nothing."""
    data, ends = starts(*texts)
    data = np.concatenate([data, np.frombuffer(rest, np.uint8)])
    found = _native.string_starts(data, 0, count, longest)
    if count <= len(texts):
        is_sound = all(len(text) <= longest and is_utf8(text) for text in texts[:count])
        assert (found is not None) == is_sound
    if found is not None:
        assert len(found) == count + 1
        np.testing.assert_array_equal(found[: len(ends)], ends[: count + 1])
        assert found[-1] <= len(data)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_every_short_string_is_utf8_to_us_where_it_is_to_python() -> None:
    """All of two bytes, and of three and four with every lead and second byte."""
    for lead, second in itertools.product(range(256), repeat=2):
        for tail in (b"", b"\x80", b"\x80\xbf", b"\xbf\x7f", b"a"):
            text = bytes([lead, second]) + tail
            data, _ = starts(text)
            assert (_native.string_starts(data, 0, 1, 8) is not None) == is_utf8(text), text


def test_what_a_vocabulary_promises_is_checked() -> None:
    """Arrays that do not fit together or point elsewhere never reach the code that relies on them."""
    data, ends = starts(b"a", b"bc")
    texts = _native.Texts(data, ends)
    assert (len(texts), texts.utf8(1), texts.longest_characters, texts.ids_of(["bc"])) == (2, b"bc", 2, [1])
    for wrong in (-1, 2):
        with pytest.raises(IndexError):
            texts.utf8(wrong)
    for bad in ([], [0, 100], [-1, 9], [0, 7], [9, 0], [0, 2**62]):
        with pytest.raises(ValueError, match="text"):
            _native.Texts(data, np.array(bad, np.int64))
    some, no_bytes = np.ones(2, np.bool_), np.full(256, -1, np.int32)
    scores = np.zeros(2, np.float32)
    for mergeable, given_scores, of_bytes, unknown in (
        (some[:1], scores, no_bytes, -1),
        (some, scores[:1], no_bytes, -1),
        (some, scores, no_bytes[:3], -1),
        (some, scores, no_bytes + 3, -1),
        (some, scores, no_bytes, 2),
        (some, scores, no_bytes, -2),
    ):
        with pytest.raises(ValueError, match=r"needed|not there"):
            _native.MergesByScore(texts, mergeable, given_scores, of_bytes, unknown)
    alphabet = _native.Texts(*starts(*(bytes([byte % 128]) for byte in range(256))))
    for mergeable, of_bytes, names in (
        (some[:1], no_bytes, alphabet),
        (some, no_bytes + 3, alphabet),
        (some, no_bytes, texts),
    ):
        with pytest.raises(ValueError, match=r"needed|not there"):
            _native.MergesByRank(texts, mergeable, texts, of_bytes, names, ["gpt2"], False)


def test_scores_that_are_no_numbers_merge_last() -> None:
    """A damaged file may hold them."""
    vocabulary = by_score({"a": 0.0, "b": 0.0, "c": 0.0, "ab": float("nan"), "bc": -1e30})
    names = vocabulary.tokens
    assert [names[token_id] for token_id in pieces_of(vocabulary).merge("abc")] == ["a", "bc"]


def test_texts_are_a_sequence_of_strings() -> None:
    """As a tuple of them would be."""
    plain = ("", "x", "▁ß", "漢")
    texts = Texts.of(plain)
    assert (len(texts), texts[1], texts[-1], [*texts[1:3]], [*texts]) == (4, "x", "漢", ["x", "▁ß"], [*plain])
    with pytest.raises(IndexError):
        texts[4]
