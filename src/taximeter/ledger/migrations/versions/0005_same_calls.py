# ruff: noqa: S608 - all words of these statements are our own
"""A call that went through a gateway of ours and stands in somebody's log too has one receipt.

Receipts of our own are found by what the provider calls their request, those that correct others by their request, and
a receipt may correct one that a log gave the same call. What logs gave is not in the new index: imports write a hundred
thousand a second, in no order.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_SAME = (
    "request_id = NEW.request_id"
    " OR source IS NOT NULL AND upstream_request_id IN (NEW.upstream_request_id, NEW.request_id)"
)


def upgrade() -> None:
    """See the module."""
    own, correction = sa.text("upstream_request_id IS NOT NULL AND source IS NULL"), sa.text("supersedes IS NOT NULL")
    op.create_index("receipts_by_provider", "receipts", ["upstream_request_id"], sqlite_where=own, postgresql_where=own)
    op.create_index(
        "receipts_correcting", "receipts", ["request_id"], sqlite_where=correction, postgresql_where=correction
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION corrects_its_own() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND ({_SAME})) THEN"
            " RAISE EXCEPTION 'a correction is of a receipt of the same request'"
            " USING ERRCODE = 'integrity_constraint_violation'; END IF; RETURN NEW; END $$"
        )
        return
    op.execute("DROP TRIGGER receipts_no_replace")
    op.execute(
        "CREATE TRIGGER receipts_no_replace BEFORE INSERT ON receipts WHEN"
        " EXISTS (SELECT 1 FROM receipts WHERE number = NEW.number)"
        " OR EXISTS (SELECT 1 FROM receipts WHERE id = NEW.id)"
        " OR CASE WHEN NEW.supersedes IS NULL"
        " THEN EXISTS (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND supersedes IS NULL)"
        " ELSE EXISTS (SELECT 1 FROM receipts WHERE supersedes = NEW.supersedes)"
        f" OR NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND ({_SAME})) END"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )
