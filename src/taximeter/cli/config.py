"""`taximeter config`: what is set, by whom, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from taximeter.cli.console import EXIT_FAILED, JsonFlag, out, print_json, without_password
from taximeter.settings import Settings

app = typer.Typer(add_completion=False, help="Show the settings in force; say what is wrong with them.")


@app.command()
def check(
    online: Annotated[bool, typer.Option("--online", help="Call the upstreams, too.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Say everything that is wrong with taximeter.toml, the environment, the secrets and the prices: where, and what to
    write. Exits with 1 if nothing could be served like that; warnings do not count."""
    from taximeter.cli.findings import findings  # noqa: PLC0415  # the prices take an eighth of a second

    settings, found = findings(os.environ, online=online)
    errors = [finding for finding in found if finding.is_error]
    if as_json:
        print_json(
            {
                "file": None if settings is None else str(settings.config_path),
                "errors": [_fields(finding) for finding in errors],
                "warnings": [_fields(finding) for finding in found if not finding.is_error],
            }
        )
        return EXIT_FAILED if errors else 0
    _print(found)
    if settings is not None and not found:
        where = settings.config_path
        out().print(f"{where} is right" if where.exists() else f"there is no {where}, and nothing else is wrong")
    elif found:
        warnings = len(found) - len(errors)
        out().print(f"{_counted(len(errors), 'error')}, {_counted(warnings, 'warning')}")
    return EXIT_FAILED if errors else 0


@app.command()
def show(as_json: JsonFlag = False) -> None:
    """Show every setting in force and where it comes from. Of keys only where they lie."""
    settings = Settings.load()
    shown = list(_settings(settings))
    if as_json:
        print_json({"settings": shown, **_network(settings)})
        return
    from rich.table import Table  # noqa: PLC0415  # as in `console`
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for one in shown:
        value = "-" if one["value"] is None else str(one["value"])
        table.add_row(one["key"], Text(value, overflow="fold"), Text(one["origin"], style="dim", overflow="fold"))
    network = _network(settings)
    for name, upstream in network["upstreams"].items():
        said = ", ".join(f"{key} {value}" for key, value in upstream.items() if value not in (None, []))
        table.add_row(f"upstreams.{name}", Text(said, overflow="fold"), "")
    for route in network["routes"]:
        sent = f", sent as {route['send_as']}" if route["send_as"] else ""
        table.add_row("route", Text(f"{route['model']} to {', then '.join(route['upstreams'])}{sent}"), "")
    out().print(table)


def _settings(settings: Settings) -> Iterator[dict[str, Any]]:
    values = {
        "config_path": settings.config_path,
        "model": settings.model,
        "models_dir": settings.models_dir,
        "ledger": without_password(settings.ledger_url),
        "prices": settings.prices_overlay,
        "machine_rate": None if settings.machine_rate is None else f"{settings.machine_rate.amount_per_hour}/h",
        "priced_as": settings.priced_as,
        "host": settings.host,
        "port": settings.port,
        "api_key": None if settings.api_key is None else _secret_text(settings.api_key, settings),
        "allow_anyone": settings.allow_anyone,
        "max_queued_requests": settings.max_queued_requests,
        "kv_cache_tokens": settings.kv_cache_tokens,
        "step_tokens": settings.step_tokens,
        "threads": settings.threads,
        "weights": settings.weights,
        "kv_format": settings.kv_format,
    }
    for key, value in values.items():
        plain = value if isinstance(value, (int, str)) or value is None else str(value)
        home = "TAXIMETER_HOME" if key == "config_path" and settings.home else "default"
        yield {"key": key, "value": plain, "origin": settings.origins.get(key, home)}


def _network(settings: Settings) -> dict[str, Any]:
    from taximeter.upstreams.config import read_network  # noqa: PLC0415

    network = read_network(
        settings.upstream_tables,
        settings.route_tables,
        path=settings.config_path,
        environ=os.environ,
        problems=[],  # `check` tells them
    )
    return {
        "upstreams": {
            name: {
                "url": upstream.url,
                "speaks": upstream.speaks.value,
                "key": None if upstream.key is None else f"{upstream.key.origin} (set)",
                "headers": sorted(upstream.headers),
                "provider": upstream.provider,
                "machine_rate": upstream.machine_rate and f"{upstream.machine_rate.amount_per_hour}/h",
                "connect_timeout_s": upstream.connect_timeout_s,
                "first_byte_timeout_s": upstream.first_byte_timeout_s,
                "idle_timeout_s": upstream.idle_timeout_s,
                "retries": upstream.retries,
                "drain_s": upstream.drain_s,
                "proxy": upstream.proxy and without_password(upstream.proxy),
                "metrics_url": upstream.metrics_url,
            }
            for name, upstream in network.upstreams.items()
        },
        "routes": [
            {"model": route.model, "upstreams": [each.name for each in route.upstreams], "send_as": route.send_as}
            for route in network.routes
        ],
    }


def _secret_text(where: str, settings: Settings) -> str:
    from taximeter.errors import ConfigError  # noqa: PLC0415
    from taximeter.upstreams.secrets import read_secret  # noqa: PLC0415

    try:
        return f"{read_secret(where, os.environ, base=settings.config_path.parent).origin} (set)"
    except ConfigError:
        is_pointer = where.startswith(("env:", "file:"))
        return f"{where} (not set)" if is_pointer else "(a key itself, where only its place may stand)"


def _fields(finding: Any) -> dict[str, Any]:
    return {
        "file": None if finding.file is None else str(finding.file),
        "line": finding.line,
        "key": finding.key,
        "message": finding.message,
        "hint": finding.hint,
    }


def _print(found: list[Any]) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    console = out()
    for finding in found:
        style = "bold red" if finding.is_error else "bold yellow"
        where = "" if finding.file is None else str(finding.file) + (f":{finding.line}" if finding.line else "")
        place = ", ".join(part for part in (where, finding.key) if part)
        word = "error" if finding.is_error else "warning"
        console.print(Text.assemble((word, style), f" {place}" if place else "", ": ", finding.message), soft_wrap=True)
        if finding.hint:
            console.print(Text.assemble(("  hint: ", "dim"), finding.hint), soft_wrap=True)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
