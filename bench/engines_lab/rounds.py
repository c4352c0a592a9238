"""Rounds and turns: who is measured when, and what came of it.

Owns: the order, the fresh start of each engine in each round, the yardstick beside it, and how long it will still take.
Refuses to know: how a figure is made; what figures mean together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from engines_lab.contestants import Contestant, Places, slug
from engines_lab.door import Door, Void
from engines_lab.limits import Costs
from engines_lab.measures import LONG_TOKENS, Measure, Session
from engines_lab.neighbours import Neighbours
from engines_lab.prompts import Stock
from engines_lab.server import running
from engines_lab.yardstick import Machine, Yardstick
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_OVERHEAD_S: Final = 6.0
"""Of a turn: the yardstick, warming up, and ending the server."""
_PATIENCE_S: Final = 600.0
"""For all that one server is asked. A server that hangs must not hold up everybody."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One model's part: who, what, and from which prompts."""

    model: str
    places: Places
    contestants: Sequence[Contestant]
    measures: Sequence[Measure]
    seed: str


@dataclass(kw_only=True)
class Turn:
    """One engine in one round. A measure is in `figures`, or in `void` with the reason. `others_share` is how much of
    the processors other programs used meanwhile; `took_s` is all of the turn, the yardstick too."""

    engine: str
    round: int
    machine: Machine | None
    figures: dict[str, float] = field(default_factory=dict[str, float])
    void: dict[str, str] = field(default_factory=dict[str, str])
    others_share: float | None = None
    took_s: float = 0.0


class Plan:
    """How long turns take: guessed from what is asked, until the first of each engine is over."""

    def __init__(self, run: Run) -> None:
        self._guess_s = {who.label: _guess_s(who, run.measures) for who in run.contestants}
        self._took_s: dict[str, list[float]] = {}

    def add(self, turn: Turn) -> None:
        self._took_s.setdefault(turn.engine, []).append(turn.took_s)

    def turn_s(self, label: str) -> float:
        return mean(self._took_s[label]) if label in self._took_s else self._guess_s[label]

    def left_s(self, labels: Iterable[str]) -> float:
        return sum(map(self.turn_s, labels))


async def measure_rounds(
    run: Run, rounds: int, on_turn: Callable[[Run, Turn], None], *, until: float | None = None
) -> None:
    """Everybody in turn, round after round; `on_turn` hears of each turn when it is over.

    After the first, a round is begun only if it should end by `until`, on `time.monotonic`'s clock.
    """
    costs = Costs.of(run.places.packaged[run.model])
    stock = Stock(run.places.packaged[run.model])
    yardstick = Yardstick(run.places.scratch, threads=run.places.threads)
    plan = Plan(run)
    labels = [who.label for who in run.contestants]
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} turns"))
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("", total=rounds * len(labels))
        for number in range(rounds):
            if number and until is not None and time.monotonic() + plan.left_s(labels) > until:
                screen.print(f"{run.model}: another round would not end in time; {number} of {rounds} were measured")
                return
            order = run.contestants[:: -1 if number % 2 else 1]
            for index, who in enumerate(order):
                left_s = plan.left_s([*(other.label for other in order[index:]), *labels * (rounds - number - 1)])
                told = f"{run.model}, round {number + 1} of {rounds}: {who.label}, about {minutes(left_s)} left"
                progress.update(bar, description=told)
                began_at = time.monotonic()
                turn = Turn(engine=who.label, round=number, machine=yardstick.measure(costs.weights_bytes))
                neighbours = Neighbours()
                await _take(run, who, stock, turn)
                turn.others_share = neighbours.share()
                turn.took_s = time.monotonic() - began_at
                plan.add(turn)
                on_turn(run, turn)
                progress.advance(bar)
                if not screen.is_terminal:  # a log gets a line for each turn in place of the bar
                    screen.print(f"{told}; this turn took {turn.took_s:.0f} s")


async def _take(run: Run, who: Contestant, stock: Stock, turn: Turn) -> None:
    """Fill in `turn`."""
    for shapes in who.starts:
        measures = [measure for measure in run.measures if measure.shape in shapes]
        if not measures:
            continue
        first_prompt = stock.prompts("first").prompt(8)
        log = run.places.scratch / f"{run.model}-{slug(who.label)}-{shapes[0].name.lower()}.log"
        try:
            async with running(who.launch(run.model, shapes[0]), first_prompt, log) as started:
                for measure in measures:
                    if measure.key in ("start", "memory"):
                        turn.figures[measure.key] = {"start": started.start_s, "memory": started.memory_mb}[measure.key]
                await _ask_all(run, started.door, measures, stock, turn)
        except Void as reason:
            for measure in measures:
                if measure.key not in turn.figures:
                    turn.void.setdefault(measure.key, str(reason))


async def _ask_all(run: Run, door: Door, measures: Sequence[Measure], stock: Stock, turn: Turn) -> None:
    if all(measure.ask is None for measure in measures):
        return
    give_up_at = time.monotonic() + _PATIENCE_S
    warm_up = stock.prompts(f"{run.seed}, round {turn.round}, warm-up")
    for _ in range(2):
        await door.ask(warm_up.prompt(64), 16)
    long_text = stock.prompts(f"{run.seed}, round {turn.round}, long").prompt(max(LONG_TOKENS))
    for measure in measures:
        if measure.ask is None:
            continue
        prompts = stock.prompts(f"{run.seed}, round {turn.round}, {measure.key}")
        session = Session(door=door, prompts=prompts, long_text=long_text)
        try:
            async with asyncio.timeout(max(0.0, give_up_at - time.monotonic())):
                turn.figures[measure.key] = await measure.ask(session)
        except TimeoutError:
            turn.void[measure.key] = f"all together took more than {minutes(_PATIENCE_S)}"
        except Void as reason:
            turn.void[measure.key] = str(reason)


def guess_s(run: Run, rounds: int) -> float:
    """How long all of it may take, before anything was measured."""
    return rounds * Plan(run).left_s(who.label for who in run.contestants)


def minutes(seconds: float) -> str:
    """A length of time as people plan with it."""
    return f"{max(1, round(seconds / 60))} min"


def _guess_s(who: Contestant, measures: Sequence[Measure]) -> float:
    starts = sum(any(measure.shape in shapes for measure in measures) for shapes in who.starts)
    return _OVERHEAD_S + starts * who.start_takes_s + who.pace * sum(measure.takes_s for measure in measures)
