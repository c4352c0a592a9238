"""Code that is inside a task makes requests that belong to it, through the official clients; and the task ends with it.

The clients, the sockets, the door and the ledger are the real ones; the backend is a script.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import openai
import pytest

import taximeter
from taximeter.errors import RequestError
from taximeter.ledger import Ledger
from taximeter.records import Request
from tests.fakes import WAIT_S, FakeBackend
from tests.gateway_harness import a_house, listening

HELLO: list[Any] = [{"role": "user", "content": "one two three"}]


@dataclass(frozen=True)
class World:
    url: str
    ledger: Ledger
    backend: FakeBackend

    def asked(self) -> list[Request]:
        """What has been asked, oldest first."""
        return [request for request, _ in self.backend.submitted]


@pytest.fixture
def world(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("URL", "TASK", "RUN", "SESSION", "LABELS", "API_KEY"):
        monkeypatch.delenv(f"TAXIMETER_{name}", raising=False)
    path = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    backend = FakeBackend()
    with listening(a_house(backend, Ledger.open(path))) as url, Ledger.open(path) as ledger:
        yield World(url, ledger, backend)


def an_openai(world: World) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key="unused", max_retries=0, timeout=WAIT_S)


def an_anthropic(world: World) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=world.url, api_key="unused", max_retries=0, timeout=WAIT_S)


def test_both_clients_in_one_task(world: World) -> None:
    """Streamed or not; outside of it they say nothing. It ends well, and is the sum of its receipts."""
    with (
        closing(taximeter.instrument(an_openai(world))) as first,
        closing(taximeter.instrument(an_anthropic(world))) as second,
    ):
        with taximeter.task("Prüfung/1", run="r1", session="s1", labels={"Team": "search"}):
            first.chat.completions.create(model="fake", messages=HELLO)
            with first.chat.completions.create(model="fake", messages=HELLO, stream=True) as stream:
                assert list(stream)
            second.messages.create(model="fake", max_tokens=5, messages=HELLO)
            with second.messages.stream(model="fake", max_tokens=5, messages=HELLO) as events:
                assert list(events)
        first.chat.completions.create(model="fake", messages=HELLO)
    *inside, outside = world.asked()
    assert [(asked.task, asked.run, asked.session, asked.labels) for asked in inside] == [
        ("Prüfung/1", "r1", "s1", {"team": "search"})
    ] * 4
    assert (outside.task, outside.labels) == (None, {})
    task, sums = world.ledger.task("Prüfung/1"), world.ledger.group("task", "Prüfung/1")
    assert task is not None
    assert sums is not None
    assert (task.succeeded, task.labels, sums.receipts) == (True, {"team": "search"}, 4)
    assert sums.cost == 4 * Decimal("0.000000001")  # a microsecond each, at $3.60 an hour


def test_blocks_nest_and_an_exception_is_a_failure(world: World) -> None:
    """A request belongs to the innermost task, and to the run around it. The inner one fails; the outer one knows how
    to go on."""
    with closing(taximeter.instrument(an_openai(world))) as client:

        @taximeter.task("inner", labels={"step": "2"})
        def inner() -> None:
            client.chat.completions.create(model="fake", messages=HELLO)
            raise KeyError("no such page")

        with taximeter.task("outer", run="r1", labels={"team": "search"}):
            with pytest.raises(KeyError):
                inner()
            client.chat.completions.create(model="fake", messages=HELLO)
        with taximeter.task("given-up") as block:
            client.chat.completions.create(model="fake", messages=HELLO)
            block.fail()
    assert [(asked.task, asked.run, asked.labels) for asked in world.asked()] == [
        ("inner", "r1", {"team": "search", "step": "2"}),
        ("outer", "r1", {"team": "search"}),
        ("given-up", None, {}),
    ]
    ends = {name: task.succeeded for name in ("inner", "outer", "given-up") if (task := world.ledger.task(name))}
    assert ends == {"inner": False, "outer": True, "given-up": False}


async def test_tasks_side_by_side_do_not_mix(world: World) -> None:
    """Each asyncio task has its own; the async clients of both makers say so."""
    async with (
        taximeter.instrument(
            openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="unused", max_retries=0, timeout=WAIT_S)
        ) as first,
        taximeter.instrument(
            anthropic.AsyncAnthropic(base_url=world.url, api_key="unused", max_retries=0, timeout=WAIT_S)
        ) as second,
    ):

        @taximeter.task("decorated")
        async def decorated() -> None:
            await second.messages.create(model="fake", max_tokens=5, messages=HELLO)

        async def work(name: str) -> None:
            async with taximeter.task(name):
                await first.chat.completions.create(model="fake", messages=HELLO)
                await second.messages.create(model="fake", max_tokens=5, messages=HELLO)

        await asyncio.gather(*(work(f"job-{number}") for number in range(8)), decorated())
    for number in range(8):
        sums = world.ledger.group("task", f"job-{number}")
        task = world.ledger.task(f"job-{number}")
        assert sums is not None
        assert task is not None
        assert (sums.receipts, task.succeeded) == (2, True)
    assert sum(asked.task == "decorated" for asked in world.asked()) == 1
    last = world.ledger.task("decorated")
    assert last is not None
    assert last.succeeded is True


def test_anybodys_client_can_send_the_headers(world: World) -> None:
    """And what a call says itself is not changed. Hooks that were there stay; being handed over twice is once."""
    seen: list[str] = []
    hooks = {"request": [lambda request: seen.append(request.url.path)]}
    with httpx.Client(event_hooks=hooks, timeout=WAIT_S) as plain:
        client = taximeter.instrument(taximeter.instrument(plain))
        body = {"model": "fake", "messages": HELLO}
        with taximeter.task("mine", url=f"{world.url}/v1"):
            assert taximeter.headers() == {"x-taximeter-task": "mine"}
            client.post(f"{world.url}/v1/chat/completions", json=body)
            client.post(f"{world.url}/v1/chat/completions", json=body, headers={"x-taximeter-task": "theirs"})
    assert [asked.task for asked in world.asked()] == ["mine", "theirs"]
    assert seen == ["/v1/chat/completions"] * 2
    assert len(plain.event_hooks["request"]) == 2
    assert taximeter.headers() == {}


def test_what_a_program_was_started_for_is_replaced_by_what_it_says_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`taximeter run` names the task of the whole program, also as default headers of its clients."""
    monkeypatch.setenv("TAXIMETER_TASK", "program")
    monkeypatch.setenv("TAXIMETER_LABELS", '{"team": "search"}')
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-taximeter-task: program")
    with closing(taximeter.instrument(an_openai(world))) as client:
        client.chat.completions.create(model="fake", messages=HELLO)
        with taximeter.task("part"):
            client.chat.completions.create(model="fake", messages=HELLO)
    assert [(asked.task, asked.labels) for asked in world.asked()] == [
        ("program", {"team": "search"}),
        ("part", {"team": "search"}),
    ]


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9", "https://nowhere.invalid/v1"])
def test_a_gateway_that_is_not_there_breaks_nothing(
    url: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program goes on; its log says that nobody was told."""
    monkeypatch.delenv("TAXIMETER_URL", raising=False)
    with caplog.at_level(logging.WARNING), taximeter.task("lonely", url=url):
        pass
    assert "lonely" in caplog.text


def test_an_answer_that_is_no_gateways_is_not_told_of_tasks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Only who answers with a receipt is one: what tasks are called is not a provider's business."""
    with (
        closing(taximeter.instrument(httpx.Client(timeout=WAIT_S))) as client,
        caplog.at_level(logging.WARNING),
        taximeter.task("lonely"),
    ):
        client.get(f"{world.url}/healthz")
    assert "nobody was told that task lonely ended" in caplog.text


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "x" * 201])
def test_names_that_no_report_could_show_are_refused(name: str) -> None:
    """At once, where they are written."""
    with pytest.raises(RequestError):
        taximeter.task(name)
    with pytest.raises(RequestError):
        taximeter.task("good", labels={"key": name})
    with pytest.raises(RequestError):
        taximeter.task("good", labels={f"a key{name}": "value"})


def test_what_cannot_be_instrumented_is_told() -> None:
    """With what to do instead."""
    with pytest.raises(RequestError, match=r"taximeter\.headers"):
        taximeter.instrument(object())


def test_a_generator_is_no_block() -> None:
    """Its caller's requests would fall into the task."""
    with pytest.raises(RequestError, match="generator"):

        @taximeter.task("lazy")
        def lazy() -> Iterator[int]:
            yield 1


def test_a_block_is_entered_once_at_a_time() -> None:
    """Two at once could not be told apart."""
    block = taximeter.task("one", url="http://127.0.0.1:9")
    with block, pytest.raises(RuntimeError, match="running already"), block:
        pass
