"""The map that says what the columns of a table are.

Owns: the form of it, and what is wrong with one. Refuses to know: rows.
"""

from __future__ import annotations

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from taximeter.errors import ConfigError

Name = Annotated[str, msgspec.Meta(min_length=1)]


class Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """The columns of counts. With `input_includes_cache` the whole prompt is in `input`."""

    input: Name | None = None
    output: Name | None = None
    cache_read: Name | None = None
    cache_write: Name | None = None
    cache_write_5m: Name | None = None
    cache_write_1h: Name | None = None
    reasoning: Name | None = None
    input_includes_cache: bool = True
    output_includes_reasoning: bool = True


class Columns(msgspec.Struct, forbid_unknown_fields=True):
    """The columns of everything else."""

    time: Name
    model: Name | None = None
    id: Name | None = None
    end: Name | None = None
    first_token: Name | None = None
    duration_s: Name | None = None
    duration_ms: Name | None = None
    first_token_s: Name | None = None
    first_token_ms: Name | None = None
    provider: Name | None = None
    cost: Name | None = None
    task: Name | None = None
    run: Name | None = None
    session: Name | None = None
    key: Name | None = None
    tier: Name | None = None
    outcome: Name | None = None
    error: Name | None = None


class ColumnMap(msgspec.Struct, forbid_unknown_fields=True):
    """What a map says. `labels` are columns by the label they become; `model` and `provider` are those of all rows,
    where no column has them."""

    source: Name
    columns: Columns
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    labels: dict[str, str] = {}
    model: Name | None = None
    provider: Name | None = None


def load_map(path: Path) -> tuple[ColumnMap, str]:
    """The map in a TOML file, and its digest. Raises ConfigError for one that is not understood."""
    try:
        body = path.read_bytes()
        columns = msgspec.convert(tomllib.loads(body.decode()), ColumnMap)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no map of columns: {error}", hint="docs/importing.md shows one") from error
    if columns.model is None and columns.columns.model is None:
        raise ConfigError(f"{path} says nowhere which model was called", hint='columns.model = "NAME OF A COLUMN"')
    return columns, sha256(body).hexdigest()[:16]


def named(columns: Columns | Tokens) -> list[tuple[str, str]]:
    """Which column has what, of what a column has."""
    return [
        (name, column.strip()) for name, column in msgspec.structs.asdict(columns).items() if isinstance(column, str)
    ]
