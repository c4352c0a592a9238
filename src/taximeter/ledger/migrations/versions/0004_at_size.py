# ruff: noqa: S608 - all words of these statements are our own
"""For millions of receipts: what reports add up by is in columns, sums of an hour are kept for all of it, and receipts
of other people's logs share what they have in common (`forms`).

Receipts have numbers now, in the order in which they were written, which documents go by. The new columns are filled
from the documents. Hours of a group take the place of a row for each of its receipts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_Sum = sa.BigInteger().with_variant(sa.Numeric(40, 0), "postgresql")
_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_TOKENS = (
    "input_fresh_tokens",
    "input_cache_read_tokens",
    "input_cache_write_5m_tokens",
    "input_cache_write_30m_tokens",
    "input_cache_write_1h_tokens",
    "input_cache_write_12h_tokens",
    "input_cache_write_unknown_tokens",
    "input_image_tokens",
    "input_audio_tokens",
    "input_audio_cache_read_tokens",
    "output_text_tokens",
    "output_reasoning_tokens",
    "output_image_tokens",
    "output_audio_tokens",
)
_PHASES = ("gateway_ns", "queue_ns", "prefill_ns", "decode_ns", "stalled_ns", "upstream_ns")
_OLD_NUMBERS = (
    *_TOKENS,
    "total_ns",
    *_PHASES,
    "first_token_ns",
    "prefill_passes",
    "decode_passes",
    "compute_ns",
)
_UNITS = (*(name.removesuffix("_tokens") for name in _TOKENS), "compute", "other")
_UNIT_PLACES = {**{name: place for place, name in enumerate(_TOKENS)}, "compute_ns": len(_TOKENS)}
_BELONGINGS = ("task", "run", "session", "key", "source", "labels")
_OLD = ("id", "request_id", "supersedes", "received_at", "closed_at", "outcome", "model", "served_by", "stream")
_NEW = (
    "number",
    *_OLD,
    *_BELONGINGS,
    "usage_basis",
    "cost_basis",
    "upstream_request_id",
    *_OLD_NUMBERS,
    "itl_ns",
    "cost_dollars",
    "cost_picodollars",
    *(f"{unit}_picodollars" for unit in _UNITS),
    "off_scale",
)
_KEYS = ("model", "served_by", "outcome", *_BELONGINGS, "usage_basis", "cost_basis")
_COUNTS = (
    "receipts",
    "unpriced",
    "off_scale",
    *(column for name in _TOKENS for column in (name, name.replace("_tokens", "_unknown"))),
    "total_ns",
    "timed",
    *_PHASES,
    "first_token_ns",
    "first_tokens",
    "itls",
    "compute_ns",
    "reported",
)
_AMOUNTS = ("cost", "reported", *_UNITS)
_LARGEST = 10**14
_LARGEST_PICODOLLARS = 9 * 10**18
_PICODOLLARS = 10**12
_CHUNK = 1_000


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute("DROP VIEW current_receipts")
    op.rename_table("receipts", "receipts_0003")
    op.rename_table("documents", "documents_0003")
    op.drop_table("members")
    op.drop_table("usage_by_hour")
    _make_tables()
    _fill()
    op.drop_table("documents_0003")
    op.drop_table("receipts_0003")
    _make_indexes()
    op.execute(
        "CREATE VIEW current_receipts AS SELECT * FROM receipts AS this"
        " WHERE NOT EXISTS (SELECT 1 FROM receipts AS next WHERE next.supersedes = this.id)"
    )
    if is_sqlite:
        _make_append_only()
    else:
        _make_append_only_in_postgres()


def _make_tables() -> None:
    op.create_table(
        "forms",
        sa.Column("number", _Number, primary_key=True, autoincrement=False),
        sa.Column("digest", _Text, nullable=False, unique=True),
        sa.Column("document", _Text, nullable=False),
    )
    op.create_table(
        "receipts",
        sa.Column("number", _Number, primary_key=True, autoincrement=False),
        sa.Column("id", _Text, nullable=False),
        sa.Column("request_id", _Text, nullable=False),
        sa.Column("supersedes", _Text),
        sa.Column("received_at", sa.DateTime, nullable=False),
        sa.Column("closed_at", sa.DateTime, nullable=False),
        sa.Column("outcome", _Text, nullable=False),
        sa.Column("model", _Text, nullable=False),
        sa.Column("served_by", _Text),
        sa.Column("stream", sa.Boolean, nullable=False),
        *(sa.Column(name, _Text) for name in (*_BELONGINGS, "usage_basis", "cost_basis", "upstream_request_id")),
        *(sa.Column(name, sa.BigInteger) for name in (*_OLD_NUMBERS, "itl_ns", "cost_dollars", "cost_picodollars")),
        *(sa.Column(f"{unit}_picodollars", sa.BigInteger) for unit in (*_UNITS, "reported")),
        sa.Column("off_scale", sa.Integer, nullable=False),
        sa.Column("form", sa.BigInteger, sa.ForeignKey("forms.number")),
        sa.CheckConstraint("cost_picodollars BETWEEN 0 AND 999999999999", name="receipts_picodollars"),
    )
    op.create_table(
        "documents",
        sa.Column("number", _Number, sa.ForeignKey("receipts.number"), primary_key=True, autoincrement=False),
        sa.Column("document", _Text, nullable=False),
    )
    op.create_table(
        "usage_by_hour",
        sa.Column("hour", sa.DateTime, primary_key=True),
        sa.Column("digest", _Text, primary_key=True),
        *(sa.Column(name, _Text, nullable=name not in ("model", "outcome")) for name in _KEYS),
        *(sa.Column(name, _Sum, nullable=False, server_default="0") for name in _COUNTS),
        *(
            sa.Column(f"{amount}_{part}", _Sum, nullable=False, server_default="0")
            for amount in _AMOUNTS
            for part in ("dollars", "picodollars")
        ),
        sa.Column("first_at", sa.DateTime),
        sa.Column("last_at", sa.DateTime),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_hours",
        sa.Column("kind", _Text, primary_key=True),
        sa.Column("name", _Text, primary_key=True),
        sa.Column("hour", sa.DateTime, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_rules",
        sa.Column("number", _Number, primary_key=True, autoincrement=False),
        sa.Column("said_at", sa.DateTime, nullable=False),
        sa.Column("word", _Text, nullable=False),
        sa.Column("task", _Text),
        sa.Column("kind", _Text),
        sa.Column("name", _Text),
        sa.Column("idle_s", sa.BigInteger),
    )
    op.create_table(
        "file_marks",
        sa.Column("source", _Text, primary_key=True),
        sa.Column("path", _Text, primary_key=True),
        sa.Column("document", _Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("task_ends_by_time", "task_ends", ["finished_at"])


def _make_indexes() -> None:
    is_first, is_correction = sa.text("supersedes IS NULL"), sa.text("supersedes IS NOT NULL")
    is_off_scale = sa.text("off_scale > 0")
    op.create_index("receipts_by_id", "receipts", ["id"], unique=True)
    op.create_index(
        "receipts_first", "receipts", ["request_id"], unique=True, sqlite_where=is_first, postgresql_where=is_first
    )
    op.create_index(
        "receipts_corrected",
        "receipts",
        ["supersedes"],
        unique=True,
        sqlite_where=is_correction,
        postgresql_where=is_correction,
    )
    op.create_index("receipts_by_time", "receipts", ["closed_at", "id"])
    op.create_index(
        "receipts_off_scale", "receipts", ["off_scale"], sqlite_where=is_off_scale, postgresql_where=is_off_scale
    )


def _make_append_only() -> None:
    for table, what in (("receipts", "receipts are"), ("documents", "receipts are"), ("forms", "forms are")):
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{what} append-only: append a correction'); END"
            )
    # INSERT OR REPLACE deletes without firing the triggers above: refuse what it would replace. And a correction is of
    # a receipt of the same request.
    op.execute(
        "CREATE TRIGGER receipts_no_replace BEFORE INSERT ON receipts WHEN"
        " EXISTS (SELECT 1 FROM receipts WHERE number = NEW.number)"
        " OR EXISTS (SELECT 1 FROM receipts WHERE id = NEW.id)"
        " OR CASE WHEN NEW.supersedes IS NULL"
        " THEN EXISTS (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND supersedes IS NULL)"
        " ELSE EXISTS (SELECT 1 FROM receipts WHERE supersedes = NEW.supersedes)"
        " OR NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND request_id = NEW.request_id) END"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )
    op.execute(
        "CREATE TRIGGER documents_no_replace BEFORE INSERT ON documents"
        " WHEN EXISTS (SELECT 1 FROM documents WHERE number = NEW.number)"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )


def _make_append_only_in_postgres() -> None:
    for table in ("receipts", "documents", "forms"):
        for change, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.split()[0].lower()} BEFORE {change} ON {table}"
                f" FOR EACH {each} EXECUTE FUNCTION append_only()"
            )
    op.execute(
        "CREATE FUNCTION corrects_its_own() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND request_id = NEW.request_id) THEN"
        " RAISE EXCEPTION 'a correction is of a receipt of the same request'"
        " USING ERRCODE = 'integrity_constraint_violation'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER receipts_correct BEFORE INSERT ON receipts FOR EACH ROW"
        " WHEN (NEW.supersedes IS NOT NULL) EXECUTE FUNCTION corrects_its_own()"
    )


def _fill() -> None:
    """Copy the receipts, and add them up by hour, without those that are corrected."""
    connection = op.get_bind()
    corrected = set(connection.scalars(sa.text("SELECT supersedes FROM receipts_0003 WHERE supersedes IS NOT NULL")))
    sums: dict[tuple[Any, ...], list[int]] = {}
    spans: dict[tuple[Any, ...], tuple[str, str]] = {}
    hours: set[tuple[str, str, str]] = set()
    number = 0
    for chunk in _old_receipts(connection):
        rows: list[dict[str, Any]] = []
        for old in chunk:
            number += 1
            row = _row(number, old)
            rows.append(row)
            hour = f"{str(row['closed_at'])[:13]}:00:00.000000"
            hours |= {(kind, row[kind], hour) for kind in ("task", "run", "session") if row[kind] is not None}
            labels: dict[str, str] = json.loads(row["labels"] or "{}")
            hours |= {(f"label:{name}", value, hour) for name, value in labels.items()}
            if row["id"] in corrected:
                continue
            key = (hour, *(row[name] for name in _KEYS))
            numbers = _counted(row)
            sums[key] = [sum_ + more for sum_, more in zip(sums.get(key, [0] * len(numbers)), numbers, strict=True)]
            first_at, last_at = str(row["received_at"]), str(row["closed_at"])
            if key in spans:
                first_at, last_at = min(first_at, spans[key][0]), max(last_at, spans[key][1])
            spans[key] = (first_at, last_at)
        _insert(connection, "receipts", _NEW, [tuple(row[name] for name in _NEW) for row in rows])
        documents = [(row["number"], old["document"]) for row, old in zip(rows, chunk, strict=True)]
        _insert(connection, "documents", ("number", "document"), documents)
    parts = ("dollars", "picodollars")
    amounts = [f"{amount}_{part}" for amount in _AMOUNTS for part in parts]
    _insert(
        connection,
        "usage_by_hour",
        ("hour", "digest", *_KEYS, *_COUNTS, *amounts, "first_at", "last_at"),
        [
            (
                key[0],
                sha256(msgspec.json.encode(key[1:])).hexdigest()[:32],
                *key[1:],
                *numbers[: len(_COUNTS)],
                *(part for picodollars in numbers[len(_COUNTS) :] for part in divmod(picodollars, _PICODOLLARS)),
                *spans[key],
            )
            for key, numbers in sums.items()
        ],
    )
    _insert(connection, "group_hours", ("kind", "name", "hour"), sorted(hours))


def _old_receipts(connection: sa.Connection) -> Iterator[Sequence[dict[str, Any]]]:
    """All that is there, with its document, some at a time. Times are text."""
    as_text = "CAST({0} AS TEXT) AS {0}" if connection.dialect.name == "postgresql" else "{0}"
    names = (*_OLD[:3], *map(as_text.format, _OLD[3:5]), *_OLD[5:], "task", "run", "session")
    question = sa.text(
        f"SELECT {', '.join(names)}, {', '.join(_OLD_NUMBERS)}, cost_dollars, cost_picodollars, off_scale, document"
        " FROM receipts_0003 JOIN documents_0003 ON receipt_id = id WHERE id > :last ORDER BY id LIMIT :chunk"
    )
    last = ""
    while found := connection.execute(question, {"last": last, "chunk": _CHUNK}).mappings().all():
        yield [dict(row) for row in found]
        last = found[-1]["id"]


def _row(number: int, old: dict[str, Any]) -> dict[str, Any]:
    """The new row of a receipt."""
    document = json.loads(old["document"])
    request, usage, cost = document["request"], document["usage"], document["cost"]
    row: dict[str, Any] = {name: old.get(name) for name in _NEW}
    for name in ("received_at", "closed_at"):  # Postgres leaves out a fraction of zero
        row[name] = f"{row[name]}.000000"[:26] if "." not in row[name] else f"{row[name]}000000"[:26]
    for name in _OLD_NUMBERS:
        if row[name] is not None and abs(row[name]) > _LARGEST:
            row[name] = None
            row["off_scale"] += 1
    itl_ns = document.get("inter_token_ns")
    row |= {
        "number": number,
        "labels": _labels(request.get("labels")),
        "usage_basis": usage and usage["basis"],
        "cost_basis": cost and cost["basis"],
        "upstream_request_id": _stored(document.get("upstream_request_id")),
        "itl_ns": itl_ns if itl_ns is None or abs(itl_ns) <= _LARGEST else None,
    }
    if row["cost_dollars"] is None or cost is None:
        return row
    amounts = [0] * len(_UNITS)
    for line in cost["lines"]:
        amount, denominator = Decimal(line["amount"]).as_integer_ratio()
        amounts[_UNIT_PLACES.get(line["unit"], len(_UNITS) - 1)] += amount * _PICODOLLARS // denominator
    if max(map(abs, amounts)) > _LARGEST_PICODOLLARS:
        row |= {"cost_dollars": None, "cost_picodollars": None, "off_scale": row["off_scale"] + 1}
        return row
    return row | {f"{unit}_picodollars": amount for unit, amount in zip(_UNITS, amounts, strict=True)}


def _labels(labels: dict[str, str] | None) -> str | None:
    if not labels:
        return None
    stored = {str(_stored_name(name)): _stored_name(value) for name, value in labels.items()}
    return msgspec.json.encode(dict(sorted(stored.items()))).decode()


def _stored(text: str | None) -> str | None:
    if text is None:
        return None
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _stored_name(text: str) -> str:
    encoded = str(_stored(text)).encode()
    if len(encoded) <= 400:
        return encoded.decode()
    return f"{encoded[:400].decode(errors='ignore')}… sha256:{sha256(encoded).hexdigest()[:16]}"


def _counted(row: dict[str, Any]) -> list[int]:
    """What a receipt adds to its hour: `_COUNTS`, and picodollars of `_AMOUNTS`."""
    unpriced = row["cost_dollars"] is None
    numbers = [1, int(unpriced), row["off_scale"]]
    for name in _TOKENS:
        numbers += (row[name] or 0, int(row[name] is None))
    numbers += (row["total_ns"] or 0, int(row["total_ns"] is not None))
    numbers += [row[name] or 0 for name in _PHASES]
    numbers += (row["first_token_ns"] or 0, int(row["first_token_ns"] is not None), int(row["itl_ns"] is not None))
    numbers += (row["compute_ns"] or 0, 0)
    cost = 0 if unpriced else row["cost_dollars"] * _PICODOLLARS + row["cost_picodollars"]
    return [*numbers, cost, 0, *(row[f"{unit}_picodollars"] or 0 for unit in _UNITS)]


def _insert(connection: sa.Connection, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        values = ", ".join(
            f"CAST(:{name} AS TIMESTAMP)" if _is_time(connection, name) else f":{name}" for name in names
        )
        connection.execute(
            sa.text(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"),
            [dict(zip(names, row, strict=True)) for row in rows],
        )


def _is_time(connection: sa.Connection, name: str) -> bool:
    times = ("received_at", "closed_at", "hour", "first_at", "last_at")
    return name in times and connection.dialect.name == "postgresql"
