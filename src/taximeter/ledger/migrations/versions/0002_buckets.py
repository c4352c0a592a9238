"""Buckets for cache writes by how long they last, for images and for audio."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NEW = (
    "input_cache_write_30m_tokens",
    "input_cache_write_12h_tokens",
    "input_cache_write_unknown_tokens",
    "input_image_tokens",
    "input_audio_tokens",
    "input_audio_cache_read_tokens",
    "output_image_tokens",
    "output_audio_tokens",
)


def upgrade() -> None:
    op.execute("DROP VIEW current_receipts")
    for name in _NEW:
        op.add_column("receipts", sa.Column(name, sa.BigInteger))
    op.execute(
        "CREATE VIEW current_receipts AS SELECT * FROM receipts AS this"
        " WHERE NOT EXISTS (SELECT 1 FROM receipts AS next WHERE next.supersedes = this.id)"
    )
