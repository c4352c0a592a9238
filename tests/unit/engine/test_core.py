"""What a request took is counted to the token, the pass and the nanosecond."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from taximeter.clock import FakeClock
from taximeter.engine.core import EngineCore, EngineOptions
from taximeter.engine.kv_cache import BLOCK_TOKENS
from taximeter.engine.models import Model
from taximeter.engine.weights import ModelConfig
from taximeter.errors import ConfigError, PromptTooLong, RequestError
from taximeter.records import ChoiceFinished, Dialect, FinishReason, Message, Phase, PhaseEntered, Prompt, Sampling
from tests.engine_harness import GREEDY, TINY_LLAMA, Collected, add, core_of, drain, loaded, preempt_youngest, request

PROMPT = list(range(5, 45))


class Boastful:
    """A model with another model's weights and a configuration of its own."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        self.config = config
        self.forward = model.forward
        self.read_bytes, self.arithmetic = model.read_bytes, model.arithmetic
        self.tells_prompts_apart = model.tells_prompts_apart


def phases(collected: Collected) -> list[Phase]:
    return [event.phase for event in collected.events if isinstance(event, PhaseEntered)]


def test_five_prompt_tokens_and_ten_answer_tokens_are_one_prefill_and_nine_decode_passes() -> None:
    """One pass reads the prompt and gives the first token; every other token takes one more."""
    core = core_of(TINY_LLAMA)
    collected = add(core, "r", [10, 11, 12, 13, 14], 10)
    assert drain(core) == 10
    assert (collected.work.prefill_passes, collected.work.decode_passes) == (1, 9)
    usage = collected.served.usage
    assert (usage.input_fresh_tokens, usage.input_cache_read_tokens, usage.output_text_tokens) == (5, 0, 10)
    assert collected.work.computed_tokens == 5 + 9


def test_a_prompt_cut_in_chunks_takes_a_prefill_pass_for_each() -> None:
    """40 tokens at 16 a step: three passes, and the same answer tokens."""
    core = core_of(TINY_LLAMA, EngineOptions(step_tokens=16))
    collected = add(core, "r", PROMPT, 4)
    drain(core)
    assert (collected.work.prefill_passes, collected.work.decode_passes) == (3, 3)


def test_phases_come_in_order() -> None:
    """Prefill when it is taken up, decode from its first token on; queue was before."""
    core = core_of(TINY_LLAMA, EngineOptions(step_tokens=16))
    collected = add(core, "r", PROMPT, 4)
    drain(core)
    assert phases(collected) == [Phase.PREFILL, Phase.DECODE]


def test_a_preempted_request_is_stalled_until_it_is_back_where_it_was() -> None:
    """Recomputing is counted as such, belongs to the stall, and is charged to nobody as new tokens."""
    core = core_of(TINY_LLAMA, EngineOptions(step_tokens=16, prefix_caching=False))
    collected = add(core, "r", PROMPT, 6)
    drain(core, lambda step: preempt_youngest(core) if step == 5 else None)
    assert phases(collected) == [Phase.PREFILL, Phase.DECODE, Phase.STALLED, Phase.DECODE]
    assert collected.work.preemptions == 1
    assert collected.work.recomputed_tokens == len(PROMPT) + 2
    assert collected.work.computed_tokens == len(PROMPT) + 5 + collected.work.recomputed_tokens
    assert collected.served.usage.input_fresh_tokens == len(PROMPT)


def test_every_nanosecond_of_every_step_is_on_some_request() -> None:
    """Overlapping requests, shared prefixes, a preemption: the shares sum to the time of the steps exactly."""
    core = core_of(TINY_LLAMA, EngineOptions(step_tokens=24))
    collected = [add(core, str(index), PROMPT[: 8 + 4 * index], 3 + index) for index in range(8)]
    drain(core, lambda step: preempt_youngest(core) if step == 3 else None)
    assert sum(one.work.compute_ns for one in collected) == core.busy_ns > 0
    assert all(one.work.compute_ns > 0 for one in collected)


def test_waiting_costs_nothing() -> None:
    """A request that was cancelled in the queue took no time and no tokens."""
    core = core_of(TINY_LLAMA, EngineOptions(max_running=1))
    add(core, "first", PROMPT, 4)
    waiting = add(core, "second", PROMPT, 4)
    core.step()
    core.cancel("second")
    assert waiting.work.compute_ns == 0
    assert waiting.served.usage.total_tokens == 0
    drain(core)


def test_cancelling_in_the_middle_of_a_prompt_charges_what_was_read() -> None:
    """16 of 40 tokens were read when the client went away."""
    core = core_of(TINY_LLAMA, EngineOptions(step_tokens=16))
    collected = add(core, "r", PROMPT, 4)
    core.step()
    core.cancel("r")
    assert collected.served.usage.input_fresh_tokens == 16
    assert collected.served.usage.output_text_tokens == 0
    assert [event.reason for event in collected.events if isinstance(event, ChoiceFinished)] == [FinishReason.CANCELLED]
    assert not core.has_work
    assert core.audit().used == 0


def test_choices_share_the_prompt_and_differ_in_the_answer() -> None:
    """n=2 charges the prompt once, reuses its full blocks, and draws two answers; a seed repeats both."""

    def answers(core: EngineCore) -> tuple[list[int], list[int], Collected]:
        sampling = Sampling(temperature=1.5, seed=7, choices=2, ignore_eos=True)
        collected = add(core, "r", PROMPT, 8, sampling)
        drain(core)
        return collected.tokens(0), collected.tokens(1), collected

    first, second, collected = answers(core_of(TINY_LLAMA))
    assert first != second
    assert collected.served.usage.input_tokens == len(PROMPT)
    assert collected.served.usage.output_tokens == 16
    assert collected.work.reused_tokens == 32
    assert answers(core_of(TINY_LLAMA))[:2] == (first, second)


def test_a_choice_that_waits_for_its_turn_is_in_the_queue() -> None:
    """With one place to run, the second choice waits for the first: nobody decodes in between."""
    core = core_of(TINY_LLAMA, EngineOptions(max_running=1))
    collected = add(core, "r", PROMPT, 3, Sampling(temperature=0, choices=2, ignore_eos=True))
    drain(core)
    assert phases(collected) == [Phase.PREFILL, Phase.DECODE, Phase.QUEUE, Phase.DECODE]


def test_a_seed_gives_the_same_answer_in_any_company() -> None:
    """Sampling too: batch mates, chunks and a preemption change nothing."""
    sampling = Sampling(temperature=1.2, top_p=0.9, seed=3, ignore_eos=True)
    alone = add(core := core_of(TINY_LLAMA), "r", PROMPT, 10, sampling)
    drain(core)
    crowded_core = core_of(TINY_LLAMA, EngineOptions(step_tokens=16))
    crowd = [add(crowded_core, str(index), PROMPT[index:], 10) for index in range(1, 5)]
    crowded = add(crowded_core, "r", PROMPT, 10, sampling)
    drain(crowded_core, lambda step: preempt_youngest(crowded_core) if step in {4, 9} else None)
    assert crowded.tokens() == alone.tokens()
    assert all(len(one.tokens()) == 10 for one in crowd)


def test_the_answer_ends_at_its_limit() -> None:
    """max tokens: exactly as many, reason length."""
    core = core_of(TINY_LLAMA)
    collected = add(core, "r", PROMPT, 3)
    drain(core)
    finished = [event for event in collected.events if isinstance(event, ChoiceFinished)]
    assert [event.reason for event in finished] == [FinishReason.LENGTH]
    assert len(collected.tokens()) == 3


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    """Whatever the model says, cut where the string begins, also between tokens; which one it was is told."""
    core = core_of(TINY_LLAMA)
    whole = add(core, "whole", PROMPT, 12)
    drain(core)
    text = whole.text()
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = add(core, "stopped", PROMPT, 12, Sampling(temperature=0, ignore_eos=True, stop=(stop,)))
    drain(core)
    assert stopped.text() == text[: text.index(stop)]
    finished = [event for event in stopped.events if isinstance(event, ChoiceFinished)]
    assert [(event.reason, event.stop) for event in finished] == [(FinishReason.STOP, stop)]
    assert stopped.served.usage.output_tokens == len(stopped.tokens()) < 12


def test_an_end_of_turn_token_stops_unless_it_is_ignored() -> None:
    """The first stop token ends the answer, counts as a token, and shows no text; min_tokens rules it out before."""
    core = core_of(TINY_LLAMA)
    stop_id = min(core.tokenizer.stop_ids)
    certain = {stop_id: 100.0}
    ended = add(core, "a", PROMPT, 6, Sampling(temperature=0, logit_bias=certain))
    later = add(core, "b", PROMPT, 6, Sampling(temperature=0, logit_bias=certain, min_tokens=3))
    ignored = add(core, "c", PROMPT, 6, Sampling(temperature=0, logit_bias=certain, ignore_eos=True))
    drain(core)
    assert ended.tokens() == [stop_id]
    assert ended.text() == ""
    assert len(later.tokens()) == 4
    assert later.tokens().index(stop_id) == 3
    assert ignored.tokens() == [stop_id] * 6


def test_logprobs_come_with_every_token() -> None:
    """One entry per token, the greedy pick is the best of its alternatives."""
    core = core_of(TINY_LLAMA)
    collected = add(core, "r", PROMPT, 5, Sampling(temperature=0, logprobs=3, ignore_eos=True))
    drain(core)
    entries = [entry for event in collected.events for entry in getattr(event, "logprobs", ())]
    assert len(entries) == 5
    for entry in entries:
        assert entry.top[0] == entry.picked
        assert len(entry.top) == 3
        assert all(a.logprob >= b.logprob for a, b in itertools.pairwise(entry.top))


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    """A prompt as long as the context, or an answer that would pass its end."""
    core = core_of(TINY_LLAMA)
    limit = core.limit_tokens
    with pytest.raises(PromptTooLong, match=str(limit)):
        core.answer_limit(request("r"), limit)
    with pytest.raises(PromptTooLong, match="for the answer"):
        core.answer_limit(request("r", GREEDY, 10), limit - 9)
    assert core.answer_limit(request("r", GREEDY, 10), limit - 10) == 10
    assert core.answer_limit(request("r"), limit - 7) == 7
    bound = dataclasses.replace(request("r", GREEDY, 10**6), dialect=Dialect.ANTHROPIC_MESSAGES)
    assert core.answer_limit(bound, limit - 7) == 7
    assert core.answer_limit(dataclasses.replace(bound, max_output_tokens=3), limit - 7) == 3
    with pytest.raises(PromptTooLong):
        core.answer_limit(bound, limit)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of text cost a comparison."""
    core = core_of(TINY_LLAMA)

    def must_not(*_arguments: object) -> None:
        raise AssertionError("tokenized for nothing")

    monkeypatch.setattr(core.tokenizer, "encode_prompt", must_not)
    with pytest.raises(PromptTooLong, match="characters"):
        core.encode(Prompt(text="x" * 10**6))
    with pytest.raises(PromptTooLong, match="characters"):
        core.encode(Prompt(messages=(Message(role="user", content="x" * 10**6),)))


def test_a_context_length_is_no_reason_to_allocate_it() -> None:
    """Two thousand million tokens of context, as a file may claim: the cache stays within the machine's memory."""
    model, tokenizer, template = loaded(TINY_LLAMA)
    boastful = Boastful(model, dataclasses.replace(model.config, context_length_tokens=2**31 - 1))
    core = EngineCore(
        name="boastful",
        model=boastful,
        tokenizer=tokenizer,
        chat_template=template,
        options=EngineOptions(),
        clock=FakeClock(),
    )
    assert core.limit_tokens == core.kv.pools[0].blocks * BLOCK_TOKENS <= 1 << 20


def test_a_cache_that_does_not_fit_says_which_setting() -> None:
    """Asked for by hand, and more than an address space holds."""
    with pytest.raises(ConfigError, match="kv_cache_tokens"):
        core_of(TINY_LLAMA, EngineOptions(kv_cache_tokens=1 << 44, block_tokens=1 << 40))


@pytest.mark.parametrize("ids", [(), (-1,), (10**6,)])
def test_token_ids_outside_the_vocabulary_and_empty_prompts_are_refused(ids: tuple[int, ...]) -> None:
    """Before they reach any array."""
    with pytest.raises(RequestError):
        core_of(TINY_LLAMA).encode(Prompt(token_ids=ids))


def test_a_bias_on_a_token_that_does_not_exist_is_refused() -> None:
    """Silently doing nothing would look like doing it."""
    core = core_of(TINY_LLAMA)
    core.check(Sampling(logit_bias={core.config.vocab_size - 1: 1.0}))
    with pytest.raises(RequestError, match="vocabulary"):
        core.check(Sampling(logit_bias={core.config.vocab_size: 1.0}))


def test_a_model_without_a_chat_template_does_not_chat() -> None:
    """The error says where to go instead."""
    core = core_of(TINY_LLAMA)
    core.chat_template = None
    with pytest.raises(RequestError, match="completions"):
        core.encode(Prompt(messages=(Message(role="user", content="hi"),)))


def test_a_request_waits_only_in_the_queue_phase() -> None:
    """With one place to run, the second request enters prefill when the first is done, by the engine's own clock."""
    clock = FakeClock()
    core = core_of(TINY_LLAMA, EngineOptions(max_running=1), clock)
    first, second = add(core, "a", PROMPT, 2), add(core, "b", PROMPT, 2)
    drain(core, lambda _step: clock.advance(ms=10))
    starts = [event.at_ns for one in (first, second) for event in one.events if isinstance(event, PhaseEntered)]
    assert starts == [0, 0, 20_000_000, 20_000_000]
