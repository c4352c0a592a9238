"""What is measured: one entry for each line of the table, with what it asks of a server and what its limit is.

Owns: the questions, their units, their targets. Refuses to know: which engine answers, and how figures are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engines_lab.door import Door, Void
from engines_lab.limits import Costs
from engines_lab.prompts import Prompts
from engines_lab.yardstick import Machine


class Shape(StrEnum):
    """How a server is set up. An engine to which two are the same is started once for both."""

    ONE = "one stream, 8k context"
    PREFIX = "one stream, 8k context, prompts that begin alike"
    MANY = "32 streams"


CONTEXT_TOKENS: Final = 8192
"""Of one stream."""
STREAMS: Final = 32
STREAM_TOKENS: Final = 512
"""Of `Shape.MANY`: the most that one stream holds, prompt and answer."""
LONG_TOKENS: Final = (4000, 8000)
WARM_UP: Final[Mapping[Shape, tuple[int, int]]] = {
    Shape.ONE: (1, 2048),
    Shape.PREFIX: (1, 2048),
    Shape.MANY: (STREAMS, 256),
}
"""Streams and the tokens of each one's prompt, before anything is measured: an engine's memory has then been used once,
which on a virtual machine can take longer than the prompt does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One server at work: where it is, and the prompts it gets. Long prompts are beginnings of `long_text`, so that an
    engine with a prefix cache need not read the whole of it each time: how it decodes behind it is what counts."""

    door: Door
    prompts: Prompts
    long_text: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be reached, all of it: `ratio` to the best peer, `share` of the limit, `value` of the figure."""

    ratio: float | None = None
    share: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure. `ask` is None where starting the server already gives it. `limit` is in `unit`, like the figure;
    None where physics says nothing. `quick`: also measured in a quick run. `takes_s`: for planning, about how long a
    peer takes over it with a model of this size on two cores."""

    key: str
    title: str
    unit: str
    shape: Shape
    must: Target
    aim: Target
    ask: Callable[[Session], Awaitable[float]] | None = None
    limit: Callable[[Costs, Machine], float | None] | None = None
    more_is_better: bool = True
    quick: bool = False
    takes_s: float = 0.0


def _decode(prompt_tokens: int, output_tokens: int) -> Callable[[Session], Awaitable[float]]:
    async def ask(session: Session) -> float:
        answer = await session.door.ask(session.prompts.prompt(prompt_tokens), output_tokens)
        return answer.decode_tokens_per_s

    return ask


def _decode_behind(context_tokens: int) -> Callable[[Session], Awaitable[float]]:
    async def ask(session: Session) -> float:
        answer = await session.door.ask(session.long_text[:context_tokens], 64)
        return answer.decode_tokens_per_s

    return ask


def _decode_limit(context_tokens: int, output_tokens: int) -> Callable[[Costs, Machine], float | None]:
    def limit(costs: Costs, machine: Machine) -> float | None:
        step_s = costs.decode_s(machine, streams=1, context_tokens=context_tokens + output_tokens / 2)
        return None if step_s is None else 1 / step_s

    return limit


def _prefill(tokens: int) -> Callable[[Session], Awaitable[float]]:
    async def ask(session: Session) -> float:
        answer = await session.door.ask(session.prompts.prompt(tokens), 2)
        return tokens / answer.first_token_s

    return ask


def _prefill_limit(tokens: int) -> Callable[[Costs, Machine], float | None]:
    def limit(costs: Costs, machine: Machine) -> float | None:
        whole_s = costs.prefill_s(machine, prompt_tokens=tokens)
        return None if whole_s is None else tokens / whole_s

    return limit


_PREFIX_TOKENS: Final = 2000
_TAIL_TOKENS: Final = 24


async def _warm_prefix(session: Session) -> float:
    prefix = session.prompts.prompt(_PREFIX_TOKENS)
    with_tail = [session.prompts.prompt(_PREFIX_TOKENS + _TAIL_TOKENS, after=prefix) for _ in range(4)]
    cold, *warm = [await session.door.ask(prompt, 4) for prompt in with_tail]
    figure = statistics.median(answer.first_token_s for answer in warm)
    if figure > cold.first_token_s / 2:
        raise Void(f"the prefix was not found again: {cold.first_token_s:.3f} s at first, {figure:.3f} s later")
    return figure * 1000


def _warm_prefix_limit(costs: Costs, machine: Machine) -> float | None:
    total_tokens = _PREFIX_TOKENS + _TAIL_TOKENS
    tail_s = costs.prefill_s(machine, prompt_tokens=total_tokens, cached_tokens=_PREFIX_TOKENS)
    return None if tail_s is None else tail_s * 1000


def _together(streams: int, prompt_tokens: int, output_tokens: int) -> Callable[[Session], Awaitable[float]]:
    async def ask(session: Session) -> float:
        prompts = [session.prompts.prompt(prompt_tokens) for _ in range(streams)]
        answers = await session.door.ask_together(prompts, output_tokens)
        elapsed_s = max(a.last_token_at for a in answers) - min(a.sent_at for a in answers)
        return streams * output_tokens / elapsed_s

    return ask


def _together_limit(streams: int, prompt_tokens: int, output_tokens: int) -> Callable[[Costs, Machine], float | None]:
    def limit(costs: Costs, machine: Machine) -> float | None:
        step_s = costs.decode_s(machine, streams=streams, context_tokens=prompt_tokens + output_tokens / 2)
        prefill_s = costs.prefill_s(machine, prompt_tokens=prompt_tokens)
        if step_s is None or prefill_s is None:
            return None
        return streams * output_tokens / (streams * prefill_s + (output_tokens - 1) * step_s)

    return limit


def _load(streams: int, prompt_tokens: int, output_tokens: int, must: float, aim: float, *, quick: bool) -> Measure:
    return Measure(
        key=f"load-{prompt_tokens}-{output_tokens}-{streams}",
        title=f"{prompt_tokens} in + {output_tokens} out, {streams} stream{'' if streams == 1 else 's'}",
        unit="tok/s",
        shape=Shape.ONE if streams == 1 else Shape.MANY,
        must=Target(ratio=must),
        aim=Target(ratio=aim),
        ask=_together(streams, prompt_tokens, output_tokens),
        limit=_together_limit(streams, prompt_tokens, output_tokens),
        quick=quick,
        takes_s=streams * (prompt_tokens / 1000 + output_tokens / 600) + output_tokens / 100,
    )


MEASURES: Final = (
    Measure(
        key="start",
        title="start to first token",
        unit="s",
        shape=Shape.ONE,
        must=Target(value=1.0),
        aim=Target(value=0.35),
        more_is_better=False,
        quick=True,
    ),
    Measure(
        key="memory",
        title="memory after it, 8k context",
        unit="MB PSS",
        shape=Shape.ONE,
        must=Target(ratio=1.0),
        aim=Target(value=200),
        more_is_better=False,
        quick=True,
    ),
    Measure(
        key="decode",
        title="decode, 128 + 128 tokens",
        unit="tok/s",
        shape=Shape.ONE,
        must=Target(ratio=1.5, share=0.7),
        aim=Target(share=0.9),
        ask=_decode(128, 128),
        limit=_decode_limit(128, 128),
        quick=True,
        takes_s=2.0,
    ),
    Measure(
        key="prefill-512",
        title="prefill 512",
        unit="tok/s",
        shape=Shape.ONE,
        must=Target(ratio=1.4),
        aim=Target(ratio=1.8),
        ask=_prefill(512),
        limit=_prefill_limit(512),
        quick=True,
        takes_s=0.6,
    ),
    Measure(
        key="prefill-2048",
        title="prefill 2,048",
        unit="tok/s",
        shape=Shape.ONE,
        must=Target(ratio=1.4),
        aim=Target(ratio=1.7),
        ask=_prefill(2048),
        limit=_prefill_limit(2048),
        takes_s=3.5,
    ),
    Measure(
        key="warm-prefix",
        title="first token behind 2,000 cached",
        unit="ms",
        shape=Shape.PREFIX,
        must=Target(value=25),
        aim=Target(value=10),
        ask=_warm_prefix,
        limit=_warm_prefix_limit,
        more_is_better=False,
        quick=True,
        takes_s=7.0,
    ),
    _load(1, 256, 64, must=1.5, aim=1.5, quick=False),
    _load(8, 256, 64, must=2.0, aim=2.0, quick=True),
    _load(32, 256, 64, must=2.0, aim=3.0, quick=False),
    _load(8, 16, 128, must=1.5, aim=2.5, quick=False),
    _load(32, 16, 128, must=1.5, aim=2.5, quick=True),
    *(
        Measure(
            key=f"decode-{tokens}",
            title=f"decode at {tokens:,} tokens of context",
            unit="tok/s",
            shape=Shape.ONE,
            must=Target(ratio=1.5),
            aim=Target(share=0.9),
            ask=_decode_behind(tokens),
            limit=_decode_limit(tokens, 64),
            takes_s=tokens / 400,
        )
        for tokens in LONG_TOKENS
    ),
)


SHORT_MEASURES: Final = (
    *(measure for measure in MEASURES if measure.ask is None),
    Measure(
        key="decode-short",
        title="decode, 32 + 32 tokens",
        unit="tok/s",
        shape=Shape.ONE,
        must=Target(ratio=1.0),
        aim=Target(share=0.9),
        ask=_decode(32, 32),
        limit=_decode_limit(32, 32),
        takes_s=0.5,
    ),
    Measure(
        key="prefill-128",
        title="prefill 128",
        unit="tok/s",
        shape=Shape.ONE,
        must=Target(ratio=1.0),
        aim=Target(ratio=1.8),
        ask=_prefill(128),
        limit=_prefill_limit(128),
        takes_s=0.2,
    ),
)
"""A quarter of the tokens, for models that take minutes over the others: one pass of theirs is long enough to time."""
