"""What has to hold after a soak, and how that is seen. Owns: the promises. Refuses to know: who asked, and how."""

from __future__ import annotations

import asyncio
import resource
import statistics
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from soak_lab.clients import Tally

from taximeter.clock import SYSTEM_CLOCK
from taximeter.engine.backend import EmbeddedBackend
from taximeter.errors import InvariantBroken
from taximeter.ledger import Ledger
from taximeter.records import Outcome, Receipt
from taximeter.serve import House

SAMPLE_EVERY_S = 0.5
MOST_GROWTH_MB = 6.0  # what memory may grow by in the second half, by its trend: the ledger's cache, some more threads


def memory_mb() -> float:
    """What is resident of this process, server and clients."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize() / 1e6


@dataclass
class Watch:
    """Looks at the server while it is busy: memory by time, and the audits."""

    backend: EmbeddedBackend
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    audits: int = 0
    fullest_blocks: int = 0
    broken: list[str] = field(default_factory=list[str])

    async def look(self) -> None:
        """For ever."""
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        while True:
            try:
                census = await self.backend.audit()
                self.fullest_blocks = max(self.fullest_blocks, census.used)
            except InvariantBroken as error:
                self.broken.append(str(error))
            self.audits += 1
            self.memory.append(((SYSTEM_CLOCK.monotonic_ns() - began_ns) / 60e9, memory_mb()))
            await asyncio.sleep(SAMPLE_EVERY_S)

    def growth_mb(self) -> float:
        """Over the second half, by the straight line that fits best."""
        half = self.memory[len(self.memory) // 2 :]
        minutes, megabytes = zip(*half, strict=True)
        return statistics.linear_regression(minutes, megabytes).slope * (minutes[-1] - minutes[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One promise: what was seen of it, and what is wrong with that, if anything."""

    promise: str
    seen: str
    wrong: str | None


def held() -> Counter[str]:
    """What a server can leave behind, now."""
    return Counter(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        files=len(list(Path("/proc/self/fd").iterdir())),
    )


def judge_receipts(tally: Tally, receipts: list[Receipt], house: House) -> list[Verdict]:
    by_id = Counter(receipt.id for receipt in receipts)
    outcomes = {receipt.id: receipt.outcome for receipt in receipts}
    by_label = Counter(receipt.request.task for receipt in receipts)
    wrong = list(tally.wrong)
    for ids, outcome in ((tally.finished, Outcome.COMPLETED), (tally.refused, Outcome.REFUSED)):
        wrong += [f"{one}: {outcomes.get(one)} in the ledger, {outcome} for its client" for one in ids
                  if outcomes.get(one) is not outcome]  # fmt: skip
    # Whoever hangs up may do so before the request is read; then nothing was asked.
    wrong += [f"{label}: {by_label[label]} receipts" for label in tally.left if by_label[label] > 1]
    known = {*tally.finished, *tally.refused}
    left = set(tally.left)
    wrong += [f"{receipt.id}: nobody asked" for receipt in receipts
              if receipt.id not in known and receipt.request.task not in left]  # fmt: skip
    wrong += [f"{one}: {times} receipts" for one, times in by_id.items() if times > 1]
    failed = [receipt.error or "" for receipt in receipts if receipt.outcome is Outcome.FAILED]
    counts = house.ledger.counts()
    lost = counts.lost + counts.waiting + house.relay.receipts_lost
    seen = Counter(outcome.value for outcome in outcomes.values())
    return [
        Verdict(
            promise="every request has one receipt, with the outcome that its client saw",
            seen=", ".join(f"{count:,} {outcome}" for outcome, count in seen.most_common()),
            wrong=first_of(wrong),
        ),
        Verdict(
            promise="no request failed, no receipt was lost",
            seen=f"{len(failed)} failed, {lost} lost",
            wrong=first_of([*failed, *(["receipts are lost"] if lost else [])]),
        ),
    ]


def judge_answers(tally: Tally) -> Verdict:
    differing = [f"{key}: {len(answers)} answers" for key, answers in tally.answers.items() if len(answers) > 1]
    return Verdict(
        promise="a greedy answer is the same each time",
        seen=f"{tally.repeats:,} repeats of {len(tally.answers)} prompts",
        wrong=first_of(differing) or (None if tally.repeats else "nothing was asked twice"),
    )


def judge_memory_blocks(watch: Watch, used_at_rest: int) -> Verdict:
    wrong = [*watch.broken, *([f"{used_at_rest} blocks are still held"] if used_at_rest else [])]
    return Verdict(
        promise="the audit holds, and no block is held at the end",
        seen=f"{watch.audits:,} audits, at most {watch.fullest_blocks} blocks held",
        wrong=first_of(wrong),
    )


def judge_bill(house: House, receipts: list[Receipt]) -> Verdict:
    assert house.machine is not None  # noqa: S101 - a rate is always set here
    time = house.backend.machine_time()
    assert time is not None  # noqa: S101 - the embedded engine knows
    statement = house.machine.statement(time)
    on_receipts_ns = sum(receipt.work.compute_ns for receipt in receipts if receipt.work is not None)
    on_receipts = house.ledger.total_cost()
    wrong: list[str] = []
    if on_receipts_ns != time.busy_ns:
        wrong.append(f"{on_receipts_ns} ns on receipts, {time.busy_ns} ns busy")
    if on_receipts + statement.idle != statement.total or statement.in_flight_ns:
        wrong.append(f"{on_receipts} on receipts, {statement}")
    return Verdict(
        promise="receipts and idle time are the machine's whole bill",
        seen=f"{time.busy_ns / 1e9:,.3f} s on receipts + {(time.wall_ns - time.busy_ns) / 1e9:,.3f} s idle",
        wrong=first_of(wrong),
    )


def judge_leftovers(before: Counter[str], after: Counter[str]) -> Verdict:
    # Pools of threads grow up to their own limit; tasks and files have to be what they were.
    grown = [f"{after[name] - before[name]} {name} more" for name in ("tasks", "files") if after[name] > before[name]]
    return Verdict(
        promise="nothing is left behind",
        seen=", ".join(f"{after[name]} {name}" for name in after),
        wrong=first_of(grown),
    )


def judge_growth(watch: Watch) -> Verdict:
    growth_mb = watch.growth_mb()
    return Verdict(
        promise="memory is flat over the second half",
        seen=f"{growth_mb:+.2f} MB by its trend, {watch.memory[-1][1]:,.0f} MB at the end",
        wrong=f"more than {MOST_GROWTH_MB} MB" if growth_mb > MOST_GROWTH_MB else None,
    )


def first_of(wrong: list[str]) -> str | None:
    """What is wrong, in short."""
    return None if not wrong else f"{len(wrong):,}: " + "; ".join(wrong[:3])


def judge_next_opening(path: Path, receipts: float) -> Verdict:
    """After everything: the next process finds nothing to clear up."""
    with Ledger.open(str(path)) as ledger:
        found = Counter(receipt.outcome for receipt in ledger.receipts(limit=100_000))
    interrupted = found[Outcome.INTERRUPTED]
    return Verdict(
        promise="the next opening has nothing to clear up",
        seen=f"{found.total():,} receipts of {receipts:,} requests",
        wrong=f"{interrupted} interrupted" if interrupted else None,
    )
