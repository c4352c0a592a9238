"""What tasks, runs and sessions cost and took, and how tasks ended.

Owns: the pages of groups, and the one thing that clients may say about them. Refuses to know: how sums are kept (the
ledger), and which requests belong to what (`groups`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from taximeter.clock import Clock
from taximeter.errors import LedgerError, RequestError
from taximeter.gateway.arrival import read_body
from taximeter.gateway.books import done_in_time
from taximeter.gateway.errors import DoorError
from taximeter.gateway.reply import encoded
from taximeter.ledger import GroupTotals, Ledger, UsageTotals
from taximeter.records import (
    MOST_GROUP_NAME_CHARACTERS,
    MOST_LABELS,
    Json,
    Receipt,
    Task,
    is_group_name,
    label_group,
    to_json,
)

_MOST_BODY_BYTES = 64 * 1024


class _Finish(msgspec.Struct, forbid_unknown_fields=True):
    succeeded: bool
    labels: dict[str, str] = {}


class GroupPages:
    """`/api/tasks/…`, `/api/runs/…` and `/api/sessions/…`."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def finish(self, http: HttpRequest) -> Response:
        """Write down that a task has ended, well or badly. Saying it again changes nothing; another word is a
        correction. A task that nobody has heard of is written down too: one that asked nothing can end as well."""
        name = _name(http)
        body = await read_body(http.scope, http.receive)
        if len(body) > _MOST_BODY_BYTES:
            raise DoorError(413, "body_too_large", f"the body is longer than {_MOST_BODY_BYTES} bytes")
        said = _read_finish(body)
        at: datetime = self._clock.utc_now()
        writing = self._ledger.finish_task(name, said.succeeded, at, labels=said.labels)
        if not await done_in_time(writing):
            raise LedgerError("the ledger does not answer")
        writing.result()
        return encoded({"task": name, "succeeded": said.succeeded})

    async def task(self, http: HttpRequest) -> Response:
        name = _name(http)
        task = await asyncio.to_thread(self._ledger.task, name)
        return await self._page("task", name, task)

    async def run(self, http: HttpRequest) -> Response:
        return await self._page("run", _name(http))

    async def session(self, http: HttpRequest) -> Response:
        return await self._page("session", _name(http))

    async def _page(self, kind: str, name: str, task: Task | None = None) -> Response:
        def read() -> tuple[GroupTotals | None, list[UsageTotals]]:
            return self._ledger.group(kind, name), self._ledger.usage_of(kind, name)

        totals, usage = await asyncio.to_thread(read)
        if totals is None and task is None:
            raise DoorError(404, f"{kind}_not_found", f"no receipt belongs to such a {kind}")
        page = sums_of(kind, name, totals, usage)
        return encoded(page if kind != "task" else {**page, "task": to_json(task)})


def sums_of(kind: str, name: str, totals: GroupTotals | None, usage: Sequence[UsageTotals]) -> dict[str, Json]:
    """A group's page: its sums, and the same by model, backend and outcome. Without receipts all sums are 0.

    `tokens` are what is known, by bucket; `unknown` says of which buckets, and by how many receipts, it is not. `cost`
    leaves out the `unpriced` receipts, `total_ns` those that are not `timed`.
    """
    tokens, unknown = Counter[str](), Counter[str]()
    for part in usage:
        tokens.update(part.tokens)
        unknown.update(part.unknown)
    plain: Mapping[str, Json] = {
        "receipts": 0,
        "failures": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "uncounted": 0,
        "cost": "0",
        "unpriced": 0,
        "off_scale": 0,
        "first_at": None,
        "last_at": None,
    }
    kept = to_json(totals)
    return {
        **(kept if isinstance(kept, dict) else plain),
        "kind": kind,
        "name": name,
        "tokens": dict(tokens),
        "unknown": {leaf: count for leaf, count in unknown.items() if count},
        "total_ns": sum(part.total_ns for part in usage),
        "timed": sum(part.timed for part in usage),
        "parts": to_json([part for part in usage if part.receipts]),
    }


def receipts_asked_for(http: HttpRequest, ledger: Ledger, limit: int, before: str | None) -> list[Receipt]:
    """The newest receipts, all or those of the group that the query names. Raises RequestError for more than one."""
    asked = [(kind, name) for kind in ("task", "run", "session", "label") for name in http.query_params.getlist(kind)]
    if not asked:
        return ledger.receipts(limit, before)
    if len(asked) > 1:
        raise RequestError("receipts are listed by one of task, run, session and label", param=asked[1][0])
    kind, name = asked[0]
    group = label_group(name) if kind == "label" else (kind, name)
    if group is None:
        raise RequestError("`label` must be KEY=VALUE", param="label")
    return ledger.receipts_of(*group, limit, before)


def _read_finish(body: bytes) -> _Finish:
    try:
        said = msgspec.json.decode(body, type=_Finish)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f'the body must be {{"succeeded": true}}, or false: {str(error)[:200]}') from error
    if len(said.labels) > MOST_LABELS or not all(map(is_group_name, (*said.labels, *said.labels.values()))):
        raise RequestError(
            f"`labels` are at most {MOST_LABELS}, each of at most {MOST_GROUP_NAME_CHARACTERS} printable characters",
            param="labels",
        )
    return said


def _name(http: HttpRequest) -> str:
    name: str = http.path_params["id"]
    if not is_group_name(name):
        raise RequestError(f"a name is at most {MOST_GROUP_NAME_CHARACTERS} printable characters")
    return name
