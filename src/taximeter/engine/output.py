"""From picked tokens to text that may be shown, and to the end of an answer.

Owns: what is held back (a character that is not complete, a stop string that may be beginning) and why an answer
ends. Refuses to know: how tokens are picked, how calls are written, who reads the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taximeter.engine.held_back import possible_beginning
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.tool_calls import CallReader
from taximeter.records import FinishReason, Sampling, ToolCallDelta


class StopStrings:
    """Looks for strings that end an answer, across the borders of the pieces it is fed."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that can be shown now, the stop string that was found). The stop string itself, and what follows it, is
        never shown. Of several the one that begins first wins."""
        self._held += text
        found = [(at, stop) for at, stop in ((self._held.find(stop), stop) for stop in self._stops) if at >= 0]
        if found:
            at, stop = min(found, key=lambda place: place[0])
            shown, self._held = self._held[:at], ""
            return shown, stop
        keep = possible_beginning(self._held, self._stops)
        split = len(self._held) - keep
        shown, self._held = self._held[:split], self._held[split:]
        return shown, None

    def flush(self) -> str:
        """What was held back; no stop string came of it."""
        shown, self._held = self._held, ""
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """What one token added: text to show, pieces of calls, and why the answer ends with it, if it does; `stop` is the
    stop string, if it was one."""

    text: str
    calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | None = None


class OutputProcessor:
    """Follows one sequence's answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        max_output_tokens: int,
        reader: CallReader | None = None,
        marks: frozenset[int] = frozenset(),
    ) -> None:
        """`reader` finds the calls in the answer; `marks` are control tokens that it wants to see by their names."""
        self._detokenizer = tokenizer.detokenizer(continuing=True, visible=marks)
        self._stop_ids = frozenset[int]() if sampling.ignore_eos else tokenizer.stop_ids
        self._stops = StopStrings(sampling.stop)
        self._reader = reader
        self._min_tokens = sampling.min_tokens
        self._left = max_output_tokens
        self._seen = 0

    def push(self, token_id: int, end: FinishReason | None = None) -> OutputPiece:
        """The next token of the answer; `end` is why it has to be the last one, if so."""
        self._seen += 1
        self._left -= 1
        if token_id in self._stop_ids:
            return self._last("", FinishReason.STOP)
        text, stop = self._detokenizer.push(token_id), None
        if self._seen >= self._min_tokens:
            text, stop = self._stops.push(text)
        if stop is not None:
            return self._last(text, FinishReason.STOP, stop)
        if end is None and self._left <= 0:
            end = FinishReason.LENGTH
        if end is not None:
            return self._last(text, end)
        if self._reader is None:
            return OutputPiece(text=text)
        heard = self._reader.push(text)
        if self._reader.has_enough:
            end = FinishReason.TOOL_CALLS if self._reader.whole_calls else FinishReason.STOP
        return OutputPiece(text=heard.text, calls=tuple(heard.calls), finish_reason=end)

    def _last(self, text: str, reason: FinishReason, stop: str | None = None) -> OutputPiece:
        """The end of the answer, with all that was held back; nothing was that a stop string cut off."""
        if stop is None:
            rest, found = self._stops.push(self._detokenizer.flush())
            text += rest if found is not None else rest + self._stops.flush()
        if self._reader is None:
            return OutputPiece(text=text, finish_reason=reason, stop=stop)
        heard, rest = self._reader.push(text), self._reader.flush()
        if self._reader.whole_calls and (reason is FinishReason.STOP or self._reader.has_enough):
            reason = FinishReason.TOOL_CALLS
        return OutputPiece(
            text=heard.text + rest.text, calls=(*heard.calls, *rest.calls), finish_reason=reason, stop=stop
        )
