"""What `taximeter sweep` does: builds a bench, has a study made on it, and shows what came out.

Owns: which study is meant, what is told before money is spent, Ctrl-C, and the forms of the output. Refuses to know:
what a study asks, and what it concludes.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from numpy.random import default_rng
from rich.text import Text

from taximeter import __version__
from taximeter.cli.console import EXIT_FAILED, err, out, print_json
from taximeter.cli.measuring import (
    Access,
    Bench,
    bench,
    count_range,
    described,
    kept_flags,
    new_run,
    nothing_counted_yet,
    parse_max_cost,
)
from taximeter.cli.model_shapes import machine_limit, model_shape
from taximeter.cli.tables import print_table
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.figures import money_text
from taximeter.ledger import Ledger
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.prompts import Prompts
from taximeter.measurement.asking.spending import Purse, estimate
from taximeter.measurement.asking.target import is_address, read_counters, server_receipt
from taximeter.measurement.pictures.page import Table, page_html
from taximeter.measurement.pictures.plots import ASCII, UNICODE, plot
from taximeter.measurement.requests_csv import requests_csv
from taximeter.measurement.results import Result, environment, write_result, write_whole
from taximeter.measurement.sweep.cache_study import CacheStudying
from taximeter.measurement.sweep.findings import findings
from taximeter.measurement.sweep.interference import Interfering
from taximeter.measurement.sweep.model_work import MachineLimit, ModelShape
from taximeter.measurement.sweep.page import shown_sweep
from taximeter.measurement.sweep.shown import Shown, page_of
from taximeter.measurement.sweep.study import Plan, Progress
from taximeter.measurement.sweep.study_pages import shown_cache, shown_depth, shown_interference
from taximeter.measurement.sweep.sweep import Sweep, Sweeping, geometric
from taximeter.records import Phase
from taximeter.settings import Settings

_PING_PATIENCE_S: Final = 5.0
_LEAST_TELLING: Final = ("void", "unexplained", "network", "queue", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call of the command."""

    where: str
    prompt_tokens: str
    output_tokens: int
    repeats: int
    at: int | None
    studies: tuple[str, ...]
    streams: int
    seed: int | None
    model: str | None
    key: str | None
    api: str | None
    provider: str | None
    machine_rate: str | None
    weights: str | None
    kv_format: str | None
    threads: int | None
    max_cost: str | None
    as_json: bool
    csv: Path | None
    html: Path | None
    out: Path | None

    @property
    def study(self) -> str:
        return self.studies[0] if self.studies else "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """Who is told how far it is."""

    say: Callable[[str], object]
    progress: Callable[[Progress], object]


def run(wanted: Wanted) -> int:
    """The exit code."""
    if len(wanted.studies) > 1:
        raise RequestError("these are studies of their own: ask for one at a time", param=wanted.studies[1])
    low, high = count_range(wanted.prompt_tokens, "prompt-tokens")
    served = (("--weights", wanted.weights), ("--kv-format", wanted.kv_format), ("--threads", wanted.threads))
    if is_address(wanted.where) and (given := [flag for flag, value in served if value is not None]):
        raise RequestError(f"{given[0]} is for a server that is started here", param=given[0].removeprefix("--"))
    access = Access(
        where=wanted.where,
        model=wanted.model,
        key=wanted.key,
        api=wanted.api,
        provider=wanted.provider,
        machine_rate=wanted.machine_rate,
        serve_flags=kept_flags([(flag, None if value is None else str(value)) for flag, value in served]),
    )
    settings, purse = Settings.load(), Purse(parse_max_cost(wanted.max_cost))
    with _watching() as watch, Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        name = new_run(wanted.study)
        with nothing_counted_yet(ledger, name):
            result, shown = asyncio.run(_measured(wanted, access, (low, high), ledger, settings, purse, watch, name))
    if wanted.out is not None:
        write_result(wanted.out, result)
    if wanted.csv is not None:
        places = [{"study": wanted.study}] * len(shown.observations)
        write_whole(wanted.csv, requests_csv(places, shown.observations, headings=("study",)))
    if wanted.html is not None:
        write_whole(wanted.html, _page(shown, result))
    if wanted.as_json:
        print_json({name: value for name, value in _plain(result).items() if name != "observations"})
    else:
        _print(shown, result)
    return 0 if shown.is_valid else EXIT_FAILED


async def _measured(
    wanted: Wanted,
    access: Access,
    span: tuple[int, int],
    ledger: Ledger,
    settings: Settings,
    purse: Purse,
    watch: _Watch,
    run: str,
) -> tuple[Result, Shown]:
    async with bench(access, ledger, settings, run=run, purse=purse, say=watch.say) as on:
        around = environment()
        seed = secrets.randbelow(1 << 31) if wanted.seed is None else wanted.seed
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        asker = on.asker(began_ns=began_ns)
        prompts = await Prompts.calibrated(on.target, asker, seed=seed, report=watch.say)
        lengths = _lengths(span, wanted.output_tokens, prompts, on)
        plan = Plan(
            prompt_tokens=lengths[-1:] if wanted.study == "interference" else lengths,
            output_tokens=wanted.output_tokens,
            repeats=wanted.repeats,
            seed=seed,
        )
        _tell_the_cost(on, _kinds(wanted, plan))
        shown = await _STUDIES[wanted.study](wanted, on, _Asking(asker, began_ns, prompts, plan), watch)
        target = described(on.target, access.serve_flags)
    return (
        Result(
            kind="sweep",
            run=run,
            made_at=SYSTEM_CLOCK.utc_now(),
            taximeter_version=__version__,
            environment=around,
            targets=(target,),
            plan={
                "study": wanted.study,
                "prompt_tokens": list(plan.prompt_tokens),
                "output_tokens": plan.output_tokens,
                "repeats": plan.repeats,
                "concurrency": 1 if wanted.study != "interference" else wanted.streams + 1,
                "cache": "cold" if wanted.study != "cache" else "cold and warm",
                "seed": plan.seed,
                "order": "each round has every length, in random order; before it, one of each that does not count",
            },
            conclusions=shown.conclusions,
            observations={str(target["name"]): shown.observations},
            warnings=shown.warnings,
            definitions=shown.definitions,
        ),
        shown,
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    asker: Asker
    began_ns: int
    prompts: Prompts
    plan: Plan


async def _sweep(wanted: Wanted, on: Bench, asking: _Asking, watch: _Watch) -> Shown:
    found, model, limit = await _swept(wanted, on, asking, watch)
    return shown_sweep(found, findings(found, shape=model, limit=limit))


async def _depth(wanted: Wanted, on: Bench, asking: _Asking, watch: _Watch) -> Shown:
    found, model, limit = await _swept(wanted, on, asking, watch)
    return shown_depth(found, findings(found, shape=model, limit=limit))


async def _swept(
    wanted: Wanted, on: Bench, asking: _Asking, watch: _Watch
) -> tuple[Sweep, ModelShape | None, MachineLimit | None]:
    study = Sweeping(
        asking.asker,
        asking.prompts,
        asking.plan,
        ping=lambda: _ping_ns(on.target.url),
        counters=lambda: read_counters(on.client, on.target),
        allows=lambda prompt, output: on.purse.allows(_price(on, prompt, output)),
        on_progress=watch.progress,
    )
    await _until_stopped(study.run(), has_any=lambda: bool(study.observations))
    if on.target.is_taximeter:
        watch.say("reading the server's receipts")
        study.observations[:] = [await _with_phases(on, seen) for seen in study.observations]
    watch.say("working it out")
    is_here = not is_address(wanted.where)
    model = model_shape(on.settings, wanted.where if is_here else on.target.model)
    limit = machine_limit(on.settings, wanted.threads) if is_here else None
    return study.conclude(default_rng(asking.plan.seed), at=wanted.at), model, limit


async def _cache(_: Wanted, on: Bench, asking: _Asking, watch: _Watch) -> Shown:
    study = CacheStudying(
        asking.asker,
        asking.prompts,
        asking.plan,
        allows=lambda prompt, output: on.purse.allows(_price(on, prompt, output)),
        on_progress=watch.progress,
    )
    await _until_stopped(study.run(), has_any=lambda: bool(study.observations))
    return shown_cache(study.conclude(default_rng(asking.plan.seed)))


async def _interference(wanted: Wanted, on: Bench, asking: _Asking, watch: _Watch) -> Shown:
    study = Interfering(
        lambda arrived: on.asker(began_ns=asking.began_ns, on_progress=arrived),
        asking.prompts,
        asking.plan,
        streams=wanted.streams,
        allows=lambda prompt, output: on.purse.allows(_price(on, prompt, output)),
        on_progress=watch.progress,
    )
    await _until_stopped(study.run(), has_any=lambda: bool(study.observations))
    return shown_interference(study.conclude(default_rng(asking.plan.seed)))


_STUDIES: Final[Mapping[str, Callable[[Wanted, Bench, _Asking, _Watch], Awaitable[Shown]]]] = {
    "sweep": _sweep,
    "cache": _cache,
    "context": _depth,
    "interference": _interference,
}


def _kinds(wanted: Wanted, plan: Plan) -> list[tuple[int, int, int]]:
    """What will be asked: how often, prompt tokens, output tokens."""
    rounds = plan.repeats + 1
    match wanted.study:
        case "cache":
            return [(2 * rounds, tokens, plan.output_tokens) for tokens in plan.prompt_tokens]
        case "interference":
            return [(2 * rounds, plan.prompt_tokens[-1], 2), (rounds * wanted.streams, 64, plan.output_tokens)]
        case _:
            return plan.kinds()


async def _until_stopped(work: Awaitable[None], *, has_any: Callable[[], bool]) -> None:
    """Ctrl-C ends it; what was measured until then is shown and kept."""
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not has_any():
            raise
        task.uncancel()


def _lengths(span: tuple[int, int], output_tokens: int, prompts: Prompts, on: Bench) -> tuple[int, ...]:
    """The prompt lengths that fit the model. What was asked for by default is cut to its context, never the answer."""
    low, high = span
    if on.target.context_tokens is not None:
        high = min(high, on.target.context_tokens - output_tokens)
    low = max(low, prompts.shortest_tokens)
    if low > high:
        raise RequestError(
            f"no prompt of {span[0]:,} to {span[1]:,} tokens and {output_tokens:,} of answer fits: the shortest prompt "
            f"has {prompts.shortest_tokens:,} tokens, the context {on.target.context_tokens or 'an unknown number of'}",
            param="prompt-tokens",
        )
    return geometric(low, high)


def _price(on: Bench, prompt_tokens: int, output_tokens: int) -> Decimal | None:
    return estimate(
        on.tariff,
        on.target.model,
        [(1, prompt_tokens, output_tokens)],
        at=SYSTEM_CLOCK.utc_now(),
        why_none=on.why_no_price,
    ).amount


def _tell_the_cost(on: Bench, kinds: list[tuple[int, int, int]]) -> None:
    """Before anything else is billed. Raises RequestError where there is a limit, and no price to hold against it."""
    expected = estimate(on.tariff, on.target.model, kinds, at=SYSTEM_CLOCK.utc_now(), why_none=on.why_no_price)
    if on.purse.most is not None and expected.amount is None:
        raise RequestError(
            f"with --max-cost the price must be known: {expected.unknown_reason}",
            param="max-cost",
            hint="--provider NAME, or --machine-rate 0.50/h for a machine of your own",
        )
    if expected.amount:
        limit = "" if on.purse.most is None else f"; it stops at {money_text(on.purse.most)}"
        err().print(
            f"{expected.requests:,} requests with {expected.input_tokens:,} prompt tokens and "
            f"{expected.output_tokens:,} of answers: about {money_text(expected.amount)}{limit}",
            style="dim",
            soft_wrap=True,
        )


async def _ping_ns(url: str) -> int | None:
    """How long it takes to open a connection to the server at `url`: one round trip."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    began_ns = SYSTEM_CLOCK.monotonic_ns()
    try:
        async with asyncio.timeout(_PING_PATIENCE_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # TimeoutError is one
        return None
    took_ns = SYSTEM_CLOCK.monotonic_ns() - began_ns
    writer.close()
    return took_ns


async def _with_phases(on: Bench, seen: Observation) -> Observation:
    """With the phases that our own server wrote on its receipt of the request, where it gives that."""
    if seen.receipt_id is None or seen.reported_ns:
        return seen
    receipt = await server_receipt(on.client, on.target, seen.receipt_id)
    timing = receipt.get("timing") if receipt is not None else None
    if not isinstance(timing, Mapping):
        return seen
    said = cast("Mapping[str, object]", timing)
    phases = (Phase.QUEUE, Phase.PREFILL, Phase.DECODE)
    known = {phase: ns for phase in phases if isinstance(ns := said.get(f"{phase.value}_ns"), int)}
    return replace(seen, reported_ns=known)


def _plain(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


def _subject(result: Result) -> str:
    target = result.targets[0]
    engine = " ".join(str(part) for part in (target["engine"], target["server_version"]) if part)
    return f"{target['model']} at {target['url']}" + (f", {engine}" if engine else "")


def _page(shown: Shown, result: Result) -> str:
    setup = {name.replace("_", " "): str(value) for name, value in result.targets[0]["setup"].items()}
    facts = {
        "Measured": f"{result.run} on {result.made_at:%Y-%m-%d %H:%M} UTC by Taximeter {result.taximeter_version}",
        "Asked": _asked(result),
        "From": result.environment.get("client_cpu", "unknown"),
        "Server": ", ".join(f"{name} {value}" for name, value in setup.items()) or "says nothing of itself",
    }
    made = f"Made {SYSTEM_CLOCK.utc_now():%Y-%m-%d %H:%M} UTC by taximeter sweep."
    return page_html(page_of(shown, subject=_subject(result), facts=facts, made=made))


def _asked(result: Result) -> str:
    plan = result.plan
    lengths = ", ".join(f"{length:,}" for length in plan["prompt_tokens"])
    at_once = "one at a time" if plan["concurrency"] == 1 else f"{plan['concurrency']} at once"
    return f"{lengths} prompt tokens, {plan['output_tokens']:,} of answer, {plan['repeats']} times each, {at_once}"


def _print(shown: Shown, result: Result) -> None:
    console = out()
    console.print(_subject(result), style="dim", soft_wrap=True)
    console.print()
    is_piped = not console.is_terminal  # a file has no width to fold sentences to
    console.print(Text(shown.says, style="bold"), soft_wrap=is_piped)
    if shown.advice is not None:
        console.print(Text(shown.advice), soft_wrap=is_piped)
    for warning in shown.warnings:
        console.print(Text(f"! {warning}", style="yellow"), soft_wrap=is_piped)
    for table in shown.tables:
        _print_table(table)
    letters = UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    for picture in shown.pictures:
        console.print()
        for line in plot(picture, console.width, letters=letters):
            console.print(line, soft_wrap=True)
    console.print()
    widest = max((len(name) for name in shown.facts), default=0)
    for name, value in shown.facts.items():
        console.print(Text.assemble((f"{name:<{widest}}  ", "dim"), value), soft_wrap=True)
    console.print()
    for name in ("ttft", "itl", "interval"):
        console.print(Text(f"{name}: {shown.definitions[name]}", style="dim"), soft_wrap=True)
    console.print(Text(f"run {result.run}: taximeter receipts --run {result.run}", style="dim"), soft_wrap=True)


def _print_table(table: Table) -> None:
    if not table.rows:
        return
    out().print()
    cells = [dict(zip(table.headings, map(Text, row), strict=True)) for row in table.rows]
    known = [heading for heading in _LEAST_TELLING if heading in table.headings]
    print_table(cells, right=table.headings, least_telling=known)


@contextmanager
def _watching() -> Generator[_Watch]:
    """Shows on a terminal's stderr what is being done, how far it is, and how long it will take."""
    console = err()
    if not console.is_terminal:
        yield _Watch(say=lambda _: None, progress=lambda _: None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, left="")

        def progress(now: Progress) -> None:
            left = "" if now.left_s is None else f"{_clock_text(now.left_s)} left"
            bars.update(task, description=now.says, completed=now.done, total=now.of, left=left)

        yield _Watch(say=lambda text: bars.update(task, description=text), progress=progress)


def _clock_text(seconds: float) -> str:
    return time.strftime("%H:%M:%S" if seconds >= 3600 else "%M:%S", time.gmtime(seconds))
