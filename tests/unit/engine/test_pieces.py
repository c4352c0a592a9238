"""Each kind of vocabulary merges text by its own rules, and by no other's."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from taximeter.engine.pieces import pieces_of
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError
from tests.engine_harness import TINY_LLAMA
from tests.unit.engine.small_vocabularies import CONTROL, UNUSED, by_score, byte_level


def names(vocabulary: Vocabulary, text: str, *, specials: bool = False) -> list[str]:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    return [tokenizer.token_name(token_id) for token_id in tokenizer.encode(text, specials=specials)]


def test_byte_level_merges_in_the_order_of_the_list() -> None:
    """The best-ranked pair is merged first, wherever it stands; a space belongs to the word after it."""
    assert names(byte_level(), "hello hellos he") == ["hello", "Ġhello", "s", "Ġ", "he"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["12", "12", "Ġ", "12"]),
        ("smollm", ["1", "2", "1", "2", "Ġ", "1", "2"]),
        ("qwen2", ["1", "2", "1", "2", "Ġ", "1", "2"]),
        ("deepseek-r1-qwen", ["1", "2", "1", "2", "Ġ", "1", "2"]),
        ("tekken", ["1", "2", "1", "2", "Ġ", "1", "2"]),
        ("llama-bpe", ["12", "1", "2", "Ġ", "12"]),
        ("default", ["12", "1", "2", "Ġ", "12"]),
    ],
)
def test_digits_are_grouped_as_the_named_rule_says(pre: str, expected: list[str]) -> None:
    """One by one, in threes, or all together: the rule's name decides, and merging never crosses groups."""
    assert names(byte_level(pre=pre), "1212 12") == expected


def test_an_unknown_splitting_rule_is_refused_by_name() -> None:
    """Guessing a rule would give wrong tokens quietly."""
    with pytest.raises(ModelFileError, match=r"'exaone'") as caught:
        Tokenizer.from_vocabulary(byte_level(pre="exaone"))
    assert caught.value.hint == (
        "known rules: deepseek-r1-qwen, default, gpt-2, llama-bpe, llama-v3, llama3, qwen2, smollm, tekken"
    )


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("qwen2", "'She", ["'", "S", "he"]),
        ("tekken", "'She", ["'", "Sh", "e"]),
        ("tekken", "heHE", ["he", "HE"]),
        ("tekken", "HEhe", ["HE", "he"]),
        ("qwen2", "eHe", ["eH", "e"]),
        ("tekken", "eHe", ["e", "He"]),
        ("qwen2", "!/he", ["!/", "he"]),
        ("tekken", "!/he", ["!/", "he"]),
    ],
)
def test_words_end_where_the_named_rule_says(pre: str, text: str, expected: list[str]) -> None:
    """Tekken cuts where a capital follows a small letter, the others after the first letters of a contraction."""
    assert names(byte_level(pre=pre, merges=("S h", "h e", "H E", "e H", "H e", "! /")), text) == expected


QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@given(
    st.text(
        st.sampled_from("he lo12'sSſdD\r\n\t.,/é\u0301\u00a0漢字\u3000ẞ") | st.characters(codec="utf-8"), max_size=40
    )
)
def test_qwen2_reads_as_its_own_tokenizer_json_does(text: str) -> None:
    """From either kind of file the same ids: NFC first, then words as transformers' Qwen2Tokenizer cuts them."""
    vocabulary = byte_level(pre="qwen2", control=())
    ids = {name: token_id for token_id, name in enumerate(vocabulary.tokens)}
    theirs = HuggingFaceTokenizer(models.BPE(vocab=ids, merges=[tuple(pair.split(" ")) for pair in vocabulary.merges]))
    theirs.normalizer = normalizers.NFC()
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert Tokenizer.from_vocabulary(vocabulary).encode(text, specials=False) == theirs.encode(text).ids


def test_only_qwen2_composes_letters_and_accents() -> None:
    """Typed as one character or as two, it is one word to qwen2, and two to a rule that says nothing of it."""
    for pre, same in (("qwen2", True), ("deepseek-r1-qwen", False), ("llama-bpe", False)):
        assert (names(byte_level(pre=pre), "e\u0301") == names(byte_level(pre=pre), "\u00e9")) is same


def test_llama3_takes_a_word_that_is_a_token_without_merging() -> None:
    """Such vocabularies have words that their own merges cannot reach."""
    whole = byte_level(pre="llama-bpe", mistyped=("word",))
    assert names(whole, "word") == ["word"]
    assert names(dataclasses.replace(whole, pre="tekken"), "word") == ["word"]
    assert names(dataclasses.replace(whole, pre="qwen2"), "word") == ["w", "o", "r", "d"]


def test_scores_decide_what_is_merged_first() -> None:
    """The pair whose piece has the best score goes first, though another one stands further left."""
    pieces = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0}
    assert names(by_score(pieces), "abc") == ["a", "bc"]
    assert names(by_score(pieces | {"ab": -0.5}), "abc") == ["ab", "c"]


def test_equal_scores_merge_from_the_left() -> None:
    """A run of one character is cut from its beginning."""
    pieces = {"a": -9.0, "aa": -1.0, "aaa": -2.0}
    assert names(by_score(pieces), "aaaaa") == ["aa", "aaa"]
    assert names(by_score(pieces), "aaa") == ["aaa"]


def test_characters_without_a_piece_become_their_bytes() -> None:
    """Nothing is unknown to a vocabulary with byte tokens."""
    assert names(by_score({"a": -1.0}), "aé") == ["a", "<0xC3>", "<0xA9>"]
    assert names(by_score({"a": -1.0}), "<0x41>")[:1] == ["<0x3C>"]


def test_user_defined_tokens_are_matched_before_merging() -> None:
    """Leftmost and longest, in any text."""
    pieces = {"a": -9.0, "\u2581": -9.0, "\u2581a": -1.0}
    assert names(by_score(pieces), "a\n\n\n a") == ["a", "\n\n", "\n", "\u2581a"]


def test_the_extra_space_is_added_only_where_the_vocabulary_wants_it() -> None:
    """Before every stretch of plain text, then; and taken off again in front of the decoded text."""
    pieces = {"a": -9.0, "\u2581": -9.0, "\u2581a": -1.0}
    assert names(by_score(pieces), "a") == ["a"]
    wanting = by_score(pieces, add_space_prefix=True)
    assert names(wanting, "a\na<bos>a", specials=True) == ["\u2581a", "\n", "\u2581a", "<bos>", "\u2581a"]
    tokenizer = Tokenizer.from_vocabulary(wanting)
    assert tokenizer.decode(tokenizer.encode("a a", specials=False)) == "a a"
    assert tokenizer.decode(tokenizer.encode(" a", specials=False)) == " a"
    assert tokenizer.encode("", specials=False) == []


def test_padding_tokens_have_no_text() -> None:
    """Tokens that only fill up the vocabulary, and ids past its end, add nothing to an answer."""
    vocabulary = byte_level(mistyped=("[PAD]",))
    at = vocabulary.tokens.index("[PAD]")
    types = [*vocabulary.token_types]
    types[at] = UNUSED
    tokenizer = Tokenizer.from_vocabulary(dataclasses.replace(vocabulary, token_types=tuple(types)))
    assert tokenizer.decode([at, 10_000, -1]) == ""


def test_a_vocabulary_that_does_not_add_up_is_refused() -> None:
    """Lists that belong together have one length."""
    with pytest.raises(ModelFileError, match="scores"):
        Tokenizer.from_vocabulary(dataclasses.replace(by_score({"a": -1.0}), scores=(0.0,)))
    with pytest.raises(ModelFileError, match="token types"):
        Tokenizer.from_vocabulary(dataclasses.replace(byte_level(), token_types=(CONTROL,)))


@pytest.mark.parametrize("build", [by_score, lambda pieces: byte_level(mistyped=tuple(pieces))])
def test_a_token_of_absurd_length_is_refused(build: Callable[[dict[str, float]], Vocabulary]) -> None:
    """Loading tries every cut of a token: one of a megabyte would take for ever."""
    pieces_of(build({"a": -1.0, "a" * 4096: -2.0}))
    with pytest.raises(ModelFileError, match="a token of 1,000,000 characters"):
        pieces_of(build({"a": -1.0, "a" * 1_000_000: -2.0}))


def test_other_threads_run_while_a_long_text_is_merged() -> None:
    """A megabyte takes a second, and nobody else's answer may stand still for it."""
    merge = pieces_of(byte_level()).merge
    turns, done = 0, False

    def take_turns() -> None:
        nonlocal turns
        while not done:
            turns += 1
            time.sleep(0)

    other = threading.Thread(target=take_turns, daemon=True)
    other.start()
    try:
        before = turns
        merge(" ".join(f"hello hellos {number}" for number in range(50_000)))  # no two parts of it are equal
        taken = turns - before
    finally:
        done = True
        other.join()
    assert taken > 100  # two or three when the interpreter is held all the time


def hugging_face_file(path: Path, vocabulary: Vocabulary) -> HuggingFaceTokenizer:
    """The same byte-level vocabulary as a tokenizer.json, control tokens added as the transformers library does."""
    ids = {name: token_id for token_id, name in enumerate(vocabulary.tokens)}
    merges = [(merge.split(" ")[0], merge.split(" ")[1]) for merge in vocabulary.merges]
    tokenizer = HuggingFaceTokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(name, special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.save(str(path))
    return tokenizer


def test_a_tokenizer_json_gives_its_own_ids(tmp_path: Path) -> None:
    """As the library reads it, where control tokens may be recognised; without them where not."""
    path = tmp_path / "tokenizer.json"
    theirs = hugging_face_file(path, byte_level())
    ours = Tokenizer.from_vocabulary(Vocabulary(kind="json", tokenizer_json=path))
    text = "<|start|>hello hello<tool>1212 <|im_end|>\n é"
    assert ours.encode(text, specials=True) == theirs.encode(text).ids
    assert ours.vocab_size == theirs.get_vocab_size()
    ends = theirs.token_to_id("<|im_end|>")
    assert ends in ours.stop_ids
    assert ends not in ours.encode(text, specials=False)
    assert theirs.token_to_id("<tool>") in ours.encode(text, specials=False)
    assert ours.decode(ours.encode(text, specials=True)) == "hello hello<tool>1212 \n é"


@pytest.mark.parametrize("form", ["normalizer", "metaspace"])
def test_a_tokenizer_json_with_space_marks_is_read_by_its_own_rules(tmp_path: Path, form: str) -> None:
    """Llama 2's two forms: an extra space before all plain text, and before the first only; bytes where no piece is."""
    vocabulary = by_score({"a": -9.0, "\u2581": -9.0, "\u2581a": -1.0}, control=("<s>",), user_defined=())
    ids = {name: token_id for token_id, name in enumerate(vocabulary.tokens)}
    theirs = HuggingFaceTokenizer(
        models.BPE(vocab=ids, merges=[("\u2581", "a")], byte_fallback=True, unk_token="<unk>")
    )
    if form == "normalizer":
        theirs.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    theirs.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_vocabulary(Vocabulary(kind="json", tokenizer_json=tmp_path / "tokenizer.json"))
    for text in ("a", "a a", "<s>a é", "a<s>a<s> a", ""):
        assert ours.encode(text, specials=True) == theirs.encode(text).ids
    assert ours.decode(ours.encode("a é a", specials=False)) == "a é a"


@pytest.mark.parametrize(
    "damage",
    [
        "not json",
        "[]",
        "{}",
        json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}),
        json.dumps({"model": {"vocab": {"a": 1 << 40}, "merges": []}}),
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}),
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[]]}}),
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"kind": "?"}}),
        json.dumps({"model": {"type": "BPE", "vocab": {"a": "x"}, "merges": []}, "added_tokens": [1]}),
    ],
)
def test_a_damaged_tokenizer_json_is_refused(tmp_path: Path, damage: str) -> None:
    """With the error that says whose fault it is, and without allocating what an absurd id asks for."""
    path = tmp_path / "tokenizer.json"
    path.write_text(damage)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_vocabulary(Vocabulary(kind="json", tokenizer_json=path))


@pytest.mark.parametrize("stray", ["z qq", "qq q", "qq", "h l", " h e"])
def test_a_merge_that_fits_nothing_changes_nothing(stray: str) -> None:
    """One of what is no token, one into what is none, and one that is no pair: the others are merged as ever."""
    vocabulary = dataclasses.replace(byte_level(), merges=("h e", stray, "l l", "he ll"))
    assert names(vocabulary, "hello") == ["hell", "o"]


def test_rules_that_never_come_to_an_end_are_an_error(tmp_path: Path) -> None:
    """A pattern that tries more and more ways to match makes the library give up: an ordinary error, which handlers of
    errors see, and the next text is read."""
    document = json.loads((TINY_LLAMA / "tokenizer.json").read_text("utf-8"))
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [pattern, document["pre_tokenizer"]]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    tokenizer = Tokenizer.from_vocabulary(Vocabulary(kind="json", tokenizer_json=path))
    with pytest.raises(ModelFileError, match="cannot be followed"):
        tokenizer.encode("a" * 30 + "b", specials=False)
    assert tokenizer.encode("cab", specials=False)
