"""Prompts of exactly so many tokens, as the server counts them, and no two alike.

Owns: what the words of a prompt are, how many make so many tokens there, and the body around them. Refuses to know: why
a prompt is that long.

Text is no bijection of tokens, and a template adds its own; so a length is not computed, it is found out: words that
are one token each in nearly every vocabulary are tried at the server, those that are not are left out, and what is left
over is what the template adds. After that n tokens are n minus that many words, drawn at random, so that no prompt
begins as another did. Every answer is still held to its own count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.target import Target
from taximeter.measurement.asking.wire import Question
from taximeter.records import Dialect, Message, Prompt

CALIBRATION: Final = "calibration"
"""The shape of the questions that are asked to learn how the server counts."""

# Common, short, lower-case English words: one token each, with the space before it, in nearly every vocabulary.
_WORDS: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education
"""
MOST_OUTPUT_TOKENS: Final = 1024
"""Of an answer whose end is left to the model."""

_LEAST_WORDS: Final = 24  # with fewer, prompts would begin alike too often
_FIRST_WORDS: Final = 3
_MOST_QUESTIONS: Final = 48
_encode: Final = msgspec.json.Encoder().encode


class Prompts:
    """Makes questions for one target. Get one by `calibrated`.

    `overhead_tokens` is what the server adds to the words: a template, a beginning-of-text token.
    """

    def __init__(self, target: Target, words: list[str], overhead_tokens: int, *, seed: int) -> None:
        self._target = target
        self._words = words
        self.overhead_tokens = overhead_tokens
        self._random = random.Random(seed)  # noqa: S311 - words, not keys

    @property
    def shortest_tokens(self) -> int:
        """The shortest prompt that can be made here."""
        return self.overhead_tokens + 1

    @classmethod
    async def calibrated(
        cls, target: Target, asker: Asker, *, seed: int, report: Callable[[str], object] = lambda _: None
    ) -> Prompts:
        """Learn how the server counts: four questions where it counts as expected, some more where it does not.

        Raises UpstreamError when it refuses, does not say how many tokens a prompt had, or counts in no way that this
        can follow; then no length can be exact, and nothing measured at one would be what it says.
        """
        report("finding out how the server counts tokens")
        calibration = _Calibration(target, asker, random.Random(seed))  # noqa: S311
        words, overhead = await calibration.run()
        return cls(target, words, overhead, seed=seed)

    def again(self, target: Target, seed: int) -> Prompts:
        """The same for another client of that server, which asks at the same time: with other words drawn."""
        return Prompts(target, self._words, self.overhead_tokens, seed=seed)

    def question(
        self,
        shape: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        shared_tokens: int = 0,
        shared_seed: int = 0,
    ) -> Question:
        """A question whose prompt has `prompt_tokens` tokens, and whose answer is to have `output_tokens`.

        The prompt is new, apart from its first `shared_tokens` (the template's included), which are the same for all
        questions of the same `shared_seed`. Raises ValueError for a prompt shorter than `shortest_tokens`.
        """
        count = prompt_tokens - self.overhead_tokens
        if count < 1:
            raise ValueError(f"a prompt has at least {self.shortest_tokens} tokens here")
        shared = min(count, max(0, shared_tokens - self.overhead_tokens))
        same = random.Random(shared_seed)  # noqa: S311
        words = same.choices(self._words, k=shared) + self._random.choices(self._words, k=count - shared)
        return question_of(self._target, shape, words, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def question_of(
    target: Target, shape: str, words: list[str], *, prompt_tokens: int | None, output_tokens: int
) -> Question:
    """A question with these words. `prompt_tokens` None is not held to any count."""
    text = "".join(f" {word}" for word in words)
    prompt = Prompt(text=text)
    fields: dict[str, Any] = {"model": target.model, "stream": True}
    match target.dialect:
        case Dialect.OPENAI_COMPLETIONS:
            fields["prompt"] = text
        case _:
            # Without a task, models that may end when they like end at once.
            text = f"Write a long story, without an end, in which these words are used:{text}"
            prompt = Prompt(messages=(Message(role="user", content=text),))
            fields["messages"] = [{"role": "user", "content": text}]
    fields |= _limits(target, output_tokens)
    return Question(
        shape=shape,
        dialect=target.dialect,
        model=target.model,
        path=target.path,
        body=_encode(fields),
        asked_prompt_tokens=prompt_tokens,
        asked_output_tokens=output_tokens,
        prompt_fingerprint=prompt.fingerprint(),
    )


def question_as_it_is(
    target: Target,
    shape: str,
    *,
    text: str | None = None,
    messages: Sequence[Mapping[str, object]] = (),
    output_tokens: int | None = None,
) -> Question:
    """A question with somebody's own prompt: a text, or messages. Without `output_tokens` the model ends its answer, at
    `MOST_OUTPUT_TOKENS` at the latest. Raises RequestError for messages to a door that takes a text."""
    is_plain = target.dialect is Dialect.OPENAI_COMPLETIONS
    if text is None and is_plain:
        raise RequestError("messages need a door for them", param="api", hint="--api chat")
    fields: dict[str, Any] = {"model": target.model, "stream": True}
    if is_plain:
        fields["prompt"] = text
    else:
        fields["messages"] = list(messages) if text is None else [{"role": "user", "content": text}]
    limits = _limits(target, output_tokens or MOST_OUTPUT_TOKENS)
    if output_tokens is None:
        limits = {name: value for name, value in limits.items() if name not in ("ignore_eos", "min_tokens")}
    fields |= limits
    said = text if text is not None else _encode(fields["messages"]).decode()
    return Question(
        shape=shape,
        dialect=target.dialect,
        model=target.model,
        path=target.path,
        body=_encode(fields),
        asked_output_tokens=output_tokens,
        prompt_fingerprint=Prompt(text=said).fingerprint(),
    )


def _limits(target: Target, output_tokens: int) -> dict[str, Any]:
    """How long the answer is, and how its length is told. What only some engines know goes to those alone: providers
    refuse fields that they do not know."""
    if target.dialect is Dialect.ANTHROPIC_MESSAGES:
        return {"max_tokens": output_tokens}
    limits: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if target.obeys:
        limits |= {"max_tokens": output_tokens, "ignore_eos": True, "min_tokens": output_tokens, "temperature": 0}
        if target.engine in ("vllm", "sglang"):
            limits["stream_options"]["continuous_usage_stats"] = True
        if target.engine == "sglang":
            del limits["min_tokens"]  # it is `min_new_tokens` there, and `ignore_eos` says it already
    elif target.upstream.provider == "openai":
        limits["max_completion_tokens"] = output_tokens
    else:
        limits["max_tokens"] = output_tokens
    return limits


class _Calibration:
    """Finds which words are one token each. A set of words of which one is not is halved until it is found."""

    def __init__(self, target: Target, asker: Asker, chance: random.Random) -> None:
        self._target = target
        self._asker = asker
        self._chance = chance
        self._questions = 0
        self._overhead = 0

    async def run(self) -> tuple[list[str], int]:
        words = [str(word) for word in _WORDS.split()]
        self._chance.shuffle(words)
        # A word is one token or more: what is added to it is at most what is seen beside the shortest of some.
        self._overhead = min([await self._count([word]) - 1 for word in words[:_FIRST_WORDS]])
        good = await self._sound(words)
        if len(good) < _LEAST_WORDS:
            raise UpstreamError(
                f"{self._target.name} counts most words as several tokens: prompts of exact lengths cannot be made",
            )
        return good, self._overhead

    async def _sound(self, words: list[str]) -> list[str]:
        """Those of them that are one token each."""
        if self._questions >= _MOST_QUESTIONS:
            return []
        excess = await self._count(words) - len(words) - self._overhead
        if excess < 0:  # all of the first words were long ones: those that passed by that measure may be too
            raise UpstreamError(f"{self._target.name} counts the same words in different ways")
        if excess == 0:
            return words
        if len(words) == 1:
            return []
        middle = len(words) // 2
        return await self._sound(words[:middle]) + await self._sound(words[middle:])

    async def _count(self, words: list[str]) -> int:
        """How many tokens the server sees in a prompt of these words."""
        self._questions += 1
        asked = question_of(self._target, CALIBRATION, words, prompt_tokens=None, output_tokens=1)
        seen = await self._asker.ask(asked)
        if seen.prompt_tokens is None:
            raise UpstreamError(f"{self._target.name} {_complaint(seen)}", status=seen.status)
        return seen.prompt_tokens


def _complaint(seen: Observation) -> str:
    if seen.is_complete:
        return "does not say how many tokens a prompt has: exact lengths cannot be checked"
    return f"did not answer a first, short question: {seen.error}"
