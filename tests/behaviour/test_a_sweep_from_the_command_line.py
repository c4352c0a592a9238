"""`taximeter sweep` against a server on real sockets: the verdict first, figures in every form, receipts for all of it,
and nothing billed that was not announced."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from taximeter.cli.main import app
from taximeter.ledger import Ledger
from taximeter.measurement.results import read_result
from taximeter.settings import Settings
from tests.measurement_harness import event, text_chunk, usage

_PREFILL_S, _STEP_S = 0.0002, 0.001  # per prompt token, per token of the answer


class Server:
    """A chat endpoint whose prompts take 0.2 ms a token and whose answers take 1 ms a token."""

    def __init__(self) -> None:
        self.model = "scripted"
        self.cached = 0
        self.pages = 0
        self.requests = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/metrics", self._metrics),
                Route("/version", self._version),
            ]
        )

    async def _models(self, _: Request) -> JSONResponse:
        model = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": 1024}
        return JSONResponse({"object": "list", "data": [model]})

    async def _version(self, _: Request) -> JSONResponse:
        return JSONResponse({"version": "9.9"})

    async def _metrics(self, _: Request) -> PlainTextResponse:
        self.pages += 1
        return PlainTextResponse("vllm:num_requests_running 0\n")

    async def _complete(self, request: Request) -> StreamingResponse:
        self.requests += 1
        body = await request.json()
        tokens = 2 + len(body["prompt"].split())
        return StreamingResponse(self._stream(tokens, body["max_tokens"]), media_type="text/event-stream")

    async def _stream(self, tokens: int, output: int) -> AsyncIterator[bytes]:
        await asyncio.sleep(tokens * _PREFILL_S)
        for number in range(output):
            if number:
                await asyncio.sleep(_STEP_S)
            yield text_chunk().replace(b'"delta": {"content": " a"}', b'"text": " a"')
        yield event(choices=[{"index": 0, "text": "", "finish_reason": "length"}])
        yield event(choices=[], usage=usage(tokens, output, cached=self.cached))
        yield b"data: [DONE]\n\n"


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    scripted = Server()
    listening = socket.create_server(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(scripted.app(), log_config=None, lifespan="off", ws="none"))
    serving.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]  # this is a thread
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
    thread.start()
    yield scripted, f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving.should_exit = True
    thread.join(10)
    listening.close()


def sweep(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["sweep", *arguments])


QUICK = ("--prompt-tokens", "32..128", "--output-tokens", "4", "--repeats", "5")


def test_the_verdict_comes_first_and_everything_is_kept(
    taximeter_home: Path, tmp_path: Path, server: tuple[Server, str]
) -> None:
    scripted, url = server
    kept, page, lines = tmp_path / "sweep.json", tmp_path / "sweep.html", tmp_path / "sweep.csv"
    done = sweep(url, *QUICK, "--out", str(kept), "--html", str(page), "--csv", str(lines))
    assert done.exit_code == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line]
    assert shown[0] == f"scripted at {url}, vllm 9.9"
    assert "at 64 prompt tokens and 4 of answer." in shown[1]
    assert "from 32 tokens to 128" in done.stdout
    assert "ttft: first event with a generated token" in done.stdout
    result = read_result(kept)
    assert (result.kind, result.plan["prompt_tokens"], result.plan["cache"]) == ("sweep", [32, 64, 128], "cold")
    assert result.conclusions["cold"]["is_cold"] is True
    observations = result.observations[result.targets[0]["name"]]
    assert len(observations) == 15
    assert {seen.prompt_tokens for seen in observations} == {32, 64, 128}
    assert result.conclusions["verdict"]["says"] in page.read_text()
    assert len(lines.read_text().splitlines()) == 1 + 15
    settings = Settings.load()
    with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        receipts = ledger.receipts_of("run", result.run, limit=1000)
    assert len(receipts) == scripted.requests == 4 + 3 + 15  # finding out how it counts, warming up, measuring


def test_json_is_all_there_is_on_stdout(taximeter_home: Path, server: tuple[Server, str]) -> None:
    done = sweep(server[1], *QUICK, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "taximeter.measurement"
    assert document["conclusions"]["points"][0]["prompt_tokens"] == 32
    assert document["conclusions"]["ttft_fit"]["names"] == ["a", "b", "c"]
    assert "observations" not in document
    assert document["definitions"]["itl"].startswith("(end_to_end - ttft)")


def test_a_warm_cache_is_exit_code_1(taximeter_home: Path, server: tuple[Server, str]) -> None:
    server[0].cached = 2
    done = sweep(server[1], *QUICK)
    assert done.exit_code == 1
    assert "No verdict: this was no cold run" in done.stdout


def test_lengths_are_cut_to_the_context(taximeter_home: Path, server: tuple[Server, str]) -> None:
    done = sweep(server[1], "--prompt-tokens", "900..4096", "--output-tokens", "4", "--repeats", "1", "--json")
    assert json.loads(done.stdout)["plan"]["prompt_tokens"] == [1020]
    refused = sweep(server[1], "--prompt-tokens", "2000..4096", "--output-tokens", "4")
    assert refused.exit_code == 2
    assert "fits" in refused.stderr


def test_money_is_announced_and_limited(taximeter_home: Path, server: tuple[Server, str]) -> None:
    """22 requests at published prices are told before they are sent; with a limit below the first, nothing is sent but
    the four that find out how the server counts."""
    unpriced = sweep(server[1], *QUICK, "--max-cost", "1")
    assert unpriced.exit_code == 2
    assert "with --max-cost the price must be known" in unpriced.stderr
    server[0].model = "gpt-4o"
    told = sweep(server[1], *QUICK, "--provider", "openai", "--max-cost", "1")
    assert told.exit_code == 0
    assert "18 requests with 1,344 prompt tokens and 72 of answers: about $0.00" in told.stderr
    assert "it stops at $1" in told.stderr
    before = server[0].requests
    stopped = sweep(server[1], *QUICK, "--provider", "openai", "--max-cost", "0.00000001")
    assert stopped.exit_code == 1
    assert "it ended early: the limit of what may be spent is reached" in stopped.stdout
    assert server[0].requests == before + 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt-tokens", "9..3"), "no range"),
        (("--cache", "--context"), "studies of their own"),
        (("--weights", "int8"), "for a server that is started here"),
        (("--max-cost", "much"), "no amount of dollars"),
        (("--api", "carrier-pigeon"), "no API"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    taximeter_home: Path, server: tuple[Server, str], arguments: tuple[str, ...], said: str
) -> None:
    done = sweep(server[1], *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert server[0].requests == 0
