"""From picked tokens to text that may be shown, and to the end of an answer.

Owns: what is held back (a character that is not complete, a stop string that may be beginning) and why an answer
ends. Refuses to know: how tokens are picked, who reads the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taximeter.engine.tokenizer import Tokenizer
from taximeter.records import FinishReason, Sampling


class StopStrings:
    """Looks for strings that end an answer, across the borders of the pieces it is fed."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that can be shown now, whether a stop string was found). The stop string itself, and what follows
        it, is never shown. Of several the one that begins first wins."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        keep = self._possible_beginning()
        split = len(self._held) - keep
        shown, self._held = self._held[:split], self._held[split:]
        return shown, False

    def flush(self) -> str:
        """What was held back; no stop string came of it."""
        shown, self._held = self._held, ""
        return shown

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that some stop string begins with."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """What one token added: text to show, and why the answer ends with it, if it does. `tail` is then the rest."""

    text: str
    finish_reason: FinishReason | None = None
    tail: str = ""


class OutputProcessor:
    """Follows one sequence's answer."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, *, max_output_tokens: int) -> None:
        self._detokenizer = tokenizer.detokenizer(continuing=True)
        self._stop_ids = frozenset[int]() if sampling.ignore_eos else tokenizer.stop_ids
        self._stops = StopStrings(sampling.stop)
        self._min_tokens = sampling.min_tokens
        self._left = max_output_tokens
        self._seen = 0

    def push(self, token_id: int) -> OutputPiece:
        """The next token of the answer."""
        self._seen += 1
        self._left -= 1
        if token_id in self._stop_ids:
            return OutputPiece(text="", finish_reason=FinishReason.STOP, tail=self._rest())
        text, stopped = self._detokenizer.push(token_id), False
        if self._seen >= self._min_tokens:
            text, stopped = self._stops.push(text)
        if stopped:
            return OutputPiece(text=text, finish_reason=FinishReason.STOP)
        if self._left <= 0:
            return OutputPiece(text=text, finish_reason=FinishReason.LENGTH, tail=self._rest())
        return OutputPiece(text=text)

    def _rest(self) -> str:
        text, stopped = self._stops.push(self._detokenizer.flush())
        return text if stopped else text + self._stops.flush()
