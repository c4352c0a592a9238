"""Sums of receipts the slow way: one after the other, from the records themselves.

What reports ask of a ledger, answered from a list; the ledger's own answers must be equal to these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

from taximeter.ledger import CostTotals, Dearest, Percentiles, Slice, Spent
from taximeter.records import (
    LABEL_KIND,
    Basis,
    Outcome,
    Phase,
    Receipt,
    Task,
    TaskWord,
    TaskWords,
    Usage,
    exact_sum,
    weakest,
)

_BEGINNING = datetime(1970, 1, 2, tzinfo=UTC)
_LEAVES = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES


class ReceiptsInMemory:
    """Receipts that nothing corrects, what was said of tasks, and how those ended, all oldest first."""

    def __init__(self, receipts: Sequence[Receipt], words: Sequence[TaskWord] = (), ends: Sequence[Task] = ()) -> None:
        self._receipts = receipts
        self._words = TaskWords.of(words, ends)
        self._starts = {word.task: word.said_at for word in words if word.verb == "start"}
        self._ends = {end.name: end for end in ends}

    def slices(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> list[Slice]:
        heaps: dict[tuple[int, str | None], list[Receipt]] = {}
        for receipt in self._receipts:
            groups = groups_of(receipt, self._words)
            for interval, (since, until) in enumerate(pairwise(edges)):
                if since <= receipt.closed_at < until and all(groups.get(kind) == name for kind, name in only):
                    heaps.setdefault((interval, None if by is None else groups.get(by)), []).append(receipt)
        slices = [slice_of(interval, name, heap) for (interval, name), heap in heaps.items()]
        none = Percentiles()
        return (
            slices if percentiles else [replace(one, first_token=none, inter_token=none, total=none) for one in slices]
        )

    def slices_and_whole(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> tuple[list[Slice], Slice | None]:
        wholes = self.slices(None, [edges[0], edges[-1]], only=only)
        return self.slices(by, edges, only=only, percentiles=percentiles), next(iter(wholes), None)

    def costs(
        self, by: str | None, edges: Sequence[datetime], *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        return [
            CostTotals(**{name: getattr(part, name) for name in CostTotals.__slots__})
            for part in self.slices(by, edges, only=only)
        ]

    def dearest(
        self,
        by: str,
        edges: tuple[datetime, datetime, datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        most: int,
    ) -> Dearest:
        past, now = (self.slices(by, span, only=only) for span in pairwise(edges))
        now.sort(key=lambda part: (part.name is None, -part.cost, -part.receipts, part.name or ""))
        shown = now if len(now) <= most else now[: most - 1]
        names = {part.name for part in shown}
        rest = {part.name for part in now} - names
        mine = [receipt for receipt in self._receipts if edges[1] <= receipt.closed_at < edges[2]]
        mine = [receipt for receipt in mine if self._belongs(receipt, only)]
        others = [receipt for receipt in mine if groups_of(receipt, self._words).get(by) in rest]
        return Dearest(
            slices=tuple(_unlooked_at(part) for part in shown),
            others=_unlooked_at(slice_of(0, None, others)) if others else None,
            names=len(rest),
            whole=slice_of(0, None, mine) if mine else None,
            before={part.name: _spent([part]) for part in past if part.name in names},
            others_before=_spent_or_none([part for part in past if part.name in rest]),
            whole_before=_spent_or_none(past),
        )

    def _belongs(self, receipt: Receipt, only: Sequence[tuple[str, str]]) -> bool:
        groups = groups_of(receipt, self._words)
        return all(groups.get(kind) == name for kind, name in only)

    def task_costs(
        self, names: Collection[str], until: datetime, *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        return [part for part in self.costs("task", [_BEGINNING, until], only=only) if part.name in names]

    def receipts_of(self, kind: str, name: str) -> list[Receipt]:
        return [receipt for receipt in self._receipts if groups_of(receipt, self._words).get(kind) == name]

    def active_hours(self, since: datetime, until: datetime) -> list[datetime]:
        closed = {receipt.closed_at for receipt in self._receipts if since <= receipt.closed_at < until}
        return sorted({at.astimezone(UTC).replace(minute=0, second=0, microsecond=0) for at in closed})

    def task_rules(self) -> TaskWords:
        return self._words

    def finished_tasks(self, since: datetime, until: datetime) -> list[Task]:
        stand = self.tasks_named(self._ends).values()
        return [task for task in stand if task.finished_at is not None and since <= task.finished_at < until]

    def tasks_named(self, names: Collection[str]) -> dict[str, Task]:
        stand: dict[str, Task] = {}
        for name in {*self._ends, *self._starts} & set(names):
            end, started_at = self._ends.get(name), self._starts.get(name)
            open_again = end is None or (started_at is not None and started_at > (end.finished_at or started_at))
            stand[name] = Task(name=name) if end is None or open_again else end
        return stand


def groups_of(receipt: Receipt, words: TaskWords) -> dict[str, str]:
    """What a receipt belongs to by kind, with the task that people's words come to."""
    request = receipt.request
    kinds: dict[str, str | None] = {
        "task": request.task,
        "run": request.run,
        "session": request.session,
        "model": request.model,
        "key": request.key,
        "source": receipt.source,
        "served_by": receipt.served_by,
        "outcome": receipt.outcome.value,
        **{LABEL_KIND + key.lower(): value for key, value in request.labels.items()},
    }
    groups = {kind: name for kind, name in kinds.items() if name is not None}
    task = words.task_of(groups, receipt.closed_at)
    return groups if task is None else {**groups, "task": task}


def slice_of(interval: int, name: str | None, receipts: Sequence[Receipt]) -> Slice:
    """The sum of some receipts."""
    tokens, unknown = Counter[str](), Counter[str]()
    money: dict[str, Decimal] = {}
    phases_ns = Counter[Phase]()
    for receipt in receipts:
        leaves: Mapping[str, int | None] = dict.fromkeys(_LEAVES) if receipt.usage is None else receipt.usage.leaves()
        for leaf, count in leaves.items():
            tokens[leaf] += count or 0
            unknown[leaf] += count is None
        for line in () if receipt.cost is None else receipt.cost.lines:
            unit = line.unit if line.unit in (*_LEAVES, "compute_ns") else "other"
            money[unit] = exact_sum([money.get(unit, Decimal(0)), line.amount])
        if receipt.timing is not None:
            phases_ns.update(receipt.timing.phases())
    failed = [receipt for receipt in receipts if receipt.outcome is not Outcome.COMPLETED]
    timings = [receipt.timing for receipt in receipts if receipt.timing is not None]
    said = [receipt.cost_reported for receipt in receipts if receipt.cost_reported is not None]
    return Slice(
        interval=interval,
        name=name,
        receipts=len(receipts),
        outcomes=Counter(receipt.outcome for receipt in receipts),
        tokens=dict(+tokens),
        unknown=dict(+unknown),
        cost=_cost(receipts),
        unpriced=sum(receipt.cost is None for receipt in receipts),
        money={unit: amount for unit, amount in money.items() if amount},
        failed_cost=_cost(failed),
        failed_unpriced=sum(receipt.cost is None for receipt in failed),
        phases_ns=dict(+phases_ns),
        timed=len(timings),
        compute_ns=sum(receipt.work.compute_ns for receipt in receipts if receipt.work is not None),
        first_token=percentiles([timing.first_token_ns for timing in timings]),
        inter_token=percentiles([receipt.inter_token_ns for receipt in receipts]),
        total=percentiles([timing.total_ns for timing in timings]),
        first_at=min(receipt.request.received_at for receipt in receipts),
        last_at=max(receipt.closed_at for receipt in receipts),
        usage_basis=_weakest(receipt.usage.basis for receipt in receipts if receipt.usage is not None),
        cost_basis=_weakest(receipt.cost.basis for receipt in receipts if receipt.cost is not None),
        time_basis=_weakest(
            Basis.MEASURED if receipt.source is None else Basis.REPORTED
            for receipt in receipts
            if receipt.timing is not None
        ),
        cost_reported=exact_sum(said),
        reported=len(said),
        off_scale=0,
    )


def _unlooked_at(part: Slice) -> Slice:
    """Without percentiles."""
    return replace(
        part,
        first_token=Percentiles(of=part.first_token.of),
        inter_token=Percentiles(of=part.inter_token.of),
        total=Percentiles(of=part.total.of),
    )


def _spent(parts: Sequence[Slice]) -> Spent:
    return Spent(
        receipts=sum(part.receipts for part in parts),
        unpriced=sum(part.unpriced for part in parts),
        cost=exact_sum(part.cost for part in parts),
    )


def _spent_or_none(parts: Sequence[Slice]) -> Spent | None:
    return _spent(parts) if parts else None


def percentiles(durations_ns: Sequence[int | None]) -> Percentiles:
    """By nearest rank."""
    known = sorted(duration for duration in durations_ns if duration is not None)

    def rank(percent: int) -> int | None:
        return known[-(-percent * len(known) // 100) - 1] if known else None

    n = len(known)
    return Percentiles(n=n, of=n, p50_ns=rank(50), p90_ns=rank(90), p95_ns=rank(95), p99_ns=rank(99))


def _cost(receipts: Sequence[Receipt]) -> Decimal:
    return exact_sum(receipt.cost.total for receipt in receipts if receipt.cost is not None)


def _weakest(bases: Iterable[Basis]) -> Basis | None:
    found = list(bases)
    return weakest(found) if found else None
