"""What the operator decides: folders, addresses, limits and rates.

Owns: the names of settings, their defaults, where a value may come from (a flag, then the environment, then
`taximeter.toml`, then the default), and the errors for values that make no sense. Refuses to know: what a setting
does. Settings are handed down by the composition root; no room looks one up.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self, cast, get_args

import msgspec

from taximeter import places
from taximeter.errors import ConfigError, RequestError
from taximeter.records import MachineRate

DEFAULT_MODEL: Final = "smollm2-135m-instruct"

Weights = Literal["int4", "int8", "bf16", "f32"]
KVFormat = Literal["bf16", "int8", "f32"]

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _Values(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The shape of `taximeter.toml`, and of every single value whatever its source. The order is the one they are
    explained in."""

    model: _Text | None = None
    models_dir: _Text | None = None
    ledger: _Text | None = None
    prices: _Text | None = None
    machine_rate: _Text | None = None
    priced_as: _Text | None = None
    host: _Text | None = None
    port: _Port | None = None
    max_queued_requests: _Count | None = None
    kv_cache_tokens: _Count | None = None
    step_tokens: _Count | None = None
    threads: _Count | None = None
    weights: Weights | None = None
    kv_format: KVFormat | None = None
    api_key: _Text | None = None
    allow_anyone: bool | None = None
    otlp_endpoint: _Text | None = None


_KEYS: Final = tuple(info.name for info in msgspec.structs.fields(_Values))
_COUNT_KEYS: Final = ("max_queued_requests", "kv_cache_tokens", "step_tokens", "threads")
_CHOICE_KEYS: Final = {"weights": get_args(Weights), "kv_format": get_args(KVFormat)}
_PATH_KEYS: Final = ("models_dir", "prices")
_EXAMPLES: Final = {
    "model": DEFAULT_MODEL,
    "models_dir": "~/models",
    "ledger": "sqlite:///ledger.sqlite",
    "prices": "prices.toml",
    "machine_rate": "0.50/h",
    "priced_as": "anthropic/claude-haiku-5-5",
    "host": "127.0.0.1",
    "api_key": "env:GATEWAY_KEY",
    "otlp_endpoint": "http://localhost:4318",
}
_TABLES: Final = ("upstreams", "routes")


class _Given(NamedTuple):
    """One value that somebody set, checked, and where."""

    origin: str
    key: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, checked. Make one with `Settings.load`.

    `home` is the one folder for everything, None for the platform's own places. `ledger_url` is a database URL and
    may hold a password; `spool_dir` is where receipts wait while a database elsewhere is away. `limits_path` is where
    what was measured of this machine is remembered. `machine_rate` None means that our own machine's time has no price.
    `prices_overlay` need not exist. `port` 0 takes any free one.
    `kv_cache_tokens` and `threads` None leave the choice to the engine. `weights` None keeps them as their file has
    them; else they are made into that format at load. `kv_format` is what keys and values are kept in.
    `api_key` says where the key lies that callers must show (`env:NAME`, `file:PATH`), None that none is asked for;
    `allow_anyone` lets other machines in without one. `otlp_endpoint` is where OpenTelemetry's signals go, None where
    its own variables say it, or nowhere. `upstream_tables` and `route_tables` are those of the file as
    they stand there, for the room that knows upstreams. `origins` says for each key where its value came from.
    """

    home: Path | None
    config_path: Path
    models_dir: Path
    ledger_url: str
    spool_dir: Path
    prices_overlay: Path
    limits_path: Path
    model: str = DEFAULT_MODEL
    machine_rate: MachineRate | None = None
    priced_as: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    max_queued_requests: int = 256
    kv_cache_tokens: int | None = None
    step_tokens: int = 512
    threads: int | None = None
    weights: Weights | None = None
    kv_format: KVFormat = "bf16"
    api_key: str | None = None
    allow_anyone: bool = False
    otlp_endpoint: str | None = None
    upstream_tables: Mapping[str, object] = field(default_factory=dict[str, object])
    route_tables: Sequence[object] = ()
    origins: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def load(
        cls, *, environ: Mapping[str, str] | None = None, problems: list[ConfigError] | None = None, **flags: object
    ) -> Self:
        """The settings in force: `flags` by key (None: not given), else environment, else file, else default.

        Every value that is given is checked, also one that a stronger source overrides. An empty environment
        variable counts as unset. Raises RequestError for a flag, and ConfigError for the others, naming the variable,
        or the file and its key. With `problems` those for the file and the environment are added there instead, all of
        them, and what is right is given.
        """
        environ = os.environ if environ is None else environ
        if unknown := flags.keys() - set(_KEYS):
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        told = _Told(problems)
        home = places.home(environ)
        config_path = Path(places.config_path(home))
        document: dict[str, object] = {}
        with told.of():
            document = _document(config_path)
        upstreams, routes = document.pop("upstreams", {}), document.pop("routes", [])
        with told.of():
            if not isinstance(upstreams, dict):
                upstreams = {}
                raise ConfigError(f"{config_path}: upstreams are [upstreams.NAME] tables", place=("upstreams",))
        with told.of():
            if not isinstance(routes, list):
                routes = []
                raise ConfigError(f"{config_path}: routes are [[routes]] tables", place=("routes",))
        given = [*_from_file(config_path, document, told), *_from_environment(environ, told), *_from_flags(flags)]
        chosen = {key: value for _, key, value in given}  # the last one wins
        origins = {key: origin for origin, key, _ in given}
        data_dir = Path(places.data_dir(home))
        # Two keys are shorter for people than for the code.
        ledger_url = chosen.pop("ledger", f"sqlite:///{Path(places.ledger_path(home)).as_posix()}")
        prices = chosen.pop("prices", None)
        with told.of():
            if isinstance(prices, Path) and not prices.is_file():
                place = ("prices",) if origins["prices"].startswith("prices in ") else ()
                raise ConfigError(f"{origins['prices']} names a file that does not exist: {prices}", place=place)
        values = {
            "models_dir": Path(places.cache_dir(home)) / "models",
            "ledger_url": ledger_url,
            "spool_dir": data_dir / "spool",
            "prices_overlay": prices or config_path.with_name("prices.toml"),
            "limits_path": data_dir / "machine.json",
            **chosen,
        }
        # Each value has been checked by itself; `cls` cannot know.
        return cls(
            home=None if home is None else Path(home),
            config_path=config_path,
            upstream_tables=cast(dict[str, object], upstreams),
            route_tables=cast(list[object], routes),
            origins=origins,
            **values,  # pyright: ignore[reportArgumentType]
        )


class _Told:
    """Where mistakes go: to whoever asked, or into a list of all of them."""

    def __init__(self, problems: list[ConfigError] | None) -> None:
        self._problems = problems

    @contextmanager
    def of(self) -> Generator[None]:
        """What is wrong in here."""
        try:
            yield
        except ConfigError as error:
            if self._problems is None:
                raise
            self._problems.append(error)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for key, value in flags.items():
        if value is None:
            continue
        flag = "--" + key.replace("_", "-")
        try:
            yield _Given(flag, key, _parsed(key, value, base=Path()))
        except ValueError as error:
            raise RequestError(f"{flag} is {value!r}: it must be {error}", param=key) from error


def _from_environment(environ: Mapping[str, str], told: _Told) -> Iterator[_Given]:
    for key in _KEYS:
        name = f"TAXIMETER_{key.upper()}"
        text = environ.get(name, "")
        if not text:
            continue
        with told.of():
            try:
                value = _parsed(key, text, base=Path())
            except ValueError as error:
                raise ConfigError(f"{name} is {text!r}: it must be {error}", hint="correct it or unset it") from error
            yield _Given(name, key, value)


def _document(path: Path) -> dict[str, object]:
    """All of the file; nothing where there is none."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _from_file(path: Path, document: Mapping[str, object], told: _Told) -> Iterator[_Given]:
    for key, value in document.items():
        with told.of():
            if key not in _KEYS:
                known = f"known keys: {', '.join((*_KEYS, *_TABLES))}"
                raise ConfigError(f"{path} has an unknown key {key!r}", hint=known, place=(key,))
            try:
                parsed = _parsed(key, value, base=path.parent, from_text=False)
            except ValueError as error:
                raise ConfigError(f"{path} has {key} = {value!r}: it must be {error}", place=(key,)) from error
            yield _Given(f"{key} in {path}", key, parsed)


def _parsed(key: str, value: object, *, base: Path, from_text: bool = True) -> object:
    """The value of the setting's own type. `from_text` sources write numbers as text; paths are relative to `base`.

    Raises ValueError with what it must be.
    """
    try:
        parsed: object = getattr(msgspec.convert({key: value}, _Values, strict=not from_text), key)
    except msgspec.ValidationError as error:
        raise ValueError(_must_be(key)) from error
    if key == "machine_rate":
        return MachineRate.parse(str(parsed))
    if key in _PATH_KEYS:
        return (base / Path(str(parsed)).expanduser()).absolute()
    return parsed


def _must_be(key: str) -> str:
    if key == "port":
        return "a port number, 0 to 65535"
    if key in _COUNT_KEYS:
        return "a whole number, at least 1"
    if key in _CHOICE_KEYS:
        return f"one of {', '.join(_CHOICE_KEYS[key])}"
    if key == "allow_anyone":
        return "true or false"
    return f"a text, such as {_EXAMPLES[key]!r}"
