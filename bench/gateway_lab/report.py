"""What came of it: a table with what each gateway adds to the direct call, verdicts, and everything as JSON.

Owns: medians, quartiles, ratios, verdicts, the JSON's schema. Refuses to know: how times are taken.

A time that is *added* is a round's median behind the gateway less the same round's median without it; shown is the
median of the rounds, with its quartiles. A 99th percentile is of all rounds' times together.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from engines_lab.report import environment, number
from gateway_lab.questions import QUESTIONS, Question
from gateway_lab.rounds import DIRECT, Seat, Turn
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

SCHEMA: Final = "taximeter-bench-gateway/1"
OURS: Final = "Taximeter"
_PEERS: Final = ("LiteLLM", "Portkey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line: the rounds' figures of each contestant."""

    key: str
    title: str
    unit: str
    rounds: Mapping[str, Sequence[float]]
    more_is_better: bool = False

    def median(self, who: str) -> float | None:
        """Of its rounds; None where it has none."""
        figures = self.rounds.get(who)
        return statistics.median(figures) if figures else None

    def times_as_good(self, peer: str) -> float | None:
        """How many times as good ours is as the peer's."""
        ours, theirs = self.median(OURS), self.median(peer)
        if ours is None or theirs is None or ours <= 0 or theirs <= 0:
            return None
        return ours / theirs if self.more_is_better else theirs / ours

    def cell(self, who: str) -> str:
        """As the table has it."""
        figures = self.rounds.get(who)
        if not figures:
            return ""
        if len(figures) < 3:
            return number(statistics.median(figures))
        low, middle, high = statistics.quantiles(figures, n=4)
        return f"{number(middle)} [dim]({number(low)} to {number(high)})[/dim]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target, and whether it was reached; None where it cannot be said."""

    target: str
    said: str
    reached: bool | None


class Report:
    """Collects turns."""

    def __init__(self, versions: Mapping[str, str], absent: Mapping[str, str], *, rounds: int, ledger: Path) -> None:
        """`ledger` is the folder of our ledger. Its disk is asked in every turn how long a small write takes to be on
        it: that is the floor under our answers, and busy neighbours raise it thirtyfold."""
        self._ledger = ledger
        self._syncs_ms: list[float] = []
        self._versions = versions
        self._absent = absent
        self._turns: list[Turn] = []
        self._seats: Sequence[Seat] = ()
        self._receipts: int | None = None
        self._head = {
            "schema": SCHEMA,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": rounds,
            "environment": environment(1),
        }

    def __call__(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._syncs_ms.append(_sync_ms(self._ledger))

    def close(self, seats: Sequence[Seat], receipts: int | None) -> None:
        """How the seats were left, and how many receipts our ledger has."""
        self._seats, self._receipts = seats, receipts

    def tables(self) -> Group:
        """The figures, the verdicts, then who is absent and what failed."""
        figures, labels = self._figures(), [DIRECT, *self._versions]
        peers = [peer for peer in _PEERS if peer in self._versions]
        table = Table(title="what each gateway adds, medians of rounds (quartiles)", box=SIMPLE_HEAD)
        table.add_column("measure")
        for label in labels:
            table.add_column(label, justify="right")
        for peer in peers:
            table.add_column(f"{peer} / ours", justify="right")
        for figure in figures.values():
            ratios = (figure.times_as_good(peer) for peer in peers)
            said = ("" if ratio is None else f"[bold]{number(ratio)} ×[/bold]" for ratio in ratios)
            table.add_row(f"{figure.title}, {figure.unit}", *map(figure.cell, labels), *said)
        verdicts = Table(title="targets", box=SIMPLE_HEAD)
        for heading in ("target", "measured"):
            verdicts.add_column(heading)
        for verdict in self._verdicts(figures):
            color = {True: "green", False: "red", None: "dim"}[verdict.reached]
            verdicts.add_row(verdict.target, f"[{color}]{verdict.said}[/{color}]")
        notes = [f"{label} did not take part: {reason}" for label, reason in self._absent.items()]
        for turn in self._turns:
            if turn.result.failed:
                said = f"{turn.result.failed} failed: {'; '.join(turn.result.errors)[:300]}"
                notes.append(f"{turn.who}, {turn.question}, round {turn.round + 1}: {said}")
        if self._syncs_ms:
            low, middle, high = (number(one) for one in statistics.quantiles(self._syncs_ms, n=4))
            notes.append(f"One write and sync on the ledger's disk took {middle} ms ({low} to {high}) meanwhile.")
        return Group(table, verdicts, *map(Text, notes))

    def write(self, path: Path) -> None:
        """Everything but the single times."""
        figures = self._figures()
        document = {
            **self._head,
            "versions": dict(self._versions),
            "absent": dict(self._absent),
            "sync_ms": self._syncs_ms,
            "figures": [asdict(figure) for figure in figures.values()],
            "verdicts": [asdict(verdict) for verdict in self._verdicts(figures)],
        }
        path.write_text(json.dumps(document, indent=1) + "\n")

    def _figures(self) -> dict[str, Figure]:
        figures = [figure for question in QUESTIONS for figure in self._of(question)]
        for key, title in (("memory_mb", "memory after the first requests"), ("memory_after_mb", "memory at the end")):
            weights = {seat.label: [getattr(seat, key)] for seat in self._seats if getattr(seat, key) is not None}
            figures.append(Figure(key=key, title=title, unit="MB PSS", rounds=weights))
        return {figure.key: figure for figure in figures if figure.rounds}

    def _of(self, question: Question) -> Iterator[Figure]:
        def figure(key: str, title: str, unit: str, rounds: Mapping[str, Sequence[float]], *, more: bool) -> Figure:
            title = f"{question.title}: {title}"
            return Figure(key=f"{question.key}-{key}", title=title, unit=unit, rounds=rounds, more_is_better=more)

        if question.is_load:
            yield figure("rate", "answered", "req/s", self._each(question, _rate), more=True)
            yield figure("cpu", "processor, 1,000 requests", "s", self._each(question, _processor_s), more=False)
            return
        times = [("first", "to first byte", "first_byte_ns"), ("last", "to last byte", "last_byte_ns")]
        if question.events:
            times = [("first", "to first byte", "first_byte_ns"), ("event", "on each event", "event_ns")]
        for key, title, name in times:
            yield figure(f"{key}-p50", f"{title} p50", "ms", self._added(question, name), more=False)
            yield figure(f"{key}-p99", f"{title} p99", "ms", self._added_p99(question, name), more=False)
        if question.events:
            yield figure("reads", "reads per event", "", self._each(question, _reads), more=False)
            yield figure("cpu", "processor, 1,000 events", "s", self._each(question, _processor_s), more=False)
            yield figure(
                "lost", "lost", "events", self._each(question, lambda turn: turn.result.lost_events), more=False
            )

    def _of_question(self, question: Question) -> dict[str, list[Turn]]:
        by_who: dict[str, list[Turn]] = {}
        for turn in self._turns:
            if turn.question == question.key and turn.result.last_byte_ns:
                by_who.setdefault(turn.who, []).append(turn)
        return by_who

    def _each(self, question: Question, of: Callable[[Turn], float]) -> dict[str, list[float]]:
        return {who: [of(turn) for turn in turns] for who, turns in self._of_question(question).items()}

    def _added(self, question: Question, name: str) -> dict[str, list[float]]:
        turns = self._of_question(question)
        direct = {turn.round: statistics.median(getattr(turn.result, name)) for turn in turns.get(DIRECT, ())}
        return {
            who: [
                (statistics.median(getattr(turn.result, name)) - (0 if who == DIRECT else direct[turn.round])) / 1e6
                for turn in theirs
                if turn.round in direct and getattr(turn.result, name)
            ]
            for who, theirs in turns.items()
        }

    def _added_p99(self, question: Question, name: str) -> dict[str, list[float]]:
        pooled = {
            who: sorted(ns for turn in turns for ns in getattr(turn.result, name))
            for who, turns in self._of_question(question).items()
        }
        p99 = {who: times[min(len(times) - 1, len(times) * 99 // 100)] / 1e6 for who, times in pooled.items() if times}
        return {who: [value - (0 if who == DIRECT else p99.get(DIRECT, 0))] for who, value in p99.items()}

    def _verdicts(self, figures: Mapping[str, Figure]) -> Iterator[Verdict]:
        first = figures.get("whole-1k-first-p50")
        if first is not None and (ours := first.median(OURS)) is not None:
            for target, limit in (("must", 1.0), ("aim", 0.4)):
                said = f"{ours:.2f} ms"
                yield Verdict(target=f"{target}: at most {limit:g} ms added p50", said=said, reached=ours <= limit)
            ratio = first.times_as_good("LiteLLM")
            yield _ratio_verdict("must: added p50 at most 1/4 of LiteLLM's", ratio, 4)
        for connections in (1, 8, 32):
            cpu = figures.get(f"load-{connections}-cpu")
            if cpu is not None:
                where = f"processor per request, {connections} connections"
                yield _ratio_verdict(f"must: {where}, at most 1/5 of LiteLLM's", cpu.times_as_good("LiteLLM"), 5)
                yield _ratio_verdict(f"must: {where}, below Portkey's", cpu.times_as_good("Portkey"), 1)
        lost = figures.get("slow-500-lost")
        if lost is not None and (events := lost.median(OURS)) is not None:
            yield Verdict(
                target="must: 500 streams without a lost event", said=f"{events:.0f} lost", reached=not events
            )
        asked = next((seat.asked for seat in self._seats if seat.label == OURS), None)
        if asked is not None and self._receipts is not None:
            said = f"{self._receipts:,} receipts, {asked:,} requests"
            yield Verdict(target="must: a receipt for each request", said=said, reached=self._receipts == asked)


def _ratio_verdict(target: str, ratio: float | None, wanted: float) -> Verdict:
    if ratio is None:
        return Verdict(target=target, said="not measured", reached=None)
    return Verdict(target=target, said=f"1/{ratio:.2f}", reached=ratio >= wanted)


def _sync_ms(folder: Path) -> float:
    """How long one small write takes to be on the disk, in milliseconds: the median of nine."""
    took_ns: list[int] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(9):
            began_ns = time.perf_counter_ns()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            took_ns.append(time.perf_counter_ns() - began_ns)
    return statistics.median(took_ns) / 1e6


def _rate(turn: Turn) -> float:
    return len(turn.result.last_byte_ns) / turn.result.wall_s


def _processor_s(turn: Turn) -> float:
    return turn.processor_s * 1000 / (len(turn.result.event_ns) or len(turn.result.last_byte_ns))


def _reads(turn: Turn) -> float:
    return turn.result.reads / max(1, len(turn.result.event_ns))
