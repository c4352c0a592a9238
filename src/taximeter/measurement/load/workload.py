"""What is asked under load: how long prompts and answers are, and what prompts have in common.

Owns: the named shapes, files of prompts and traces, and the lengths of somebody's own receipts. Refuses to know: when
requests are due, and the words of a prompt whose length alone is given.

| name | prompt tokens | answer tokens | shared beginning |
|---|---|---|---|
| chat | median 200, 95 % within 27 and 1,500 | median 150, 95 % within 31 and 720 | none |
| rag | median 2,000, 95 % within 900 and 4,400 | median 150, 95 % within 46 and 490 | 200 tokens of instructions |
| agent | median 4,000, 95 % within 1,400 and 12,000 | median 80, 95 % within 14 and 470 | 1,000 tokens (with tools) |

Lengths are log-normal. The shapes are ours, round figures for three ways of using a model, and not measured anywhere:
whose own use matters takes `ledger`, or a file. Of the ledger, prompt and answer lengths are drawn together, as pairs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from numpy.random import Generator

from taximeter.errors import RequestError
from taximeter.records import Outcome, Receipt, Request

NAMED: Final = ("chat", "rag", "agent")
LEDGER: Final = "ledger"
FEWEST_RECEIPTS: Final = 20
_MOST_BYTES: Final = 256 * 1024 * 1024
_LONGEST: Final = 100_000_000  # tokens; more is no length
# Requests that were sent to measure have this label, or, where a gateway of ours wrote their receipts, such a run.
_MEASURED_LABEL: Final = "shape"
_MEASURED_RUN: Final = re.compile(r"(sweep|load|compare)-\d{8}-\d{6}-")

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request is to be: so many tokens, of which the first `shared_tokens` are those of others too; or a
    prompt as it is, in `text` or `messages`. `output_tokens` None leaves the answer's end to the model."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    shared_tokens: int = 0
    text: str | None = field(default=None, repr=False)
    messages: tuple[Message, ...] | None = field(default=None, repr=False)

    @property
    def is_literal(self) -> bool:
        return self.text is not None or self.messages is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one kind. `says` describes it, `stands_on` is how many requests or receipts it was made from, None
    for a formula. `recorded_ns` is when each of its `listed` requests came, where that is known."""

    name: str
    says: str
    stands_on: int | None = None
    listed: tuple[Ask, ...] = field(default=(), repr=False)
    recorded_ns: tuple[int, ...] | None = field(default=None, repr=False)
    in_order: bool = False
    drawn: Callable[[Generator], Ask] | None = field(default=None, repr=False)

    def asks(self, rng: Generator) -> Iterator[Ask]:
        """Requests without an end. What is listed comes in its order, again and again, or is drawn with replacement."""
        if self.drawn is not None:
            while True:
                yield self.drawn(rng)
        while self.in_order:
            yield from self.listed
        while True:
            yield self.listed[int(rng.integers(len(self.listed)))]

    def lengths(self, rng: Generator, count: int = 1000) -> tuple[float, float]:
        """The mean prompt and answer tokens of some of its requests; what is not known counts as nothing."""
        some = [ask for ask, _ in zip(self.asks(rng), range(count), strict=False)]
        prompt = sum(ask.prompt_tokens or len(ask.text or "") // 4 for ask in some) / len(some)
        return prompt, sum(ask.output_tokens or 0 for ask in some) / len(some)

    def fitted(self, context_tokens: int | None, *, shortest_prompt_tokens: int = 1) -> Workload:
        """The same for a model with so long a context: prompts that are too long are cut, and answers that leave no
        room for a prompt too. No prompt is shorter than the shortest that can be made."""
        fit = _Fit(context_tokens=context_tokens, shortest_prompt_tokens=shortest_prompt_tokens)
        fitted = tuple(fit(ask) for ask in self.listed)
        cut = sum(one != other for one, other in zip(fitted, self.listed, strict=True))
        says = f"{self.says}; {cut} of {len(fitted)} made to fit" if cut else self.says
        drawn = None if self.drawn is None else _Fitted(drawn=self.drawn, fit=fit)
        return replace(self, says=says, listed=fitted, drawn=drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    context_tokens: int | None
    shortest_prompt_tokens: int

    def __call__(self, ask: Ask) -> Ask:
        if ask.prompt_tokens is None:
            return ask
        shortest, output = self.shortest_prompt_tokens, ask.output_tokens
        prompt = max(shortest, ask.prompt_tokens)
        if self.context_tokens is not None:
            room = max(shortest + 1, self.context_tokens)
            output = None if output is None else min(output, room - shortest)
            prompt = min(prompt, room - (output or 1))
        shared = min(ask.shared_tokens, prompt)
        return replace(ask, prompt_tokens=prompt, output_tokens=output, shared_tokens=shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """A way of drawing whose results are made to fit. No closure: it goes to other processes."""

    drawn: Callable[[Generator], Ask]
    fit: _Fit

    def __call__(self, rng: Generator) -> Ask:
        return self.fit(self.drawn(rng))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogNormal:
    median: int
    sigma: float
    least: int
    most: int

    def draw(self, rng: Generator) -> int:
        return min(self.most, max(self.least, round(self.median * math.exp(self.sigma * float(rng.standard_normal())))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    prompt: _LogNormal
    output: _LogNormal
    shared_tokens: int

    def draw(self, rng: Generator) -> Ask:
        prompt = self.prompt.draw(rng)
        return Ask(
            prompt_tokens=prompt, output_tokens=self.output.draw(rng), shared_tokens=min(self.shared_tokens, prompt - 1)
        )


_SHAPES: Final = {
    "chat": _Shape(
        prompt=_LogNormal(median=200, sigma=1.02, least=16, most=4096),
        output=_LogNormal(median=150, sigma=0.8, least=8, most=1024),
        shared_tokens=0,
    ),
    "rag": _Shape(
        prompt=_LogNormal(median=2000, sigma=0.4, least=512, most=8192),
        output=_LogNormal(median=150, sigma=0.6, least=16, most=512),
        shared_tokens=200,
    ),
    "agent": _Shape(
        prompt=_LogNormal(median=4000, sigma=0.55, least=1100, most=16384),
        output=_LogNormal(median=80, sigma=0.9, least=8, most=1024),
        shared_tokens=1000,
    ),
}


def named(name: str) -> Workload:
    """One of the table above."""
    shape = _SHAPES[name]
    says = (
        f"{name}: prompts around {shape.prompt.median:,} tokens, answers around {shape.output.median:,}, "
        f"{shape.shared_tokens:,} tokens shared"
    )
    return Workload(name=name, says=says, drawn=shape.draw)


def fixed(prompt_tokens: int, output_tokens: int) -> Workload:
    """All alike."""
    ask = Ask(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    says = f"{prompt_tokens:,} prompt tokens and {output_tokens:,} answer tokens, all alike"
    return Workload(name=f"{prompt_tokens}+{output_tokens}", says=says, listed=(ask,))


def of_receipts(receipts: Iterable[Receipt]) -> Workload:
    """The prompt and answer lengths of requests that were answered, as pairs. Those that were sent to measure are left
    out. Raises RequestError where there are too few to speak of."""
    pairs: list[Ask] = []
    cached = read = 0
    for receipt in receipts:
        usage = receipt.usage
        if receipt.outcome is not Outcome.COMPLETED or usage is None or _is_measured(receipt.request):
            continue
        prompt, output = usage.input_tokens, usage.output_tokens
        if prompt and output:
            pairs.append(Ask(prompt_tokens=prompt, output_tokens=output))
            cached += usage.input_cache_read_tokens or 0
            read += prompt
    if len(pairs) < FEWEST_RECEIPTS:
        raise RequestError(
            f"the ledger has {len(pairs)} receipts with known lengths: a distribution needs {FEWEST_RECEIPTS}",
            param="workload",
            hint="--workload chat, rag, agent or a file",
        )
    says = f"pairs of lengths from {len(pairs):,} receipts of your own"
    if cached:
        says += f"; {cached / read:.0%} of their prompts came from a cache, none of these do".replace("%", " %")
    return Workload(name=LEDGER, says=says, stands_on=len(pairs), listed=tuple(pairs))


def _is_measured(request: Request) -> bool:
    return _MEASURED_LABEL in request.labels or _MEASURED_RUN.match(request.run or "") is not None


def from_file(path: Path) -> Workload:
    """A JSON object a line. Prompts: `prompt` (text) or `messages`, and `output_tokens` (or `max_tokens`) where the
    answer has a limit. Lengths: `prompt_tokens` and `output_tokens`, or `input_length` and `output_length` as in
    published traces. `timestamp` is when it came, in milliseconds, and has to be in every line or in none.

    Raises RequestError that names the line.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RequestError(f"{path} is larger than {_MOST_BYTES >> 20} MB", param="workload")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        known = ", ".join((*NAMED, LEDGER))
        raise RequestError(
            f"{path} cannot be read: {(error.strerror or 'no file').lower()}",
            param="workload",
            hint=f"a workload is one of {known}, or a file",
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text", param="workload") from error
    asks: list[Ask] = []
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            ask, at_ms = _line(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: {error}", param="workload") from error
        asks.append(ask)
        if at_ms is not None:
            times.append(at_ms)
    if not asks:
        raise RequestError(f"{path} has no requests", param="workload")
    if times and len(times) != len(asks):
        raise RequestError(f"{path}: {len(times)} of {len(asks)} lines have a timestamp", param="workload")
    if times:  # in the order in which they came
        order = sorted(range(len(asks)), key=times.__getitem__)
        asks, times = [asks[index] for index in order], [times[index] for index in order]
    literal = sum(ask.is_literal for ask in asks)
    what = "prompts" if literal == len(asks) else "lengths" if not literal else "prompts and lengths"
    return Workload(
        name=path.name,
        says=f"{len(asks):,} {what} of {path.name}, in their order{', at their recorded times' if times else ''}",
        stands_on=len(asks),
        listed=tuple(asks),
        recorded_ns=tuple(round((at_ms - times[0]) * 1e6) for at_ms in times) if times else None,
        in_order=True,
    )


def _line(line: str) -> tuple[Ask, float | None]:
    """What a line asks for, and when it came. Raises ValueError that says what is wrong."""
    try:
        read: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(read, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - of the file, not of the caller
    found = cast("dict[str, object]", read)
    at_ms = _number(found, "timestamp")
    output = _count(found, "output_tokens", "output_length", "max_tokens", "max_completion_tokens")
    prompt, messages = found.get("prompt"), found.get("messages")
    if isinstance(prompt, str) and prompt:
        return Ask(text=prompt, output_tokens=output), at_ms
    if isinstance(messages, list) and messages:
        listed = cast("list[object]", messages)
        if not all(isinstance(message, dict) and "role" in message for message in listed):
            raise ValueError("`messages` must be objects, each with a role")
        return Ask(messages=tuple(cast("list[Message]", listed)), output_tokens=output), at_ms
    length = _count(found, "prompt_tokens", "input_length")
    if length is None or output is None:
        raise ValueError("it needs `prompt` or `messages`, or `prompt_tokens` and `output_tokens`")
    return Ask(prompt_tokens=length, output_tokens=output), at_ms


def _count(found: Mapping[str, object], *names: str) -> int | None:
    name = next((name for name in names if found.get(name) is not None), None)
    if name is None:
        return None
    value = found[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LONGEST:
        raise ValueError(f"`{name}` must be a whole number above 0")
    return value


def _number(found: Mapping[str, object], name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e15:
        raise ValueError(f"`{name}` must be a number of milliseconds")
    return float(value)


def repeats(asks: Sequence[Ask]) -> int:
    """How many of these prompts had been asked before, word for word: a cache may answer those."""
    literal = [ask for ask in asks if ask.is_literal]
    return len(literal) - len({ask.text or json.dumps(ask.messages, sort_keys=True, default=str) for ask in literal})
