"""Pages of tasks, runs and sessions: sums, and how tasks ended."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from starlette.types import ASGIApp

from taximeter.ledger import Ledger
from tests.fakes import FakeBackend, Script
from tests.gateway_harness import CHAT, a_chat, a_house, app_of, get, post


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.open("sqlite://") as opened:
        yield opened


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(Script(tokens=("a", "b"), cached_tokens=2, compute_ns=1_000_000_000))


@pytest.fixture
def app(ledger: Ledger, backend: FakeBackend) -> ASGIApp:
    return app_of(a_house(backend, ledger, rate="3.6"))


async def test_a_task_is_the_sum_of_its_receipts(app: ASGIApp, backend: FakeBackend) -> None:
    """Tokens by bucket, money, time, failures; in all, and by model."""
    for _ in range(3):
        await post(app, CHAT, a_chat(), x_taximeter_task="report", x_taximeter_run="r/1")
    await post(app, CHAT, a_chat(model="nope"), x_taximeter_task="report")
    await post(app, CHAT, a_chat(), x_taximeter_task="another")
    page = (await get(app, "/api/tasks/report")).json()
    assert (page["receipts"], page["failures"], page["unpriced"], page["uncounted"]) == (4, 1, 1, 1)
    assert page["tokens"]["input_fresh_tokens"] == 3 * 3
    assert page["tokens"]["input_cache_read_tokens"] == 3 * 2
    assert page["tokens"]["output_text_tokens"] == 3 * 2
    assert (page["input_tokens"], page["output_tokens"]) == (15, 6)
    assert page["unknown"] == dict.fromkeys(page["tokens"], 1)
    assert Decimal(page["cost"]) == 3 * Decimal("0.001")  # a second each, of an hour at $3.60
    assert page["timed"] == 4
    assert page["task"] == {"name": "report", "finished_at": None, "succeeded": None, "labels": {}}
    assert [(part["model"], part["outcome"], part["receipts"]) for part in page["parts"]] == [
        ("fake", "completed", 3),
        ("nope", "refused", 1),
    ]
    assert sum(part["total_ns"] for part in page["parts"]) == page["total_ns"]
    run = (await get(app, "/api/runs/r/1")).json()
    assert (run["receipts"], run["failures"], Decimal(run["cost"])) == (3, 0, 3 * Decimal("0.001"))
    assert "task" not in run
    assert (await get(app, "/api/sessions/none")).status == 404
    listed = (await get(app, "/api/receipts", "run=r/1")).json()["receipts"]
    assert {each["request"]["run"] for each in listed} == {"r/1"}
    assert len(listed) == 3


async def test_a_task_is_finished_once_however_often_it_is_said(app: ASGIApp) -> None:
    """Another word corrects the first; and one that asked nothing can end as well."""
    for _ in range(2):
        reply = await post(app, "/api/tasks/a/b/finish", {"succeeded": True})
        assert (reply.status, reply.json()) == (200, {"task": "a/b", "succeeded": True})
    first = (await get(app, "/api/tasks/a/b")).json()
    assert (first["receipts"], first["cost"], first["first_at"]) == (0, "0", None)
    assert first["task"]["succeeded"] is True
    await post(app, "/api/tasks/a/b/finish", {"succeeded": True})
    assert (await get(app, "/api/tasks/a/b")).json() == first
    await post(app, "/api/tasks/a/b/finish", {"succeeded": False, "labels": {"why": "a bug"}})
    corrected = (await get(app, "/api/tasks/a/b")).json()["task"]
    assert (corrected["succeeded"], corrected["labels"]) == (False, {"why": "a bug"})
    assert (await get(app, "/api/tasks/a")).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"succeeded": 1}',
        b'{"succeeded": true, "x": 1}',
        b"[" * 100_000,
        b'{"succeeded": true, "labels": {"a": "\\n"}}',
        b'{"succeeded": true, "labels": {"%s": "b"}}' % (b"k" * 201),
    ],
)
async def test_nonsense_is_refused(app: ASGIApp, ledger: Ledger, body: bytes) -> None:
    """With what it must be; nothing is written."""
    reply = await post(app, "/api/tasks/report/finish", body)
    assert reply.status in (400, 413)
    assert ledger.task("report") is None


async def test_no_strange_web_page_ends_tasks(app: ASGIApp, ledger: Ledger) -> None:
    """A browser says what it sends for; a form is no JSON."""
    body = {"succeeded": False}
    headers = {"content_type": "text/plain", "origin": "https://example.org"}
    assert (await post(app, "/api/tasks/report/finish", body, **headers)).status == 415
    assert ledger.task("report") is None


@pytest.mark.parametrize("query", ["task=a&run=b", "label=team", "label==x"])
async def test_receipts_are_asked_for_by_one_group(app: ASGIApp, query: str) -> None:
    """Anything else is a mistake that is told."""
    assert (await get(app, "/api/receipts", query)).status == 400


async def test_receipts_are_found_by_label(app: ASGIApp) -> None:
    """Each label is a group of its own; its key came in a header, where case does not count."""
    await post(app, CHAT, a_chat(), x_taximeter_label_team="search")
    await post(app, CHAT, a_chat(), x_taximeter_label_team="ads")
    for query in ("label=team=search", "label=Team=search"):
        found = (await get(app, "/api/receipts", query)).json()["receipts"]
        assert [each["request"]["labels"] for each in found] == [{"team": "search"}]
