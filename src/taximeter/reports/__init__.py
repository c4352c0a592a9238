"""Where the time and the money went: pure functions from sums of the ledger to reports, and from reports to text.

A `Question` says by what, from when until when and in which zone; `answer` asks a ledger and makes a `Report`; each
renderer turns that into one form, and all of them say the same numbers.
"""

from taximeter.reports.question import Question
from taximeter.reports.report import Report, Row, answer

__all__ = ["Question", "Report", "Row", "answer"]
