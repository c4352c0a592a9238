"""`taximeter machine`: what this machine can do at most, measured once and remembered for receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from taximeter.cli.console import JsonFlag, out, print_json, waiting
from taximeter.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from taximeter.engine.limits import MachineLimits


def machine(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure again, also what is remembered. Let nothing else run meanwhile.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """What this machine can do at most: how fast it reads memory, and its arithmetic peak, by threads."""
    settings = Settings.load()
    # The whole engine: a second that --help and mistyped flags need not wait for.
    from taximeter.engine.energy import EnergyMeter  # noqa: PLC0415
    from taximeter.engine.limits import measure, remember, remembered  # noqa: PLC0415

    limits = None if refresh else remembered(settings.limits_path).limits
    if limits is None:
        with waiting("measuring this machine") as say:
            limits = measure(say)
        remember(limits, settings.limits_path)
    no_energy_reason = EnergyMeter().unknown_reason
    if as_json:
        path = str(settings.limits_path)
        print_json({"path": path, "limits": limits, "energy_unknown_reason": no_energy_reason})
        return
    _print(limits, settings.limits_path, no_energy_reason)


def _print(limits: MachineLimits, path: Path, no_energy_reason: str | None) -> None:
    from rich.table import Table  # noqa: PLC0415  # as in `console`

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("threads", "read GB/s", "int8 Gop/s", "bf16 Gop/s", "f32 Gop/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rates in limits.rates:
        table.add_row(
            str(rates.threads),
            f"{rates.read_gb_per_s:,.1f}",
            *(_rate(rate) for rate in (rates.int8_gop_per_s, rates.bf16_gop_per_s, rates.f32_gop_per_s)),
        )
    console = out()
    console.print(f"{limits.cpu}, {limits.level}", style="bold", soft_wrap=True)
    console.print(table)
    energy = "can be read" if no_energy_reason is None else f"unknown: {no_energy_reason}"
    console.print(f"\nenergy    {energy}", soft_wrap=True)
    console.print(
        f"measured  {limits.measured_at:%Y-%m-%d %H:%M} UTC, reading {limits.read_bytes / 1e6:,.0f} MB", soft_wrap=True
    )
    console.print(f"kept in   {path}", style="dim", soft_wrap=True)
    console.print("\nthe best of many short rounds; a dash is a unit that this processor lacks", style="dim")


def _rate(gop_per_s: float | None) -> str:
    return "-" if gop_per_s is None else f"{gop_per_s:,.0f}"
