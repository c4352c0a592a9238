"""A request's first receipt: a request has one, and whoever knows the request finds it.

Of a call in somebody's log both ids end alike, for they follow from the call's name (`rcpt_X` and `req_X`): the index
of receipts by id says all about them, and in one by request they would only be a second time what takes an import
longest. So that one leaves them out. Owns: which receipts it has, and what to ask of both. Refuses to know: who asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taximeter.ledger.calls import Calls
    from taximeter.ledger.database import Session

# ruff: noqa: S608 - all words of these statements are our own

_ID_BEGINS, _REQUEST_BEGINS = "rcpt", "req"

BY_REQUEST = f"supersedes IS NULL AND (source IS NULL OR id <> '{_ID_BEGINS}' || substr(request_id, 4))"
"""Which receipts the index `receipts_first` has, in its own words: where they stand in a question it is used."""

_FIRST = (
    f"SELECT id FROM receipts WHERE request_id = ? AND {BY_REQUEST} UNION ALL"
    " SELECT id FROM receipts WHERE id = ? AND request_id = ? AND supersedes IS NULL LIMIT 1"
)

Question = tuple[str, tuple[str, ...]]
"""Words, and the values in them."""


def first_of(request_id: str) -> Question:
    """What asks for the id of a request's first receipt."""
    return _FIRST, (request_id, named_after(request_id), request_id)


def firsts_beginning(prefix: str, at_most: int) -> list[Question]:
    """What asks for first receipts of requests whose ids begin so. Of a call in a log, whose receipt is found by its
    own id, one or two letters say too little if they are none that requests of ours begin with."""
    past = prefix + "\U0010ffff"  # a range, so that an index serves
    of_requests = "request_id >= ? AND request_id < ?"
    asked: list[Question] = [
        (
            f"SELECT id FROM receipts WHERE {of_requests} AND {BY_REQUEST} ORDER BY request_id LIMIT {at_most}",
            (prefix, past),
        )
    ]
    if len(prefix) >= len(_REQUEST_BEGINS) or _REQUEST_BEGINS.startswith(prefix):
        of_ids = named_after(prefix)
        question = f"SELECT id FROM receipts WHERE id >= ? AND id < ? AND {of_requests} AND supersedes IS NULL"
        asked.append((f"{question} ORDER BY id LIMIT {at_most}", (of_ids, f"{of_ids}\U0010ffff", prefix, past)))
    return asked


def named_after(request_id: str) -> str:
    """What the first receipt of a call in a log is called, by its request."""
    return _ID_BEGINS + request_id[len(_REQUEST_BEGINS) :]


def are_named_after(calls: Calls) -> bool:
    """Whether all of them are named as calls in logs are."""
    ids, requests = calls.ids, calls.request_ids
    same = ids.dtype.itemsize - len(_ID_BEGINS)
    if same < 1 or same != requests.dtype.itemsize - len(_REQUEST_BEGINS):
        return False
    of_ids, of_requests = (each.view("u1").reshape(len(each), -1) for each in (ids, requests))
    return bool(
        (of_ids[:, : len(_ID_BEGINS)] == list(_ID_BEGINS.encode())).all()
        and (of_ids[:, len(_ID_BEGINS) :] == of_requests[:, len(_REQUEST_BEGINS) :]).all()
    )


def has_others(session: Session) -> bool:
    """Whether the ledger, which is a SQLite file, has a first receipt that is named otherwise."""
    return bool(session.ask(f"SELECT 1 FROM receipts INDEXED BY receipts_first WHERE {BY_REQUEST} LIMIT 1"))


SECOND_ONES = "receipts_one_first"
"""A trigger that leaves out every receipt of a request that has its first by another id, where no index says so."""

LEAVE_OUT_SECOND_ONES = (
    f"CREATE TRIGGER {SECOND_ONES} BEFORE INSERT ON receipts WHEN CASE"
    f" WHEN NEW.id = '{_ID_BEGINS}' || substr(NEW.request_id, 4)"
    f" THEN EXISTS (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND {BY_REQUEST})"
    f" ELSE EXISTS (SELECT 1 FROM receipts WHERE id = '{_ID_BEGINS}' || substr(NEW.request_id, 4)"
    " AND request_id = NEW.request_id AND supersedes IS NULL) END"
    " BEGIN SELECT RAISE(IGNORE); END"
)
