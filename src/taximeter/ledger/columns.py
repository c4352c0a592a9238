"""What the tables' columns are called, so that who writes need not load what describes them.

Owns: the names that follow from records, and their order. Refuses to know: types and constraints (`schema`), and SQL.
"""

from __future__ import annotations

from taximeter.records import Phase, Usage

TOKEN_COLUMNS = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
TIME_COLUMNS = ("total_ns", *(f"{phase}_ns" for phase in Phase), "first_token_ns")
WORK_COLUMNS = ("prefill_passes", "decode_passes", "compute_ns")
MONEY_COLUMNS = ("cost_dollars", "cost_picodollars")
NUMBER_COLUMNS = TOKEN_COLUMNS + TIME_COLUMNS + WORK_COLUMNS + MONEY_COLUMNS

RECEIPT_COLUMNS = (
    "id",
    "request_id",
    "supersedes",
    "received_at",
    "closed_at",
    "outcome",
    "model",
    "served_by",
    "stream",
    "task",
    "run",
    "session",
    *NUMBER_COLUMNS,
    "off_scale",
)
NOTE_COLUMNS = ("request_id", "receipt_id", "writer_id", "received_at", "document")

# How often a bucket was not known, beside the sum of what was.
UNKNOWN_COLUMNS = {name: name.replace("_tokens", "_unknown") for name in TOKEN_COLUMNS}

HOUR_KEYS = ("hour", "model", "served_by", "outcome")
HOUR_COUNTS = (
    "receipts",
    "unpriced",
    "off_scale",
    *(column for name in TOKEN_COLUMNS for column in (name, UNKNOWN_COLUMNS[name])),
    "total_ns",
    "timed",
    "first_token_ns",
    "first_tokens",
    "compute_ns",
)
GROUP_KEYS = ("kind", "name")
GROUP_COUNTS = ("receipts", "failures", "unpriced", "off_scale", "input_tokens", "output_tokens", "uncounted")
GROUP_TIMES = ("first_at", "last_at")
MEMBER_COLUMNS = ("kind", "name", "closed_at", "receipt_id")
TASK_END_COLUMNS = ("name", "number", "finished_at", "succeeded", "document")
