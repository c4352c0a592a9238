"""Stop strings are found across pieces and never shown, and an answer ends for the right reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.call_syntax import HERMES, MISTRAL
from taximeter.engine.output import OutputPiece, OutputProcessor, StopStrings
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.tool_calls import CallReader
from taximeter.records import FinishReason, Sampling
from tests.unit.engine.small_vocabularies import byte_level

TOKENIZER = Tokenizer.from_vocabulary(byte_level(control=("<|im_end|>", "[TOOL_CALLS]")))
(END,) = TOKENIZER.stop_ids
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Everything shown, and the stop that was found, for text arriving in `pieces`."""
    search = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, found = search.push(piece)
        shown += text
        if found is not None:
            return shown, found
    return shown + search.flush(), None


def test_a_stop_string_split_over_three_tokens_is_found() -> None:
    """The text ends right before it."""
    assert feed(["</end>"], ["Hello ", "</", "en", "d> more"]) == ("Hello ", "</end>")


def test_what_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    """Held back, not lost."""
    assert feed(["</end>"], ["a </en", "emy"]) == ("a </enemy", None)


def test_a_beginning_inside_a_beginning_is_still_found() -> None:
    """'aab' in 'aaab': the first try fails one letter late, the second one succeeds."""
    assert feed(["aab"], list("xaaab")) == ("xa", "aab")


def test_text_is_not_held_longer_than_needed() -> None:
    """A piece that cannot begin a stop string is shown at once."""
    search = StopStrings(["STOP"])
    assert search.push("hello S") == ("hello ", None)
    assert search.push("o") == ("So", None)


def test_of_two_the_one_that_begins_first_wins() -> None:
    """Also when the other one was listed first."""
    assert feed(["later", "now"], ["it is now or later"]) == ("it is ", "now")


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
        assert feed([stop], pieces) == ((text, None) if at < 0 else (text[:at], stop))


def read(
    text: str,
    *,
    end: FinishReason | None = None,
    limit: int = 1000,
    parallel: bool = True,
    tools: tuple[str, ...] = ("f",),
    **sampling: object,
) -> list[OutputPiece]:
    """What the tokens of a text come to, up to the one that ends the answer; `end` comes with the last of them."""
    processor = OutputProcessor(
        TOKENIZER,
        Sampling(**sampling),
        max_output_tokens=limit,
        reader=CallReader(HERMES, tools, parallel=parallel, salt="") if tools else None,
    )
    ids = TOKENIZER.encode(text, specials=True)
    pieces: list[OutputPiece] = []
    for place, token in enumerate(ids, 1):
        pieces.append(processor.push(token, end if place == len(ids) else None))
        if pieces[-1].finish_reason is not None:
            break
    return pieces


def shown(pieces: list[OutputPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def arguments(pieces: list[OutputPiece]) -> str:
    return "".join(delta.arguments for piece in pieces for delta in piece.calls)


def test_an_answer_that_called_ends_for_that_reason() -> None:
    """By the model's own end or by its form's; with the call whole by then."""
    by_token, by_form = read(CALL + "<|im_end|>"), read(CALL, end=FinishReason.STOP)
    for pieces in (by_token, by_form):
        assert pieces[-1].finish_reason is FinishReason.TOOL_CALLS
        assert (shown(pieces), arguments(pieces)) == ("", '{"a": 1}')


def test_an_answer_without_a_whole_call_just_ended() -> None:
    """There is nothing to run."""
    for text in ("no call", '<tool_call>{"name": "g", "arguments": {}}</tool_call>', CALL.replace("1}", "x}")):
        assert read(text + "<|im_end|>")[-1].finish_reason is FinishReason.STOP


def test_a_call_that_the_limit_cut_off_says_so() -> None:
    """What came of it is there, as for any other text."""
    pieces = read(CALL, limit=len(TOKENIZER.encode(CALL.removesuffix("}}</tool_call>"), specials=False)))
    assert pieces[-1].finish_reason is FinishReason.LENGTH
    assert arguments(pieces) == '{"a": 1'
    pieces = read("so <tool_ca", end=FinishReason.LENGTH)
    assert (shown(pieces), pieces[-1].finish_reason) == ("so <tool_ca", FinishReason.LENGTH)


def test_the_first_call_ends_the_answer_without_parallel_calls() -> None:
    """No token is spent on another one."""
    pieces = read(CALL + "\n" + CALL, parallel=False)
    assert pieces[-1].finish_reason is FinishReason.TOOL_CALLS
    assert len(pieces) <= len(CALL)
    assert arguments(pieces) == '{"a": 1}'


def test_a_form_ends_an_answer_whatever_else_was_asked() -> None:
    """Nothing can follow, not with `min_tokens` and not with `ignore_eos`."""
    for end in (FinishReason.STOP, FinishReason.LENGTH):
        pieces = read("12", end=end, tools=(), min_tokens=9, ignore_eos=True)
        assert (shown(pieces), pieces[-1].finish_reason) == ("12", end)
    assert read("12", end=FinishReason.STOP, limit=2, tools=())[-1].finish_reason is FinishReason.STOP


def test_a_stop_string_ends_a_form_early() -> None:
    """Both were asked for; the earlier one wins."""
    pieces = read("1234", stop=("3",), end=FinishReason.STOP, tools=())
    assert (shown(pieces), pieces[-1].finish_reason) == ("12", FinishReason.STOP)


def test_marks_that_are_control_tokens_are_seen_by_the_reader() -> None:
    """They have no text of their own."""
    (mark,) = TOKENIZER.encode("[TOOL_CALLS]", specials=True)
    reader = CallReader(MISTRAL, ("f",), parallel=True, salt="")
    processor = OutputProcessor(TOKENIZER, Sampling(), max_output_tokens=100, reader=reader, marks=frozenset({mark}))
    ids = [mark, *TOKENIZER.encode('[{"name": "f", "arguments": {}}]', specials=False), END]
    pieces = [processor.push(token) for token in ids]
    assert (shown(pieces), arguments(pieces)) == ("", "{}")
    assert pieces[-1].finish_reason is FinishReason.TOOL_CALLS
