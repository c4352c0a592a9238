"""The tables as they should be, in the words of a library that knows both databases: what the migrations make of each
is held to this, column by column. The ledger itself needs no description: it says what it asks in SQL.

`receipts` is narrow, so that a report over a million rows reads no more than it needs; the whole receipt lies beside it
in `documents`. A number that is unknown is NULL. One that does not fit its 64-bit column is NULL too, is counted in
`off_scale`, and stands in the document in full.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from taximeter.ledger.columns import (
    BELONGING_COLUMNS,
    DAY_KEYS,
    GROUP_COUNTS,
    HOUR_KEYS,
    HOUR_SUMS,
    NUMBER_COLUMNS,
    SPAN_COLUMNS,
)
from taximeter.ledger.firsts import BY_REQUEST
from taximeter.ledger.rows import stored_text


class AnyText(sa.TypeDecorator[str]):
    """Text from strangers, as `stored_text` has it. It sorts by its code points."""

    impl = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else stored_text(value)


class UtcDateTime(sa.TypeDecorator[datetime]):
    """An aware instant, as `stored_instant` has it in SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant without a time zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


Sum = sa.BigInteger().with_variant(sa.Numeric(40, 0), "postgresql")
"""What Postgres does not let grow past 64 bits as one type, it does as another."""

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # which is how SQLite calls its own row numbers

metadata = sa.MetaData()

receipts = sa.Table(
    "receipts",
    metadata,
    sa.Column("number", _Number, primary_key=True, autoincrement=False),
    sa.Column("id", AnyText, nullable=False),
    sa.Column("request_id", AnyText, nullable=False),
    sa.Column("supersedes", AnyText),
    sa.Column("received_at", UtcDateTime, nullable=False),
    sa.Column("closed_at", UtcDateTime, nullable=False),
    sa.Column("outcome", AnyText, nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("served_by", AnyText),
    sa.Column("stream", sa.Boolean, nullable=False),
    *(sa.Column(name, AnyText) for name in BELONGING_COLUMNS),
    sa.Column("usage_basis", AnyText),
    sa.Column("cost_basis", AnyText),
    sa.Column("upstream_request_id", AnyText),
    *(sa.Column(name, sa.BigInteger) for name in NUMBER_COLUMNS),
    sa.Column("off_scale", sa.Integer, nullable=False),
    sa.Column("form", sa.BigInteger, sa.ForeignKey("forms.number")),
    sa.CheckConstraint("cost_picodollars BETWEEN 0 AND 999999999999", name="receipts_picodollars"),
)

sa.Index("receipts_by_id", receipts.c.id, unique=True)
# A request has one first receipt, and a receipt one correction: corrections are a chain with one newest end.
# Only SQLite is told here which rows an index is of: naming Postgres loads its dialect, at every start. Migrations tell
# both.
sa.Index(
    "receipts_first",
    receipts.c.request_id,
    unique=True,
    sqlite_where=sa.text(BY_REQUEST),
)
sa.Index(
    "receipts_corrected",
    receipts.c.supersedes,
    unique=True,
    sqlite_where=receipts.c.supersedes.is_not(None),
)
sa.Index(
    "receipts_by_provider",
    receipts.c.upstream_request_id,
    sqlite_where=receipts.c.upstream_request_id.is_not(None) & receipts.c.source.is_(None),
)
sa.Index("receipts_correcting", receipts.c.request_id, sqlite_where=receipts.c.supersedes.is_not(None))
# With what percentiles are of, so that nobody need go to the receipts for that.
sa.Index(
    "receipts_by_time", *(receipts.c[name] for name in ("closed_at", "id", "total_ns", "first_token_ns", "itl_ns"))
)
sa.Index(
    "receipts_off_scale",
    receipts.c.off_scale,
    sqlite_where=receipts.c.off_scale > 0,
)

documents = sa.Table(
    "documents",
    metadata,
    sa.Column("number", _Number, sa.ForeignKey("receipts.number"), primary_key=True, autoincrement=False),
    sa.Column("document", sa.Text, nullable=False),
)

# What many receipts have in common, as the document of one of them (`forms`).
forms = sa.Table(
    "forms",
    metadata,
    sa.Column("number", _Number, primary_key=True, autoincrement=False),
    sa.Column("digest", AnyText, nullable=False, unique=True),
    sa.Column("document", sa.Text, nullable=False),
)

in_flight = sa.Table(
    "in_flight",
    metadata,
    sa.Column("request_id", AnyText, primary_key=True),
    sa.Column("receipt_id", AnyText, nullable=False),
    sa.Column("writer_id", AnyText, nullable=False),
    sa.Column("received_at", UtcDateTime, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Index("in_flight_by_writer", "writer_id"),
)

usage_by_hour = sa.Table(
    "usage_by_hour",
    metadata,
    sa.Column("hour", UtcDateTime, primary_key=True),
    sa.Column("digest", AnyText, primary_key=True),
    *(sa.Column(name, AnyText, nullable=name not in ("model", "outcome")) for name in HOUR_KEYS),
    *(sa.Column(name, Sum, nullable=False, server_default="0") for name in HOUR_SUMS),
    *(sa.Column(name, UtcDateTime) for name in SPAN_COLUMNS),
)

# The same by day, and of all runs together.
usage_by_day = sa.Table(
    "usage_by_day",
    metadata,
    sa.Column("day", UtcDateTime, primary_key=True),
    sa.Column("digest", AnyText, primary_key=True),
    *(sa.Column(name, AnyText, nullable=name not in ("model", "outcome")) for name in DAY_KEYS),
    *(sa.Column(name, Sum, nullable=False, server_default="0") for name in HOUR_SUMS),
    *(sa.Column(name, UtcDateTime) for name in SPAN_COLUMNS),
)

# In which hours a group had receipts, the corrected ones too.
group_hours = sa.Table(
    "group_hours",
    metadata,
    sa.Column("kind", AnyText, primary_key=True),
    sa.Column("name", AnyText, primary_key=True),
    sa.Column("hour", UtcDateTime, primary_key=True),
)

group_totals = sa.Table(
    "group_totals",
    metadata,
    sa.Column("kind", AnyText, primary_key=True),
    sa.Column("name", AnyText, primary_key=True),
    *(sa.Column(name, Sum, nullable=False) for name in (*GROUP_COUNTS, "cost_dollars")),
    sa.Column("cost_picodollars", sa.BigInteger, nullable=False),
    sa.Column("first_at", UtcDateTime),
    sa.Column("last_at", UtcDateTime),
    sa.Index("group_totals_by_time", "kind", "last_at", "name"),
)

task_ends = sa.Table(
    "task_ends",
    metadata,
    sa.Column("name", AnyText, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("finished_at", UtcDateTime, nullable=False),
    sa.Column("succeeded", sa.Boolean, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Index("task_ends_by_time", "finished_at"),
)

# What people say about what belongs to which task, in their order.
task_rules = sa.Table(
    "task_rules",
    metadata,
    sa.Column("number", _Number, primary_key=True, autoincrement=False),
    sa.Column("said_at", UtcDateTime, nullable=False),
    sa.Column("word", AnyText, nullable=False),
    sa.Column("task", AnyText),
    sa.Column("kind", AnyText),
    sa.Column("name", AnyText),
    sa.Column("idle_s", sa.BigInteger),
)

# How far files of others have been read. The document is the importer's own.
file_marks = sa.Table(
    "file_marks",
    metadata,
    sa.Column("source", AnyText, primary_key=True),
    sa.Column("path", AnyText, primary_key=True),
    sa.Column("document", AnyText, nullable=False),
)

losses = sa.Table(
    "losses",
    metadata,
    sa.Column("writer_id", AnyText, primary_key=True),
    sa.Column("told_at", UtcDateTime, nullable=False),
    sa.Column("receipts", sa.BigInteger, nullable=False),
)
