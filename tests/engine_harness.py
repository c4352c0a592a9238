"""What tests of the engine's promises share: a core driven step by step, without threads, and a backend whose passes
wait for the test."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.engine.backend import EmbeddedBackend
from taximeter.engine.chat_template import ChatTemplate
from taximeter.engine.core import EngineCore, EngineOptions
from taximeter.engine.models import Batch, KVMemory, Model, layer_groups, load_model
from taximeter.engine.models.decoder import F32, I64
from taximeter.engine.request_state import SequenceStatus
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint
from taximeter.records import Dialect, Event, Request, Sampling, Served, TokensGenerated, Work

GOLDEN = Path(__file__).parent / "golden"
TINY_LLAMA = GOLDEN / "tiny_llama"
TINY_MODELS = tuple(
    GOLDEN / name
    for name in (
        "tiny_llama",
        "tiny_llama_untied",
        "tiny_llama3_rope",
        "tiny_gemma3",
        "tiny_mistral",
        "tiny_qwen2",
        "tiny_qwen3",
    )
)
GREEDY = Sampling(temperature=0, ignore_eos=True)


@functools.cache
def loaded(path: Path) -> tuple[Model, Tokenizer, ChatTemplate | None]:
    """A model read once for the whole test run."""
    checkpoint = open_checkpoint(path)
    vocabulary = checkpoint.vocabulary()
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    template = vocabulary.chat_template
    return load_model(checkpoint), tokenizer, None if template is None else ChatTemplate(template, tokenizer)


def core_of(path: Path, options: EngineOptions | None = None, clock: Clock = SYSTEM_CLOCK) -> EngineCore:
    """A fresh engine core, with an empty cache, around a model that is read once."""
    model, tokenizer, template = loaded(path)
    return EngineCore(
        name=path.stem,
        model=model,
        tokenizer=tokenizer,
        chat_template=template,
        options=options or EngineOptions(),
        clock=clock,
    )


@dataclass
class Collected:
    """What a request's events came to."""

    events: list[Event] = field(default_factory=list[Event])

    def __call__(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def tokens(self, choice: int = 0) -> list[int]:
        return [
            token
            for event in self.events
            if isinstance(event, TokensGenerated) and event.choice == choice
            for token in event.token_ids
        ]

    def text(self, choice: int = 0) -> str:
        return "".join(
            event.text for event in self.events if isinstance(event, TokensGenerated) and event.choice == choice
        )

    @property
    def served(self) -> Served:
        last = self.events[-1]
        assert isinstance(last, Served)
        return last

    @property
    def work(self) -> Work:
        assert self.served.work is not None
        return self.served.work


def request(name: str, sampling: Sampling = GREEDY, max_output_tokens: int | None = None) -> Request:
    return Request(
        id=name,
        received_at=SYSTEM_CLOCK.utc_now(),
        received_ns=0,
        dialect=Dialect.COMMAND_LINE,
        model="model",
        sampling=sampling,
        max_output_tokens=max_output_tokens,
    )


def add(
    core: EngineCore, name: str, prompt: Sequence[int], answer_tokens: int, sampling: Sampling = GREEDY
) -> Collected:
    """Queue a prompt of token ids."""
    collected = Collected()
    core.add(request(name, sampling, answer_tokens), tuple(prompt), answer_tokens, collected)
    return collected


def drain(core: EngineCore, between_steps: Callable[[int], None] | None = None) -> int:
    """Step until nothing is left, auditing the KV memory after every step; the number of steps."""
    steps = 0
    while core.has_work:
        core.step()
        core.audit()
        steps += 1
        if between_steps is not None:
            between_steps(steps)
    return steps


def preempt_youngest(core: EngineCore) -> None:
    """Take the memory of the last running sequence, as a full pool would."""
    running = [sequence for sequence in core.scheduler.running if sequence.status is SequenceStatus.RUNNING]
    if running:
        core.scheduler.preempt(running[-1])


def all_logits(model: Model, tokens: Sequence[int], *, chunk: int | None = None) -> F32:
    """Logits after every token of one sequence (tokens, vocabulary), computed in chunks of at most `chunk` tokens."""
    block_tokens = 16
    blocks = -(-len(tokens) // block_tokens)
    groups = len(layer_groups(model.config))
    kv = KVMemory(model.config, blocks=[blocks] * groups, block_tokens=block_tokens)
    # Blocks lie in memory backwards, so that a kernel which ignored the table would be wrong.
    table = np.arange(blocks, dtype=np.int32)[::-1].copy()
    parts: list[F32] = []
    for start in range(0, len(tokens), chunk or len(tokens)):
        positions = np.arange(start, min(len(tokens), start + (chunk or len(tokens))), dtype=np.int32)
        batch = Batch(
            token_ids=np.array(tokens, np.int64)[positions],
            positions=positions,
            row_seq=np.zeros(len(positions), np.int32),
            slots=(table[positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens,)
            * groups,
            block_tables=(table[None, :],) * groups,
            logit_rows=np.arange(len(positions)),
        )
        parts.append(model.forward(batch, kv))
    return np.concatenate(parts)


class Gated:
    """A model whose passes wait until the test lets them through, and that can be told to break."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.arithmetic, self.tells_prompts_apart = model.arithmetic, model.tells_prompts_apart
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.broken = False
        self._model = model

    @property
    def read_bytes(self) -> int:
        return self._model.read_bytes

    def profile_ns(self) -> Mapping[str, int]:
        return self._model.profile_ns()

    def forward(self, batch: Batch, kv: KVMemory, *, out: F32 | None = None) -> F32:
        self._wait()
        return self._model.forward(batch, kv, out=out)

    def best(self, batch: Batch, kv: KVMemory) -> I64:
        self._wait()
        return self._model.best(batch, kv)

    def _wait(self) -> None:
        self.started.set()
        assert self.gate.wait(timeout=30)
        if self.broken:
            raise FloatingPointError("made to break")


@asynccontextmanager
async def serving(
    *names: str, max_queued_requests: int = 8, max_running: int = 64
) -> AsyncIterator[tuple[EmbeddedBackend, Gated]]:
    """A backend with the tiny model under each of `names`, all behind one gate."""
    model, tokenizer, template = loaded(TINY_LLAMA)
    gated = Gated(model)
    cores = {
        name: EngineCore(
            name=name,
            model=gated,
            tokenizer=tokenizer,
            chat_template=template,
            options=EngineOptions(max_running=max_running),
            clock=SYSTEM_CLOCK,
        )
        for name in names or ("tiny",)
    }
    backend = EmbeddedBackend(cores, max_queued_requests=max_queued_requests, clock=SYSTEM_CLOCK)
    try:
        yield backend, gated
    finally:
        gated.gate.set()
        await backend.aclose()
