"""The ledger: receipts that have been written down and stay."""

from taximeter.ledger.ledger import Ledger
from taximeter.ledger.writer import LedgerCounts

__all__ = ["Ledger", "LedgerCounts"]
