"""The tables as they are now. How an older file gets here is `migrations`; a test holds the two together.

Owns: names, types and constraints, in the SQL that SQLite and Postgres share. Refuses to know: records.

Only the reader and the migrations work with this description. Who writes names columns in SQL of its own
(`transactions`): describing tables takes a library that takes a tenth of a second to import, and a server must be able
to write before its first answer.

`receipts` is narrow, so that a report over a million rows reads no more than it needs; the whole receipt lies beside it
in `documents`. A number that is unknown is NULL. One that does not fit its 64-bit column is NULL too, is counted in
`off_scale`, and stands in the document in full.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from taximeter.ledger.columns import NUMBER_COLUMNS
from taximeter.ledger.rows import stored_text


class AnyText(sa.TypeDecorator[str]):
    """Text from strangers, as `stored_text` has it."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - theirs
        return None if value is None else stored_text(value)


class UtcDateTime(sa.TypeDecorator[datetime]):
    """An aware instant, as `stored_instant` has it in SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - theirs
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant without a time zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - theirs
        return None if value is None else value.replace(tzinfo=UTC)


metadata = sa.MetaData()

receipts = sa.Table(
    "receipts",
    metadata,
    sa.Column("id", AnyText, primary_key=True),
    sa.Column("request_id", AnyText, nullable=False),
    sa.Column("supersedes", AnyText),
    sa.Column("received_at", UtcDateTime, nullable=False),
    sa.Column("closed_at", UtcDateTime, nullable=False),
    sa.Column("outcome", AnyText, nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("served_by", AnyText),
    sa.Column("stream", sa.Boolean, nullable=False),
    sa.Column("task", AnyText),
    sa.Column("run", AnyText),
    sa.Column("session", AnyText),
    *(sa.Column(name, sa.BigInteger) for name in NUMBER_COLUMNS),
    sa.Column("off_scale", sa.Integer, nullable=False),
    # Names the columns together, so that a correction is always one of the same request.
    sa.UniqueConstraint("id", "request_id", name="receipts_id_request"),
    sa.ForeignKeyConstraint(
        ["supersedes", "request_id"], ["receipts.id", "receipts.request_id"], name="receipts_supersedes"
    ),
    sa.CheckConstraint("cost_picodollars BETWEEN 0 AND 999999999999", name="receipts_picodollars"),
)

# A request has one first receipt, and a receipt one correction: corrections are a chain with one newest end.
# Only SQLite is told here which rows an index is of: naming Postgres loads its dialect, at every start. Migrations tell
# both.
sa.Index(
    "receipts_first",
    receipts.c.request_id,
    unique=True,
    sqlite_where=receipts.c.supersedes.is_(None),
)
sa.Index(
    "receipts_corrected",
    receipts.c.supersedes,
    unique=True,
    sqlite_where=receipts.c.supersedes.is_not(None),
)
sa.Index("receipts_by_time", receipts.c.closed_at, receipts.c.id)
sa.Index(
    "receipts_off_scale",
    receipts.c.off_scale,
    sqlite_where=receipts.c.off_scale > 0,
)

documents = sa.Table(
    "documents",
    metadata,
    sa.Column("receipt_id", AnyText, sa.ForeignKey("receipts.id"), primary_key=True),
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

# A view in the database: the receipts that no other one corrects. Apart from `metadata`, which makes tables.
current_receipts = sa.Table(
    "current_receipts", sa.MetaData(), *(sa.Column(column.name, column.type) for column in receipts.columns)
)
