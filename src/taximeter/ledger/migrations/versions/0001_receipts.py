"""Receipts, their documents, and the requests in flight."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# Text sorts by its code points: in Postgres too, whatever language its database was made for.
_Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_APPLICATION_ID = 0x5441_584D  # "TAXM": `file ledger.db` shows whose database it is


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("id", _Text, primary_key=True),
        sa.Column("request_id", _Text, nullable=False),
        sa.Column("supersedes", _Text),
        sa.Column("received_at", sa.DateTime, nullable=False),
        sa.Column("closed_at", sa.DateTime, nullable=False),
        sa.Column("outcome", _Text, nullable=False),
        sa.Column("model", _Text, nullable=False),
        sa.Column("served_by", _Text),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("task", _Text),
        sa.Column("run", _Text),
        sa.Column("session", _Text),
        sa.Column("input_fresh_tokens", sa.BigInteger),
        sa.Column("input_cache_read_tokens", sa.BigInteger),
        sa.Column("input_cache_write_5m_tokens", sa.BigInteger),
        sa.Column("input_cache_write_1h_tokens", sa.BigInteger),
        sa.Column("output_text_tokens", sa.BigInteger),
        sa.Column("output_reasoning_tokens", sa.BigInteger),
        sa.Column("total_ns", sa.BigInteger),
        sa.Column("gateway_ns", sa.BigInteger),
        sa.Column("queue_ns", sa.BigInteger),
        sa.Column("prefill_ns", sa.BigInteger),
        sa.Column("decode_ns", sa.BigInteger),
        sa.Column("stalled_ns", sa.BigInteger),
        sa.Column("upstream_ns", sa.BigInteger),
        sa.Column("first_token_ns", sa.BigInteger),
        sa.Column("prefill_passes", sa.BigInteger),
        sa.Column("decode_passes", sa.BigInteger),
        sa.Column("compute_ns", sa.BigInteger),
        sa.Column("cost_dollars", sa.BigInteger),
        sa.Column("cost_picodollars", sa.BigInteger),
        sa.Column("off_scale", sa.Integer, nullable=False),
        sa.UniqueConstraint("id", "request_id", name="receipts_id_request"),
        sa.ForeignKeyConstraint(
            ["supersedes", "request_id"], ["receipts.id", "receipts.request_id"], name="receipts_supersedes"
        ),
        sa.CheckConstraint("cost_picodollars BETWEEN 0 AND 999999999999", name="receipts_picodollars"),
    )
    is_first, is_correction = sa.text("supersedes IS NULL"), sa.text("supersedes IS NOT NULL")
    is_off_scale = sa.text("off_scale > 0")
    op.create_index(
        "receipts_first",
        "receipts",
        ["request_id"],
        unique=True,
        sqlite_where=is_first,
        postgresql_where=is_first,
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
    op.create_table(
        "documents",
        sa.Column("receipt_id", _Text, sa.ForeignKey("receipts.id"), primary_key=True),
        sa.Column("document", _Text, nullable=False),
    )
    op.create_table(
        "in_flight",
        sa.Column("request_id", _Text, primary_key=True),
        sa.Column("receipt_id", _Text, nullable=False),
        sa.Column("writer_id", _Text, nullable=False),
        sa.Column("received_at", sa.DateTime, nullable=False),
        sa.Column("document", _Text, nullable=False),
    )
    op.create_index("in_flight_by_writer", "in_flight", ["writer_id"])
    op.execute(
        "CREATE VIEW current_receipts AS SELECT * FROM receipts AS this"
        " WHERE NOT EXISTS (SELECT 1 FROM receipts AS next WHERE next.supersedes = this.id)"
    )
    if op.get_bind().dialect.name == "sqlite":
        _make_append_only()
        op.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    else:
        _make_append_only_in_postgres()


def _make_append_only() -> None:
    for table in ("receipts", "documents"):
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
            )
    # INSERT OR REPLACE deletes without firing the triggers above: refuse what it would replace.
    op.execute(
        "CREATE TRIGGER receipts_no_replace BEFORE INSERT ON receipts WHEN"
        " EXISTS (SELECT 1 FROM receipts WHERE id = NEW.id)"
        " OR (NEW.supersedes IS NULL AND EXISTS"
        " (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND supersedes IS NULL))"
        " OR EXISTS (SELECT 1 FROM receipts WHERE supersedes = NEW.supersedes)"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )
    op.execute(
        "CREATE TRIGGER documents_no_replace BEFORE INSERT ON documents"
        " WHEN EXISTS (SELECT 1 FROM documents WHERE receipt_id = NEW.receipt_id)"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )


def _make_append_only_in_postgres() -> None:
    op.execute(
        "CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'receipts are append-only: append a correction'"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for table in ("receipts", "documents"):
        for change, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.split()[0].lower()} BEFORE {change} ON {table}"
                f" FOR EACH {each} EXECUTE FUNCTION append_only()"
            )
