"""The ledger: receipts that have been written down and stay."""

from taximeter.ledger.file_marks import FileMark
from taximeter.ledger.forms import Call, Form
from taximeter.ledger.ledger import Ledger
from taximeter.ledger.totals import CostTotals, Dearest, GroupTotals, Percentiles, Slice, Spent, UsageTotals
from taximeter.ledger.writer import LedgerCounts

__all__ = [
    "Call",
    "CostTotals",
    "Dearest",
    "FileMark",
    "Form",
    "GroupTotals",
    "Ledger",
    "LedgerCounts",
    "Percentiles",
    "Slice",
    "Spent",
    "UsageTotals",
]
