"""What all taps have in common: what they have seen, and what follows from it.

Owns: the latest snapshot of the usage, the tokens that were seen, and the verdict on an answer that says less than it
should. Refuses to know: any dialect's framing, which each tap brings, and its words, which are in the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import msgspec

from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import Object, at_least, merged, read_usage, terms_in, word
from taximeter.providers.metering.words import Words
from taximeter.providers.sighting import Found, Seen
from taximeter.records import Phase, Terms, Usage

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)
"""What decoding a stranger's JSON may raise."""

SEEN = tuple(Seen(bits) for bits in range(32))
"""Every combination, so that a tap adds plain integers: adding flags costs more than decoding the event."""

NOTHING, TOKENS, ANSWER = 0, Seen.TOKENS.value, Seen.TOKENS.value | Seen.ANSWER.value
USAGE_ONLY, END, ERROR = Seen.USAGE_ONLY.value, Seen.END.value, Seen.ERROR.value

_MOST_USAGE_FIELDS = 1_000  # a usage is kept as it came, on every receipt
_MOST_CHOICES = 1_000


class DialectTap(ABC):
    """A `Tap`. A dialect says what each event is, and hands over what it finds."""

    def __init__(self, words: Words, *, streamed: bool) -> None:
        self._words = words
        self._streamed = streamed
        self._usage: Object | None = None
        self._no_usage: str | None = None  # why there is none, where that is known better than "it never came"
        self._is_current = False  # no tokens came after the usage
        self._is_settled = False  # and none can
        self._is_whole = False
        self._model: str | None = None
        self._model_said: object = None
        self._tier: str | None = None
        self._error: str | None = None
        self._finish_reasons: dict[int, str] = {}
        self._text_events = 0
        self._reasoning_events = 0
        self._unreadable_events = 0

    @abstractmethod
    def event(self, name: bytes, data: bytes) -> Seen:
        """See `Tap.event`."""

    @abstractmethod
    def whole(self, body: bytes) -> None:
        """See `Tap.whole`."""

    def found(self) -> Found:
        """See `Tap.found`."""
        return Found(
            usage=self._found_usage(),
            model=self._model,
            finish_reasons=tuple(reason for _, reason in sorted(self._finish_reasons.items())),
            terms=self._found_terms(),
            error=self._error,
            is_whole=self._is_whole,
            spent_ns=self._spent_ns(),
        )

    def _spent_ns(self) -> Mapping[Phase, int]:
        return {}

    def _said_usage(self) -> Object | None:
        """The usage object to read; a dialect may add to it what it knows from elsewhere."""
        return self._usage

    def _counted(self) -> Mapping[str, int]:
        """Extras that are billed and stand outside the usage object."""
        return {}

    def _take_usage(self, said: object) -> None:
        """A snapshot of the usage: null is none, and what comes later wins."""
        if said is None:
            return
        if not isinstance(said, Mapping) or len(cast("Object", said)) > _MOST_USAGE_FIELDS:
            self._no_usage = "the usage is no object that could be read"
            return
        later = cast("Object", said)
        self._is_current = True
        self._usage = later if self._usage is None else merged(self._usage, later)

    def _take_model(self, said: object) -> None:
        # Every chunk names it, and it seldom changes.
        if said is not None and said != self._model_said:
            self._model_said = said
            self._model = word(said) or self._model

    def _take_finish_reason(self, choice: object, said: object) -> None:
        reason = word(said)
        if reason is not None and len(self._finish_reasons) < _MOST_CHOICES:
            self._finish_reasons[choice if isinstance(choice, int) else 0] = reason

    def _take_error(self, said: object) -> None:
        self._error = complaint(said)

    def _generated(self, kind: int) -> None:
        """Tokens were seen in an event. Those after a usage are not in it."""
        self._is_current = self._is_settled = False
        if kind == ANSWER:
            self._text_events += 1
        else:
            self._reasoning_events += 1

    def _found_terms(self) -> Terms | None:
        within = Terms() if self._usage is None else terms_in(self._words, self._usage)
        tier = within.tier or self._tier
        terms = Terms(tier=tier, speed=within.speed, geography=within.geography)
        return None if terms == Terms() else terms

    def _found_usage(self) -> Usage:
        said = self._said_usage()
        if said is None:
            usage = Usage.unknown(self._why_no_usage())
        else:
            usage = read_usage(self._words, self._usage or said, model=self._model, said=said)
            if counted := self._counted():
                usage = replace(usage, other_units={**usage.other_units, **counted})
        if self._is_current and (self._is_settled or self._is_whole):
            return usage
        return at_least(usage, text_tokens=self._text_events, reasoning_tokens=self._reasoning_events)

    def _why_no_usage(self) -> str:
        if self._no_usage is not None:
            return self._no_usage
        if self._error is not None:
            return "the provider reported an error and no usage"
        if not self._streamed:
            return "the answer has no usage"
        why = "the stream ended without a usage" if self._is_whole else "the stream broke off before its usage"
        return f"{why}; {self._unreadable_events} events could not be read" if self._unreadable_events else why
