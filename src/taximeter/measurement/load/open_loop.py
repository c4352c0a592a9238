"""Requests that are sent when they are due, however the server fares.

Owns: sending by a schedule, a cap on it, and giving up what does not end. Refuses to know: what is asked, where the
schedule comes from, and what the figures say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.arrivals import until
from taximeter.measurement.load.client_health import HealthWatch, with_lags
from taximeter.measurement.load.run import LoadRun
from taximeter.records import Outcome, Usage, new_id

NOT_SENT: Final = "it was not sent: no slot became free for it"


async def run_open_loop(
    asker: Asker,
    questions: Iterator[Question],
    due_ns: Sequence[int],
    *,
    rate_per_s: float,
    most_in_flight: int | None = None,
    ramp_ns: int = 0,
    patience_s: float = 60.0,
    stop: asyncio.Event | None = None,
    watch: HealthWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> LoadRun:
    """Send one question at each of `due_ns`, in nanoseconds since the asker's run began, and read the answers.

    With `most_in_flight` a request waits in the client while so many are under way; its latency counts from when it was
    due all the same. When there are no more `questions`, nothing more is sent. `patience_s` after the last one was due,
    what has not ended is given up, and is a miss. Setting `stop` gives up at once, and keeps what was seen.
    """
    stop = asyncio.Event() if stop is None else stop
    watch = HealthWatch(began_ns=asker.began_ns, clock=clock) if watch is None else watch
    seen: list[Observation] = []
    gate = contextlib.nullcontext() if most_in_flight is None else asyncio.Semaphore(most_in_flight)
    asking: set[asyncio.Task[object]] = set()

    async def ask(question: Question, at_ns: int) -> None:
        is_sent = False
        try:
            async with gate:
                is_sent = True
                await asker.ask(question, scheduled_ns=at_ns, on_end=seen.append)
        finally:
            if not is_sent:
                seen.append(_unsent(question, at_ns, asker.now_ns(), clock))

    async def send() -> None:
        for at_ns in due_ns:
            question = next(questions, None)  # made before its time, so that making it delays nobody
            if question is None:
                return
            await until(asker.began_ns + at_ns, clock)
            task = asyncio.ensure_future(ask(question, at_ns))
            asking.add(task)
            task.add_done_callback(asking.discard)

    watch.start()
    stopping = asyncio.ensure_future(stop.wait())
    sending = asyncio.ensure_future(send())
    try:
        await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        await _ended(asking, stopping, patience_s)
    finally:
        await given_up([sending, stopping, *asking])
        health = await watch.stop()
    return LoadRun(
        is_open_loop=True,
        rate_per_s=rate_per_s,
        most_in_flight=most_in_flight,
        due_ns=tuple(due_ns),
        ramp_ns=ramp_ns,
        ended_ns=asker.now_ns(),
        observations=tuple(sorted(with_lags(seen, health), key=lambda one: (one.scheduled_ns, one.id))),
        clients=(health,),
        was_stopped=stop.is_set(),
    )


async def _ended(asking: set[asyncio.Task[object]], stopping: asyncio.Future[Any], patience_s: float) -> None:
    """Until all have ended, or nobody waits any longer."""
    if asking and not stopping.done():
        everyone = asyncio.ensure_future(asyncio.wait(set(asking), timeout=patience_s))
        await asyncio.wait({everyone, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await given_up([everyone])


async def given_up(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel what is not done, and wait until it is. Raises what a task failed with."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def _unsent(question: Question, at_ns: int, now_ns: int, clock: Clock) -> Observation:
    """Of a request that never left: it was due, and nobody answered it."""
    return Observation(
        id=new_id("req", clock.utc_now()),
        shape=question.shape,
        scheduled_ns=at_ns,
        sent_ns=now_ns,
        ended_ns=now_ns,
        outcome=Outcome.ABORTED,
        error=NOT_SENT,
        usage=Usage.unknown(NOT_SENT),
        asked_prompt_tokens=question.asked_prompt_tokens,
        asked_output_tokens=question.asked_output_tokens,
    )
