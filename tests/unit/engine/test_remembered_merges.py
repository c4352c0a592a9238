"""Long texts are merged by parts, and no token differs for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine import pieces, remembered_merges
from taximeter.engine.pieces import pieces_of
from taximeter.engine.remembered_merges import remembering
from tests.unit.engine.small_vocabularies import by_score, byte_level

RULES = ("smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "default")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ġ Ġ", "o Ġ", "Ġ h", "Ċ Ċ")
# Words and what may come between them, accents that compose and line ends among it.
TEXTS = st.lists(
    st.sampled_from(
        [
            "hello",
            "he",
            "llo",
            "HeLLo",
            "12",
            "1",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'s",
            "'",
            ".",
            "!/",
            "é",
            "e\u0301",
            "你",
        ]
    ),
    max_size=40,
).map("".join)


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_merges, "_PART_CHARACTERS", 3)


@pytest.mark.parametrize("rule", RULES)
def test_parts_have_the_tokens_of_the_whole(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every splitting rule, whatever stands around the cuts."""
    vocabulary = byte_level(pre=rule, merges=MERGES)
    by_parts = pieces_of(vocabulary).merge
    monkeypatch.setattr(pieces, "remembering", lambda merge: merge)
    whole = pieces_of(vocabulary).merge

    @given(TEXTS)
    def same(text: str) -> None:
        assert by_parts(text) == whole(text)

    same()


@pytest.mark.parametrize("over", [False, True])
def test_parts_are_cut_where_pieces_do_not_reach_over(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging by score knows no words: where a piece holds the end of one and the space behind it, nothing is cut."""
    found = {"\u2581": -1.0, "h": -2.0, "e": -3.0, "he": -0.5, "\u2581he": -0.4, "l": -4.0, "\u2581l": -0.3}
    found |= {"e\u2581": -0.2, "e\u2581h": -0.1} if over else {}
    by_parts = pieces_of(by_score(found)).merge
    monkeypatch.setattr(pieces, "remembering", lambda merge: merge)
    whole = pieces_of(by_score(found)).merge

    @given(st.text(alphabet="hel .1", max_size=60))
    def same(text: str) -> None:
        assert by_parts(text) == whole(text)

    same()


def test_what_two_texts_begin_with_is_merged_once() -> None:
    """The second of two texts with the same beginning costs its end."""
    merged: list[str] = []

    def merge(text: str) -> list[int]:
        merged.append(text)
        return [ord(character) for character in text]

    remembers = remembering(merge)
    beginning = "one two six ten one for all"
    assert remembers(beginning + " or") == [ord(character) for character in beginning + " or"]
    first = list(merged)
    merged.clear()
    assert remembers(beginning + " as") == [ord(character) for character in beginning + " as"]
    assert len(first) > 4
    assert merged == [first[-1].replace("or", "as")]


def test_a_text_without_words_is_merged_as_it_is() -> None:
    """Nothing of it is cut, nothing is remembered."""
    merged: list[str] = []

    def merge(text: str) -> list[int]:
        merged.append(text)
        return []

    remembers = remembering(merge)
    remembers("12 34 " * 50)
    remembers("12 34 " * 50)
    assert merged == ["12 34 " * 50] * 2
