"""A call that went through a gateway of ours, and that a program wrote into its log as well: it has one receipt.

The gateway's counts, for it saw the call's time. The two are known for one call by what the provider calls the request:
a gateway notes it, and a log has it, or has our own name where we answered in the provider's place. A log that is read
afterwards adds nothing. A gateway's receipt that comes when its call was imported already corrects that one.
Owns: finding the one for the other. Refuses to know: what a log is, and how anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from taximeter.ledger import rows
from taximeter.ledger.database import Session, batches
from taximeter.ledger.sql import instant, one_of
from taximeter.records import Receipt

if TYPE_CHECKING:
    from taximeter.ledger.calls import Calls

# ruff: noqa: S608 - all words of these questions are our own

Told = tuple[str, str]
"""What a log says of a call: the provider's name of the request, and when it was, as stored."""

_APART = timedelta(days=1)
"""Clocks differ. What is further apart has the same name by chance."""

_SOON = timedelta(minutes=1)
"""The same, for a call whose receipt is being written: it is looked for among all that were closed then."""

_OUR_NAME = re.compile(r"req_[0-9a-hjkmnp-tv-z]{22}")  # see `records.new_id`
_OUR_LENGTH = len("req_") + 22


def may_be_any(session: Session, calls: Iterable[Calls]) -> bool:
    """Whether any of the calls may be one that went through a gateway: most ledgers of imports have none."""
    return _gateways_have_names(session) or any(
        name is not None and len(name) == _OUR_LENGTH for some in calls for name in some.upstream_request_ids
    )


def through_gateway(session: Session, calls: Iterable[Told]) -> set[str]:
    """Those names under which a gateway of ours has a receipt of the call."""
    told = dict(calls)
    found: set[str] = set()
    if _gateways_have_names(session):
        found |= _of_one_time(session, "upstream_request_id", "upstream_request_id IS NOT NULL", told, list(told))
    ours = [name for name in told if len(name) == _OUR_LENGTH and _OUR_NAME.fullmatch(name)]
    for chained in ("supersedes IS NULL", "supersedes IS NOT NULL"):  # each has its index
        found |= _of_one_time(session, "request_id", chained, told, ours)
    return found


def _gateways_have_names(session: Session) -> bool:
    return bool(session.ask("SELECT 1 FROM receipts WHERE upstream_request_id IS NOT NULL AND source IS NULL LIMIT 1"))


def _of_one_time(session: Session, column: str, which: str, told: dict[str, str], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in batches(names):
        named = one_of(column, some)
        question = f"SELECT {column}, received_at FROM receipts WHERE {named.text} AND {which} AND source IS NULL"
        for name, received_at in session.ask(question, *named.values):
            if abs(instant(received_at) - instant(told[name])) <= _APART:
                found.add(name)
    return found


def of_a_log(session: Session, receipt: Receipt) -> str | None:
    """The id of the receipt that a log gave the call of this one, which is a gateway's first and being written."""
    if receipt.source is not None or receipt.supersedes is not None:
        return None
    if not session.ask("SELECT 1 FROM file_marks LIMIT 1"):  # nobody ever read a log
        return None
    names = one_of("upstream_request_id", [rows.stored_text(name) for name in _names(receipt)])
    found = session.ask(
        "SELECT id FROM current_receipts WHERE closed_at >= ? AND closed_at < ? AND source IS NOT NULL"
        f" AND {names.text} ORDER BY closed_at, id LIMIT 1",
        rows.stored_instant(receipt.request.received_at - _SOON),
        rows.stored_instant(receipt.closed_at + _SOON),
        *names.values,
    )
    return str(found[0][0]) if found else None


def _names(receipt: Receipt) -> list[str]:
    """What a log may call the request."""
    return [name for name in (receipt.upstream_request_id, receipt.request.id) if name is not None]
