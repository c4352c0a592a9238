"""What the tables' columns are called, so that who writes need not load what describes them.

Owns: the names that follow from records. Refuses to know: types and constraints (`schema`), and SQL.
"""

from __future__ import annotations

from taximeter.records import Phase, Usage

TOKEN_COLUMNS = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
TIME_COLUMNS = ("total_ns", *(f"{phase}_ns" for phase in Phase), "first_token_ns")
WORK_COLUMNS = ("prefill_passes", "decode_passes", "compute_ns")
MONEY_COLUMNS = ("cost_dollars", "cost_picodollars")
NUMBER_COLUMNS = TOKEN_COLUMNS + TIME_COLUMNS + WORK_COLUMNS + MONEY_COLUMNS
