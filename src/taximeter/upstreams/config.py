"""What the operator says of upstreams and routes.

Owns: the tables `[upstreams.NAME]` and `[[routes]]` of `taximeter.toml`, every check on them, and which route a model's
name takes. Refuses to know: HTTP, and what is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from taximeter.errors import ConfigError
from taximeter.records import MachineRate
from taximeter.upstreams.secrets import Secret, read_secret


class Family(StrEnum):
    """What an upstream speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_Text = Annotated[str, Meta(min_length=1, max_length=2_000)]


class _UpstreamTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    url: _Text
    speaks: Family
    key: _Text | None = None
    headers: dict[str, str] = {}
    provider: _Text | None = None
    machine_rate: _Text | None = None
    connect_timeout_s: _Seconds = 10.0
    first_byte_timeout_s: _Seconds = 600.0
    idle_timeout_s: _Seconds = 300.0
    retries: Annotated[int, Meta(ge=0, le=10)] = 1
    drain_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    proxy: _Text | None = None
    metrics_url: _Text | None = None


class _RouteTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: _Text
    upstreams: Annotated[list[_Text], Meta(min_length=1)]
    send_as: _Text | None = None


_EXAMPLES: Final = {
    "url": '"https://api.openai.com"',
    "speaks": '"openai", or "anthropic"',
    "key": '"env:OPENAI_API_KEY", or "file:openai.key"',
    "headers": '{ "x-team" = "search" }',
    "provider": '"openai"',
    "machine_rate": '"2.50/h"',
    "connect_timeout_s": "10",
    "first_byte_timeout_s": "600",
    "idle_timeout_s": "300",
    "retries": "1, or up to 10",
    "drain_s": "0, or up to 600",
    "proxy": '"http://proxy.example:3128"',
    "metrics_url": '"http://127.0.0.1:8001/metrics"',
    "model": '"gpt-5", or "gpt-*"',
    "upstreams": '["NAME"]',
    "send_as": '"gpt-5"',
}


# For the keys that must be there, so that what is beside a wrong one can be looked at.
_STAND_INS: Final = {"url": "http://localhost", "speaks": "openai", "model": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One server that answers. `url` is its root, to which the dialect's own paths (`/v1/...`) are added.

    `key` None sends the client's own key on. `provider` is whose published prices apply, `machine_rate` what an hour of
    it costs where it is the operator's own; without both its receipts have no cost. `retries` are further tries after
    the first. A client that hangs up stops the answer, unless `drain_s` lets it run so long to see what it took.
    """

    name: str
    url: str
    speaks: Family
    key: Secret | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    provider: str | None = None
    machine_rate: MachineRate | None = None
    connect_timeout_s: float = 10.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 300.0
    retries: int = 1
    drain_s: float = 0.0
    proxy: str | None = field(default=None, repr=False)  # it may have a password in it
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a model is served: `upstreams` in the order they are tried. `model` is its name, or a beginning with `*`.
    `send_as` is what the upstreams call it, None the same."""

    model: str
    upstreams: tuple[Upstream, ...]
    send_as: str | None = None

    @property
    def speaks(self) -> Family:
        """The dialect of all its upstreams."""
        return self.upstreams[0].speaks

    def serves(self, model: str) -> bool:
        """Whether a request for `model` goes here."""
        return model.startswith(self.model[:-1]) if self.model.endswith("*") else model == self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Everybody behind the gateway, and the ways to them. `own_models` are those that are served here."""

    upstreams: Mapping[str, Upstream] = field(default_factory=dict[str, Upstream])
    routes: tuple[Route, ...] = ()
    own_models: frozenset[str] = frozenset()

    def route(self, model: str) -> Route | None:
        """The route for `model`: a whole name before a beginning, a longer beginning before a shorter one. A model that
        is served here goes elsewhere by its whole name only."""
        serving = [route for route in self.routes if route.serves(model)]
        route = max(serving, key=_precision, default=None)
        return None if route is not None and model in self.own_models and route.model != model else route


def _precision(route: Route) -> tuple[bool, int]:
    return not route.model.endswith("*"), len(route.model)


def read_network(
    upstreams: Mapping[str, object],
    routes: Sequence[object],
    *,
    path: Path,
    environ: Mapping[str, str],
    problems: list[ConfigError] | None = None,
) -> Network:
    """The tables of the file at `path`, understood; keys are read where they are said to be.

    Raises ConfigError for the first thing that is wrong, naming the file, the table and the key. With `problems` all of
    them are added there instead, and what is right is given.
    """
    found: dict[str, Upstream] = {}
    wrong: list[ConfigError] = []
    for name, table in upstreams.items():
        upstream, errors = _read(table, lambda fields, name=name: _upstream(name, fields, path, environ))
        if upstream is not None:
            found[name] = upstream
        wrong += [_placed(error, f"{path}, upstreams.{name}", "upstreams", name) for error in errors]
    ways: list[Route] = []
    for number, table in enumerate(routes, 1):
        way, errors = _read(table, lambda fields: _route(fields, found, upstreams))
        if way is not None and any(way.model == other.model for other in ways):
            errors = [ConfigError(f"there is a route for {way.model!r} already", place=("model",))]
        elif way is not None:
            ways.append(way)
        wrong += [_placed(error, f"{path}, route {number}", "routes", number - 1) for error in errors]
    if problems is None and wrong:
        raise wrong[0]
    if problems is not None:
        problems += wrong
    return Network(upstreams=found, routes=tuple(ways))


_Read = TypeVar("_Read")


def _read(table: object, understand: Callable[[object], _Read]) -> tuple[_Read | None, list[ConfigError]]:
    """What `table` means, and everything that is wrong with it: each time something is, it is tried without that key,
    or with one that would be right."""
    wrong: list[ConfigError] = []
    fields: dict[str, object] | None = cast(dict[str, object], table) if isinstance(table, dict) else None
    while True:
        try:
            read = understand(cast(object, table) if fields is None else fields)
        except ConfigError as error:
            key = next(iter(error.place), None)
            if any(each.place[:1] == (key,) for each in wrong):
                return None, wrong
            wrong.append(error)
            if fields is None or not isinstance(key, str) or not (key in fields or key in _STAND_INS):
                return None, wrong
            stand_in = {key: _STAND_INS[key]} if key in _STAND_INS else {}
            fields = {name: value for name, value in fields.items() if name != key} | stand_in
        else:
            return None if wrong else read, wrong


def _placed(error: ConfigError, where: str, *place: str | int) -> ConfigError:
    return ConfigError(f"{where}: {error.message}", hint=error.hint, place=(*place, *error.place))


def _upstream(name: str, table: object, path: Path, environ: Mapping[str, str]) -> Upstream:
    read = _converted(table, _UpstreamTable)
    if not (name.isascii() and name.isprintable() and 0 < len(name) <= 60):
        raise ConfigError("an upstream's name must be at most 60 printable ASCII characters")
    if read.provider is not None and read.machine_rate is not None:
        raise ConfigError(
            "`provider` and `machine_rate` exclude each other: it is either bought by the token or your own",
            place=("machine_rate",),
        )
    for header, value in read.headers.items():
        if header.lower() in ("authorization", "x-api-key", "proxy-authorization", "api-key"):
            raise ConfigError(
                f"`headers` has {header}: a key belongs into `key`", hint='key = "env:NAME"', place=("headers", header)
            )
        if not (header.isascii() and header.isprintable() and value.isascii() and value.isprintable()):
            raise ConfigError(
                f"`headers` has {header!r}, which cannot be sent: names and values are one line of ASCII",
                place=("headers", header),
            )
    return Upstream(
        name=name,
        url=_url(read.url, "url"),
        speaks=read.speaks,
        key=None if read.key is None else _secret(read.key, environ, path.parent),
        headers=read.headers,
        provider=read.provider,
        machine_rate=None if read.machine_rate is None else _rate(read.machine_rate),
        connect_timeout_s=read.connect_timeout_s,
        first_byte_timeout_s=read.first_byte_timeout_s,
        idle_timeout_s=read.idle_timeout_s,
        retries=read.retries,
        drain_s=read.drain_s,
        proxy=None if read.proxy is None else _url(read.proxy, "proxy"),
        metrics_url=None if read.metrics_url is None else _url(read.metrics_url, "metrics_url"),
    )


def _route(table: object, upstreams: Mapping[str, Upstream], named: Mapping[str, object]) -> Route:
    read = _converted(table, _RouteTable)
    if "*" in read.model[:-1]:
        raise ConfigError(f"`model` is {read.model!r}: a * may only be its end", place=("model",))
    for name in read.upstreams:
        if name not in named:
            known = ", ".join(named) or "none"
            raise ConfigError(
                f"`upstreams` has {name!r}, and there is no [upstreams.{name}]",
                hint=f"there are: {known}",
                place=("upstreams",),
            )
    if len(set(read.upstreams)) != len(read.upstreams):
        raise ConfigError("`upstreams` names one twice: say how often to try it in its `retries`", place=("upstreams",))
    # One that is wrong itself has been told of already.
    reached = tuple(upstreams[name] for name in read.upstreams if name in upstreams)
    if len({upstream.speaks for upstream in reached}) > 1:
        raise ConfigError(
            "its upstreams speak different dialects: of one that fails, only its like can take over",
            place=("upstreams",),
        )
    return Route(model=read.model, upstreams=reached, send_as=read.send_as)


_Table = TypeVar("_Table", bound=msgspec.Struct)


def _converted(table: object, kind: type[_Table]) -> _Table:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        key = where.rstrip("`").lstrip(".")
        named = re.search(r"(?:unknown|required) field `(.+)`", what)
        if named is not None:
            word = "there is no key" if "unknown" in what else "there must be a key"
            key, what = named[1], f"{word} `{named[1]}` here"
        else:
            what = f"{what[:1].lower()}{what[1:]}"
        known = ", ".join(each.name for each in msgspec.structs.fields(kind))
        bare = key.partition("[")[0]
        hint = f"write {bare} = {_EXAMPLES[bare]}" if bare in _EXAMPLES else f"known keys: {known}"
        message = what if named is not None or not key else f"`{key}`: {what}"
        raise ConfigError(message, hint=hint, place=(bare,) if bare else ()) from error


def _secret(where: str, environ: Mapping[str, str], base: Path) -> Secret:
    try:
        return read_secret(where, environ, base=base)
    except ConfigError as error:
        raise ConfigError(f"`key`: {error.message}", hint=error.hint, place=("key",)) from error


def _url(text: str, key: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for one that is no number
    except ValueError as error:
        raise ConfigError(f"`{key}` is no URL", hint=f"write {key} = {_EXAMPLES[key]}", place=(key,)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isascii() or not text.isprintable():
        raise ConfigError(
            f"`{key}` must be a URL that begins with http:// or https://",
            hint=f"write {key} = {_EXAMPLES[key]}",
            place=(key,),
        )
    if key != "proxy" and (parts.username or parts.password):
        raise ConfigError(
            f"`{key}` has a user or a password in it", hint='a key belongs into `key`: "env:NAME"', place=(key,)
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"`{key}` has a query or a fragment; paths are added to it", place=(key,))
    return text.rstrip("/").removesuffix("/v1") if key == "url" else text


def _rate(text: str) -> MachineRate:
    try:
        return MachineRate.parse(text)
    except ValueError as error:
        raise ConfigError(f"`machine_rate` is {text!r}: it must be {error}", place=("machine_rate",)) from error
