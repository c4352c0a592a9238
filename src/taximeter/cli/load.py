"""`taximeter load`: how much a server takes, and what its users wait while it does.

Owns: the words of the command line. Refuses to know: how a study goes, how requests are timed, and what figures mean.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import EXIT_INTERRUPTED, JsonFlag, print_json, waiting
from taximeter.cli.measuring_options import (
    ApiOption,
    CsvOption,
    HtmlOption,
    KeyOption,
    MaxCostOption,
    ModelOption,
    OutOption,
    ProviderOption,
    ServerRateOption,
)
from taximeter.errors import RequestError

if TYPE_CHECKING:
    from taximeter.cli.load_study import Outcome
    from taximeter.ledger import Ledger
    from taximeter.measurement.load.workload import Workload
    from taximeter.records import Receipt

_MOST_RECEIPTS: Final = 5_000
_PAGE: Final = 500


def load(
    where: Annotated[
        str, typer.Argument(help="A server's address, or a model that is served here.", metavar="URL|MODEL")
    ],
    rate: Annotated[
        str | None, typer.Option(help="Requests per second, sent whether or not others have ended: 8, or 2..32.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Requests at a time instead: capacity, not latency under load. 8, or 1..64.")
    ] = None,
    workload: Annotated[
        str,
        typer.Option(help="chat, rag, agent, ledger (lengths of your own receipts), or a file: prompts, a trace."),
    ] = "chat",
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Instead: all prompts of one length.")] = None,
    output_tokens: Annotated[int, typer.Option(min=1, help="With --prompt-tokens: the answers' length.")] = 64,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds that a level lasts.")] = 30.0,
    ramp: Annotated[float, typer.Option(min=0, help="Seconds before them, in which the rate grows.")] = 0.0,
    burstiness: Annotated[
        float, typer.Option(help="Of arrivals: 1 is Poisson, less comes in bursts, inf is evenly spaced.")
    ] = 1.0,
    slo: Annotated[
        str | None, typer.Option(help="A target: ttft=500ms,itl=50ms,e2e=10s,share=0.95. Saturation is looked for.")
    ] = None,
    most_in_flight: Annotated[int | None, typer.Option(min=1, help="Send no more at a time, whatever is due.")] = None,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds until what does not end is given up.")] = 60.0,
    warm_up: Annotated[int, typer.Option(min=1, max=1000, help="Requests before the first level, one at a time.")] = 3,
    clients: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that send; more than one only where one is too slow.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of schedules and lengths, to have the same again.")] = None,
    model: ModelOption = None,
    key: KeyOption = None,
    api: ApiOption = None,
    provider: ProviderOption = None,
    machine_rate: ServerRateOption = None,
    max_cost: MaxCostOption = None,
    out_file: OutOption = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure latency under load, and how much load a server takes."""
    if rate is not None and concurrency is not None:
        raise RequestError("give one of --rate and --concurrency", param="concurrency")
    from taximeter.cli.load_study import Plan, Study  # noqa: PLC0415  # as in `main`
    from taximeter.cli.measuring import Access, bench, new_run, nothing_counted_yet, parse_max_cost  # noqa: PLC0415
    from taximeter.ledger import Ledger  # noqa: PLC0415
    from taximeter.measurement.asking.spending import Purse  # noqa: PLC0415
    from taximeter.measurement.load.arrivals import Arrivals  # noqa: PLC0415
    from taximeter.measurement.load.punctual import punctual_loop  # noqa: PLC0415
    from taximeter.measurement.load.saturation import steps  # noqa: PLC0415
    from taximeter.measurement.load.slo import Slo  # noqa: PLC0415
    from taximeter.measurement.requests_csv import requests_csv  # noqa: PLC0415
    from taximeter.measurement.results import write_result, write_whole  # noqa: PLC0415
    from taximeter.settings import Settings  # noqa: PLC0415

    is_open_loop = concurrency is None
    asked = rate if concurrency is None else concurrency
    plan = Plan(
        is_open_loop=is_open_loop,
        levels=() if asked is None else steps(*_range(asked, whole=not is_open_loop), whole=not is_open_loop),
        arrivals=Arrivals(burstiness=burstiness, ramp_s=ramp),
        duration_s=duration,
        slo=None if slo is None else Slo.parse(slo),
        most_in_flight=most_in_flight,
        patience_s=patience,
        warm_up=warm_up,
        clients=clients,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    access = Access(where=where, model=model, key=key, api=api, provider=provider, machine_rate=machine_rate)
    purse = Purse(parse_max_cost(max_cost))
    settings = Settings.load()
    with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        chosen = _workload(workload, prompt_tokens, output_tokens, ledger)

        run = new_run("load")

        async def work() -> Outcome:
            with waiting("looking at the server") as say:
                async with bench(access, ledger, settings, run=run, purse=purse, say=say) as found:
                    return await Study(found, plan, chosen, say).run()

        with nothing_counted_yet(ledger, run), asyncio.Runner(loop_factory=punctual_loop) as runner:
            outcome = runner.run(work())
    if out_file is not None:
        write_result(out_file, outcome.result)
    if html is not None:
        write_whole(html, _page(outcome))
    if csv is not None:
        seen = outcome.load.observations
        write_whole(csv, requests_csv([{"level": one.shape} for one in seen], seen, headings=("level",)))
    if as_json:
        print_json(replace(outcome.result, observations={}))
    else:
        from taximeter.cli.load_view import latency_chart, show  # noqa: PLC0415  # needs rich, and JSON does not

        found = outcome.load
        show(found, subject=outcome.subject, setting=outcome.setting, chart=latency_chart(found))
    if outcome.was_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _page(outcome: Outcome) -> str:
    from taximeter.measurement.load.page import load_page  # noqa: PLC0415
    from taximeter.measurement.pictures.page import page_html  # noqa: PLC0415

    result = outcome.result
    shown = load_page(
        outcome.load,
        target=result.targets[0],
        plan=result.plan,
        environment=result.environment,
        made=f"{result.run}, {result.made_at:%Y-%m-%d %H:%M} UTC, Taximeter {result.taximeter_version}",
    )
    return page_html(shown)


def _range(text: str, *, whole: bool) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        ends = float(low), float(high if dots else low)
    except ValueError:
        ends = (math.nan, math.nan)
    param = "concurrency" if whole else "rate"
    if not 0 < ends[0] <= ends[1] < math.inf or (whole and any(end != int(end) for end in ends)):
        raise RequestError(f"{text!r} is no range", param=param, hint=f"--{param} 2..32, or one number")
    return ends


def _workload(name: str, prompt_tokens: int | None, output_tokens: int, ledger: Ledger) -> Workload:
    from taximeter.measurement.load import workload  # noqa: PLC0415

    if prompt_tokens is not None:
        return workload.fixed(prompt_tokens, output_tokens)
    if name in workload.NAMED:
        return workload.named(name)
    if name == workload.LEDGER:
        return workload.of_receipts(_newest(ledger))
    return workload.from_file(Path(name))


def _newest(ledger: Ledger) -> Iterator[Receipt]:
    before: str | None = None
    for _ in range(_MOST_RECEIPTS // _PAGE):
        page = ledger.receipts(_PAGE, before)
        yield from page
        if len(page) < _PAGE:
            return
        before = page[-1].id
