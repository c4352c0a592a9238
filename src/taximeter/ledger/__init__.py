"""The ledger: receipts that have been written down and stay."""

from taximeter.ledger.ledger import Ledger
from taximeter.ledger.totals import GroupTotals, Percentiles, Slice, UsageTotals
from taximeter.ledger.writer import LedgerCounts

__all__ = ["GroupTotals", "Ledger", "LedgerCounts", "Percentiles", "Slice", "UsageTotals"]
