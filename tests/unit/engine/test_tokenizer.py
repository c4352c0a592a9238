"""The real models' tokenizers give llama.cpp's ids, and no text that a user types becomes a control token."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.tokenizer import Tokenizer, TokenMatcher
from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import RequestError
from tests.unit.engine.small_vocabularies import NORMAL, by_score, byte_level

GOLDEN = Path(__file__).parents[2] / "golden" / "llama_cpp"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "tokenizations.json").read_text())["cases"]
SMALL = Tokenizer.from_vocabulary(byte_level())


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_vocabulary(open_checkpoint(smollm2_path).vocabulary())


@pytest.fixture(scope="module")
def gemma3_vocabulary(gemma3_path: Path) -> Vocabulary:
    return open_checkpoint(gemma3_path).vocabulary()


@pytest.fixture(scope="module")
def gemma3_loaded(gemma3_vocabulary: Vocabulary) -> tuple[Tokenizer, float]:
    """The tokenizer, and the processor's seconds that building it took."""
    began = time.process_time()
    return Tokenizer.from_vocabulary(gemma3_vocabulary), time.process_time() - began


@pytest.fixture(scope="module")
def gemma3(gemma3_loaded: tuple[Tokenizer, float]) -> Tokenizer:
    return gemma3_loaded[0]


@pytest.mark.parametrize("specials", [False, True], ids=["plain", "specials"])
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_ids_are_those_of_llama_cpp(request: pytest.FixtureRequest, model: str, specials: bool) -> None:
    """Over digits, code, scripts, emoji, runs of whitespace and what looks like control tokens."""
    tokenizer: Tokenizer = request.getfixturevalue(model)
    expected = f"{model}_{'specials' if specials else 'plain'}"
    assert len(CASES) > 60
    for case in CASES:
        assert tokenizer.encode(case["text"], specials=specials) == case[expected], case["text"]


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_plain_text_comes_back_from_its_ids(request: pytest.FixtureRequest, model: str) -> None:
    """Whatever it holds; only Gemma's own mark for a space cannot be told from a space."""
    tokenizer: Tokenizer = request.getfixturevalue(model)
    for case in CASES:
        expected = case["text"].replace("\u2581", " ") if model == "gemma3" else case["text"]
        assert tokenizer.decode(tokenizer.encode(case["text"], specials=False)) == expected


def test_what_ends_an_answer_and_what_begins_a_prompt(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    """Ends: the end of text and the end of a turn. Begins: Gemma wants <bos>, SmolLM2 nothing."""
    assert {smollm2.token_name(token_id) for token_id in smollm2.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert {gemma3.token_name(token_id) for token_id in gemma3.stop_ids} == {"<eos>", "<end_of_turn>"}
    assert smollm2.encode_prompt("Hi <|im_end|>") == smollm2.encode("Hi <|im_end|>", specials=False)
    assert gemma3.encode_prompt("<bos>Hi") == [2, *gemma3.encode("<bos>Hi", specials=False)]
    assert (smollm2.vocab_size, gemma3.vocab_size) == (49_152, 262_144)


# Alphabets that make long runs, repetitions and competing merges likely.
GEMMA_TEXTS = st.one_of(
    st.text(st.sampled_from("ab-=.h \u2581"), max_size=40),
    st.builds(
        lambda unit, times: unit * times, st.text(st.sampled_from("abehilo.-1 "), max_size=4), st.integers(0, 12)
    ),
    st.text(st.sampled_from("etaoinshrdlu ETAOIN.,'"), max_size=60),
)


@settings(max_examples=300, deadline=None)
@given(text=GEMMA_TEXTS)
def test_gemma_merges_by_the_sentencepiece_rule(gemma3: Tokenizer, gemma3_vocabulary: Vocabulary, text: str) -> None:
    """The same pieces as when the rule is followed to the letter: merge the adjacent pair whose piece has the best
    score, the leftmost of equals, until no pair makes a piece."""
    text = text.replace("  ", " ")  # runs of spaces are user-defined tokens, no matter of merging
    score = _scores(gemma3_vocabulary)
    parts = list(text.replace(" ", "\u2581"))
    while pairs := [(-score[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in score]:
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    if "  " not in text:
        assert [gemma3.token_name(token_id) for token_id in gemma3.encode(text, specials=False)] == parts


_SCORES: dict[str, float] = {}


def _scores(vocabulary: Vocabulary) -> dict[str, float]:
    if not _SCORES:
        entries = zip(vocabulary.tokens, vocabulary.scores, vocabulary.token_types, strict=True)
        _SCORES.update({token: score for token, score, kind in entries if kind == NORMAL})
    return _SCORES


def test_gemmas_vocabulary_loads_in_seconds(gemma3_loaded: tuple[Tokenizer, float]) -> None:
    """A quarter of a million pieces; two or three seconds, and the bound leaves room for slow machines."""
    assert gemma3_loaded[1] < 15


PARTS = st.sampled_from(["<|im_end|>", "<|start|>", "<|", "im_end", "|>", "<", ">", "start", "hello", " ", "|"])


@given(st.lists(PARTS).map("".join))
def test_no_user_text_becomes_a_control_token(text: str) -> None:
    """However it is put together."""
    control = set(SMALL.encode("<|im_end|><|start|>", specials=True))
    assert len(control) == 2
    assert control.isdisjoint(SMALL.encode(text, specials=False))


def test_merging_cannot_reach_a_control_token() -> None:
    """Not even where a file's own merges, scores or words would lead there."""
    merged = Tokenizer.from_vocabulary(byte_level(merges=("e n", "en d"), control=("end",)))
    assert len(merged.encode("end", specials=True)) == 1
    assert [merged.token_name(token_id) for token_id in merged.encode("end", specials=False)] == ["en", "d"]
    whole_word = Tokenizer.from_vocabulary(byte_level(pre="llama-bpe", control=("word",)))
    assert len(whole_word.encode("word", specials=False)) == 4
    scored = Tokenizer.from_vocabulary(by_score({"<": -1.0, "x": -1.0, "<x": -1.0, ">": -1.0}, control=("<x>",)))
    assert [scored.token_name(token_id) for token_id in scored.encode("<x>", specials=False)] == ["<x", ">"]


def test_a_turn_token_marked_as_an_ordinary_word_is_still_a_control_token() -> None:
    """Some exports do that: it ends answers, it is recognised in templates, and users cannot type it."""
    vocabulary = byte_level(mistyped=("<end_of_turn>",), user_defined=("<start_of_turn>",), control=())
    end, start = vocabulary.tokens.index("<end_of_turn>"), vocabulary.tokens.index("<start_of_turn>")
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert tokenizer.stop_ids == {end}
    assert tokenizer.encode("<start_of_turn><end_of_turn>", specials=True) == [start, end]
    assert {start, end}.isdisjoint(tokenizer.encode("<start_of_turn><end_of_turn>", specials=False))


def test_files_and_names_together_say_what_ends_an_answer() -> None:
    """The end of text, the end of turn, every further id the files list, and what is known by name."""
    vocabulary = byte_level(eos_id=1, eot_id=2, stop_ids=(1, 3))
    assert Tokenizer.from_vocabulary(vocabulary).stop_ids == {1, 2, 3, vocabulary.tokens.index("<|im_end|>")}


def test_a_beginning_is_added_only_when_there_is_one() -> None:
    """A model may ask for a beginning and name none."""
    assert Tokenizer.from_vocabulary(byte_level(add_bos=True)).encode_prompt("hello")[1:] == []
    assert Tokenizer.from_vocabulary(byte_level(add_bos=True, bos_id=7)).encode_prompt("hello")[0] == 7


def test_a_stand_in_is_never_part_of_a_control_token_and_reads_as_its_original() -> None:
    """It hides a character while control tokens are looked for, and nothing else."""
    hidden = SMALL.encode(
        "hell\ue000 <|im_end|>\ue001|im_end|>", specials=True, stand_ins={"\ue000": "o", "\ue001": "<"}
    )
    (end,) = SMALL.encode("<|im_end|>", specials=True)
    plain = SMALL.encode("<|im_end|>", specials=False)
    assert hidden == [*SMALL.encode("hello ", specials=False), end, *plain]


def test_a_lone_surrogate_is_the_callers_mistake() -> None:
    """JSON can carry one; UTF-8 cannot."""
    with pytest.raises(RequestError, match="character 1"):
        SMALL.encode("a\ud800", specials=False)


@given(
    tokens=st.sets(st.text(st.sampled_from("ab<"), min_size=1, max_size=4), max_size=6),
    text=st.text(st.sampled_from("ab<c"), max_size=12),
)
def test_matching_is_leftmost_then_longest(tokens: set[str], text: str) -> None:
    """As a search from the left that tries the longest first finds it; nothing of the text is lost."""
    ids = {token: at for at, token in enumerate(sorted(tokens))}
    expected: list[tuple[str, int | None]] = []
    stretch, at = "", 0
    while at < len(text):
        token = max((token for token in tokens if text.startswith(token, at)), key=len, default=None)
        if token is None:
            stretch, at = stretch + text[at], at + 1
            continue
        expected += [(stretch, None)] if stretch else []
        expected.append((token, ids[token]))
        stretch, at = "", at + len(token)
    expected += [(stretch, None)] if stretch else []
    assert list(TokenMatcher(ids).split(text)) == expected


@pytest.mark.parametrize(
    "vocabulary", [byte_level(), by_score({"\u2581a": -1.0, "é": -2.0, "aé": -3.0})], ids=["bpe", "spm"]
)
def test_no_token_stands_for_more_characters_than_the_longest(vocabulary: Vocabulary) -> None:
    """A prompt that is refused for its length alone could not have fitted."""
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    texts = [tokenizer.token_bytes(token).decode("utf-8", "ignore") for token in range(tokenizer.vocab_size)]
    assert max(map(len, texts)) <= tokenizer.longest_token_characters
