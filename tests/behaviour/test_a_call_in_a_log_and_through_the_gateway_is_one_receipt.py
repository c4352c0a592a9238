"""Who works through the gateway and imports transcripts as well pays for each call once, and is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.records import Receipt
from tests.unit.importers.logs import desk, transcript_line
from tests.unit.ledger.records import a_receipt, a_request

CALLED = "req_011CSHoEeqs5C35K2UUqR7Fy"
AT = datetime(2026, 10, 29, 12, tzinfo=UTC)


def through_the_gateway() -> Receipt:
    """Of the call that the transcript has a line of."""
    request = replace(a_request(at=AT - timedelta(seconds=3)), session="session-a")
    return replace(a_receipt(request, closed_at=AT, dollars=Decimal("0.11")), upstream_request_id=CALLED)


@pytest.mark.parametrize("log_first", [False, True])
def test_each_call_counts_once(tmp_path: Path, log_first: bool) -> None:
    """In both orders, however often, with a call beside it that did not come through the gateway."""
    with desk(tmp_path) as here:
        here.write(
            "a.jsonl",
            transcript_line("m1", out=4_400, request=CALLED),
            transcript_line("m2", out=400, request="req_another"),
            transcript_line("m3", out=400, request=None),
        )
        ours = through_the_gateway()
        if not log_first:
            here.ledger.append(ours).result()
        summary = here.run()
        assert (summary.through_gateway, summary.total.calls) == ((0, 3) if log_first else (1, 2))
        here.ledger.append(ours).result()
        again = here.write("copy.jsonl", transcript_line("m1", out=4_400, request=CALLED))
        summary = here.run(again)
        assert (summary.through_gateway, summary.total.calls) == (1, 0)
        costs = [None if each.cost is None else each.cost.total for each in here.receipts()]
        assert sorted(costs, key=str) == [Decimal("0.01"), Decimal("0.01"), Decimal("0.11")]
        assert here.total() == here.ledger.total_cost()
        receipt = here.ledger.receipt(ours.id)
        assert receipt is not None
        assert (receipt.timing, receipt.source, receipt.request) == (ours.timing, None, ours.request)
