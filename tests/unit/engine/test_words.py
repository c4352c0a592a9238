"""Native code cuts text into words exactly where the library's regular expressions do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from taximeter.engine.library_merges import WORD_PATTERNS

_native = pytest.importorskip("taximeter._native")

RULES = [
    *([step] for step in WORD_PATTERNS),
    ["number", "gpt2"],
    ["punctuation", "gpt2", "numbers", "three ascii digits"],
]
# One of each class at least, what contractions are made of, and what some rule names.
LIKELY = (
    "aAbBeEsStTdDlLmMrRvV'ſ 	\n\r\u00a0\u3000\u20280123½٣.,/!$+<=>^~|_-éǅʰª漢字\u0301\u0903\u20dd😀\u200b\x85\x1c"
)
TEXTS = st.text(st.sampled_from(LIKELY) | st.characters(codec="utf-8"), max_size=30)


def words_of_the_library(steps: list[str], text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(WORD_PATTERNS[step]), "isolated") for step in steps]
    return [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("steps", RULES, ids="+".join)
def test_words_end_where_the_library_ends_them(steps: list[str]) -> None:
    """For every step, alone and as rules combine them."""

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def same(text: str) -> None:
        assert _native.words(steps, text) == words_of_the_library(steps, text)

    same()


@pytest.mark.parametrize("step", ["llama3", "tekken"])
def test_every_character_there_is_has_the_librarys_class(step: str) -> None:
    """Behind an apostrophe, where some are contractions, between small letters, and before a capital. Of the planes of
    which little or nothing is assigned, one character in 61."""
    points = [*range(0xD800), *range(0xE000, 0x33480), *range(0x33480, 0x110000, 61), *range(0xE0000, 0xE0200)]
    for start in range(0, len(points), 1 << 13):
        text = "".join(f"'{chr(point)}a{chr(point)}B" for point in points[start : start + (1 << 13)])
        assert _native.words([step], text) == words_of_the_library([step], text)


def test_an_unknown_way_to_cut_is_refused() -> None:
    """A rule and the code know the same names."""
    with pytest.raises(ValueError, match="has that name"):
        _native.words(["llama 4"], "x")
