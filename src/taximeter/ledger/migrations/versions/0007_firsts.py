"""Calls in logs are left out of the index of first receipts by request: in SQLite, where imports are to be fast.

Their ids say it: `rcpt_X` is the first receipt of `req_X`, and the index by id sees to it that there is one. So the
guard looks at both.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_FIRSTS = "supersedes IS NULL AND (source IS NULL OR id <> 'rcpt' || substr(request_id, 4))"
_SAME = (
    "request_id = NEW.request_id"
    " OR source IS NOT NULL AND upstream_request_id IN (NEW.upstream_request_id, NEW.request_id)"
)


def upgrade() -> None:
    """See the module."""
    if op.get_bind().dialect.name == "postgresql":
        return
    op.execute("DROP TRIGGER receipts_no_replace")
    op.drop_index("receipts_first", "receipts")
    op.create_index("receipts_first", "receipts", ["request_id"], unique=True, sqlite_where=sa.text(_FIRSTS))
    op.execute(
        "CREATE TRIGGER receipts_no_replace BEFORE INSERT ON receipts WHEN"  # noqa: S608 - all words are our own
        " EXISTS (SELECT 1 FROM receipts WHERE number = NEW.number)"
        " OR EXISTS (SELECT 1 FROM receipts WHERE id = NEW.id)"
        " OR CASE WHEN NEW.supersedes IS NULL"
        f" THEN EXISTS (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND {_FIRSTS})"
        " OR EXISTS (SELECT 1 FROM receipts WHERE id = 'rcpt' || substr(NEW.request_id, 4)"
        " AND request_id = NEW.request_id AND supersedes IS NULL)"
        " ELSE EXISTS (SELECT 1 FROM receipts WHERE supersedes = NEW.supersedes)"
        f" OR NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND ({_SAME})) END"
        " BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END"
    )
