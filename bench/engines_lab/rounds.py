"""Rounds and turns: who is measured when, and what came of it.

Owns: the order, the fresh start of each engine in each round, the yardstick beside it, and how long it will still take.
Refuses to know: how a figure is made; what figures mean together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from engines_lab.contestants import Contestant, Places, slug
from engines_lab.door import Door, Void
from engines_lab.limits import Costs
from engines_lab.measures import LONG_TOKENS, Measure, Session, Shape
from engines_lab.neighbours import Neighbours
from engines_lab.prompts import Stock
from engines_lab.server import running
from engines_lab.yardstick import Machine, Yardstick
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


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
    the processors other programs used meanwhile."""

    engine: str
    round: int
    machine: Machine | None
    figures: dict[str, float] = field(default_factory=dict[str, float])
    void: dict[str, str] = field(default_factory=dict[str, str])
    others_share: float | None = None


async def measure_rounds(run: Run, rounds: int, on_turn: Callable[[Run, Turn], None]) -> None:
    """Everybody in turn, round after round; `on_turn` hears of each turn when it is over."""
    costs = Costs.of(run.places.packaged[run.model])
    stock = Stock(run.places.packaged[run.model])
    yardstick = Yardstick(run.places.scratch, threads=run.places.threads)
    took_s: dict[str, list[float]] = {}
    order = [(number, who) for number in range(rounds) for who in run.contestants[:: -1 if number % 2 else 1]]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} turns"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(order))
        for index, (number, who) in enumerate(order):
            left = _left_text([contestant.label for _, contestant in order[index:]], took_s)
            progress.update(bar, description=f"{run.model}, round {number + 1} of {rounds}: {who.label}{left}")
            began_at = time.monotonic()
            turn = Turn(engine=who.label, round=number, machine=yardstick.measure(costs.weights_bytes))
            neighbours = Neighbours()
            await _take(run, who, stock, turn)
            turn.others_share = neighbours.share()
            took_s.setdefault(who.label, []).append(time.monotonic() - began_at)
            on_turn(run, turn)
            progress.advance(bar)


async def _take(run: Run, who: Contestant, stock: Stock, turn: Turn) -> None:
    """Fill in `turn`."""
    for shapes in [(Shape.ONE, Shape.MANY)] if who.one_start else [(Shape.ONE,), (Shape.MANY,)]:
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
    warm_up = stock.prompts(f"{run.seed}, round {turn.round}, warm-up")
    for _ in range(2):
        await door.ask(warm_up.prompt(64), 16)
    long_text = stock.prompts(f"{run.seed}, round {turn.round}, long").prompt(max(LONG_TOKENS))
    for measure in measures:
        if measure.ask is None:
            continue
        prompts = stock.prompts(f"{run.seed}, round {turn.round}, {measure.key}")
        try:
            turn.figures[measure.key] = await measure.ask(Session(door=door, prompts=prompts, long_text=long_text))
        except Void as reason:
            turn.void[measure.key] = str(reason)


def _left_text(still: Sequence[str], took_s: dict[str, list[float]]) -> str:
    """How long the turns that are left will take, from those that are over; nothing before the first is."""
    if not took_s:
        return ""
    typical_s = mean(mean(times) for times in took_s.values())
    left_s = sum(mean(took_s[label]) if label in took_s else typical_s for label in still)
    return f", about {max(1, round(left_s / 60))} min left"
