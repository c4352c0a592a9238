"""A stated target, and what meets it.

Owns: reading `ttft=500ms,itl=50ms,share=0.95`, and judging one request by it. Refuses to know: rates, and how requests
were sent.

A request that was refused, that failed or that was given up is a miss, like one that was late. An answer of one token
has no time between tokens, so no limit on it can be missed. Where the server does not say how many tokens an answer
had, that time is not known, and the request is not taken for one that met it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from taximeter.errors import RequestError
from taximeter.figures import duration_text
from taximeter.measurement.asking.observation import Observation
from taximeter.records import Outcome


class Miss(StrEnum):
    """Why a request does not count."""

    REFUSED = "refused"
    FAILED = "failed"
    GIVEN_UP = "given up"
    TTFT = "by TTFT"
    ITL = "by ITL"
    E2E = "by end to end"
    UNKNOWN = "not known"


_LIMITS: Final = {"ttft": "ttft_ns", "itl": "itl_ns", "e2e": "e2e_ns"}
_UNITS_NS: Final = {"us": 1e3, "ms": 1e6, "s": 1e9}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)")
_EXAMPLE: Final = "--slo ttft=500ms,itl=50ms,share=0.95"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits that at least `share` of all requests must keep. None is no limit."""

    ttft_ns: int | None = None
    itl_ns: int | None = None
    e2e_ns: int | None = None
    share: float = 0.95

    def __post_init__(self) -> None:
        limits = (self.ttft_ns, self.itl_ns, self.e2e_ns)
        if all(limit is None for limit in limits):
            raise RequestError("the target has no limit", param="slo", hint=_EXAMPLE)
        if any(limit is not None and limit <= 0 for limit in limits):
            raise RequestError("a limit of the target must be more than 0", param="slo", hint=_EXAMPLE)
        if not 0 < self.share <= 1:
            raise RequestError("the target's share must be more than 0 and at most 1", param="slo", hint=_EXAMPLE)

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read `ttft=500ms,itl=50ms,e2e=10s,share=0.95`. Raises RequestError that says which part is wrong."""
        limits: dict[str, int] = {}
        share = 0.95
        seen: set[str] = set()
        for part in text.split(","):
            name, equals, value = (piece.strip().lower() for piece in part.partition("="))
            if not equals or name in seen or (name not in _LIMITS and name != "share"):
                raise RequestError(
                    f"{part.strip()!r} is no part of a target, which has ttft, itl, e2e and share",
                    param="slo",
                    hint=_EXAMPLE,
                )
            seen.add(name)
            if name == "share":
                share = _share(value)
            else:
                limits[_LIMITS[name]] = _duration_ns(name, value)
        return cls(**limits, share=share)

    def misses(self, seen: Observation) -> tuple[Miss, ...]:
        """Everything that is wrong with a request; nothing where it met the target."""
        if not seen.is_complete:
            return (_UNSERVED.get(seen.outcome, Miss.FAILED),)
        late = [
            self._judged(Miss.TTFT, self.ttft_ns, seen.ttft_ns),
            self._judged(Miss.E2E, self.e2e_ns, seen.end_to_end_ns),
        ]
        if seen.output_tokens is None or seen.output_tokens > 1:
            late.append(self._judged(Miss.ITL, self.itl_ns, lambda: seen.itl_ns))
        return tuple(dict.fromkeys(miss for miss in late if miss is not None))

    def meets(self, seen: Observation) -> bool:
        return not self.misses(seen)

    @staticmethod
    def _judged(kind: Miss, limit_ns: int | None, taken: Callable[[], int | None]) -> Miss | None:
        if limit_ns is None:
            return None
        taken_ns = taken()
        if taken_ns is None:
            return Miss.UNKNOWN
        return kind if taken_ns > limit_ns else None

    def __str__(self) -> str:
        limits = {"TTFT": self.ttft_ns, "ITL": self.itl_ns, "end to end": self.e2e_ns}
        kept = ", ".join(f"{name} {duration_text(ns)}" for name, ns in limits.items() if ns is not None)
        return f"{kept} for {self.share:.4g} of all"


_UNSERVED: Final = {Outcome.REFUSED: Miss.REFUSED, Outcome.ABORTED: Miss.GIVEN_UP}


def count_misses(slo: Slo, observations: Iterable[Observation]) -> Mapping[Miss, int]:
    """How many requests missed for each reason. One that was late in two ways is counted under both."""
    counts: dict[Miss, int] = {}
    for seen in observations:
        for miss in slo.misses(seen):
            counts[miss] = counts.get(miss, 0) + 1
    return counts


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise RequestError(f"share={text} is no number", param="slo", hint=_EXAMPLE) from error


def _duration_ns(name: str, text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise RequestError(f"{name}={text} is no duration: 500ms, 1.5s", param="slo", hint=_EXAMPLE)
    return round(float(found[1]) * _UNITS_NS[found[2]])
