"""The engine thread serves, refuses, breaks and stops without losing an account."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from taximeter.engine.backend import EmbeddedAnswer
from taximeter.errors import (
    CapacityError,
    InvariantBroken,
    ModelFileError,
    ModelNotFound,
    PromptTooLong,
    RequestError,
)
from taximeter.records import Event, Phase, PhaseEntered, Prompt, PromptRead, Request, Served, TokensGenerated
from tests.engine_harness import GREEDY, request, serving

PROMPT = Prompt(token_ids=tuple(range(5, 25)))


def asking(name: str, tokens: int = 5, model: str = "tiny") -> Request:
    return replace(request(name, GREEDY, tokens), model=model)


async def read(answer: EmbeddedAnswer) -> list[Event]:
    return [event async for event in answer]


async def until_prefill(answer: EmbeddedAnswer) -> None:
    """Read on until the engine has taken the request up."""
    async for event in answer:
        if isinstance(event, PhaseEntered) and event.phase is Phase.PREFILL:
            return


async def test_an_answer_is_a_queue_a_prefill_tokens_and_an_account() -> None:
    """Stamps never go back, and the last event is Served."""
    async with serving() as (backend, _gated):
        events = await read(await backend.submit(asking("r"), PROMPT))
    assert [event.phase for event in events if isinstance(event, PhaseEntered)] == [
        Phase.QUEUE,
        Phase.PREFILL,
        Phase.DECODE,
    ]
    assert sum(event.new_tokens for event in events if isinstance(event, TokensGenerated)) == 5
    [read_at] = [place for place, event in enumerate(events) if isinstance(event, PromptRead)]
    assert read_at < min(place for place, event in enumerate(events) if isinstance(event, TokensGenerated))
    assert isinstance(events[-1], Served)
    assert events[read_at].usage == events[-1].usage.of_prompt()
    assert (events[read_at].usage.input_tokens, events[read_at].usage.output_tokens) == (20, 0)
    assert events[-1].served_by == "embedded"
    stamps = [event.at_ns for event in events]
    assert stamps == sorted(stamps)


async def test_cancelling_says_what_it_took_and_frees_the_memory() -> None:
    """Mid-answer, twice, and after the end: always the same account."""
    async with serving() as (backend, gated):
        answer = await backend.submit(asking("r", 100), PROMPT)
        async for event in answer:
            if isinstance(event, TokensGenerated):
                break
        served = await answer.cancel()
        assert 1 <= (served.usage.output_tokens or 0) < 100
        assert served.usage.input_fresh_tokens == 20
        assert await answer.cancel() is served
        again = await read(await backend.submit(asking("next"), PROMPT))
        assert isinstance(again[-1], Served)
        assert gated.started.is_set()


async def test_its_load_can_be_glanced_at() -> None:
    """Who runs, who waits, and which blocks are whose, as an audit counts them; nothing waits for it."""
    async with serving(max_running=1) as (backend, gated):
        gated.gate.clear()
        running = await backend.submit(asking("running"), PROMPT)
        await until_prefill(running)
        waiting = await backend.submit(asking("waiting"), PROMPT)
        load = backend.load_now()
        assert (load.waiting_requests, load.models["tiny"].running_sequences) == (1, 1)
        assert load.models["tiny"].used_kv_blocks > 0
        gated.gate.set()
        await read(running)
        await read(waiting)
        census, idle = await backend.audit(), backend.load_now()
        tiny = idle.models["tiny"]
        assert (idle.waiting_requests, tiny.running_sequences) == (0, 0)
        assert (tiny.free_kv_blocks, tiny.cached_kv_blocks, tiny.used_kv_blocks) == (census.free, census.cached, 0)


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """One runs, one waits, the third is refused; once there is room the next is welcome."""
    async with serving(max_queued_requests=1, max_running=1) as (backend, gated):
        gated.gate.clear()
        running = await backend.submit(asking("running"), PROMPT)
        await until_prefill(running)
        waiting = await backend.submit(asking("waiting"), PROMPT)
        with pytest.raises(CapacityError) as refused:
            await backend.submit(asking("refused"), PROMPT)
        assert refused.value.retry_after_s >= 1
        gated.gate.set()
        await read(waiting)
        assert isinstance((await read(await backend.submit(asking("later"), PROMPT)))[-1], Served)


async def test_a_prompt_is_counted_as_it_will_be_charged() -> None:
    """The count is the prompt of the answer's usage; what cannot be counted is refused, and no place in the queue is
    kept for either."""
    text = Prompt(text="Once upon a time")
    async with serving(max_queued_requests=1) as (backend, _gated):
        counted = await backend.count_tokens("tiny", text)
        for _ in range(3):
            with pytest.raises(ModelNotFound, match="tiny"):
                await backend.count_tokens("nobody", text)
            with pytest.raises(RequestError):
                await backend.count_tokens("tiny", Prompt(token_ids=(10**9,)))
        events = await read(await backend.submit(asking("r"), text))
    assert isinstance(events[-1], Served)
    assert events[-1].usage.input_tokens == counted > 0
    with pytest.raises(CapacityError):
        await backend.count_tokens("tiny", text)


async def test_refusals_do_not_use_up_the_queue() -> None:
    """Unknown models and prompts that do not fit leave no place taken."""
    async with serving(max_queued_requests=1) as (backend, _gated):
        for _ in range(3):
            with pytest.raises(ModelNotFound, match="tiny"):
                await backend.submit(asking("r", model="nobody"), PROMPT)
            with pytest.raises(PromptTooLong):
                await backend.submit(asking("r", 10**6), PROMPT)
        assert isinstance((await read(await backend.submit(asking("fits"), PROMPT)))[-1], Served)


async def test_a_broken_step_fails_its_requests_and_not_the_next() -> None:
    """The error is ours, the account survives, and the thread goes on."""
    async with serving() as (backend, gated):
        gated.broken = True
        answer = await backend.submit(asking("r"), PROMPT)
        with pytest.raises(InvariantBroken):
            await read(answer)
        assert (await answer.cancel()).usage.output_tokens == 0
        gated.broken = False
        assert isinstance((await read(await backend.submit(asking("next"), PROMPT)))[-1], Served)


async def test_a_model_that_computes_no_numbers_is_said_to_whoever_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the engine is broken, and the words say what to do."""
    async with serving() as (backend, _):
        with monkeypatch.context() as patched:
            patched.setattr("taximeter.engine.core.ModelRunner.best", lambda *_: np.array([-1]))
            answer = await backend.submit(asking("r"), PROMPT)
            with pytest.raises(ModelFileError, match="not numbers"):
                await read(answer)
        assert isinstance((await read(await backend.submit(asking("next"), PROMPT)))[-1], Served)


@pytest.mark.parametrize("where", ["schedule", "preempt", "add"])
async def test_whatever_breaks_the_thread_goes_on(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault between two passes, with the state half changed: whoever was in flight is told, the next is served."""

    def break_once(*_arguments: object, **_keywords: object) -> None:
        monkeypatch.undo()
        raise MemoryError("made to break")

    async with serving() as (backend, gated):
        if where == "add":
            monkeypatch.setattr("taximeter.engine.core.Sampler", break_once)
        else:
            gated.gate.clear()
        answer = await backend.submit(asking("r", 50), PROMPT)
        if where != "add":
            await until_prefill(answer)
            method = {"schedule": "_continue_running", "preempt": "_admit_waiting"}[where]
            monkeypatch.setattr(f"taximeter.engine.scheduler.Scheduler.{method}", break_once)
            gated.gate.set()
        with pytest.raises(InvariantBroken):
            await read(answer)
        assert (await answer.cancel()).usage.total_tokens is not None
        assert isinstance((await read(await backend.submit(asking("next"), PROMPT)))[-1], Served)


async def test_closing_ends_what_is_in_flight() -> None:
    """Nobody is left hanging, and nothing is taken up any more."""
    async with serving() as (backend, gated):
        gated.gate.clear()
        answers = [await backend.submit(asking(str(index), 50), PROMPT) for index in range(3)]
        await asyncio.to_thread(gated.started.wait, 30)
        closing = asyncio.create_task(backend.aclose())
        gated.gate.set()
        await closing
        for answer in answers:
            assert isinstance((await read(answer))[-1], Served)
        with pytest.raises(CapacityError):
            await backend.submit(asking("late"), PROMPT)


async def test_two_models_take_turns_and_share_one_bill() -> None:
    """Both answer, and together their requests account for every busy nanosecond of the machine."""
    async with serving("a", "b") as (backend, _gated):
        answers = [await backend.submit(asking(f"{name}{i}", 8, name), PROMPT) for name in "ab" for i in range(3)]
        ends = [(await read(answer))[-1] for answer in answers]
        taken = sum(end.work.compute_ns for end in ends if isinstance(end, Served) and end.work)
        machine = backend.machine_time()
        assert taken == machine.busy_ns > 0
        assert machine.busy_ns <= machine.wall_ns


async def test_memory_can_be_looked_through_while_requests_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds blocks, then nobody does; what an audit finds wrong is told to who asked, and breaks no answer."""
    async with serving() as (backend, _gated):
        answer = await backend.submit(asking("r", 100), PROMPT)
        await until_prefill(answer)
        assert (await backend.audit()).used > 0
        await answer.cancel()
        assert (await backend.audit()).used == 0

        def wrong(_: object) -> None:
            raise InvariantBroken("a block too many")

        answer = await backend.submit(asking("next"), PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr("taximeter.engine.core.EngineCore.audit", wrong)
            with pytest.raises(InvariantBroken, match="a block too many"):
                await backend.audit()
        assert isinstance((await read(answer))[-1], Served)
    with pytest.raises(CapacityError):
        await backend.audit()
