"""Rounds: who is asked when, and what came of it.

Owns: the processes, their order, and the way from a client's times to figures. Refuses to know: what figures mean
together.

All gateways are up together, idle but for one. Within a round each question goes to the mock itself and then to one
gateway after the other, forwards and backwards by turns: a shared machine changes its speed within minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engines_lab.processes import end, free_port, processor_s, proportional_mb
from gateway_lab.client import Result
from gateway_lab.contestants import Contestant, Launch, Places
from gateway_lab.questions import WARM_UP, Question

DIRECT: Final = "direct"
_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.1
_SETTLE_S: Final = 0.1
_BENCH: Final = Path(__file__).parents[1]
_LINE_BYTES: Final = 64 * 2**20


class Broken(Exception):
    """Something of ours does not run, or a gateway does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question to one contestant in one round. `processor_s` is what it took the contestant's own processes."""

    who: str
    question: str
    round: int
    result: Result
    processor_s: float


@dataclass(kw_only=True)
class Seat:
    """One contestant at its place, with what it has been asked and what it weighs."""

    label: str
    port: int
    process: subprocess.Popen[bytes]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    asked: int = 0
    memory_mb: float | None = None
    memory_after_mb: float | None = None


async def measure_rounds(
    places: Places,
    gateways: Sequence[Contestant],
    questions: Sequence[Question],
    rounds: int,
    *,
    limit_s: float | None = None,
    tell: Callable[[str], None],
    on_turn: Callable[[Turn], None],
) -> list[Seat]:
    """Ask everybody everything, `rounds` times, or until another round would not end within `limit_s`. Gives the seats
    as they were left. Raises Broken."""
    began_at = time.monotonic()
    async with contextlib.AsyncExitStack() as house:
        asking = await house.enter_async_context(client())
        direct = await house.enter_async_context(mock(places))
        seats = [direct]
        for who in gateways:
            tell(f"{who.label} starts")
            seats.append(await house.enter_async_context(_gateway(who, direct.port, places)))
        for seat in seats:
            await until_it_answers(asking, seat)
            await ask(asking, seat, WARM_UP)
            seat.memory_mb = proportional_mb(seat.process.pid)
        asking_since = time.monotonic()
        for number in range(rounds):
            round_s = (time.monotonic() - asking_since) / max(1, number)
            if limit_s is not None and number and time.monotonic() - began_at + round_s > limit_s:
                break
            for question in questions:
                if question.rounds is not None and number >= question.rounds:
                    continue
                for seat in seats[:: -1 if number % 2 else 1]:
                    tell(f"round {number + 1} of {rounds}: {question.title}, {seat.label}")
                    await asyncio.sleep(_SETTLE_S)
                    before_s = processor_s(seat.process.pid)
                    result = await ask(asking, seat, question)
                    took_s = processor_s(seat.process.pid) - before_s
                    on_turn(
                        Turn(who=seat.label, question=question.key, round=number, result=result, processor_s=took_s)
                    )
        for seat in seats:
            seat.memory_after_mb = proportional_mb(seat.process.pid)
        return seats


async def ask(asking: asyncio.subprocess.Process, seat: Seat, question: Question) -> Result:
    """One question, by the client's process, and what came of it. Raises Broken."""
    if asking.stdin is None or asking.stdout is None:
        raise Broken("the client has no pipes")
    asking.stdin.write(json.dumps(question.job(seat.port, dict(seat.headers))).encode() + b"\n")
    await asking.stdin.drain()
    line = await asking.stdout.readline()
    if not line:
        raise Broken("the client has ended")
    result = Result(**json.loads(line))
    seat.asked += len(result.last_byte_ns) + result.failed
    return result


async def until_it_answers(asking: asyncio.subprocess.Process, seat: Seat) -> None:
    """Knock until it does. Raises Broken."""
    knock = Question(key="knock", title="", requests=1)
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while True:
        if seat.process.poll() is not None:
            raise Broken(f"{seat.label} ended with {seat.process.returncode} while it started")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", seat.port)
        except OSError:
            result = None
        else:
            writer.close()
            result = await ask(asking, seat, knock)
            if not result.failed:
                return
        if asyncio.get_running_loop().time() > deadline:
            why = "it does not listen" if result is None else "; ".join(result.errors)
            raise Broken(f"{seat.label} does not answer: {why}")
        await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def client() -> AsyncGenerator[asyncio.subprocess.Process]:
    """The process that asks, for the time of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway_lab.client",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        cwd=_BENCH,
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def mock(places: Places) -> AsyncGenerator[Seat]:
    """The upstream, for the time of the block."""
    port = free_port()
    launch = Launch(command=[sys.executable, "-m", "gateway_lab.mock", str(port)])
    async with running(launch, places.scratch / "mock.log", folder=_BENCH) as process:
        yield Seat(label=DIRECT, port=port, process=process)


@contextlib.asynccontextmanager
async def _gateway(who: Contestant, upstream_port: int, places: Places) -> AsyncGenerator[Seat]:
    port = free_port()
    launch = who.launch(port, upstream_port)
    log = places.scratch / f"{who.label.lower()}.log"
    async with running(launch, log, folder=places.scratch) as process:
        yield Seat(label=who.label, port=port, process=process, headers=launch.headers)


@contextlib.asynccontextmanager
async def running(launch: Launch, log: Path, *, folder: Path) -> AsyncGenerator[subprocess.Popen[bytes]]:
    """A server, for the time of the block; what it prints goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it starts beside everything else
            launch.command,
            env={**os.environ, **launch.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
        try:
            yield process
        finally:
            await end(process)
