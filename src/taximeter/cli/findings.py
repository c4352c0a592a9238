"""Everything that is wrong with a configuration, and where.

Owns: which rooms are asked, and what is only a warning: what works, but hardly as it was meant. Refuses to know: how it
is printed. Nothing is changed, and unless asked to nobody is called.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from taximeter.cli.toml_lines import Place, line_of, line_of_syntax_error, lines_of
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import ConfigError, PricingError, TaximeterError, UpstreamError
from taximeter.pricing.catalog import Catalog
from taximeter.settings import Settings
from taximeter.upstreams.config import Network, Route, Upstream, read_network
from taximeter.upstreams.secrets import read_secret

if TYPE_CHECKING:
    from taximeter.upstreams.client import Client

_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong; `is_error` if nothing can be served because of it. `file` and `line` are where it
    stands, `key` under which keys; None where it does not stand in a file. `hint` is what to write."""

    is_error: bool
    message: str
    hint: str | None
    file: Path | None = None
    line: int | None = None
    key: str | None = None


def findings(environ: Mapping[str, str], *, online: bool = False) -> tuple[Settings | None, list[Finding]]:
    """The settings as far as they make sense, and all that is wrong. With `online` the upstreams are called, too."""
    problems: list[ConfigError] = []
    try:
        settings = Settings.load(environ=environ, problems=problems)
    except TaximeterError as error:  # there is not even a place to look at
        return None, [Finding(is_error=True, message=error.message, hint=error.hint)]
    file = _File(settings.config_path)
    network = read_network(
        settings.upstream_tables, settings.route_tables, path=settings.config_path, environ=environ, problems=problems
    )
    found = [file.finding(error) for error in problems]
    catalog, wrong_prices = _catalog(settings)
    found += wrong_prices
    found += _of_settings(settings, network, environ, file)
    found += _of_upstreams(settings, network, file)
    if catalog is not None:
        found += _of_prices(settings, network, catalog, file)
    if online:
        found += asyncio.run(_of_calls(network, file))
    return settings, sorted(found, key=lambda one: (not one.is_error, str(one.file or ""), one.line or 0))


class _File:
    """A TOML file, and where things stand in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._lines = lines_of(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            self._lines: Mapping[Place, int] = {}

    def finding(self, error: TaximeterError) -> Finding:
        """What is wrong in it, or, where the error does not say so, elsewhere."""
        place = error.place if isinstance(error, ConfigError) else ()
        is_here = str(self._path) in error.message or self._path.name in error.message or bool(place)
        return Finding(
            is_error=True,
            message=self._without_place(error.message, place),
            hint=error.hint,
            file=self._path if is_here else None,
            line=line_of(self._lines, place) or (line_of_syntax_error(error.message) if is_here else None),
            key=_dotted(place),
        )

    def _without_place(self, message: str, place: Place) -> str:
        """Errors that are read alone say where; here it stands beside them."""
        number = place[1] + 1 if len(place) > 1 and isinstance(place[1], int) else 0
        for said in (
            f"{self._path}, {'.'.join(map(str, place[:2]))}: ",
            f"{self._path}, route {number}: ",
            f"{self._path.name}, price {number}: ",
            f"{self._path.name}: ",
            f"{self._path}: ",
            f"{self._path} has an ",
            f"{self._path} has ",
        ):
            if place and message.startswith(said):
                return message.removeprefix(said)
        return message

    def warning(self, message: str, hint: str | None, *place: str | int) -> Finding:
        """Something in it that works, but hardly as it was meant."""
        line = line_of(self._lines, place)
        return Finding(is_error=False, message=message, hint=hint, file=self._path, line=line, key=_dotted(place))


def _dotted(place: Place) -> str | None:
    """As people write it: `upstreams.mock.url`, `routes[2].model`, lists counted from 1."""

    def text_of(part: str | int) -> str:
        if isinstance(part, int):
            return f"[{part + 1}]"
        return f".{part}" if re.fullmatch(r"[\w-]+", part) else f".{json.dumps(part, ensure_ascii=False)}"

    text = "".join(map(text_of, place))
    return text.removeprefix(".") or None


def _catalog(settings: Settings) -> tuple[Catalog | None, list[Finding]]:
    """The prices, and what is wrong in the user's own."""
    path = settings.prices_overlay
    file = _File(path)
    problems: list[ConfigError] = []
    catalog = None
    try:
        catalog = Catalog.load(path, problems)
    except ConfigError as error:
        problems.append(error)
    return catalog, [file.finding(error) for error in problems]


def _of_settings(settings: Settings, network: Network, environ: Mapping[str, str], file: _File) -> Iterator[Finding]:
    if settings.api_key is not None:
        yield from _tried(
            lambda: read_secret(settings.api_key or "", environ, base=settings.config_path.parent),
            "the key that callers must show (api_key)",
            file,
            "api_key" if settings.origins.get("api_key", "").startswith("api_key in ") else None,
        )
    from taximeter.ledger.database import database_at  # noqa: PLC0415  # as all that follows, a while to import
    from taximeter.serve import own_names  # noqa: PLC0415

    yield from _tried(lambda: database_at(settings.ledger_url, spool=settings.spool_dir), "ledger", file, None)
    if own_names(settings.host) is None and settings.api_key is None and not settings.allow_anyone:
        yield Finding(
            is_error=True,
            message=f"host is {settings.host}, which other machines reach, and no key is asked for",
            hint='api_key = "env:NAME" with the key in that variable, or allow_anyone = true',
        )
    if not network.routes or "model" in settings.origins:
        from taximeter.engine.model_store import ModelStore  # noqa: PLC0415

        store = ModelStore(settings.models_dir)
        yield from _tried(lambda: store.resolve(settings.model), f"model {settings.model}", file, None)


def _tried(look: Callable[[], object], what: str, file: _File, key: str | None) -> Iterator[Finding]:
    try:
        look()
    except ConfigError as error:
        place = () if key is None else (key,)
        yield file.finding(ConfigError(f"{what}: {error.message}", hint=error.hint, place=place))


def _of_upstreams(settings: Settings, network: Network, file: _File) -> Iterator[Finding]:
    used = {upstream.name for route in network.routes for upstream in route.upstreams}
    named = {name for table in settings.route_tables for name in _names(_field(table, "upstreams"))}
    for upstream in network.upstreams.values():
        place = ("upstreams", upstream.name)
        if upstream.name not in used | named:
            yield file.warning("no route leads there", f'[[routes]] with upstreams = ["{upstream.name}"]', *place)
        if upstream.provider is None and upstream.machine_rate is None:
            how = 'provider = "openai" for published prices, or machine_rate = "2.50/h" for a machine of your own'
            yield file.warning("its receipts will have no cost", how, *place)
        if upstream.key is None and settings.api_key is not None and not _is_own(upstream):
            why = (
                "it has no key, and callers show this gateway's, which is not sent on: they must send that as "
                "x-taximeter-key, and their own for it as usual"
            )
            yield file.warning(why, 'key = "env:NAME"', *place)
        elif upstream.key is None and not _is_own(upstream):
            why = (
                "it has no key: callers in its own dialect must show theirs, and those in the other dialect are "
                "translated without any"
            )
            yield file.warning(why, 'key = "env:NAME"', *place)


def _field(table: object, key: str) -> object:
    """A value of a table that may be wrong otherwise; None where there is none."""
    return cast(dict[str, object], table).get(key) if isinstance(table, dict) else None


def _names(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _is_own(upstream: Upstream) -> bool:
    """Whether it is a machine of the operator's, which mostly asks for no key."""
    host = urlsplit(upstream.url).hostname or ""
    return upstream.machine_rate is not None or host in ("localhost", "::1") or host.startswith("127.")


def _of_prices(settings: Settings, network: Network, catalog: Catalog, file: _File) -> Iterator[Finding]:
    from taximeter.pricing.published import provider_known  # noqa: PLC0415

    if settings.priced_as is not None:
        try:
            catalog.resolve(settings.priced_as)
        except PricingError as error:
            key = ("priced_as",) if settings.origins.get("priced_as", "").startswith("priced_as in ") else ()
            yield file.finding(ConfigError(f"priced_as: {error.message}", hint=error.hint, place=key))
    sold = {model.partition("/")[0] for model in catalog.overlaid()}
    for upstream in network.upstreams.values():
        if upstream.provider is not None and not (provider_known(upstream.provider) or upstream.provider in sold):
            yield file.warning(
                f"no price of any {upstream.provider!r} is known: its receipts will have no cost",
                f'a [[price]] table with model = "{upstream.provider}/NAME" in {settings.prices_overlay}',
                "upstreams",
                upstream.name,
                "provider",
            )
        elif upstream.provider is not None:
            yield from _of_models(upstream, network.routes, catalog, settings, file)


def _of_models(
    upstream: Upstream, routes: Sequence[Route], catalog: Catalog, settings: Settings, file: _File
) -> Iterator[Finding]:
    for route in routes:
        model = route.send_as or (None if route.model.endswith("*") else route.model)
        if model is None or upstream not in route.upstreams:
            continue
        name = model if model.startswith(f"{upstream.provider}/") else f"{upstream.provider}/{model}"
        try:
            catalog.price_list(name, at=SYSTEM_CLOCK.utc_now(), input_tokens=0)
        except PricingError as error:
            number = [_field(table, "model") for table in settings.route_tables].index(route.model)
            yield file.warning(
                f"{error.message}: unless answers name another model, its receipts will have no cost",
                error.hint or f'a [[price]] table with model = "{name}" in {settings.prices_overlay}',
                "routes",
                number,
                "send_as" if route.send_as else "model",
            )


async def _of_calls(network: Network, file: _File) -> list[Finding]:
    """Call every upstream, and every page of an engine's numbers."""
    from taximeter.upstreams.client import Client  # noqa: PLC0415

    client = Client()
    try:
        calls = [_call(client, upstream, file) for upstream in network.upstreams.values()]
        return [finding for found in await asyncio.gather(*calls) for finding in found]
    finally:
        await client.aclose()


async def _call(client: Client, upstream: Upstream, file: _File) -> list[Finding]:
    found: list[Finding] = []
    hurried = replace(upstream, connect_timeout_s=_PATIENCE_S, first_byte_timeout_s=_PATIENCE_S)
    status = await _status(client, hurried, "/v1/models")
    place = ("upstreams", upstream.name)
    if isinstance(status, str):
        found.append(file.warning(status, "an address that answers, or start it", *place, "url"))
    elif status in (401, 403) and upstream.key is not None:
        found.append(file.warning(f"it refuses the key (status {status})", "a key that it takes", *place, "key"))
    if upstream.metrics_url is not None:
        page = replace(hurried, url=upstream.metrics_url, key=None, headers={})
        status = await _status(client, page, "")
        if status != 200:
            why = status if isinstance(status, str) else f"it answers with status {status}"
            found.append(file.warning(why, "where the engine shows its numbers", *place, "metrics_url"))
    return found


async def _status(client: Client, upstream: Upstream, path: str) -> int | str:
    try:
        incoming = await client.send(upstream, "GET", path, [], b"")
    except UpstreamError as error:
        return error.message
    incoming.close()
    return incoming.status
