"""The ledger: receipts that have been written down and stay."""

from taximeter.ledger.bulk import Appended, FileMark
from taximeter.ledger.forms import Call, Calls, Form
from taximeter.ledger.ledger import Ledger
from taximeter.ledger.totals import CostTotals, Dearest, GroupTotals, Percentiles, Slice, Spent, UsageTotals
from taximeter.ledger.writer import LedgerCounts

__all__ = [
    "Appended",
    "Call",
    "Calls",
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
