# ruff: noqa: S608 - all words of these statements are our own
"""Sums by hour and by group, who belongs to which group, how tasks ended, and what was lost.

Filled from the receipts that are there, without those that are corrected.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# A sum may be of very many numbers; what SQLite's 64 bits are for all ledgers that fit a disk, Postgres checks.
_Sum = sa.BigInteger().with_variant(sa.Numeric(40, 0), "postgresql")
_LEAVES = (
    "input_fresh",
    "input_cache_read",
    "input_cache_write_5m",
    "input_cache_write_30m",
    "input_cache_write_1h",
    "input_cache_write_12h",
    "input_cache_write_unknown",
    "input_image",
    "input_audio",
    "input_audio_cache_read",
    "output_text",
    "output_reasoning",
    "output_image",
    "output_audio",
)
_LARGEST = 10**14
_PICODOLLARS = 10**12
_KINDS = ("task", "run", "session")


def upgrade() -> None:
    op.create_table(
        "usage_by_hour",
        sa.Column("hour", sa.DateTime, primary_key=True),
        sa.Column("model", _Text, primary_key=True),
        sa.Column("served_by", _Text, primary_key=True),
        sa.Column("outcome", _Text, primary_key=True),
        sa.Column("receipts", _Sum, nullable=False),
        sa.Column("unpriced", _Sum, nullable=False),
        sa.Column("off_scale", _Sum, nullable=False),
        *(sa.Column(f"{leaf}_{what}", _Sum, nullable=False) for leaf in _LEAVES for what in ("tokens", "unknown")),
        sa.Column("total_ns", _Sum, nullable=False),
        sa.Column("timed", _Sum, nullable=False),
        sa.Column("first_token_ns", _Sum, nullable=False),
        sa.Column("first_tokens", _Sum, nullable=False),
        sa.Column("compute_ns", _Sum, nullable=False),
        sa.Column("cost_dollars", _Sum, nullable=False),
        sa.Column("cost_picodollars", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_totals",
        sa.Column("kind", _Text, primary_key=True),
        sa.Column("name", _Text, primary_key=True),
        sa.Column("receipts", _Sum, nullable=False),
        sa.Column("failures", _Sum, nullable=False),
        sa.Column("unpriced", _Sum, nullable=False),
        sa.Column("off_scale", _Sum, nullable=False),
        sa.Column("input_tokens", _Sum, nullable=False),
        sa.Column("output_tokens", _Sum, nullable=False),
        sa.Column("uncounted", _Sum, nullable=False),
        sa.Column("cost_dollars", _Sum, nullable=False),
        sa.Column("cost_picodollars", sa.BigInteger, nullable=False),
        sa.Column("first_at", sa.DateTime),
        sa.Column("last_at", sa.DateTime),
        sqlite_with_rowid=False,
    )
    op.create_index("group_totals_by_time", "group_totals", ["kind", "last_at", "name"])
    op.create_table(
        "members",
        sa.Column("kind", _Text, primary_key=True),
        sa.Column("name", _Text, primary_key=True),
        sa.Column("closed_at", sa.DateTime, primary_key=True),
        sa.Column("receipt_id", _Text, sa.ForeignKey("receipts.id"), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_ends",
        sa.Column("name", _Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("finished_at", sa.DateTime, nullable=False),
        sa.Column("succeeded", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "losses",
        sa.Column("writer_id", _Text, primary_key=True),
        sa.Column("told_at", sa.DateTime, nullable=False),
        sa.Column("receipts", sa.BigInteger, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER task_ends_no_{change.lower()} BEFORE {change} ON task_ends"
                " BEGIN SELECT RAISE(ABORT, 'task_ends is append-only: the newest word counts'); END"
            )
        _fill()  # no ledger in Postgres is older than this step
    else:
        op.execute(
            "CREATE TRIGGER task_ends_no_update BEFORE UPDATE OR DELETE ON task_ends"
            " FOR EACH ROW EXECUTE FUNCTION append_only()"
        )


def _fill() -> None:
    hour = "substr(closed_at, 1, 13) || ':00:00.000000'"
    tokens = [f"{_known(leaf)}, {_unknown(leaf)}" for leaf in (f"{leaf}_tokens" for leaf in _LEAVES)]
    op.execute(
        f"INSERT INTO usage_by_hour SELECT {hour}, model, coalesce(served_by, ''), outcome, count(*),"
        f" {_unknown('cost_dollars')}, sum(off_scale), {', '.join(tokens)},"
        f" {_known('total_ns')}, count(*) - {_unknown('total_ns')},"
        f" {_known('first_token_ns')}, count(*) - {_unknown('first_token_ns')}, {_known('compute_ns')}, {_MONEY}"
        f" FROM current_receipts GROUP BY 1, 2, 3, 4"
    )
    _fill_group("'all'", "''", "1 = 1")
    for kind in _KINDS:
        _fill_group(f"'{kind}'", kind, f"{kind} IS NOT NULL")
        op.execute(f"INSERT INTO members SELECT '{kind}', {kind}, closed_at, id FROM receipts WHERE {kind} IS NOT NULL")


def _fill_group(kind: str, name: str, where: str) -> None:
    inputs, outputs = (
        " + ".join(_known(f"{leaf}_tokens") for leaf in _LEAVES if leaf.startswith(side))
        for side in ("input", "output")
    )
    uncounted = " OR ".join(_is_unknown(f"{leaf}_tokens") for leaf in _LEAVES)
    op.execute(
        f"INSERT INTO group_totals SELECT {kind}, {name}, count(*),"
        f" sum(CASE WHEN outcome <> 'completed' THEN 1 ELSE 0 END), {_unknown('cost_dollars')}, sum(off_scale),"
        f" {inputs}, {outputs}, sum(CASE WHEN {uncounted} THEN 1 ELSE 0 END), {_MONEY},"
        f" min(received_at), max(closed_at) FROM current_receipts WHERE {where} GROUP BY 1, 2"
    )


def _is_unknown(column: str) -> str:
    return f"({column} IS NULL OR abs({column}) > {_LARGEST})"


def _unknown(column: str) -> str:
    return f"sum(CASE WHEN {_is_unknown(column)} THEN 1 ELSE 0 END)"


def _known(column: str) -> str:
    return f"sum(CASE WHEN {_is_unknown(column)} THEN 0 ELSE {column} END)"


# Picodollars sum to more than 64 bits after nine million receipts: in two halves, of which the upper one is carried.
_HALF = 10**6
_UPPER = f"sum(CASE WHEN {_is_unknown('cost_dollars')} THEN 0 ELSE cost_picodollars / {_HALF} END)"
_LOWER = f"sum(CASE WHEN {_is_unknown('cost_dollars')} THEN 0 ELSE cost_picodollars % {_HALF} END)"
_CARRIED = f"({_UPPER} + {_LOWER} / {_HALF})"
_MONEY = (
    f"{_known('cost_dollars')} + {_CARRIED} / {_PICODOLLARS // _HALF},"
    f" ({_CARRIED} % {_PICODOLLARS // _HALF}) * {_HALF} + {_LOWER} % {_HALF}"
)
