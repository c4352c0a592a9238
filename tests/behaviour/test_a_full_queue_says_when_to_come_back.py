"""The real engine, flooded: whoever does not fit gets 429 with `retry-after`, at once, and a receipt."""

from __future__ import annotations

import asyncio

from taximeter.records import Outcome
from tests.engine_harness import serving
from tests.fakes import MemoryLedger
from tests.gateway_harness import COMPLETIONS, Caller, a_house, app_of, post

ASKING: dict[str, object] = {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": 4, "temperature": 0}


async def test_the_third_request_is_told_to_come_back() -> None:
    """One runs, one waits, the next is refused; when there is room again everybody is served."""
    async with serving(max_queued_requests=1, max_running=1) as (backend, gated):
        ledger = MemoryLedger()
        app = app_of(a_house(backend, ledger))
        gated.gate.clear()
        running = asyncio.create_task(Caller(app, COMPLETIONS, ASKING).call())
        assert await asyncio.to_thread(gated.started.wait, 20)
        more = [asyncio.create_task(Caller(app, COMPLETIONS, ASKING).call()) for _ in range(2)]
        # The gate is shut, so only a refusal can be over.
        over, waiting = await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
        gated.gate.set()
        served = await asyncio.gather(running, *waiting)
        later = await post(app, COMPLETIONS, ASKING)

    (refused,) = (task.result() for task in over)
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert ledger.receipt(refused.headers["x-taximeter-receipt"]).outcome is Outcome.REFUSED
    assert [reply.status for reply in (*served, later)] == [200, 200, 200]
