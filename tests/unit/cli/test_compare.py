"""`taximeter compare` through its own door: files, servers, terminals."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from taximeter.cli.main import app
from taximeter.measurement.results import Result, read_result, write_result
from taximeter.records import to_json
from tests.measurement_harness import event, serving_app, usage
from tests.measurement_samples import a_load
from tests.terminal import on_a_terminal
from tests.unit.measurement.compare.test_compare import a_result


@dataclass(frozen=True, kw_only=True)
class Said:
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], taximeter_home: Path) -> Callable[..., Said]:
    """The command in this process: what it says, after its exit code was what it should be."""
    command = typer.main.get_command(app)

    def called(*arguments: object, code: int = 0, name: str = "compare") -> Said:
        capsys.readouterr()
        exit_code = command.main([name, *map(str, arguments)], standalone_mode=False)
        told = capsys.readouterr()
        assert exit_code == code, told.err + told.out
        return Said(stdout=told.out, stderr=told.err)

    return called


Run = Callable[..., Said]


def files(folder: Path, *results: Result) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        write_result(path, result)
    return paths


def a_load_result(name: str, rates: tuple[float, ...], *, speed: float = 1.0) -> Result:
    load = a_load(rates)
    conclusions: Any = to_json(replace(load, observations=()))
    for point in conclusions["points"]:
        point["output"]["mean_per_s"] *= speed
        point["itl"]["percentiles"]["p50"]["value"] /= speed
    plan = {"loop": "open", "levels": list(rates), "workload": "chat", "cache": "cold", "slo": str(load.slo)}
    observations = {name: load.observations}
    return replace(a_result(name), kind="load", plan=plan, conclusions=conclusions, observations=observations)


def test_files_are_compared(tmp_path: Path, run: Run) -> None:
    told = run(*files(tmp_path, a_result(), a_result("b:1", ttft_ms=60))).stdout
    assert "TTFT: B's is shorter everywhere, 0.60 to 0.61 times A's" in told
    assert "ITL: no difference is shown anywhere" in told
    assert "! not known to be equal: weights: A unknown, B unknown" in told
    assert "\x1b" not in told


def test_what_differs_is_refused_with_every_field_and_both_values(tmp_path: Path, run: Run) -> None:
    other = replace(
        a_result("b:1", ttft_ms=60, model="other"), plan={"output_tokens": 17, "cache": "warm", "concurrency": 1}
    )
    done = run(*files(tmp_path, a_result(), other), code=3)
    assert done.stdout == ""
    assert "  model: A m, B other\n" in done.stderr
    assert "  cache: A cold, B warm\n" in done.stderr
    assert "--anyway" in done.stderr
    told = json.loads(run(*files(tmp_path, a_result(), other), "--json", code=3).stdout)
    assert (told["may_be_ranked"], told["comparison"]) == (False, None)
    assert [each["field"]["name"] for each in told["obstacles"]] == ["model", "cache"]


def test_anyway_is_side_by_side_and_without_ratios(tmp_path: Path, run: Run) -> None:
    paths = files(tmp_path, a_result(), a_result("b:1", ttft_ms=60, model="other"))
    page = tmp_path / "page.html"
    told = run(*paths, "--anyway", "--html", page).stdout
    assert "these are not ranked, because they differ in model: A m, B other" in told
    assert "B / A" not in told
    assert "times A's" not in told + page.read_text("utf-8")
    assert re.search(r"64 tokens +TTFT +102 ms +62 ms", told)


def test_every_form_says_the_same(tmp_path: Path, run: Run) -> None:
    paths = files(tmp_path, a_result(), a_result("b:1", ttft_ms=60))
    page, lines = tmp_path / "page.html", tmp_path / "lines.csv"
    told = json.loads(run(*paths, "--json", "--html", page, "--csv", lines).stdout)
    assert told["may_be_ranked"] is True
    ttft = next(row for row in told["comparison"]["rows"] if row["metric"] == "TTFT")
    assert ttft["ratios"]["B"]["value"] == pytest.approx(62 / 102)
    assert "TTFT: B&#x27;s is shorter everywhere, 0.60 to 0.61 times A&#x27;s" in page.read_text("utf-8")
    with lines.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 80
    assert min(int(row["ttft_ns"]) for row in rows if row["side"] == "B" and row["shape"] == "64") == 60_000_000


def test_it_fits_the_terminal(tmp_path: Path, taximeter_home: Path) -> None:
    width = 60
    told = on_a_terminal(width, "compare", *map(str, files(tmp_path, a_result(), a_result("b:1", ttft_ms=60))))
    assert "\x1b[" in told
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip("\r") for line in told.split("\n")]
    assert max(map(len, plain)) <= width
    assert any("├" in line for line in plain)


def test_rates_make_curves_and_the_lead_is_said_where_it_changes(tmp_path: Path, run: Run) -> None:
    results = [a_load_result("a:1", (1, 2, 4, 8, 16)), a_load_result("b:1", (1, 2, 4, 8, 16), speed=1.5)]
    paths = files(tmp_path, *results)
    told = run(*paths, "--machine-rate", "A=0.50/h", "--machine-rate", "B=2.00/h", "--slo", "itl=20ms").stdout
    assert "At 50 tokens/s for each user: A gives" in told
    assert "output tokens per machine-dollar, million" in told
    assert "beyond" in told
    assert "A $0.50/h, B $2.00/h" in told
    assert told.index("At 50 tokens/s") < told.index("TTFT: ")  # who gives rates asks about dollars
    assert told.count("At 50 tokens/s") == 1
    assert "machine-dollar" not in run(*paths).stdout
    no_levels = files(tmp_path, a_result(), a_result("b:1"))
    assert "makes no curve per dollar" in run(*no_levels, "--machine-rate", "1/h").stdout


def test_a_warning_of_a_file_says_whose_it_is(tmp_path: Path, run: Run) -> None:
    spoilt = replace(a_result("b:1"), warnings=("it was interrupted",))
    assert "! B: it was interrupted" in run(*files(tmp_path, a_result(), spoilt)).stdout


def test_wrong_calls_say_what_is_wrong(tmp_path: Path, run: Run) -> None:
    paths = files(tmp_path, a_result(), a_result("b:1"))
    assert "compare files with files" in run(paths[0], "http://127.0.0.1:1", code=2).stderr
    assert "cannot be waived" in run(*paths, "--same", "cache", code=2).stderr
    assert "there is no side C" in run(*paths, "--machine-rate", "C=1/h", code=2).stderr
    (tmp_path / "x.json").write_text("{}")
    assert "no result of a measurement" in run(paths[0], tmp_path / "x.json", code=1).stderr


# Live, against servers on real sockets whose tokens are words.


async def _models(_: Request) -> Response:
    return JSONResponse({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})


def a_server(first_s: float, each_s: float = 0.0) -> Starlette:
    async def completions(request: Request) -> Response:
        asked = await request.json()
        prompt_tokens = len(asked["prompt"].split()) + 1

        async def stream() -> AsyncGenerator[bytes]:
            await asyncio.sleep(first_s)
            for number in range(asked["max_tokens"]):
                await asyncio.sleep(each_s if number else 0)
                yield event(
                    choices=[{"index": 0, "text": " a", "finish_reason": None}], usage=usage(prompt_tokens, number + 1)
                )
            yield event(
                choices=[{"index": 0, "text": "", "finish_reason": "length"}],
                usage=usage(prompt_tokens, asked["max_tokens"], cached=0),
            )
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/models", _models), Route("/v1/completions", completions, methods=["POST"])])


@contextmanager
def listening(*apps: Starlette) -> Generator[list[str]]:
    """Their addresses; they are served by another thread, since the command is another process."""
    addresses: list[str] = []
    are_up, end = threading.Event(), threading.Event()

    async def serve() -> None:
        async def one(app: Starlette) -> None:
            async with serving_app(app) as address:
                addresses.append(address)
                if len(addresses) == len(apps):
                    are_up.set()
                await asyncio.to_thread(end.wait)

        await asyncio.gather(*(one(app) for app in apps))

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert are_up.wait(30)
        yield addresses
    finally:
        end.set()
        thread.join()


def test_servers_are_asked_in_turn_and_the_result_is_kept(tmp_path: Path, run: Run) -> None:
    """The second takes 120 ms to its first token, the first 5: too much apart for a busy machine to hide it."""
    kept = tmp_path / "kept.json"
    with listening(a_server(0.005), a_server(0.12)) as addresses:
        done = run(*addresses, "--prompt-tokens", "16..64", "--output-tokens", 4, "--rounds", 6, "--out", kept)
    result = read_result(kept)
    assert result.kind == "compare"
    assert [len(many) for many in result.observations.values()] == [12, 12]
    assert all(seen.prompt_is_exact for many in result.observations.values() for seen in many)
    slower = [sum(seen.ttft_ns() or 0 for seen in many) for many in result.observations.values()]
    word = "longer" if slower[1] > slower[0] else "shorter"
    assert f"TTFT: B's is {word} everywhere" in done.stdout
    again = run(kept).stdout
    assert f"TTFT: B's is {word} everywhere" in again
    assert run("--json", "--limit", "200", name="receipts").stdout.count(result.run) >= 24


def test_levels_in_turn_make_a_curve_for_each(tmp_path: Path, run: Run) -> None:
    """The second is slower for each user; both cost the same, so the first gives more for a dollar. The file says the
    same again, at another price too."""
    kept = tmp_path / "kept.json"
    options = ["--concurrency", "1..2", "--duration", "0.4", "--rounds", 2, "--prompt-tokens", 16, "--output-tokens", 4]
    with listening(a_server(0.01, 0.01), a_server(0.01, 0.04)) as addresses:
        done = run(*addresses, *options, "--machine-rate", "1/h", "--out", kept)
    result = read_result(kept)
    assert (result.plan["study"], result.plan["levels"], result.plan["loop"]) == ("levels", [1, 2], "closed")
    assert {seen.shape for many in result.observations.values() for seen in many} == {"concurrency 1", "concurrency 2"}
    assert {len(points) for points in result.conclusions["curves"].values()} == {2}
    assert "output tokens per machine-dollar" in done.stdout
    assert "makes no curve" not in done.stdout
    again = run(kept, "--machine-rate", "A=1/h", "--machine-rate", "B=0.01/h").stdout
    assert "A $1/h, B $0.01/h" in again
    assert (
        "with --concurrency prompts have one length"
        in run("http://a:1", "http://b:1", "--concurrency", "1..2", "--prompt-tokens", "16..64", code=2).stderr
    )


def test_servers_of_other_models_are_refused_before_they_are_asked(tmp_path: Path, run: Run) -> None:
    async def other(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "other", "owned_by": "vllm"}]})

    asked: list[str] = []

    async def completions(request: Request) -> Response:
        asked.append(request.url.path)
        return Response(status_code=500)

    routes = [Route("/v1/completions", completions, methods=["POST"])]
    apps = [Starlette(routes=[*routes, Route("/v1/models", models)]) for models in (_models, other)]
    with listening(*apps) as addresses:
        done = run(*addresses, code=3)
    assert re.search(r"  model: A (m|other), B (m|other)\n", done.stderr)
    assert asked == []
