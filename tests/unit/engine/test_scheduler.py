"""One rule: catch up within the budget, running before waiting."""

from __future__ import annotations

from taximeter.engine.kv_cache import GroupSize, KVCacheManager
from taximeter.engine.request_state import SequenceState, SequenceStatus
from taximeter.engine.scheduler import Scheduler, SchedulerOutput


def scheduler(*, step_tokens: int | None = 512, blocks: int = 1000, max_running: int = 64) -> Scheduler:
    manager = KVCacheManager([GroupSize(blocks=blocks)], block_tokens=16)
    return Scheduler(manager, step_tokens=step_tokens, max_running=max_running)


def sequence(length: int, name: str, *, first: int = 0, leader: SequenceState | None = None) -> SequenceState:
    prompt = tuple(range(first, first + length))
    return SequenceState(request_id=name, choice=0, prompt=prompt, max_output_tokens=100, leader=leader)


def run(engine: Scheduler) -> SchedulerOutput:
    """One step with a model that always answers token 9."""
    plan = engine.schedule()
    for chunk in plan.chunks:
        engine.update(chunk)
        if chunk.catches_up:
            chunk.sequence.output.append(9)
    return plan


def counts(plan: SchedulerOutput) -> dict[str, int]:
    return {chunk.sequence.request_id: chunk.count for chunk in plan.chunks}


def test_a_long_prompt_takes_what_the_decodes_leave() -> None:
    """Budget 512, three decodes, a prompt of 1,200: chunks of 509, 509, 182, and no decode waits for it."""
    engine = scheduler(step_tokens=512)
    for index in range(3):
        engine.add(sequence(4, f"d{index}", first=index * 10_000))
    run(engine)
    prompt = sequence(1200, "long", first=50_000)
    engine.add(prompt)
    plans = [counts(run(engine)) for _ in range(3)]
    assert [plan["long"] for plan in plans] == [509, 509, 182]
    assert all(plan[f"d{index}"] == 1 for plan in plans for index in range(3))
    assert len(prompt.output) == 1


def test_the_first_token_comes_after_the_last_chunk_only() -> None:
    """A prompt cut in three has nothing to show for the first two."""
    engine = scheduler(step_tokens=400)
    prompt = sequence(1000, "r")
    engine.add(prompt)
    said: list[int] = []
    for _ in range(3):
        run(engine)
        said.append(len(prompt.output))
    assert said == [0, 0, 1]


def test_who_lost_its_memory_reads_its_prompt_before_what_it_wrote() -> None:
    """No chunk holds both: the two may be computed in different ways, and a pass wants what was generated first."""
    engine = scheduler()
    lost, prompt = sequence(20, "lost"), sequence(30, "prompt", first=500)
    engine.add(lost)
    for _ in range(5):
        run(engine)
    engine.preempt(lost)
    assert counts(run(engine)) == {"lost": 4}  # 16 were found again
    assert len(lost.output) == 5
    engine.add(prompt)
    plan = run(engine)
    assert [(chunk.sequence.request_id, chunk.count, chunk.is_generated) for chunk in plan.chunks] == [
        ("lost", 5, True),
        ("prompt", 30, False),
    ]
    assert len(lost.output) == 6


def test_without_a_budget_everything_runs_at_once() -> None:
    """None is no limit: two prompts go through whole, in one step."""
    engine = scheduler(step_tokens=None)
    engine.add(sequence(900, "a"))
    engine.add(sequence(800, "b", first=5000))
    assert counts(run(engine)) == {"a": 900, "b": 800}


def test_first_come_first_served() -> None:
    """A small request does not overtake a large one that waits for memory."""
    engine = scheduler(blocks=10)  # 160 tokens
    engine.add(sequence(100, "first"))
    engine.add(sequence(90, "large", first=1000))
    engine.add(sequence(8, "small", first=2000))
    assert counts(run(engine)) == {"first": 100}
    assert [state.request_id for state in engine.waiting] == ["large", "small"]


def test_memory_runs_out_and_the_last_running_gives_way() -> None:
    """The youngest is preempted, keeps what it wrote, goes to the front of the queue, and comes back."""
    engine = scheduler(blocks=4)
    old, young = sequence(31, "old"), sequence(31, "young", first=1000)
    engine.add(old)
    engine.add(young)
    run(engine)  # both have 31 + 1 tokens: two full blocks each
    later = sequence(4, "later", first=2000)
    engine.add(later)
    run(engine)  # both computed 32
    plan = run(engine)  # both need a third block; there is none
    assert plan.preempted == [young]
    assert young.status is SequenceStatus.PREEMPTED
    assert len(young.output) == 2
    assert engine.waiting[0] is young
    assert plan.admitted == []
    engine.finish(old)
    plan = run(engine)
    assert plan.admitted[0] is young
    assert young.status is SequenceStatus.RUNNING


def test_a_sequence_alone_may_preempt_only_itself_and_then_starts_again() -> None:
    """When the victim is the one that needs memory, it stops and waits like any other."""
    engine = scheduler(blocks=3)
    first, second = sequence(15, "first"), sequence(15, "second", first=100)
    engine.add(first)
    engine.add(second)
    run(engine)
    run(engine)  # each holds 16 computed tokens; 17 need a second block: one is left
    plan = run(engine)
    assert [chunk.sequence for chunk in plan.chunks] == [first]
    assert plan.preempted == [second]


def test_siblings_wait_until_the_prompt_they_share_is_read() -> None:
    """The second choice of a request starts from the first one's blocks instead of reading the prompt again."""
    engine = scheduler(step_tokens=40)
    leader = sequence(70, "r")
    follower = sequence(70, "r", leader=leader)
    engine.add(leader)
    engine.add(follower)
    other = sequence(5, "other", first=9000)
    engine.add(other)
    assert [chunk.sequence for chunk in run(engine).chunks] == [leader]
    assert [chunk.sequence for chunk in run(engine).chunks] == [leader, other]
    plan = run(engine)
    admitted = next(chunk for chunk in plan.chunks if chunk.sequence is follower)
    assert (admitted.start, admitted.count) == (64, 6)


def test_no_more_than_the_allowed_number_runs() -> None:
    """max_running holds whatever the budget."""
    engine = scheduler(max_running=2)
    for index in range(4):
        engine.add(sequence(4, str(index), first=index * 100))
    assert len(run(engine).chunks) == 2


def test_finishing_gives_the_memory_back() -> None:
    """Running, waiting or already finished: afterwards nothing is held."""
    engine = scheduler(blocks=2)
    running, waiting = sequence(20, "a"), sequence(20, "b", first=100)
    engine.add(running)
    engine.add(waiting)
    run(engine)
    for state in (waiting, running, running):
        engine.finish(state)
    assert not engine.has_work
    assert running.block_tables == []
