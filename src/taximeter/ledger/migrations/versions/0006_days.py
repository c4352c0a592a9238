# ruff: noqa: S608 - all words of these statements are our own
"""For reports over weeks: sums of days beside those of hours, without runs, and durations in the index of time.

Days are added up from the hours that are kept. An index that has the durations need not be left for two hundred
thousand receipts, when somebody wants the percentiles of a week.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_Sum = sa.BigInteger().with_variant(sa.Numeric(40, 0), "postgresql")
_KEYS = ("model", "served_by", "outcome", "task", "session", "key", "source", "labels", "usage_basis", "cost_basis")
_PICODOLLARS = 10**12


def upgrade() -> None:
    """See the module."""
    of_hours = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("usage_by_hour")]
    sums = [name for name in of_hours if name not in (*_KEYS, "hour", "digest", "run", "first_at", "last_at")]
    op.create_table(
        "usage_by_day",
        sa.Column("day", sa.DateTime, primary_key=True),
        sa.Column("digest", _Text, primary_key=True),
        *(sa.Column(name, _Text, nullable=name not in ("model", "outcome")) for name in _KEYS),
        *(sa.Column(name, _Sum, nullable=False, server_default="0") for name in sums),
        sa.Column("first_at", sa.DateTime),
        sa.Column("last_at", sa.DateTime),
        sqlite_with_rowid=False,
    )
    for day in _days():
        _insert(("day", "digest", *_KEYS, *sums, "first_at", "last_at"), _rows(day, sums))
    if _is_postgres():
        op.execute("ANALYZE usage_by_day")  # until it is known how few rows these are, they are asked for as if many
    op.drop_index("receipts_by_time", "receipts")
    durations = ("total_ns", "first_token_ns", "itl_ns")
    # An even part of receipts is found by their number, which SQLite has in every index.
    op.create_index("receipts_by_time", "receipts", ["closed_at", "id", *durations], postgresql_include=["number"])


def _is_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _value(name: str) -> str:
    return f"CAST(:{name} AS TIMESTAMP)" if _is_postgres() else f":{name}"


def _days() -> Iterator[date]:
    """Those that have anything."""
    as_text = "CAST(min(hour) AS TEXT)" if _is_postgres() else "min(hour)"
    question = sa.text(f"SELECT {as_text} FROM usage_by_hour WHERE hour >= {_value('since')}")
    since = date.min
    while (found := op.get_bind().scalar(question, {"since": f"{since} 00:00:00.000000"})) is not None:
        day = date.fromisoformat(found[:10])
        yield day
        since = day + timedelta(days=1)


def _rows(day: date, sums: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of one day."""
    keys = ", ".join(f'"{name}"' for name in _KEYS)
    span = ("min(first_at)", "max(last_at)")
    if _is_postgres():
        span = tuple(f"CAST({instant} AS TEXT)" for instant in span)
    asked = ", ".join([keys, *(f"sum({name})" for name in sums), *span])
    which = f"hour >= {_value('since')} AND hour < {_value('until')}"
    question = sa.text(f"SELECT {asked} FROM usage_by_hour WHERE {which} GROUP BY {keys}")
    since, until = f"{day} 00:00:00.000000", f"{day + timedelta(days=1)} 00:00:00.000000"
    rows: list[tuple[Any, ...]] = []
    for found in op.get_bind().execute(question, {"since": since, "until": until}):
        key, last = found[: len(_KEYS)], found[-2:]
        numbers = dict(zip(sums, map(int, found[len(_KEYS) : -2]), strict=True))  # Postgres: decimals
        for name in sums:
            if name.endswith("_picodollars"):
                carried, numbers[name] = divmod(numbers[name], _PICODOLLARS)
                numbers[name.replace("_picodollars", "_dollars")] += carried
        digest = sha256(msgspec.json.encode(tuple(key))).hexdigest()[:32]
        rows.append((since, digest, *key, *numbers.values(), *last))
    return rows


def _insert(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    values = ", ".join(_value(name) if name in ("day", "first_at", "last_at") else f":{name}" for name in names)
    quoted = ", ".join(f'"{name}"' for name in names)
    statement = sa.text(f"INSERT INTO usage_by_day ({quoted}) VALUES ({values})")
    op.get_bind().execute(statement, [dict(zip(names, row, strict=True)) for row in rows])
