"""The pages that are only looked at, and what every response has in common."""

import threading
from decimal import Decimal

import pytest
from starlette.types import ASGIApp

from taximeter import __version__
from taximeter.errors import LedgerError
from taximeter.gateway import Ways, build_app
from taximeter.gateway import app as app_module
from taximeter.records import to_json
from tests.fakes import FakeBackend, MemoryLedger, Script
from tests.gateway_harness import CHAT, MESSAGES, Caller, Reply, a_chat, a_house, app_of, fake_house, get, post


async def test_models_are_listed_and_each_can_be_asked_for():
    """Also one whose name has a slash."""
    house, _, _ = fake_house()
    app = app_of(house)
    listed = (await get(app, "/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["fake", "fake/base"]
    for model in listed["data"]:
        assert (await get(app, f"/v1/models/{model['id']}")).json() == model
    assert listed["data"][0]["context_length_tokens"] == 64
    missing = await get(app, "/v1/models/gpt-9")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_health_counts_receipts():
    """Accepted = written + spooled + lost, here as in the ledger; nothing is well while its database is away."""
    house, _, ledger = fake_house()
    app = app_of(house)
    await post(app, CHAT, a_chat())
    assert (await get(app, "/healthz")).json()["status"] == "ok"
    assert (await get(app, "/health")).status == 200  # as other engines call it
    ledger.broken = LedgerError("the disk is full")
    await post(app, CHAT, a_chat())
    health = (await get(app, "/healthz")).json()
    assert health["status"] == "degraded"
    assert health["version"] == __version__
    assert health["models"] == ["fake", "fake/base"]
    assert health["receipts"] == {"accepted": 2, "written": 1, "spooled": 0, "lost": 1, "lost_before": 0}
    assert health["in_flight"] == 0


async def test_a_database_that_is_away_is_no_good_health():
    """Receipts are safe in the spool, and somebody should look."""
    house, _, ledger = fake_house()
    ledger.away = "the ledger is locked"
    health = (await get(app_of(house), "/healthz")).json()
    assert (health["status"], health["receipts"]["lost"]) == ("degraded", 0)


async def test_a_callers_mistake_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture):
    """A page that is not there, a number out of range: an answer, and not a line in the log."""
    app = app_of(fake_house()[0])
    for path in ("/v1/models/nope", "/api/receipts/nope", "/nowhere"):
        assert (await get(app, path)).status == 404
    assert (await get(app, "/api/receipts", query="limit=0")).status == 400
    assert caplog.text == ""


async def test_a_receipt_is_found_by_its_id_or_its_requests():
    """Its JSON is the record's own."""
    house, _, ledger = fake_house()
    app = app_of(house)
    reply = await post(app, CHAT, a_chat())
    [kept] = ledger.kept
    for name in (reply.headers["x-taximeter-receipt"], reply.headers["x-request-id"]):
        assert (await get(app, f"/api/receipts/{name}")).json() == to_json(kept)


async def test_receipts_come_newest_first_and_in_pages():
    """`before` is the last one of the page before."""
    house, _, _ = fake_house()
    app = app_of(house)
    ids = [(await post(app, CHAT, a_chat())).headers["x-taximeter-receipt"] for _ in range(3)]
    newest_first = sorted(ids, reverse=True)
    first = (await get(app, "/api/receipts", "limit=2")).json()["receipts"]
    assert [receipt["id"] for receipt in first] == newest_first[:2]
    rest = (await get(app, "/api/receipts", f"limit=2&before={first[-1]['id']}")).json()["receipts"]
    assert [receipt["id"] for receipt in rest] == newest_first[2:]


async def test_a_page_of_receipts_is_written_out_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    """A thousand of them take a while, in which answers go on."""
    house, _, _ = fake_house()
    threads: list[threading.Thread] = []

    def noting(value: object) -> object:
        threads.append(threading.current_thread())
        return to_json(value)

    monkeypatch.setattr(app_module, "to_json", noting)
    assert (await get(app_of(house), "/api/receipts")).status == 200
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1e2", "limit=٣", f"limit={'9' * 5000}", "before=x"]
)
async def test_a_page_that_cannot_be_is_refused(query: str):
    """With the name of the parameter."""
    house, _, _ = fake_house()
    reply = await get(app_of(house), "/api/receipts", query)
    assert (reply.status, reply.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("name", ["rcpt_0000000000000000000000", "rcpt_", "x" * 5000, "\0", "é", "../etc"])
async def test_a_receipt_that_is_not_there_is_not_found(name: str):
    """Whatever the name is made of."""
    house, _, _ = fake_house()
    assert (await get(app_of(house), f"/api/receipts/{name}")).status == 404


async def test_a_ledger_that_cannot_be_read_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch):
    """503, and nothing of its path or URL."""
    house, _, ledger = fake_house()

    def broken(*_: object) -> None:
        raise LedgerError("secret")

    monkeypatch.setattr(ledger, "receipts", broken)
    reply = await get(app_of(house), "/api/receipts")
    assert (reply.status, reply.json()["error"]["code"]) == (503, "ledger_unavailable")
    assert b"secret" not in reply.body


async def test_the_machines_statement_adds_up():
    """Charged + in flight + idle is the rate times wall time: one hour at $3.60."""
    house, _, _ = fake_house(Script(compute_ns=1_000_000))
    app = app_of(house)
    await post(app, CHAT, a_chat())
    statement = (await get(app, "/api/machine")).json()
    assert statement["charged_ns"] == statement["busy_ns"] == 1_000_000
    parts = [Decimal(statement[part]) for part in ("charged", "in_flight", "idle")]
    assert sum(parts) == Decimal(statement["total"]) == Decimal("3.6")


async def test_all_machines_are_on_one_page():
    """Our own engine by its name; without any rate there is none."""
    house, backend, _ = fake_house(Script(compute_ns=1_000_000))
    app = app_of(house)
    await post(app, CHAT, a_chat())
    own = (await get(app, "/api/machine")).json()
    listed = (await get(app, "/api/machines")).json()["machines"]
    assert listed[backend.name]["charged"] == own["charged"]
    unpaid = a_house(FakeBackend(), MemoryLedger(), rate=None)
    assert (await get(app_of(unpaid), "/api/machines")).json() == {"machines": {}}


async def test_without_a_rate_there_is_no_statement():
    """And it says how to get one."""
    house = a_house(FakeBackend(), MemoryLedger(), rate=None)
    reply = await get(app_of(house), "/api/machine")
    assert (reply.status, reply.json()["error"]["code"]) == (404, "no_machine_rate")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("POST", "/v1/audio/speech", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/api/receipts", 405),
    ],
)
async def test_a_wrong_path_or_method_is_told_in_json(method: str, path: str, status: int):
    """With an id, as every response."""
    house, _, _ = fake_house()
    reply = await Caller(app_of(house), path, method=method).call()
    assert reply.status == status
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.headers["x-request-id"].startswith("req_")
    assert ("allow" in reply.headers) == (status == 405)


async def test_a_page_that_breaks_is_an_internal_error(monkeypatch: pytest.MonkeyPatch):
    """Without a word of what broke, and without ending the server."""
    house, backend, _ = fake_house()

    def broken() -> None:
        raise ValueError("secret")

    monkeypatch.setattr(backend, "models", broken)
    reply = await get(app_of(house), "/healthz")
    assert (reply.status, reply.json()["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body


OWN = frozenset({"localhost", "127.0.0.1", "[::1]"})


@pytest.mark.parametrize(
    ("host", "hosts", "status"),
    [
        ("localhost", OWN, 200),
        ("LocalHost:8000", OWN, 200),
        ("127.0.0.1:1", OWN, 200),
        ("[::1]:8000", OWN, 200),
        ("[::1]", OWN, 200),
        ("evil.example", OWN, 403),
        ("evil.example:8000", OWN, 403),
        ("localhost.evil.example", OWN, 403),
        ("localhost:8000@evil.example", OWN, 403),
        ("127.0.0.1:80:80", OWN, 403),
        ("", OWN, 403),
        ("\xe9", OWN, 403),
        ("evil.example", None, 200),
    ],
)
async def test_a_request_for_another_host_is_turned_away(host: str, hosts: frozenset[str] | None, status: int):
    """A page that gives its own name this machine's address reads no receipt and spends no money."""
    house, backend, ledger = fake_house()
    app = build_app(ways=Ways(relay=house.relay), ledger=house.ledger, machine=house.machine, hosts=hosts)
    looked = await Caller(app, "/api/receipts", method="GET", headers={"host": host}).call()
    asked = await Caller(app, CHAT, a_chat(), headers={"host": host}).call()
    assert (looked.status, asked.status) == (status, status)
    assert len(backend.submitted) == len(ledger.kept) == (status == 200)
    if status == 403:
        assert looked.json()["error"]["code"] == "unknown_host"
        assert "--host" in looked.json()["error"]["message"]
        assert looked.headers["x-request-id"].startswith("req_")


async def ask_as_anthropic(app: ASGIApp, path: str, method: str = "GET") -> Reply:
    return await Caller(app, path, method=method, headers={"anthropic-version": "2023-06-01"}).call()


async def test_models_and_errors_are_in_the_words_of_who_asks():
    """Both dialects have the same path: the header that all of Anthropic's clients send tells them apart."""
    app = app_of(fake_house()[0])
    listed = (await ask_as_anthropic(app, "/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["fake", "fake/base"]
    assert listed["data"][0]["type"] == "model"
    assert (await ask_as_anthropic(app, "/v1/models/fake/base")).json() == listed["data"][1]
    for path, status in (("/v1/models/nobody", 404), ("/nowhere", 404), ("/api/receipts/nope", 404)):
        reply = await ask_as_anthropic(app, path)
        body = reply.json()
        assert (reply.status, body["type"], body["error"]["type"]) == (status, "error", "not_found_error")
        assert body["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
async def test_anthropics_own_paths_need_no_header(path: str):
    """Whoever asks there expects its words."""
    reply = await get(app_of(fake_house()[0]), path)
    assert (reply.status, reply.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_a_prompt_is_counted_without_a_receipt():
    """Nothing is made of it, so nothing is charged."""
    house, backend, ledger = fake_house()
    app, path, body = app_of(house), f"{MESSAGES}/count_tokens", a_chat()
    assert (await post(app, path, body)).json() == {"input_tokens": 5}
    unknown = await post(app, path, body | {"model": "nobody"})
    assert (unknown.status, unknown.json()["error"]["type"]) == (404, "not_found_error")
    wrong = await post(app, path, body | {"messages": []})
    assert (wrong.status, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
    backend.counts_tokens = False
    assert (await post(app, path, body)).status == 400
    assert ledger.begun == ledger.kept == []


async def test_who_goes_away_before_the_count_is_nobodys_fault(caplog: pytest.LogCaptureFixture):
    """There is nobody to answer, and nothing to log."""
    caller = Caller(app_of(fake_house()[0]), f"{MESSAGES}/count_tokens")
    caller.leave_before_the_body()
    await caller.call()
    assert caller.reply.body == b""
    assert caplog.text == ""
