"""Nothing is a stand-in here: the official client, a socket, the engine with a real model, prices and a ledger file."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import openai
import pytest

from taximeter.errors import ConfigError
from taximeter.records import Outcome, Receipt
from taximeter.serve import House
from taximeter.settings import Settings
from tests.fakes import WAIT_S
from tests.gateway_harness import listening

SMOLLM2 = "smollm2-135m-instruct"
TINY = "tiny_llama"  # random weights and one token for each byte: fast, and never at a loss for words
QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
ANSWER = "The capital of Japan is Tokyo."


@dataclass
class World:
    client: openai.OpenAI
    house: House
    written: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.house.relay.observers.append(self._note)

    def _note(self, receipt: Receipt) -> None:
        with self.changed:
            self.written.add(receipt.id)
            self.changed.notify_all()

    def receipt(self, response: object) -> Receipt:
        """The receipt that a response's header names; it may be a moment away when the client hung up."""
        name = response.headers["x-taximeter-receipt"]
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.written, WAIT_S)
        receipt = self.house.ledger.receipt(name)
        assert receipt is not None
        return receipt


@pytest.fixture(scope="module")
def world(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    environ = {"TAXIMETER_HOME": str(tmp_path_factory.mktemp("home")), "TAXIMETER_MODELS_DIR": str(models_dir)}
    settings = Settings.load(environ=environ, port=0, machine_rate="0.50/h", priced_as="anthropic/claude-haiku-5-5")
    tiny = Path(__file__).parents[1] / "golden" / TINY
    told: list[str] = []
    house = House.open(settings, [SMOLLM2, str(tiny)], told.append)
    assert told
    with listening(house) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield World(client, house)


def test_two_models_cannot_share_a_name(tmp_path: Path):
    """Which one would answer? The operator is told before anything is loaded."""
    paths = [tmp_path / folder / "twin.gguf" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    settings = Settings.load(environ={"TAXIMETER_HOME": str(tmp_path / "home")})
    with pytest.raises(ConfigError, match="twin"):
        House.open(settings, [str(path) for path in paths])


def test_a_question_is_answered_and_written_up(world: World):
    """One prefill pass, a decode pass for each further token, phases that sum, a cost, and a price to compare."""
    raw = world.client.chat.completions.with_raw_response.create(model=SMOLLM2, messages=QUESTION, temperature=0)
    completion = raw.parse()
    assert completion.choices[0].message.content == ANSWER
    assert completion.choices[0].finish_reason == "stop"
    receipt = world.receipt(raw)
    usage, work, timing = receipt.usage, receipt.work, receipt.timing
    assert completion.usage.prompt_tokens == usage.input_tokens
    assert completion.usage.completion_tokens == usage.output_tokens
    assert (work.prefill_passes, work.decode_passes) == (1, usage.output_tokens - 1)
    assert sum(timing.phases().values()) == timing.total_ns
    assert 0 < timing.prefill_ns < timing.first_token_ns < timing.total_ns
    assert receipt.cost.total > 0
    assert receipt.cost_priced_as.total > 0
    assert receipt.request.model == receipt.model_served == SMOLLM2


def test_a_stream_says_the_same_as_a_whole_answer(world: World):
    """Text and usage, greedy; the second time the prompt is found in the cache, and the usage says so."""
    options = {"include_usage": True}
    texts, cached = [], []
    for _ in range(2):
        chunks = list(
            world.client.chat.completions.create(
                model=SMOLLM2, messages=QUESTION, temperature=0, stream=True, stream_options=options
            )
        )
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]))
        cached.append(chunks[-1].usage.prompt_tokens_details.cached_tokens)
    assert texts == [ANSWER, ANSWER]
    assert cached[1] > 0


def test_a_stop_string_is_never_shown(world: World):
    """Although it spans tokens and a stream has to hold its beginning back."""
    stopped = ANSWER.partition("France is")[0]
    for stream in (False, True):
        answer = world.client.chat.completions.create(
            model=SMOLLM2, messages=QUESTION, temperature=0, stop=["France is"], stream=stream
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            text = answer.choices[0].message.content
            assert answer.choices[0].finish_reason == "stop"
        assert text == stopped


def test_a_seed_means_one_answer(world: World):
    """The same seed twice, and another one."""

    def say(seed: int) -> str:
        prompt = "Once upon a time"
        return world.client.completions.create(model=TINY, prompt=prompt, seed=seed, max_tokens=24).choices[0].text

    assert say(1) == say(1)
    assert say(1) != say(2)


def test_logprobs_belong_to_the_text(world: World):
    """The tokens' bytes make the answer, end-of-turn aside, and the pick is the likeliest when greedy."""
    completion = world.client.chat.completions.create(
        model=SMOLLM2, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    content = completion.choices[0].logprobs.content
    assert len(content) == completion.usage.completion_tokens
    assert b"".join(bytes(position.bytes) for position in content).decode().startswith(ANSWER)
    for position in content:
        assert position.token == position.top_logprobs[0].token
        assert position.logprob == position.top_logprobs[0].logprob <= 0
        assert len(position.top_logprobs) == 3


def test_two_choices_share_their_prompt(world: World):
    """n = 2: two different answers, one prompt on the bill."""
    completion = world.client.completions.create(
        model=TINY, prompt="Once upon a time", n=2, max_tokens=16, temperature=1, extra_body={"ignore_eos": True}
    )
    assert completion.choices[0].text != completion.choices[1].text
    assert completion.usage.completion_tokens == 2 * 16
    assert completion.usage.prompt_tokens < 2 * len("Once upon a time")


def test_token_ids_are_taken_as_they_are(world: World):
    """Three ids are three prompt tokens; one that is not in the vocabulary is refused."""
    completion = world.client.completions.create(model=TINY, prompt=[5, 6, 7], max_tokens=1)
    assert completion.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        world.client.completions.create(model=TINY, prompt=[5, 10_000_000], max_tokens=1)


def test_a_prompt_that_is_too_long(world: World):
    """Refused with the code that programs look at, and with a receipt."""
    with pytest.raises(openai.BadRequestError) as caught:
        world.client.completions.create(model=TINY, prompt="word " * 5000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_an_unknown_model(world: World):
    """The refusal names what is served."""
    with pytest.raises(openai.NotFoundError, match=SMOLLM2):
        world.client.chat.completions.create(model="gpt-9", messages=QUESTION)


def test_a_client_that_hangs_up_mid_answer(world: World):
    """The engine stops: the receipt has fewer tokens than were asked for, and what they took."""
    raw = world.client.chat.completions.with_raw_response.create(
        model=SMOLLM2, messages=QUESTION, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    )
    stream = raw.parse()
    for _ in range(3):
        next(stream)
    stream.close()
    receipt = world.receipt(raw)
    assert receipt.outcome is Outcome.ABORTED
    assert 1 <= receipt.usage.output_tokens < 2000
    assert receipt.work.compute_ns > 0
    assert receipt.cost.total > 0


def test_eight_streams_at_once_and_a_bill_that_adds_up(world: World):
    """Every one is whole; receipts plus idle are the machine's rate times its time, to the last picodollar."""
    streams = [
        world.client.completions.create(
            model=TINY, prompt=f"Story {n}", stream=True, max_tokens=12, extra_body={"ignore_eos": True}
        )
        for n in range(8)
    ]
    for stream in streams:
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    house = world.house
    assert house.relay.in_flight == 0
    charged_ns = house.machine.charged_ns
    statement = house.machine.statement(house.backend.machine_time(), charged_ns=charged_ns)
    assert statement.in_flight_ns == 0
    assert house.ledger.total_cost() == statement.charged
    assert statement.charged + statement.idle == statement.total
    assert abs(statement.total - Decimal("0.50") * statement.wall_ns / (3600 * 10**9)) <= Decimal("1e-12")
