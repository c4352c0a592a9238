"""Text comes out as early as it is certain, and never differently from decoding the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.tokenizer import Tokenizer
from tests.unit.engine.small_vocabularies import by_score, byte_level

BYTE_LEVEL = Tokenizer.from_vocabulary(byte_level())
SPACED = Tokenizer.from_vocabulary(
    by_score({"a": -9.0, "\u2581": -9.0, "é": -9.0, "\u2581a": -1.0}, add_space_prefix=True)
)


def pushes(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(tokenizer=st.sampled_from([BYTE_LEVEL, SPACED]), data=st.data())
def test_pushes_and_flush_joined_are_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """For any ids at all: broken bytes, control tokens in the middle of a character, nothing."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    assert "".join(pushes(tokenizer, ids)) == tokenizer.decode(ids)
    whole = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
    assert tokenizer.decode(ids) == (whole.removeprefix(" ") if tokenizer is SPACED else whole)


@given(st.text())
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    """Byte-level tokens lose nothing."""
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text, specials=False)) == text


def test_a_character_is_held_back_until_it_is_whole() -> None:
    """An emoji in four tokens appears with the last of them."""
    ids = BYTE_LEVEL.encode("a😀b", specials=False)
    assert pushes(BYTE_LEVEL, ids) == ["a", "", "", "", "😀", "b", ""]


def test_bytes_that_cannot_become_a_character_are_shown_at_once() -> None:
    """As U+FFFD, as soon as the next byte rules everything else out; at the end, what is unfinished too."""
    start, _, _, last = BYTE_LEVEL.encode("😀", specials=False)
    (letter,) = BYTE_LEVEL.encode("a", specials=False)
    assert pushes(BYTE_LEVEL, [start, letter, last]) == ["", "\ufffda", "\ufffd", ""]
    assert pushes(BYTE_LEVEL, [letter, start]) == ["a", "", "\ufffd"]


def test_a_control_token_has_no_text() -> None:
    """Not even in the middle of a character."""
    (end,) = BYTE_LEVEL.encode("<|im_end|>", specials=True)
    first, second = BYTE_LEVEL.encode("é", specials=False)
    assert BYTE_LEVEL.decode([first, end, second, end]) == "é"
    assert BYTE_LEVEL.token_bytes(end) == b""
    assert BYTE_LEVEL.token_name(end) == "<|im_end|>"


def test_only_a_text_that_is_continued_keeps_its_first_space() -> None:
    """Where encoding puts an extra space in front, decoding from the beginning takes it off."""
    (spaced,) = SPACED.encode("a", specials=False)
    assert SPACED.detokenizer().push(spaced) == "a"
    assert SPACED.detokenizer(continuing=True).push(spaced) == " a"
    first = SPACED.detokenizer()
    assert [first.push(spaced), first.push(spaced)] == ["a", " a"]
