"""Rounds: who is measured when, and what came of it.

Owns: the order, the fresh start of each engine in each round, the yardstick beside it, and how long it will still take.
Refuses to know: how a figure is made; what figures mean together.

A shared machine changes its speed within minutes. So the servers of a round are up together, idle but for one: all are
asked the same question within seconds, and then comes the next question. One that computes while idle has its own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from engines_lab.contestants import Contestant, Places, slug
from engines_lab.door import Door, Void
from engines_lab.limits import Costs
from engines_lab.measures import LONG_TOKENS, WARM_UP, Measure, Session, Shape
from engines_lab.neighbours import Neighbours
from engines_lab.prompts import Prompts, Stock
from engines_lab.server import Started, running
from engines_lab.yardstick import Machine, Yardstick
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_OVERHEAD_S: Final = 12.0
"""Of a turn: the yardstick, warming up, and ending the server."""
_PATIENCE_S: Final = 600.0
"""For all that one engine is asked in one round. A server that hangs must not hold up everybody."""
_SETTLE_S: Final = 0.3
"""Between two questions: threads of the engine asked before may wait busily for a moment."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One model's part: who, what, and from which prompts. `together`: memory holds everybody's server at once.
    `warm_up_tokens`: the most that a prompt has before anything is measured."""

    model: str
    places: Places
    contestants: Sequence[Contestant]
    measures: Sequence[Measure]
    seed: str
    together: bool = True
    warm_up_tokens: int = 2048


@dataclass(kw_only=True)
class Turn:
    """One engine in one round. A measure is in `figures`, or in `void` with the reason. `others_share` is how much of
    the processors programs of others used during the round; `took_s` is what it took this engine."""

    engine: str
    round: int
    machine: Machine | None
    figures: dict[str, float] = field(default_factory=dict[str, float])
    void: dict[str, str] = field(default_factory=dict[str, str])
    others_share: float | None = None
    took_s: float = 0.0


async def measure_rounds(
    run: Run, rounds: int, on_turn: Callable[[Run, Turn], None], *, until: float | None = None
) -> None:
    """Everybody, round after round; `on_turn` hears of each turn when its round is over.

    After the first, a round is begun only if it should end by `until`, on `time.monotonic`'s clock.
    """
    costs = Costs.of(run.places.packaged[run.model])
    stock = Stock(run.places.packaged[run.model])
    yardstick = Yardstick(run.places.scratch, threads=run.places.threads)
    took_s: list[float] = []
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"))
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("", total=rounds)
        for number in range(rounds):
            round_s = mean(took_s) if took_s else guess_s(run, 1)
            if number and until is not None and time.monotonic() + round_s > until:
                screen.print(f"{run.model}: another round would not end in time; {number} of {rounds} were measured")
                return
            left = f"about {minutes(round_s * (rounds - number))} left"

            def tell(doing: str, *, said: str = f"{run.model}, round {number + 1} of {rounds}, {left}") -> None:
                progress.update(bar, description=f"{said}: {doing}")

            began_at = time.monotonic()
            order = list(run.contestants[:: -1 if number % 2 else 1])
            resting = [who for who in order if run.together and who.rests]
            for together in filter(None, [resting, *([who] for who in order if who not in resting)]):
                turns = [Turn(engine=who.label, round=number, machine=None) for who in together]
                neighbours = Neighbours()
                machine = yardstick.measure(costs.weights_bytes)
                await _round(run, stock, together, turns, tell)
                others_share = neighbours.share()
                for turn in turns:
                    turn.machine, turn.others_share = machine, others_share
                    on_turn(run, turn)
            took_s.append(time.monotonic() - began_at)
            progress.advance(bar)
            if not screen.is_terminal:  # a log gets a line for each round in place of the bar
                screen.print(f"{run.model}, round {number + 1} of {rounds} took {took_s[-1]:.0f} s; {left} before it")


async def _round(
    run: Run, stock: Stock, who: Sequence[Contestant], turns: Sequence[Turn], tell: Callable[[str], None]
) -> None:
    """Fill in `turns`, one for each engine of `who`."""
    seats = [_Seat(run, stock, one, turn) for one, turn in zip(who, turns, strict=True)]
    try:
        if any(measure.ask is None for measure in run.measures):
            for seat in seats:  # alone: what a program shares with another one's would not count in full
                tell(f"start, {seat.who.label}")
                await seat.start()
        for shape in Shape:
            measures = [measure for measure in run.measures if measure.shape is shape and measure.ask is not None]
            for seat in seats if measures else []:
                tell(f"{shape}, {seat.who.label}")
                await seat.set_up(shape)
            for number, measure in enumerate(measures):
                for seat in seats[:: -1 if number % 2 else 1]:
                    tell(f"{measure.title}, {seat.who.label}")
                    await asyncio.sleep(_SETTLE_S)
                    await seat.ask(measure)
    finally:
        for seat in seats:
            await seat.leave()


class _Seat:
    """One engine in one round, with the server that it has up."""

    def __init__(self, run: Run, stock: Stock, who: Contestant, turn: Turn) -> None:
        self.who = who
        self._run = run
        self._stock = stock
        self._turn = turn
        self._server = contextlib.AsyncExitStack()
        self._shapes: Sequence[Shape] = ()  # what it serves
        self._door: Door | None = None

    async def start(self) -> None:
        """Start a server for nothing but what that takes."""
        wanted = [measure for measure in self._run.measures if measure.ask is None]
        try:
            async with self._timed(), self._running(self.who.starts[0][0]) as started:
                figures = {"start": started.start_s, "memory": started.memory_mb}
                self._turn.figures.update({measure.key: figures[measure.key] for measure in wanted})
        except Void as reason:
            self._void(wanted, reason)

    async def set_up(self, shape: Shape) -> None:
        """Have a server up that is at its best for `shape`; without one, what is asked of it is void."""
        if shape in self._shapes:
            return
        await self.leave()
        self._shapes = next(shapes for shapes in self.who.starts if shape in shapes)
        try:
            async with self._timed():
                started = await self._server.enter_async_context(self._running(shape))
                warm_up = self._prompts("warm-up")
                for _ in range(2):
                    await started.door.ask(warm_up.prompt(64), 64)
                streams, tokens = WARM_UP[shape]
                prompts = [warm_up.prompt(min(tokens, self._run.warm_up_tokens)) for _ in range(streams)]
                await asyncio.gather(*(started.door.ask(prompt, 2) for prompt in prompts))
                self._door = started.door
        except Void as reason:
            self._void([m for m in self._run.measures if m.shape in self._shapes and m.ask is not None], reason)

    async def ask(self, measure: Measure) -> None:
        """One figure, unless there is no server to ask."""
        if self._door is None or measure.ask is None:
            return
        long_text = self._prompts("long").prompt(max(LONG_TOKENS))
        session = Session(door=self._door, prompts=self._prompts(measure.key), long_text=long_text)
        try:
            async with self._timed(), asyncio.timeout(max(0.0, _PATIENCE_S - self._turn.took_s)):
                self._turn.figures[measure.key] = await measure.ask(session)
        except TimeoutError:
            self._void([measure], f"all together took more than {minutes(_PATIENCE_S)}")
        except Void as reason:
            self._void([measure], reason)

    async def leave(self) -> None:
        """End the server, if one is up."""
        self._door, self._shapes = None, ()
        await self._server.aclose()

    def _running(self, shape: Shape) -> contextlib.AbstractAsyncContextManager[Started]:
        log = self._run.places.scratch / f"{self._run.model}-{slug(self.who.label)}-{shape.name.lower()}.log"
        launch = self.who.launch(self._run.model, shape)
        return running(launch, self._stock.prompts("first").prompt(8), log)

    def _prompts(self, what: str) -> Prompts:
        return self._stock.prompts(f"{self._run.seed}, round {self._turn.round}, {what}")

    def _void(self, measures: Sequence[Measure], reason: object) -> None:
        for measure in measures:
            self._turn.void.setdefault(measure.key, str(reason))

    @contextlib.asynccontextmanager
    async def _timed(self) -> AsyncGenerator[None]:
        began_at = time.monotonic()
        try:
            yield
        finally:
            self._turn.took_s += time.monotonic() - began_at


def guess_s(run: Run, rounds: int) -> float:
    """How long all of it may take, before anything was measured."""
    return rounds * sum(_guess_s(who, run.measures) for who in run.contestants)


def minutes(seconds: float) -> str:
    """A length of time as people plan with it."""
    return f"{max(1, round(seconds / 60))} min"


def _guess_s(who: Contestant, measures: Sequence[Measure]) -> float:
    starts = 1 + sum(any(measure.shape in shapes for measure in measures) for shapes in who.starts)
    return _OVERHEAD_S + starts * who.start_takes_s + who.pace * sum(measure.takes_s for measure in measures)
