"""`taximeter sweep`: one server at several prompt lengths, and where the time goes."""

from __future__ import annotations

from typing import Annotated

import typer

from taximeter.cli.console import JsonFlag, KVFormatOption, ThreadsOption, WeightsOption
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


def sweep(
    where: Annotated[
        str,
        typer.Argument(
            help="A server's address, or a model's name: then one is started here.",
            metavar="URL|MODEL",
            show_default=False,
        ),
    ],
    prompt_tokens: Annotated[str, typer.Option(help="Prompt lengths, each twice the one before.")] = "64..4096",
    output_tokens: Annotated[int, typer.Option(min=2, max=100_000, help="Tokens of each answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="How often each length is asked.")] = 5,
    at: Annotated[
        int | None, typer.Option(min=1, help="The prompt length that the verdict is about; the middle one without it.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Instead: what a prefix that was seen before saves, cold against warm.")
    ] = False,
    context: Annotated[
        bool, typer.Option("--context", help="Instead: how fast it writes, the deeper in the context.")
    ] = False,
    interference: Annotated[
        bool,
        typer.Option("--interference", help="Instead: how long running answers stand still when a long prompt comes."),
    ] = False,
    streams: Annotated[int, typer.Option(min=1, max=1_000, help="Running answers, for --interference.")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="Of the order and of the words; without it new ones, which no cache knows.")
    ] = None,
    model: ModelOption = None,
    key: KeyOption = None,
    api: ApiOption = None,
    provider: ProviderOption = None,
    machine_rate: ServerRateOption = None,
    weights: WeightsOption = None,
    kv_format: KVFormatOption = None,
    threads: ThreadsOption = None,
    max_cost: MaxCostOption = None,
    as_json: JsonFlag = False,
    csv: CsvOption = None,
    html: HtmlOption = None,
    out: OutOption = None,
) -> int:
    """Why is it slow, and what is worth working on?

    Sends the same request at several prompt lengths, one at a time, and says what the time goes to: waiting, the
    network, reading the prompt, or writing the answer. Every request has a receipt. The exit code is 1 where the run
    was not what it claims to be.
    """
    from taximeter.cli.sweeping import Wanted, run  # noqa: PLC0415  # what measures loads numpy and an HTTP client

    return run(
        Wanted(
            where=where,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            repeats=repeats,
            at=at,
            studies=tuple(
                name
                for name, is_wanted in (("cache", cache), ("context", context), ("interference", interference))
                if is_wanted
            ),
            streams=streams,
            seed=seed,
            model=model,
            key=key,
            api=api,
            provider=provider,
            machine_rate=machine_rate,
            weights=weights,
            kv_format=kv_format,
            threads=threads,
            max_cost=max_cost,
            as_json=as_json,
            csv=csv,
            html=html,
            out=out,
        )
    )
