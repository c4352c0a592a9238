"""What finished tasks cost: each one by all of its receipts, whenever they were, in the period it finished in.

Owns: when a task counts as finished, and the median, the 90th percentile and the price of a success over such tasks.
Refuses to know: whose receipts are a task's (`records.TaskWords`), and how they are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal, localcontext
from enum import StrEnum
from fractions import Fraction

from taximeter.ledger import CostTotals
from taximeter.records import EXACT, PICODOLLARS_PER_DOLLAR, Task, exact_sum


class TaskState(StrEnum):
    """How a task stands. ENDED is finished by its silence: nobody said how."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLife:
    """A task from its first receipt to its last: what it cost in all, how many of its receipts have no cost, and how it
    stands. `ended_at` is None while it is open."""

    name: str
    state: TaskState
    ended_at: datetime | None = None
    receipts: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0

    @property
    def is_priced(self) -> bool:
        """Whether anything of it has a cost, so that there is a figure to compare. What a task without receipts cost is
        unknown: they may be in a log that nobody has imported."""
        return self.unpriced < self.receipts


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What `n` tasks cost. `median` and `p90` are over those of which anything has a price (`priced`), None where there
    is none; `at_least` of these have receipts without one, so that their figure is a lower bound. `cost` is the sum of
    what is known, `unpriced` how many receipts have no cost."""

    n: int = 0
    priced: int = 0
    at_least: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    median: Decimal | None = None
    p90: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """Tasks that finished in one period. `per_success` is what all of them cost, failures too, for each that succeeded
    and of whose cost anything is known; None where none did, or nobody said so. To the picodollar: it is a quotient."""

    finished: Costs = field(default_factory=Costs)
    succeeded: Costs = field(default_factory=Costs)
    failed: Costs = field(default_factory=Costs)
    ended: Costs = field(default_factory=Costs)

    @property
    def per_success(self) -> Decimal | None:
        # A success without receipts, or none of whose receipts has a cost, would make the others cheaper than they are.
        if self.succeeded.priced == 0:
            return None
        return _divided(exact_sum([self.succeeded.cost, self.failed.cost]), self.succeeded.priced)


def figures_of(lives: Iterable[TaskLife]) -> TaskFigures:
    """Over finished tasks; open ones do not count."""
    by_state: dict[TaskState, list[TaskLife]] = {state: [] for state in TaskState}
    for life in lives:
        by_state[life.state].append(life)
    succeeded, failed, ended = (by_state[state] for state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.ENDED))
    return TaskFigures(
        finished=_costs([*succeeded, *failed, *ended]),
        succeeded=_costs(succeeded),
        failed=_costs(failed),
        ended=_costs(ended),
    )


def lives_of(
    names: Iterable[str], ends: Mapping[str, Task], costs: Sequence[CostTotals], *, idle_s: int | None, now: datetime
) -> dict[str, TaskLife]:
    """How tasks stand and what they cost, from the last word on how each one ended and the cost of all their receipts.

    Without a word a task has ended once it was silent for `idle_s`, at its last receipt; and never where that is None.
    """
    sums = {part.name: part for part in costs}
    lives: dict[str, TaskLife] = {}
    for name in names:
        part, end = sums.get(name), ends.get(name)
        state, ended_at = TaskState.OPEN, None
        if end is not None and end.finished_at is not None:
            state, ended_at = TaskState.SUCCEEDED if end.succeeded else TaskState.FAILED, end.finished_at
        elif idle_s is not None and part is not None and part.last_at + timedelta(seconds=idle_s) <= now:
            state, ended_at = TaskState.ENDED, part.last_at
        lives[name] = TaskLife(
            name=name,
            state=state,
            ended_at=ended_at,
            receipts=0 if part is None else part.receipts,
            cost=Decimal(0) if part is None else part.cost,
            unpriced=0 if part is None else part.unpriced,
        )
    return lives


def _costs(lives: Sequence[TaskLife]) -> Costs:
    priced = sorted(life.cost for life in lives if life.is_priced)
    return Costs(
        n=len(lives),
        priced=len(priced),
        at_least=sum(life.is_priced and life.unpriced > 0 for life in lives),
        cost=exact_sum(life.cost for life in lives),
        unpriced=sum(life.unpriced for life in lives),
        median=_median(priced),
        p90=priced[-(-9 * len(priced) // 10) - 1] if priced else None,
    )


def _median(ordered: Sequence[Decimal]) -> Decimal | None:
    """The one in the middle, or half of the two: exact."""
    if not ordered:
        return None
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    with localcontext(EXACT):
        return (ordered[middle - 1] + ordered[middle]) * Decimal("0.5")


def _divided(amount: Decimal, by: int) -> Decimal:
    """To the nearest picodollar."""
    return Decimal(round(Fraction(amount) * PICODOLLARS_PER_DOLLAR / by)).scaleb(-12, EXACT)
