"""What the tables' columns are called, so that who writes need not load what describes them.

Owns: the names that follow from records, and their order. Refuses to know: types and constraints (`schema`), and SQL.
"""

from __future__ import annotations

from taximeter.records import Phase, Usage

TOKEN_COLUMNS = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
PHASE_COLUMNS = tuple(f"{phase}_ns" for phase in Phase)
TIME_COLUMNS = ("total_ns", *PHASE_COLUMNS, "first_token_ns", "itl_ns")
WORK_COLUMNS = ("prefill_passes", "decode_passes", "compute_ns")
MONEY_COLUMNS = ("cost_dollars", "cost_picodollars")
# What the cost is made of: by the unit of its lines, and `other` for units that are no bucket's.
MONEY_UNITS = (*TOKEN_COLUMNS, "compute_ns", "other")
BUCKET_COLUMNS = {unit: f"{unit.removesuffix('_tokens').removesuffix('_ns')}_picodollars" for unit in MONEY_UNITS}
REPORTED_COLUMN = "reported_picodollars"
NUMBER_COLUMNS = (
    *TOKEN_COLUMNS,
    *TIME_COLUMNS,
    *WORK_COLUMNS,
    *MONEY_COLUMNS,
    *BUCKET_COLUMNS.values(),
    REPORTED_COLUMN,
)

# What a receipt belongs to, and what it can be added up by.
BELONGING_COLUMNS = ("task", "run", "session", "key", "source", "labels")

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
    *BELONGING_COLUMNS,
    "usage_basis",
    "cost_basis",
    "upstream_request_id",
    *NUMBER_COLUMNS,
    "off_scale",
    "form",
)
NOTE_COLUMNS = ("request_id", "receipt_id", "writer_id", "received_at", "document")

# How often a bucket was not known, beside the sum of what was.
UNKNOWN_COLUMNS = {name: name.replace("_tokens", "_unknown") for name in TOKEN_COLUMNS}

HOUR_KEYS = ("model", "served_by", "outcome", *BELONGING_COLUMNS, "usage_basis", "cost_basis")
# What a day's sums are kept by: a day has as many runs as its hours together have, and few people ask by run.
DAY_KEYS = tuple(name for name in HOUR_KEYS if name != "run")
HOUR_COUNTS = (
    "receipts",
    "unpriced",
    "off_scale",
    *(column for name in TOKEN_COLUMNS for column in (name, UNKNOWN_COLUMNS[name])),
    "total_ns",
    "timed",
    *PHASE_COLUMNS,
    "first_token_ns",
    "first_tokens",
    "itls",
    "compute_ns",
    "reported",
)
# Two columns for each amount, of which the second carries into the first.
HOUR_AMOUNTS = {
    "cost": MONEY_COLUMNS,
    "reported": ("reported_dollars", REPORTED_COLUMN),
} | {unit: (column.replace("_picodollars", "_dollars"), column) for unit, column in BUCKET_COLUMNS.items()}
HOUR_SUMS = (*HOUR_COUNTS, *(column for pair in HOUR_AMOUNTS.values() for column in pair))
GROUP_KEYS = ("kind", "name")
GROUP_COUNTS = ("receipts", "failures", "unpriced", "off_scale", "input_tokens", "output_tokens", "uncounted")
SPAN_COLUMNS = ("first_at", "last_at")
TASK_END_COLUMNS = ("name", "number", "finished_at", "succeeded", "document")
