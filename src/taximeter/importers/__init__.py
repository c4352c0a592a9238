"""Other people's logs as receipts: what was spent before Taximeter was there, and beside it.

Owns: finding logs, reading each kind of them, telling copies of a call apart, and pricing it as of its day. Refuses to
know: reports, and how a call is made. One module for each kind of log; `sources` lists them.
"""

from taximeter.importers.booking import Books
from taximeter.importers.importing import Importer, Plan, plan
from taximeter.importers.sources import SOURCES
from taximeter.importers.summary import ImportSummary, ModelSums

__all__ = ["SOURCES", "Books", "ImportSummary", "Importer", "ModelSums", "Plan", "plan"]
