"""`taximeter compare`: the same work for several, and what may be said of it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from taximeter.cli.console import JsonFlag
from taximeter.cli.measuring_options import ApiOption, CsvOption, HtmlOption, MaxCostOption, OutOption, ProviderOption

_SIDE: Final = "LABEL=VALUE"


def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(
            help="Servers' addresses or models' names; or files of sweep, load or compare.", metavar="SIDE..."
        ),
    ],
    prompt_tokens: Annotated[
        str | None, typer.Option(help="Prompt lengths: 64..1024, or one; 256 with --concurrency.", show_default=False)
    ] = None,
    output_tokens: Annotated[int, typer.Option(min=2, max=100_000, help="Tokens of each answer.")] = 32,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="How often each is asked each length, 10; or has each level, 5."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Instead of one request at a time: so many, 8 or 1..16, for a curve per dollar."),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of each turn, with --concurrency.")] = 5.0,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Which model, where a server has several.", metavar=_SIDE)
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="Where a key lies: A=env:NAME.", metavar=_SIDE)] = None,
    api: ApiOption = None,
    provider: ProviderOption = None,
    machine_rate: Annotated[
        list[str] | None,
        typer.Option(help="What an hour of a side's machine costs, A=0.50/h, for curves per dollar.", metavar=_SIDE),
    ] = None,
    serve_with: Annotated[
        list[str] | None, typer.Option(help="More flags for a model's server: B='--weights int8'.", metavar=_SIDE)
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="The latency target at which curves per dollar are read: itl=50ms.", metavar="TARGET"),
    ] = None,
    same: Annotated[
        list[str] | None, typer.Option(help="A field that is equal, whatever the sides say: model, weights, ...")
    ] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="A field that is meant to differ: hardware, weights, ...")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Show what may not be ranked, unranked.")] = False,
    seed: Annotated[int, typer.Option(help="Of the order and of the words.")] = 0,
    max_cost: MaxCostOption = None,
    as_json: JsonFlag = False,
    csv: CsvOption = None,
    html: HtmlOption = None,
    out: OutOption = None,
) -> int:
    """Ask several the same, in turn, and say how many times as long each takes as the first, with intervals.

    Files of earlier measurements are compared as they are. What differs in model, setup or latency target is not
    ranked: each field that differs is told with its values, and the exit code is 3.
    """
    from taximeter.cli.comparing import Wanted, run  # noqa: PLC0415  # what measures loads numpy and an HTTP client

    return run(
        Wanted(
            subjects=tuple(subjects),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            rounds=rounds,
            concurrency=concurrency,
            duration_s=duration,
            by_side={
                "model": tuple(model or ()),
                "key": tuple(key or ()),
                "machine-rate": tuple(machine_rate or ()),
                "serve-with": tuple(serve_with or ()),
            },
            api=api,
            provider=provider,
            slo=slo,
            same=tuple(same or ()),
            vary=tuple(vary or ()),
            is_shown_anyway=anyway,
            seed=seed,
            max_cost=max_cost,
            as_json=as_json,
            csv=csv,
            html=html,
            out=out,
        )
    )
