"""Stop strings are found across pieces and never shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.output import StopStrings


def feed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """Everything shown, and whether a stop was found, for text arriving in `pieces`."""
    search = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, found = search.push(piece)
        shown += text
        if found:
            return shown, True
    return shown + search.flush(), False


def test_a_stop_string_split_over_three_tokens_is_found() -> None:
    """The text ends right before it."""
    assert feed(["</end>"], ["Hello ", "</", "en", "d> more"]) == ("Hello ", True)


def test_what_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    """Held back, not lost."""
    assert feed(["</end>"], ["a </en", "emy"]) == ("a </enemy", False)


def test_a_beginning_inside_a_beginning_is_still_found() -> None:
    """'aab' in 'aaab': the first try fails one letter late, the second one succeeds."""
    assert feed(["aab"], list("xaaab")) == ("xa", True)


def test_text_is_not_held_longer_than_needed() -> None:
    """A piece that cannot begin a stop string is shown at once."""
    search = StopStrings(["STOP"])
    assert search.push("hello S") == ("hello ", False)
    assert search.push("o") == ("So", False)


def test_of_two_the_one_that_begins_first_wins() -> None:
    """Also when the other one was listed first."""
    assert feed(["later", "now"], ["it is now or later"]) == ("it is ", True)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab", max_size=5), max_size=8),
)
def test_cutting_the_text_differently_changes_nothing(stops: list[str], pieces: list[str]) -> None:
    """What is shown depends on the text alone: it is the text up to the first stop string that is complete.

    Which of several is complete first depends on the cut only when they overlap, so one stop at a time decides."""
    text = "".join(pieces)
    for stop in stops:
        at = text.find(stop)
        assert feed([stop], pieces) == ((text, False) if at < 0 else (text[:at], True))
