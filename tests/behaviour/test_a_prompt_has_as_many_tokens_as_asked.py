"""Lengths are the server's: whatever it makes of words, a prompt has as many tokens as were asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.prompts import CALIBRATION, Prompts
from taximeter.measurement.asking.target import Target
from taximeter.measurement.asking.wire import Question
from taximeter.records import Dialect
from taximeter.upstreams.config import Family, Upstream
from tests.measurement_harness import Script, ScriptedServer, VirtualClock, chat, refusal, virtually

_Count = Callable[[str], int]


def target(dialect: Dialect = Dialect.OPENAI_CHAT, engine: str | None = "vllm") -> Target:
    upstream = Upstream(name="server", url="http://server", speaks=Family.OPENAI)
    return Target(name="server", url="http://server", model="m", dialect=dialect, engine=engine, upstream=upstream)


def text_of(question: Question) -> str:
    body = json.loads(question.body)
    return body["prompt"] if "prompt" in body else body["messages"][0]["content"]


def a_server(clock: VirtualClock, count: _Count, *, cached: int | None = None) -> ScriptedServer:
    """Counts the tokens of a prompt by `count`."""

    def answer(question: Question, _: int) -> Script:
        return chat([10.0], prompt_tokens=count(text_of(question)), cached_tokens=cached)

    return ScriptedServer(clock, answer)


def ask(count: _Count, lengths: list[int], dialect: Dialect = Dialect.OPENAI_CHAT) -> list[Observation]:
    async def work(clock: VirtualClock) -> list[Observation]:
        server = a_server(clock, count)
        asker = Asker(server, name="server", run="run", clock=clock)
        prompts = await Prompts.calibrated(target(dialect), asker, seed=1)
        return [
            await asker.ask(prompts.question("s", prompt_tokens=length, output_tokens=8))
            for length in lengths
            if length >= prompts.shortest_tokens
        ]

    return virtually(work)


@given(
    overhead=st.integers(0, 60),
    long_words=st.sets(st.sampled_from(["time", "year", "people", "way", "day", "man", "education"]), max_size=5),
    dialect=st.sampled_from([Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS]),
    lengths=st.lists(st.integers(70, 5_000), min_size=1, max_size=3),
)
@settings(max_examples=15, deadline=None)
def test_a_prompt_has_as_many_tokens_as_asked(
    overhead: int, long_words: set[str], dialect: Dialect, lengths: list[int]
) -> None:
    """Some words are three tokens here, and a template adds its own."""

    def count(text: str) -> int:
        return overhead + sum(3 if word in long_words else 1 for word in text.split())

    for seen in ask(count, lengths, dialect):
        assert seen.prompt_is_exact is True


def test_no_two_prompts_begin_alike_except_where_they_are_to() -> None:
    async def work(clock: VirtualClock) -> list[str]:
        server = a_server(clock, lambda text: len(text.split()))
        asker = Asker(server, name="server", run="run", clock=clock)
        prompts = await Prompts.calibrated(target(Dialect.OPENAI_COMPLETIONS), asker, seed=1)
        fresh = [prompts.question("s", prompt_tokens=100, output_tokens=8) for _ in range(40)]
        alike = [
            prompts.question("s", prompt_tokens=100, output_tokens=8, shared_tokens=60, shared_seed=7) for _ in range(2)
        ]
        other = prompts.question("s", prompt_tokens=100, output_tokens=8, shared_tokens=60, shared_seed=8)
        words = [text_of(question).split() for question in (*alike, other)]
        assert words[0][:60] == words[1][:60] != words[2][:60]
        assert words[0][60:] != words[1][60:]
        return [" ".join(text_of(question).split()[:16]) for question in fresh]

    beginnings = virtually(work)
    assert len(set(beginnings)) == len(beginnings)


def test_calibration_is_four_short_questions_where_all_is_as_expected() -> None:
    async def work(clock: VirtualClock) -> list[str]:
        server = a_server(clock, lambda text: 5 + len(text.split()))
        await Prompts.calibrated(target(), Asker(server, name="server", run="run", clock=clock), seed=1)
        return [question.shape for _, question in server.asked]

    assert virtually(work) == [CALIBRATION] * 4


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (chat([10.0], with_usage=False), "does not say how many tokens"),
        (refusal(401, "no such key"), "no such key"),
    ],
)
def test_who_does_not_count_cannot_be_asked_for_a_length(answer: Script, said: str) -> None:
    async def work(clock: VirtualClock) -> None:
        asker = Asker(ScriptedServer(clock, lambda _q, _n: answer), name="server", run="run", clock=clock)
        with pytest.raises(UpstreamError, match=said):
            await Prompts.calibrated(target(), asker, seed=1)

    virtually(work)


def test_a_vocabulary_without_words_is_refused_and_not_approximated() -> None:
    """One token a letter."""

    async def work(clock: VirtualClock) -> None:
        asker = Asker(a_server(clock, len), name="server", run="run", clock=clock)
        with pytest.raises(UpstreamError, match="counts"):
            await Prompts.calibrated(target(), asker, seed=1)

    virtually(work)


def test_only_engines_that_know_them_get_their_own_fields() -> None:
    async def work(clock: VirtualClock) -> list[dict[str, object]]:
        bodies: list[dict[str, object]] = []
        for engine in ("vllm", None):
            server = a_server(clock, lambda text: len(text.split()))
            asker = Asker(server, name="server", run="run", clock=clock)
            prompts = await Prompts.calibrated(target(engine=engine), asker, seed=1)
            bodies.append(json.loads(prompts.question("s", prompt_tokens=100, output_tokens=9).body))
        return bodies

    engine, stranger = virtually(work)
    assert (engine["ignore_eos"], engine["min_tokens"], engine["max_tokens"]) == (True, 9, 9)
    assert stranger.keys() == {"model", "stream", "messages", "stream_options", "max_tokens"}


def test_a_prompt_shorter_than_the_template_cannot_be_made() -> None:
    async def work(clock: VirtualClock) -> None:
        asker = Asker(a_server(clock, lambda text: 40 + len(text.split())), name="server", run="run", clock=clock)
        prompts = await Prompts.calibrated(target(Dialect.OPENAI_COMPLETIONS), asker, seed=1)
        assert prompts.shortest_tokens == 41
        with pytest.raises(ValueError, match="at least 41"):
            prompts.question("s", prompt_tokens=40, output_tokens=8)

    virtually(work)
