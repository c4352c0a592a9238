"""Whatever happens to a request, it ends in one receipt that adds up."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from taximeter.clock import FakeClock
from taximeter.errors import CapacityError, InvariantBroken, LedgerError, ModelNotFound, RequestError, UpstreamError
from taximeter.gateway import Exchange, Relay, ShuttingDown, books
from taximeter.gateway import relay as relay_module
from taximeter.records import (
    ChoiceFinished,
    Event,
    Outcome,
    Phase,
    Prompt,
    Receipt,
    Request,
    Served,
    TokensGenerated,
    Usage,
)
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import a_request, fake_house

PROMPT = Prompt(text="one two three four five")
MS = 1_000_000


class World:
    """A relay on fakes with a clock that stands still."""

    def __init__(self, script: Script | None = None) -> None:
        self.clock = FakeClock()
        house, self.backend, self.ledger = fake_house(script, clock=self.clock)
        self.relay: Relay = house.relay

    async def open(self, *, choices: int = 1) -> Exchange:
        return await self.relay.open(a_request(self.clock, choices=choices), PROMPT)


async def read(exchange: Exchange, seen: list[Event] | None = None) -> list[Event]:
    """Everything until the end; into `seen` for one that breaks."""
    seen = [] if seen is None else seen
    async for event in exchange:
        seen.append(event)
    return seen


async def test_every_nanosecond_is_in_one_phase():
    """Parsing 3 ms, queue 5, prefill 7, two gaps of 11, closing 2: they sum to the total."""
    world = World(Script(queue_ms=5, prefill_ms=7, token_ms=11, closing_ms=2))
    request = a_request(world.clock)
    world.clock.advance(ms=3)
    exchange = await world.relay.open(request, PROMPT)
    await read(exchange)
    timing = exchange.receipt.timing
    assert timing is not None
    assert timing.phases() == {
        Phase.GATEWAY: (3 + 2) * MS,
        Phase.QUEUE: 5 * MS,
        Phase.PREFILL: 7 * MS,
        Phase.DECODE: 22 * MS,
        Phase.STALLED: 0,
        Phase.UPSTREAM: 0,
    }
    assert timing.total_ns == (3 + 5 + 7 + 22 + 2) * MS
    assert timing.first_token_ns == (3 + 5 + 7) * MS
    assert timing.longest_gap_ns == 11 * MS


async def test_a_wall_clock_that_jumps_back_changes_no_duration():
    """Intervals are monotonic; wall time is for people."""
    world = World(Script(hold_at=1, token_ms=10))
    exchange = await world.open()
    world.clock.set_wall(world.clock.utc_now().replace(year=2020))
    world.backend.release()
    await read(exchange)
    assert exchange.receipt.timing is not None
    assert exchange.receipt.timing.total_ns == 20 * MS


async def test_the_end_of_an_answer_is_handed_out_after_its_receipt_is_durable():
    """Who has the last word of an answer can look its receipt up."""
    world = World()
    exchange = await world.open()
    async for event in exchange:
        kept = world.ledger.receipt(exchange.receipt_id)
        if isinstance(event, (ChoiceFinished, Served)):
            assert kept is exchange.receipt
    assert exchange.receipt.outcome is Outcome.COMPLETED
    assert exchange.receipt.finish_reasons == ("stop",)
    assert exchange.receipt.served_by == "fake"


async def test_a_request_is_in_the_ledger_before_anybody_sees_its_first_token():
    """A machine that loses power mid-answer has an interrupted request to write up, not a forgotten one."""
    world = World(Script(hold_at=1))
    world.ledger.stuck = True
    exchange = await world.open()
    events = aiter(exchange)
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not first.done()
    world.ledger.answer()
    await first
    assert [request.id for request in world.ledger.begun] == [exchange.request.id]
    world.ledger.stuck = False
    await exchange.abort()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ModelNotFound("no such model"), Outcome.REFUSED),
        (CapacityError("full", retry_after_s=3), Outcome.REFUSED),
        (UpstreamError("away", status=500), Outcome.FAILED),
    ],
)
async def test_what_the_backend_does_not_take_up_has_a_receipt(error: Exception, outcome: Outcome):
    """The caller gets the backend's own error; nothing was computed, which is not the same as zero tokens."""
    world = World(Script(refuse=error))
    request = a_request(world.clock)
    with pytest.raises(type(error)):
        await world.relay.open(request, PROMPT, receipt_id="rcpt_mine")
    receipt = world.ledger.receipt("rcpt_mine")
    assert receipt is not None
    assert (receipt.outcome, receipt.usage, receipt.work, receipt.cost) == (outcome, None, None, None)
    assert receipt.unmeasured_reason == f"{outcome.value} before anything was computed"
    assert receipt.error == f"{type(error).__name__}: {error.message}"
    assert world.relay.in_flight == 0


async def test_a_backend_that_breaks_while_taking_a_request_up_tells_nothing_of_its_inside():
    """A foreign exception becomes our own word, for the caller and on the receipt."""
    world = World(Script(refuse=RuntimeError("password is hunter2")))
    with pytest.raises(InvariantBroken) as caught:
        await world.relay.open(a_request(world.clock), PROMPT)
    [receipt] = world.ledger.kept
    assert receipt.outcome is Outcome.FAILED
    assert "hunter2" not in f"{caught.value}{receipt.error}"


async def test_an_answer_that_breaks_is_charged_for_what_it_took():
    """Two tokens were made before it broke: they and their machine time are on the failed receipt."""
    world = World(Script(fail_at=2, compute_ns=500))
    exchange = await world.open()
    seen: list[Event] = []
    with pytest.raises(InvariantBroken):
        await read(exchange, seen)
    receipt = exchange.receipt
    assert receipt.outcome is Outcome.FAILED
    assert sum(isinstance(event, TokensGenerated) for event in seen) == 2
    assert receipt.usage.output_tokens == 2
    assert receipt.work.compute_ns == 500
    assert receipt.cost is not None
    assert "secret" not in str(receipt.error)


async def test_our_own_error_reaches_the_reader_as_it_is():
    """A backend's TaximeterError keeps its words."""
    world = World(Script(fail_at=0, error=UpstreamError("the provider hung up", status=502)))
    exchange = await world.open()
    with pytest.raises(UpstreamError):
        await read(exchange)
    assert exchange.receipt.error == "UpstreamError: the provider hung up"


async def test_an_aborted_answer_is_charged_for_what_it_took():
    """One token had come when the client hung up."""
    world = World(Script(hold_at=1))
    exchange = await world.open(choices=2)
    await asyncio.to_thread(world.backend.held.acquire, timeout=WAIT_S)
    await exchange.abort()
    receipt = exchange.receipt
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_tokens == 2
    assert receipt.finish_reasons == ("cancelled", "cancelled")
    assert receipt.error is None
    assert world.ledger.kept == [receipt]


async def test_aborting_twice_or_at_the_same_time_makes_one_receipt():
    """Hang-up, shutdown and the end of the handler may all come at once."""
    world = World(Script(hold_at=1))
    exchange = await world.open()
    await asyncio.gather(exchange.abort(), exchange.abort(ShuttingDown()), exchange.abort())
    await exchange.abort()
    assert len(world.ledger.kept) == 1


async def test_an_abort_after_the_end_changes_nothing():
    """A client that hangs up once it has everything was served."""
    world = World()
    exchange = await world.open()
    await read(exchange)
    await exchange.abort()
    assert [receipt.outcome for receipt in world.ledger.kept] == [Outcome.COMPLETED]
    assert not world.backend.cancelled.acquire(blocking=False)


async def test_an_abort_after_every_choice_has_ended_is_too_late_to_matter():
    """The answer is whole, although the backend has not said yet what it took."""
    world = World(Script(hold_at=3))
    exchange = await world.open()
    await asyncio.to_thread(world.backend.held.acquire, timeout=WAIT_S)
    await exchange.abort(ShuttingDown())
    assert exchange.receipt.outcome is Outcome.COMPLETED
    assert exchange.receipt.error is None
    assert isinstance((await read(exchange))[-1], Served)


async def test_a_receipt_does_not_wait_for_its_reader():
    """Nobody reads the exchange, as when a client is stuck: it comes to its receipt all the same."""
    world = World(Script(token_ms=10))
    exchange = await world.open()
    receipt = await asyncio.to_thread(world.ledger.wait_for, exchange.receipt_id)
    world.clock.advance(s=3600)
    assert len(await read(exchange)) > 0
    assert exchange.receipt is receipt
    assert receipt.timing.total_ns == 20 * MS


async def test_a_caller_that_is_cancelled_while_the_backend_decides_leaves_a_receipt():
    """Also a request that never became an answer was accepted."""
    world = World()
    decides = asyncio.Event()

    async def submit(request: object, prompt: object) -> object:
        decides.set()
        return await asyncio.Event().wait()

    world.backend.submit = submit  # type: ignore[method-assign]
    opening = asyncio.create_task(world.open())
    await decides.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [receipt.outcome for receipt in world.ledger.kept] == [Outcome.ABORTED]


async def test_an_answer_without_an_end_is_a_failure():
    """A backend that stops without `Served` broke its promise; what it took is asked for."""
    world = World()
    exchange = await _exchange_on(world, _SilentAnswer())
    with pytest.raises(InvariantBroken):
        await read(exchange)
    assert exchange.receipt.outcome is Outcome.FAILED
    assert exchange.receipt.unmeasured_reason == "the backend broke and did not say what the answer took"


async def test_a_backend_that_does_not_let_go_cannot_keep_a_receipt_back():
    """Cancelling fails and the stream never ends: the receipt says that it is not known what was taken."""
    world = World()
    exchange = await _exchange_on(world, _StubbornAnswer())
    await exchange.abort()
    assert exchange.receipt.outcome is Outcome.ABORTED
    assert exchange.receipt.usage is None
    assert "before the backend said" in str(exchange.receipt.unmeasured_reason)


async def test_a_receipt_waits_for_a_backend_that_is_in_the_middle_of_a_step(monkeypatch: pytest.MonkeyPatch):
    """A step of a large model takes longer than anybody's patience; what the answer took is on its receipt all the
    same, and so the machine's bill is whole."""
    monkeypatch.setattr(relay_module, "_BACKEND_PATIENCE_S", 0.0)
    world = World()
    answer = _SteppingAnswer()
    exchange = await _exchange_on(world, answer)
    exchange.let_go()
    await answer.cancelled.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.ledger.kept == []
    answer.step_ends.set()
    receipt = await asyncio.to_thread(world.ledger.wait_for, exchange.receipt_id)
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage is not None


async def test_the_end_of_the_server_does_not_wait_for_a_backend_for_ever(monkeypatch: pytest.MonkeyPatch):
    """Also for an answer whose client hung up long ago: its receipt says that it is not known what was taken."""
    monkeypatch.setattr(relay_module, "_BACKEND_PATIENCE_S", 0.01)
    world = World()
    exchange = await _exchange_on(world, _SteppingAnswer())
    exchange.let_go()
    async with asyncio.timeout(WAIT_S):
        await world.relay.aclose()
    assert exchange.receipt.outcome is Outcome.ABORTED
    assert "before the backend said" in str(exchange.receipt.unmeasured_reason)


async def test_a_broken_ledger_never_keeps_an_answer_back():
    """The user's traffic goes on, and what is lost is counted."""
    world = World()
    world.ledger.broken = LedgerError("the disk is full")
    exchange = await world.open()
    events = await read(exchange)
    assert isinstance(events[-1], Served)
    assert exchange.receipt.outcome is Outcome.COMPLETED
    assert world.ledger.counts().lost == 1


async def test_a_ledger_that_is_closed_never_keeps_an_answer_back(monkeypatch: pytest.MonkeyPatch):
    """Not even when it raises at once; then the relay counts."""
    world = World()

    def refuse(_: object) -> None:
        raise LedgerError("closed")

    monkeypatch.setattr(world.ledger, "begin", refuse)
    monkeypatch.setattr(world.ledger, "append", refuse)
    exchange = await world.open()
    assert isinstance((await read(exchange))[-1], Served)
    assert world.relay.receipts_lost == 1


async def test_a_ledger_that_hangs_delays_an_answer_but_does_not_keep_it(monkeypatch: pytest.MonkeyPatch):
    """Patience has an end."""
    monkeypatch.setattr(books, "_LEDGER_PATIENCE_S", 0.01)
    world = World()
    world.ledger.stuck = True
    assert isinstance((await read(await world.open()))[-1], Served)


async def test_a_settler_that_breaks_costs_the_cost_and_not_the_receipt(monkeypatch: pytest.MonkeyPatch):
    """A bug in pricing must not lose what was served."""
    world = World()
    settle = world.relay._settler.settle

    def broken(**facts: object) -> object:
        if facts["work"] is not None:
            raise ValueError("a bug in pricing")
        return settle(**facts)

    monkeypatch.setattr(world.relay._settler, "settle", broken)
    exchange = await world.open()
    await read(exchange)
    assert exchange.receipt.cost is None
    assert exchange.receipt.usage is not None


async def test_a_request_that_cannot_be_written_up_is_counted_and_ends(monkeypatch: pytest.MonkeyPatch):
    """Even then a reader is not left hanging."""
    world = World()

    def broken(**facts: object) -> object:
        raise ValueError("a bug")

    monkeypatch.setattr(world.relay._settler, "settle", broken)
    with pytest.raises(InvariantBroken):
        await read(await world.open())
    assert world.relay.receipts_lost == 1
    assert world.relay.in_flight == 0


async def test_a_spectator_sees_every_receipt_and_harms_none():
    """Also the refused ones; and what it raises is its own business."""
    world = World()
    seen = []

    def watch(receipt: Receipt) -> None:
        seen.append(world.ledger.receipt(receipt.id))
        raise ValueError("a bug in a spectator")

    world.relay.observers.append(watch)
    await read(await world.open())
    world.backend.script = Script(refuse=ModelNotFound("no such model"))
    with pytest.raises(ModelNotFound):
        await world.open()
    world.relay.show_due()  # else a moment later: spectators come after whoever waits for the answer
    assert seen == world.ledger.kept
    assert [receipt.outcome for receipt in seen] == [Outcome.COMPLETED, Outcome.REFUSED]


async def test_closing_ends_everything_with_a_receipt_and_takes_nothing_new():
    """At shutdown readers are told, and later requests refused, each with its receipt."""
    world = World(Script(hold_at=1))
    exchanges = [await world.open() for _ in range(3)]
    await world.relay.aclose()
    for exchange in exchanges:
        assert exchange.receipt.outcome is Outcome.ABORTED
        with pytest.raises(ShuttingDown):
            await read(exchange)
    with pytest.raises(ShuttingDown):
        await world.open()
    assert [receipt.outcome for receipt in world.ledger.kept] == [Outcome.ABORTED] * 3 + [Outcome.REFUSED]
    await world.relay.aclose()


@pytest.mark.parametrize("error", [None, CapacityError("the engine is shutting down", retry_after_s=1)])
async def test_closing_waits_for_requests_that_the_backend_still_reads(error: Exception | None):
    """Its caller hears of the end, whether the backend took it up or had just closed; and the receipt is there before
    closing is done, and with it the ledger's last chance."""
    world = World(Script(hold_at=0, refuse=error))
    reads, may_go_on = asyncio.Event(), asyncio.Event()
    submit = world.backend.submit

    async def slowly(request: Request, prompt: Prompt) -> object:
        reads.set()
        await may_go_on.wait()
        return await submit(request, prompt)

    world.backend.submit = slowly  # type: ignore[method-assign]

    async def ask() -> None:
        await read(await world.open())

    asking = asyncio.create_task(ask())
    await reads.wait()
    closing = asyncio.create_task(world.relay.aclose())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    may_go_on.set()
    await closing
    assert [receipt.outcome for receipt in world.ledger.kept] == [Outcome.ABORTED if error is None else Outcome.REFUSED]
    assert world.relay.in_flight == 0
    with pytest.raises(ShuttingDown):
        await asking


async def test_closing_waits_for_refusals_that_are_being_written():
    """They have a receipt like any other."""
    world = World()
    world.ledger.stuck = True
    refusing = asyncio.create_task(
        world.relay.refuse(a_request(world.clock), RequestError("nonsense"), receipt_id="rcpt_mine")
    )
    await asyncio.to_thread(world.ledger.wait_until_asked)
    closing = asyncio.create_task(world.relay.aclose())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    world.ledger.answer()  # that it began
    world.ledger.answer()
    await closing
    assert (await refusing) is world.ledger.receipt("rcpt_mine")


async def test_a_backend_that_never_decides_cannot_keep_the_server(monkeypatch: pytest.MonkeyPatch):
    """Patience has an end here too."""
    monkeypatch.setattr(relay_module, "_BACKEND_PATIENCE_S", 0.01)
    world = World()
    reads = asyncio.Event()

    async def never(*_: object) -> None:
        reads.set()
        await asyncio.Event().wait()

    world.backend.submit = never  # type: ignore[method-assign]
    asking = asyncio.create_task(world.open())
    await reads.wait()
    async with asyncio.timeout(WAIT_S):
        await world.relay.aclose()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


class _Panic(BaseException):
    """As pyo3's PanicException: Rust's panics are no Exception in Python."""


async def test_a_panic_while_a_request_is_taken_up_has_a_receipt():
    """And the caller gets an error that can be told."""
    world = World(Script(refuse=_Panic("secret")))
    with pytest.raises(InvariantBroken):
        await world.open()
    assert [receipt.outcome for receipt in world.ledger.kept] == [Outcome.FAILED]
    assert "secret" not in str(world.ledger.kept[0].error)


async def test_a_panic_in_mid_answer_has_a_receipt_and_an_end():
    """Its reader is not left hanging."""
    world = World(Script(fail_at=1, error=_Panic("secret")))
    exchange = await world.open()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(InvariantBroken):
            await read(exchange)
    assert exchange.receipt.outcome is Outcome.FAILED
    assert exchange.receipt.usage.output_tokens == 1


@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit])
async def test_what_ends_the_process_is_not_in_the_way(ending: type[BaseException]):
    """It goes through as it is."""
    world = World(Script(refuse=ending()))
    opening = world.open()
    with pytest.raises(ending):
        await opening


class _SilentAnswer:
    async def __aiter__(self) -> AsyncIterator[Event]:
        return
        yield

    async def cancel(self) -> Served:
        raise RuntimeError("nobody knows")


class _StubbornAnswer:
    async def __aiter__(self) -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        yield

    async def cancel(self) -> Served:
        raise RuntimeError("no")


class _SteppingAnswer:
    """Lets go when its step ends, and not before."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.step_ends = asyncio.Event()
        usage = Usage(input_fresh_tokens=5, input_cache_read_tokens=0, output_text_tokens=0)
        self._served = Served(at_ns=0, usage=usage, work=None, served_by="fake", model="fake")

    async def __aiter__(self) -> AsyncIterator[Event]:
        await self.step_ends.wait()
        yield self._served

    async def cancel(self) -> Served:
        self.cancelled.set()
        await self.step_ends.wait()
        return self._served


async def _exchange_on(world: World, answer: object) -> Exchange:
    async def submit(request: object, prompt: object) -> object:
        return answer

    world.backend.submit = submit  # type: ignore[method-assign]
    return await world.open()
