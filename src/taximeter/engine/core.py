"""One model's engine: schedule, run, update, and again.

Owns: the requests in flight on one model, the three beats of a step, and the account of who took what. Refuses to
know: threads and event loops (`backend` has them), HTTP, money. Everything here runs on one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from taximeter.clock import Clock
from taximeter.engine import kernels
from taximeter.engine.answer_rules import NO_RULES, AnswerRules, rules_of
from taximeter.engine.conversation import text_of
from taximeter.engine.energy import EnergyMeter
from taximeter.engine.kv_cache import BLOCK_TOKENS, KVCacheManager, PoolCensus
from taximeter.engine.kv_sizing import MOST_TOKENS, cache_tokens, group_sizes
from taximeter.engine.limits import NOT_TOLD, KnownLimits
from taximeter.engine.memory_ahead import AHEAD_BYTES, MemoryAhead
from taximeter.engine.metering import Span, StepCosts
from taximeter.engine.model_runner import ModelRunner
from taximeter.engine.models import KVFormat, Model, WeightFormat, kv_bytes_per_token
from taximeter.engine.output import OutputPiece, OutputProcessor
from taximeter.engine.request_state import RequestState, SequenceState, SequenceStatus
from taximeter.engine.sampler import Pick, Sampler
from taximeter.engine.scheduler import Chunk, Scheduler, SchedulerOutput
from taximeter.engine.structured import Grammars
from taximeter.engine.tokenizer import Tokenizer
from taximeter.errors import ConfigError, PromptTooLong, RequestError
from taximeter.records import (
    Basis,
    ChoiceFinished,
    Dialect,
    Event,
    FinishReason,
    PhaseEntered,
    PositionLogprobs,
    Prompt,
    PromptRead,
    Request,
    Sampling,
    Served,
    TokenLogprob,
    TokensGenerated,
    Usage,
    Work,
)

if TYPE_CHECKING:
    from taximeter.engine.chat_template import ChatTemplate

Deliver = Callable[[Sequence[Event]], None]
BACKEND_NAME = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`step_tokens` is the token budget of a step, None for no limit. `kv_cache_tokens` None picks room for one
    context of the model, and at least 16,384 tokens, as far as a quarter of the machine's memory goes. `threads` None
    leaves the kernels all of the machine. `weights` None keeps the weights as their file has them; another format
    is made of them at load. `kv_format` is that of the KV cache; the reference path has neither choice. With
    `profile` passes count where their time goes. `limits` are the machine's, for receipts to say what share of them was
    used.
    """

    step_tokens: int | None = 512
    kv_cache_tokens: int | None = None
    block_tokens: int = BLOCK_TOKENS
    max_running: int = 64
    max_queued_requests: int = 256
    prefix_caching: bool = True
    threads: int | None = None
    weights: WeightFormat | None = None
    kv_format: KVFormat = "bf16"
    profile: bool = False
    limits: KnownLimits = NOT_TOLD


@dataclass(slots=True, eq=False, kw_only=True)
class _Active:
    """A request in flight, with what its sequences need between steps."""

    state: RequestState
    deliver: Deliver
    samplers: list[Sampler]
    outputs: list[OutputProcessor]
    is_prompt_told: bool = False
    events: list[Event] = field(default_factory=list[Event])

    def flush(self) -> None:
        events, self.events = self.events, []
        if events:
            self.deliver(events)


class EngineCore:
    """Serves one model. `name` is what requests call it."""

    def __init__(
        self,
        *,
        name: str,
        model: Model,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        options: EngineOptions,
        clock: Clock,
    ) -> None:
        self.name = name
        self.config = model.config
        self.tokenizer = tokenizer
        self.busy_ns = 0
        self.chat_template = chat_template
        self._grammars = Grammars(tokenizer, logits=self.config.vocab_size)
        self._clock = clock
        self._kernels = kernels.level()
        tokens = options.kv_cache_tokens or cache_tokens(self.config, options.kv_format)
        step_tokens = options.step_tokens or sys.maxsize
        sizes = group_sizes(
            self.config,
            tokens,
            block_tokens=options.block_tokens,
            step_tokens=step_tokens,
            max_running=options.max_running,
        )
        self._model = model
        try:
            self._runner = ModelRunner(
                model,
                blocks=[size.blocks for size in sizes],
                block_tokens=options.block_tokens,
                kv_format=options.kv_format,
            )
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"there is no memory for a KV cache of {tokens} tokens of {name}",
                hint="set kv_cache_tokens lower",
            ) from error
        self.kv = KVCacheManager(
            sizes,
            block_tokens=options.block_tokens,
            prefix_caching=options.prefix_caching,
            tells_prompts_apart=model.tells_prompts_apart,
            copy_block=self._runner.copy_block,
        )
        kv_format = "f32" if kernels.native_level() is None else options.kv_format
        kv_bytes = kv_bytes_per_token(self.config, kv_format)
        self._memory_ahead = MemoryAhead(
            self.kv.pools,
            blocks=AHEAD_BYTES // (kv_bytes * options.block_tokens),
            touch_block=self._runner.touch_block,
        )
        self._room_tokens = min(self.kv.capacity_tokens(step_tokens), max(tokens, MOST_TOKENS))
        self.scheduler = Scheduler(self.kv, step_tokens=options.step_tokens, max_running=options.max_running)
        self._costs = StepCosts.of(self.config, kv_bytes_per_token=kv_bytes)
        self._energy = EnergyMeter()
        self._limits = options.limits
        limits = options.limits.limits
        self._ceiling = None if limits is None else limits.at(kernels.threads()).ceiling(model.arithmetic)
        self._active: dict[str, _Active] = {}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def take_memory_ahead(self) -> bool:
        """A little work for when there is none: see `MemoryAhead.take`."""
        return self._memory_ahead.take()

    @property
    def limit_tokens(self) -> int:
        """The most tokens that a prompt and one of its answers can have together."""
        return min(self.config.context_length_tokens, self._room_tokens)

    def check(self, sampling: Sampling) -> None:
        """Raises RequestError for what is asked of tokens that this model does not have."""
        unknown = next((token for token in sampling.logit_bias if not 0 <= token < self.config.vocab_size), None)
        if unknown is not None:
            raise self._no_such_token(unknown, "logit_bias")

    def _no_such_token(self, token: int, param: str) -> RequestError:
        return RequestError(
            f"token id {token} is not in the vocabulary of {self.name}",
            param=param,
            hint=f"ids go from 0 to {self.config.vocab_size - 1}",
        )

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Prompt tokens as the model is to see them. Thread-safe. Raises RequestError."""
        if prompt.messages is not None:
            if self.chat_template is None:
                raise RequestError(
                    f"{self.name} has no chat template: it completes text and does not chat",
                    param="messages",
                    hint="send a plain prompt to the completions endpoint",
                )
            self._refuse_hopeless(sum(len(text_of(message)) for message in prompt.messages))
            tools = () if prompt.toolbox is None else prompt.toolbox.tools
            ids = tuple(self.chat_template.encode(prompt.messages, tools))
        elif prompt.text is not None:
            self._refuse_hopeless(len(prompt.text))
            ids = tuple(self.tokenizer.encode_prompt(prompt.text))
        else:
            ids = prompt.token_ids or ()
            wrong = next((token for token in ids if not 0 <= token < self.config.vocab_size), None)
            if wrong is not None:
                raise self._no_such_token(wrong, "prompt")
        if not ids:
            raise RequestError("the prompt is empty: there is no token to begin from", param="prompt")
        return ids

    def rules(self, prompt: Prompt) -> AnswerRules:
        """What the answer to an encoded prompt has to keep to. Thread-safe. Raises RequestError."""
        syntax = None if self.chat_template is None else self.chat_template.call_syntax
        return rules_of(prompt, syntax, self.tokenizer, self._grammars)

    def _refuse_hopeless(self, characters: int) -> None:
        """A text that cannot fit whatever its tokens are is not worth tokenizing."""
        at_least = -(-characters // self.tokenizer.longest_token_characters)
        if at_least >= self.limit_tokens:
            raise PromptTooLong(
                f"{self.name} has room for {self.limit_tokens} tokens; this prompt has {characters} characters, at "
                f"least {at_least} tokens",
                hint="shorten the prompt",
            )

    def answer_limit(self, request: Request, prompt_tokens: int) -> int:
        """How many tokens each choice may have. Raises PromptTooLong when that is none, or fewer than asked for: not so
        in a dialect that has every request name a limit, where it is no wish for as many."""
        room = self.limit_tokens - prompt_tokens
        wanted = request.max_output_tokens
        if wanted is not None and request.dialect is Dialect.ANTHROPIC_MESSAGES:
            wanted = min(wanted, max(room, 1))
        if room < 1 or (wanted is not None and wanted > room):
            asked = "" if wanted is None else f" and {wanted} for the answer"
            raise PromptTooLong(
                f"{self.name} has room for {self.limit_tokens} tokens, prompt and answer together; this request has "
                f"{prompt_tokens} in the prompt{asked}",
                hint="shorten the prompt or ask for a shorter answer",
            )
        return room if wanted is None else wanted

    def add(
        self,
        request: Request,
        prompt: tuple[int, ...],
        max_output_tokens: int,
        deliver: Deliver,
        rules: AnswerRules = NO_RULES,
    ) -> None:
        """Queue a request whose prompt `encode`, whose limit `answer_limit` and whose rules `rules` gave."""
        sequences: list[SequenceState] = []
        for choice in range(request.sampling.choices):
            sequences.append(
                SequenceState(
                    request_id=request.id,
                    choice=choice,
                    prompt=prompt,
                    max_output_tokens=max_output_tokens,
                    leader=sequences[0] if sequences else None,
                )
            )
        penalized = np.unique(prompt) if request.sampling.repetition_penalty != 1 else np.empty(0, np.int64)
        self._active[request.id] = _Active(
            state=RequestState(request_id=request.id, sequences=sequences),
            deliver=deliver,
            samplers=[
                Sampler(
                    request.sampling,
                    choice=sequence.choice,
                    penalized=penalized,
                    stop_ids=self.tokenizer.stop_ids,
                    matcher=rules.new_matcher(),
                )
                for sequence in sequences
            ],
            outputs=[
                OutputProcessor(
                    self.tokenizer,
                    request.sampling,
                    max_output_tokens=max_output_tokens,
                    reader=rules.new_reader(f"{request.id}/{sequence.choice}"),
                    marks=rules.marks,
                )
                for sequence in sequences
            ],
        )
        for sequence in sequences:
            self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Stop a request between two steps; its last events follow at once. Unknown ids are ignored: it was over."""
        active = self._active.pop(request_id, None)
        if active is None:
            return
        at_ns = self._clock.monotonic_ns()
        for sequence in active.state.sequences:
            if sequence.status is not SequenceStatus.FINISHED:
                self.scheduler.finish(sequence)
                active.events.append(ChoiceFinished(at_ns=at_ns, choice=sequence.choice, reason=FinishReason.CANCELLED))
        active.events.append(self._served(active.state, at_ns))
        active.flush()

    def abandon(self) -> dict[str, Served]:
        """After something broke: forget everything in flight, and say what each request had taken. Asks nothing of
        the state it finds, which may be half changed; what was cached cannot be trusted either."""
        at_ns = self._clock.monotonic_ns()
        took = {request_id: self._served(active.state, at_ns) for request_id, active in self._active.items()}
        self._active.clear()
        self.scheduler.abandon()
        return took

    def nothing_taken(self) -> Served:
        """The account of a request that was never taken up."""
        usage = Usage(input_fresh_tokens=0, input_cache_read_tokens=0, output_text_tokens=0, basis=Basis.MEASURED)
        work = self._work(RequestState(request_id="", sequences=[]))
        at_ns = self._clock.monotonic_ns()
        return Served(at_ns=at_ns, usage=usage, work=work, served_by=BACKEND_NAME, model=self.name)

    def step(self) -> None:
        """Schedule, run, update. The nanoseconds it takes are on the requests that took part, all of them, and on
        `busy_ns` before anybody is told of an end."""
        started_ns = self._clock.monotonic_ns()
        plan = self.scheduler.schedule()
        self._note_plan(plan, started_ns)
        self._flush()  # now, not after the pass: whoever left the queue makes room for the next
        if not plan.chunks:
            return
        energy_uj = self._energy.read_uj()
        picks = iter(self._compute(plan.chunks))
        written: list[tuple[SequenceState, Pick, OutputPiece]] = []
        for chunk in plan.chunks:
            self._note_work(chunk)
            self.scheduler.update(chunk)
            if chunk.catches_up:
                written.append(self._write(chunk.sequence, next(picks)))
        ended_ns = self._clock.monotonic_ns()
        self._charge(plan.chunks, ended_ns - started_ns, self._used_uj(energy_uj))
        for sequence, pick, piece in written:
            active = self._active[sequence.request_id]
            if not active.is_prompt_told:
                active.is_prompt_told = True
                active.events.append(PromptRead(at_ns=ended_ns, usage=active.state.usage().of_prompt()))
            active.events.append(self._tokens_event(sequence, pick, piece, ended_ns))
        self._close_step(plan, ended_ns)

    def profile_ns(self) -> Mapping[str, int]:
        """See `Model.profile_ns`."""
        return self._model.profile_ns()

    def audit(self) -> PoolCensus:
        """Check the KV memory against everybody who holds a block of it. Raises InvariantBroken."""
        return self.kv.audit(sequence for active in self._active.values() for sequence in active.state.sequences)

    def _note_plan(self, plan: SchedulerOutput, at_ns: int) -> None:
        for sequence in plan.admitted:
            state = self._active[sequence.request_id].state
            if sequence.high_water_tokens == 0:
                state.reused_tokens += sequence.computed_tokens
                if sequence.leader is None:
                    state.cache_hit_tokens = sequence.computed_tokens
            state.counted_places = 0
        self._note_phases((*plan.admitted, *plan.preempted), at_ns)

    def _note_work(self, chunk: Chunk) -> None:
        state = self._active[chunk.sequence.request_id].state
        state.computed_tokens += chunk.count
        state.recomputed_tokens += max(0, min(chunk.end, chunk.sequence.high_water_tokens) - chunk.start)
        state.note_held_blocks()

    def _compute(self, chunks: Sequence[Chunk]) -> list[Pick]:
        """Run the pass, and pick the next token of each chunk that catches up."""
        sequences = (chunk.sequence for chunk in chunks if chunk.catches_up)
        samplers = [self._active[sequence.request_id].samplers[sequence.choice] for sequence in sequences]
        if all(sampler.takes_the_best for sampler in samplers):
            tokens = self._runner.best(chunks).tolist()
            return [sampler.take(token) for sampler, token in zip(samplers, tokens, strict=True)]
        return [sampler.pick(row) for sampler, row in zip(samplers, self._runner.run(chunks), strict=True)]

    def _write(self, sequence: SequenceState, pick: Pick) -> tuple[SequenceState, Pick, OutputPiece]:
        """Add a sequence's next token to its answer."""
        sequence.output.append(pick.token_id)
        piece = self._active[sequence.request_id].outputs[sequence.choice].push(pick.token_id, pick.end)
        sequence.finish_reason, sequence.stop = piece.finish_reason, piece.stop
        return sequence, pick, piece

    def _tokens_event(self, sequence: SequenceState, pick: Pick, piece: OutputPiece, at_ns: int) -> TokensGenerated:
        return TokensGenerated(
            at_ns=at_ns,
            choice=sequence.choice,
            new_tokens=1,
            text=piece.text,
            calls=piece.calls,
            token_ids=(pick.token_id,),
            logprobs=() if pick.logprob is None else (self._position(pick, pick.logprob),),
        )

    def _charge(self, chunks: Sequence[Chunk], step_ns: int, energy_uj: int | None) -> None:
        self.busy_ns += step_ns
        spans = [Span(start=chunk.start, end=chunk.end, logit_rows=int(chunk.catches_up)) for chunk in chunks]
        passes: dict[str, set[bool]] = {}
        shares = self._costs.shares(spans, step_ns=step_ns, weight_bytes=self._runner.read_bytes, energy_uj=energy_uj)
        for chunk, share in zip(chunks, shares, strict=True):
            request_id = chunk.sequence.request_id
            is_prefill = chunk.start < len(chunk.sequence.prompt)
            self._active[request_id].state.charge(share, is_prefill=is_prefill)
            passes.setdefault(request_id, set()).add(is_prefill)
        for request_id, kinds in passes.items():
            state = self._active[request_id].state
            state.prefill_passes += True in kinds
            state.decode_passes += False in kinds

    def _used_uj(self, before_uj: int | None) -> int | None:
        after_uj = self._energy.read_uj()
        return None if before_uj is None or after_uj is None else after_uj - before_uj

    def _close_step(self, plan: SchedulerOutput, at_ns: int) -> None:
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.finish_reason is not None and sequence.status is not SequenceStatus.FINISHED:
                self.scheduler.finish(sequence)
                finished = ChoiceFinished(
                    at_ns=at_ns, choice=sequence.choice, reason=sequence.finish_reason, stop=sequence.stop
                )
                self._active[sequence.request_id].events.append(finished)
        self._note_phases((chunk.sequence for chunk in plan.chunks), at_ns)
        for request_id in {chunk.sequence.request_id: None for chunk in plan.chunks}:
            active = self._active[request_id]
            if active.state.is_finished:
                active.events.append(self._served(active.state, at_ns))
                del self._active[request_id]
                active.flush()
        self._flush()

    def _flush(self) -> None:
        for active in self._active.values():
            active.flush()

    def _note_phases(self, changed: Iterable[SequenceState], at_ns: int) -> None:
        """`changed` are all sequences to which something happened that a request's phase may follow from."""
        for request_id in {sequence.request_id: None for sequence in changed}:
            active = self._active[request_id]
            state = active.state
            if not state.is_finished and (phase := state.current_phase()) is not state.phase:
                state.phase = phase
                active.events.append(PhaseEntered(at_ns=at_ns, phase=phase))

    def _served(self, state: RequestState, at_ns: int) -> Served:
        return Served(at_ns=at_ns, usage=state.usage(), work=self._work(state), served_by=BACKEND_NAME, model=self.name)

    def _work(self, state: RequestState) -> Work:
        unknown = {"ceiling": self._limits.unknown_reason, "energy_uj": self._energy.unknown_reason}
        return state.work(
            self._kernels,
            ceiling=self._ceiling,
            unknown_reasons={name: reason for name, reason in unknown.items() if reason is not None},
        )

    def _position(self, pick: Pick, logprob: float) -> PositionLogprobs:
        return PositionLogprobs(
            picked=self._token_logprob(pick.token_id, logprob),
            top=tuple(self._token_logprob(token_id, value) for token_id, value in pick.top),
        )

    def _token_logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        utf8 = self.tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id=token_id, text=utf8.decode("utf-8", "replace"), utf8=utf8, logprob=logprob)
