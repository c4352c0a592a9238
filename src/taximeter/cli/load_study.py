"""A study of load, from the first question to the result: calibrate, warm up, measure level by level, keep what was
seen.

Owns: the order, what a level may cost, how many processes send, and what Ctrl-C leaves. Refuses to know: the words of
the command line, how requests are timed, and what figures mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median
from typing import Any, Final

import numpy as np

from taximeter import __version__
from taximeter.cli.console import err
from taximeter.cli.measuring import Bench
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.later import Later, tell
from taximeter.measurement.asking.prompts import MOST_OUTPUT_TOKENS, Prompts
from taximeter.measurement.asking.spending import Estimate, estimate
from taximeter.measurement.load.arrivals import Arrivals
from taximeter.measurement.load.fleet import Asking, Fleet
from taximeter.measurement.load.level import Level, closed_level, drive, open_level
from taximeter.measurement.load.load import Load, auto_levels, measure
from taximeter.measurement.load.point import DEFINITIONS
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.senders import Send, Senders
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.workload import Ask, Workload
from taximeter.measurement.results import DEFINITIONS as COMMON
from taximeter.measurement.results import Result, environment
from taximeter.records import to_json

_TICK_S: Final = 0.5
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_CLOSED: Final = "closed loop: capacity, not latency under load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for. Without `levels` they are found out; without `clients` so is how many are needed."""

    is_open_loop: bool
    levels: tuple[float, ...]
    arrivals: Arrivals
    duration_s: float
    slo: Slo | None
    most_in_flight: int | None
    patience_s: float
    warm_up: int
    clients: int | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    load: Load
    result: Result
    subject: str
    setting: tuple[str, ...]
    was_interrupted: bool


class Study:
    """One measurement of one server, from the first question to the result."""

    def __init__(self, bench: Bench, plan: Plan, workload: Workload, say: Callable[[str], object]) -> None:
        self._bench = bench
        self._plan = plan
        self._workload = workload
        self._say = say
        self._stop = asyncio.Event()
        self._has_begun = False  # to measure: before that there is nothing to keep
        self._senders = Senders(
            self._send_here,
            self._fleet_of,
            clients=plan.clients,
            most=self._most_clients,
            on_more=self._once_more,
        )
        self._asking: Asking | None = None
        self._progress = _Progress(say, 0.0)
        self._issued = Decimal(0)
        self._latency_s = 0.0

    async def run(self) -> Outcome:
        plan = self._plan
        if self._bench.purse.most is not None and self._bench.target.upstream.provider is None:
            raise RequestError(f"--max-cost needs a price: {self._bench.why_no_price}", param="max-cost")
        if self._bench.purse.most is not None and plan.clients not in (None, 1):
            raise RequestError("with --max-cost one process sends, which knows what was spent", param="clients")
        async with self._interruptible(), self._senders:
            self._asking = await self._calibrated()
            self._issued = self._bench.purse.spent
            self._latency_s = await self._warmed_up()
            levels = plan.levels
            if self._is_replayed:
                levels = (self._level(None).value,)
            levels = levels or auto_levels(self._latency_s, is_open_loop=plan.is_open_loop)
            self._tell_price(levels)
            self._has_begun = True
            self._progress = _Progress(self._say, len(levels) * self._seconds_of_a_level)
            with self._progress:
                found = await measure(
                    self._drive,
                    levels,
                    is_open_loop=plan.is_open_loop,
                    slo=plan.slo,
                    rng=np.random.default_rng(plan.seed),
                    until_it_bends=not plan.levels,
                )
            return self._outcome(found, levels)

    @property
    def _is_replayed(self) -> bool:
        """Whether a trace is sent just as it was recorded."""
        return self._workload.recorded_ns is not None and not self._plan.levels and self._plan.is_open_loop

    @property
    def _seconds_of_a_level(self) -> float:
        return self._plan.arrivals.ramp_s + self._plan.duration_s + self._latency_s

    async def _calibrated(self) -> Asking:
        bench, target = self._bench, self._bench.target
        prompts: Prompts | None = None
        if self._workload.drawn is not None or not all(ask.is_literal for ask in self._workload.listed):
            seed = secrets.randbelow(2**48)  # words are never the same twice: caches outlive measurements
            prompts = await Prompts.calibrated(target, bench.asker(), seed=seed, report=self._say)
            self._workload = self._workload.fitted(
                target.context_tokens, shortest_prompt_tokens=prompts.shortest_tokens
            )
        return Asking(target=target, run=bench.run, prompts=prompts, shared_seed=secrets.randbelow(2**48))

    async def _warmed_up(self) -> float:
        """Ask some questions, one after the other; gives how long they took, in seconds."""
        assert self._asking is not None  # noqa: S101
        self._say("warming up")
        asker = self._bench.asker()
        asks = self._workload.asks(np.random.default_rng([self._plan.seed, 1]))
        took: list[float] = []
        error: str | None = None
        for _, ask in zip(range(self._plan.warm_up), asks, strict=False):
            if not self._allows(ask):
                break
            seen = await asker.ask(self._asking.question("warm-up", ask))
            latency_ns = seen.end_to_end_ns()
            error = seen.error or error
            if latency_ns is not None:
                took.append(latency_ns / 1e9)
        if not took and error is not None:
            raise UpstreamError(f"{self._bench.target.name} answered no question of the warm-up: {error}")
        return median(took) if took else 0.0

    def _level(self, value: float | None) -> Level:
        plan = self._plan
        if not plan.is_open_loop:
            assert value is not None  # noqa: S101 - only traces have no value of their own
            return closed_level(
                self._workload,
                round(value),
                jitter_s=min(self._latency_s, plan.duration_s),
                duration_s=plan.duration_s,
                seed=plan.seed,
                patience_s=plan.patience_s,
            )
        return open_level(
            self._workload,
            value,
            arrivals=plan.arrivals,
            duration_s=plan.duration_s,
            seed=plan.seed,
            most_in_flight=plan.most_in_flight,
            patience_s=plan.patience_s,
        )

    async def _drive(self, value: float) -> LoadRun | None:
        if self._stop.is_set():
            return None
        level = self._level(None if self._is_replayed else value)
        self._progress.begin(level.name, self._seconds_of_a_level)
        return await self._senders.send(level)

    @property
    def _most_clients(self) -> int:
        """How many processes may send where nobody said it: a level that is sent again must cost nothing."""
        is_free = self._bench.tariff is None or self._bench.target.upstream.machine_rate is not None
        return (os.cpu_count() or 1) if is_free and self._bench.purse.most is None else 1

    def _once_more(self, level: Level, clients: int) -> None:
        err().print(f"one client is too slow for {level.name}: once more with {clients}", style="yellow")
        self._progress.begin(level.name, self._seconds_of_a_level)

    @asynccontextmanager
    async def _fleet_of(self, clients: int) -> AsyncGenerator[Send]:
        async with Fleet(clients) as fleet:

            async def send(level: Level) -> LoadRun:
                assert self._asking is not None  # noqa: S101
                return await fleet.run(level, self._asking, books=self._bench.books, stop=self._stop)

            yield send

    async def _send_here(self, level: Level) -> LoadRun:
        assert self._asking is not None  # noqa: S101
        bench, later = self._bench, Later()
        # With a limit on what may be spent, what was spent has to be known at any time.
        books = later if bench.purse.most is None else bench.books
        asker = bench.target.asker(bench.client, bench.run, books=books, began_ns=SYSTEM_CLOCK.monotonic_ns())
        try:
            return await drive(level, asker, self._asking.question, allows=self._allows, stop=self._stop)
        finally:
            tell(bench.books, later.notes)

    def _allows(self, ask: Ask) -> bool:
        """Whether there is money for one more: what was asked for counts before it is billed."""
        purse = self._bench.purse
        if purse.most is None:
            return True
        expected = self._price([ask])
        if not purse.allows(expected) or expected is None or self._issued + expected > purse.most:
            return False
        self._issued += expected
        return True

    def _price(self, asks: Sequence[Ask]) -> Decimal | None:
        return self._estimate(asks).amount

    def _estimate(self, asks: Sequence[Ask]) -> Estimate:
        plan = [
            (1, ask.prompt_tokens or len(ask.text or str(ask.messages)) // 3, ask.output_tokens or MOST_OUTPUT_TOKENS)
            for ask in asks
        ]
        bench = self._bench
        return estimate(bench.tariff, bench.target.model, plan, at=SYSTEM_CLOCK.utc_now(), why_none=bench.why_no_price)

    def _tell_price(self, levels: Sequence[float]) -> None:
        """What it comes to, before it is sent, where anything is billed by the token."""
        if self._bench.target.upstream.provider is None and self._bench.purse.most is None:
            return
        if self._plan.is_open_loop:
            known = self._estimate([ask for value in levels for ask in self._level(value).asks])
            much = "an unknown amount" if known.amount is None else f"some ${known.amount:.4f}"
            why = "" if known.unknown_reason is None else f" ({known.unknown_reason})"
            says = f"{known.requests:,} requests, {known.input_tokens + known.output_tokens:,} tokens: {much}{why}"
            if known.amount is None and self._bench.purse.most is not None:
                raise RequestError(f"--max-cost needs a price: {known.unknown_reason}", param="max-cost")
        else:
            says = "as many requests as the server answers: how much that is cannot be said in advance"
        err().print(says, style="dim")

    @asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None]:
        """The first Ctrl-C, or SIGTERM, ends the measurement and keeps it, the second ends the program, as does the
        first before anything was measured. Whatever ends it, a server that was started for it ends too."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101

        def interrupt() -> None:
            if self._stop.is_set() or not self._has_begun:
                task.cancel()
            self._stop.set()

        with contextlib.suppress(NotImplementedError):  # Windows
            for number in _ENDING:
                loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            with contextlib.suppress(NotImplementedError):
                for number in _ENDING:
                    loop.remove_signal_handler(number)

    def _outcome(self, found: Load, levels: Sequence[float]) -> Outcome:
        plan, target, workload = self._plan, self._bench.target, self._workload
        clients = self._senders.clients
        loop = f"open loop, {plan.arrivals.name} arrivals" if plan.is_open_loop else _CLOSED
        if self._is_replayed:
            loop = "open loop, arrivals as recorded"
        conclusions: Any = to_json(replace(found, observations=()))
        result = Result(
            kind="load",
            run=self._bench.run,
            made_at=SYSTEM_CLOCK.utc_now(),
            taximeter_version=__version__,
            environment=environment(),
            targets=(target.describe(),),
            plan={
                "loop": "open" if plan.is_open_loop else "closed",
                "levels": list(levels),
                "workload": workload.says,
                "stands_on": workload.stands_on,
                "arrivals": plan.arrivals.name if plan.is_open_loop else None,
                "ramp_s": plan.arrivals.ramp_s,
                "duration_s": plan.duration_s,
                "most_in_flight": plan.most_in_flight,
                "patience_s": plan.patience_s,
                "clients": clients,
                "warm_up": plan.warm_up,
                "slo": None if plan.slo is None else str(plan.slo),
                "cache": "cold",
                "seed": plan.seed,
            },
            conclusions=conclusions,
            observations={target.name: found.observations},
            warnings=found.warnings,
            definitions={**COMMON, **DEFINITIONS},
        )
        stands = "" if workload.stands_on is None else f" (n = {workload.stands_on:,})"
        setting = (
            f"{loop}; {plan.duration_s:g} s a level; workload: {workload.says}{stands}",
            f"run {self._bench.run}, seed {plan.seed}, client processes: {clients}",
        )
        return Outcome(
            load=found,
            result=result,
            subject=f"{target.model} at {target.url}" + ("" if target.engine is None else f" ({target.engine})"),
            setting=setting,
            was_interrupted=self._stop.is_set(),
        )


class _Progress:
    """Says how far the levels are, and how long the rest takes. A context manager."""

    def __init__(self, say: Callable[[str], object], seconds: float) -> None:
        self._say = say
        self._total_s = seconds
        self._before_s = self._level_s = self._since_s = 0.0
        self._name = "measuring"
        self._ticking: asyncio.Task[None] | None = None

    def begin(self, name: str, seconds: float) -> None:
        """A level begins, which should take so long. Levels that nobody expected make it longer."""
        self._before_s += self._level_s
        self._name, self._level_s, self._since_s = name, seconds, asyncio.get_running_loop().time()
        self._total_s = max(self._total_s, self._before_s + seconds)

    def __enter__(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def __exit__(self, *_: object) -> None:
        assert self._ticking is not None  # noqa: S101 - it was entered
        self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            passed_s = min(asyncio.get_running_loop().time() - self._since_s, self._level_s)
            left_s = round(self._total_s - self._before_s - passed_s)
            self._say(f"{self._name}: {passed_s:.0f} of {self._level_s:.0f} s; {left_s // 60}:{left_s % 60:02d} left")
            await asyncio.sleep(_TICK_S)
