"""So many slots that are always busy: what a server can do, and not what its users wait.

Owns: the slots, when each begins, and when the last request is sent. Refuses to know: what is asked, and what the
figures say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.arrivals import NS_PER_S, until
from taximeter.measurement.load.client_health import HealthWatch, with_lags
from taximeter.measurement.load.open_loop import given_up
from taximeter.measurement.load.run import LoadRun

_PAUSE_S: Final = 0.25  # of a slot whose request was not served: a server that refuses is not asked as fast as it can


async def run_closed_loop(
    asker: Asker,
    questions: Iterator[Question],
    starts_ns: Sequence[int],
    *,
    duration_s: float | None = None,
    patience_s: float = 60.0,
    stop: asyncio.Event | None = None,
    watch: HealthWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> LoadRun:
    """Keep one slot busy for each of `starts_ns`, which are when it begins: slots that begin together stay together,
    and their averages are those of a wave.

    No request begins `duration_s` after the moment when all slots were first busy, or when there are no more
    `questions`. `patience_s` after the first slot found nothing more to do, what has not ended is given up. Setting
    `stop` gives up at once, and keeps what was seen.
    """
    stop = asyncio.Event() if stop is None else stop
    watch = HealthWatch(began_ns=asker.began_ns, clock=clock) if watch is None else watch
    seen: list[Observation] = []
    slots = len(starts_ns)
    busy = 0
    busy_ns: int | None = None
    idle_ns: int | None = None
    is_over = asyncio.Event()

    def may_begin() -> bool:
        if duration_s is None or busy_ns is None:
            return True
        return asker.now_ns() < busy_ns + duration_s * NS_PER_S

    async def slot(start_ns: int) -> None:
        nonlocal busy, busy_ns, idle_ns
        await until(asker.began_ns + start_ns, clock)
        while may_begin() and (question := next(questions, None)) is not None:
            busy += 1
            if busy == slots and busy_ns is None:
                busy_ns = asker.now_ns()
            try:
                is_answered = (await asker.ask(question, on_end=seen.append)).is_complete
            finally:
                busy -= 1
            if not is_answered:
                await asyncio.sleep(_PAUSE_S)
        if idle_ns is None:
            idle_ns = asker.now_ns()
            is_over.set()

    watch.start()
    stopping = asyncio.ensure_future(stop.wait())
    ending = asyncio.ensure_future(is_over.wait())
    running = [asyncio.ensure_future(slot(start_ns)) for start_ns in starts_ns]
    everyone = asyncio.ensure_future(asyncio.wait(running))
    try:
        await asyncio.wait({ending, stopping, everyone}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await asyncio.wait({everyone, stopping}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await given_up([everyone, stopping, ending, *running])
        health = await watch.stop()
    return LoadRun(
        is_open_loop=False,
        concurrency=slots,
        busy_ns=busy_ns,
        idle_ns=idle_ns,
        ended_ns=asker.now_ns(),
        observations=tuple(sorted(with_lags(seen, health), key=lambda one: (one.scheduled_ns, one.id))),
        clients=(health,),
        was_stopped=stop.is_set(),
    )
