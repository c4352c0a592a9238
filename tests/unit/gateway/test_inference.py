"""The two endpoints that cost money, driven by hand: what a client sees, and when."""

import asyncio
import json
import logging
import threading
from dataclasses import replace

import pytest

from taximeter.clock import FakeClock
from taximeter.errors import CapacityError, InvariantBroken, PromptTooLong, UpstreamError
from taximeter.gateway.arrival import MAX_BODY_BYTES
from taximeter.providers import openai
from taximeter.providers.door import Call
from taximeter.records import Dialect, Outcome, Prompt
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import CHAT, COMPLETIONS, Caller, a_chat, app_of, fake_house, post


async def test_a_whole_answer_comes_with_its_receipt():
    """Body, both ids, and the receipt behind the header, with the same tokens as the usage."""
    house, _, ledger = fake_house(Script(cached_tokens=2))
    reply = await post(app_of(house), CHAT, a_chat())
    assert reply.status == 200
    body = reply.json()
    assert body["choices"][0]["message"]["content"] == "Hello, world"
    receipt = ledger.receipt(reply.headers["x-taximeter-receipt"])
    assert receipt is not None
    assert receipt.request.id == reply.headers["x-request-id"]
    assert body["usage"]["prompt_tokens"] == receipt.usage.input_tokens == 5
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == receipt.usage.input_cache_read_tokens == 2
    assert body["usage"]["completion_tokens"] == receipt.usage.output_tokens == 3
    assert int(reply.headers["content-length"]) == len(reply.body)


async def test_a_receipt_holds_the_request_and_none_of_its_words():
    """Sampling, limits and groups are kept; the prompt is only a fingerprint."""
    house, _, ledger = fake_house()
    body = a_chat(temperature=0, max_tokens=2, stream=True)
    reply = await post(
        app_of(house), CHAT, body, x_taximeter_task="résumé", x_taximeter_run="run 7", x_taximeter_session="s"
    )
    request = ledger.receipt(reply.headers["x-taximeter-receipt"]).request
    assert (request.dialect, request.stream, request.max_output_tokens) == (Dialect.OPENAI_CHAT, True, 2)
    assert request.sampling.temperature == 0
    assert (request.task, request.run, request.session) == ("résumé", "run 7", "s")
    assert len(request.prompt_fingerprint) == 1
    assert "three" not in repr(ledger.kept)


@pytest.mark.parametrize(("words", "is_beside"), [(5, False), (50_000, True)])
async def test_a_long_body_is_read_beside_the_event_loop(words: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch):
    """Parsing and hashing megabytes takes a while, in which answers go on; for a short one no thread is woken."""
    threads: list[threading.Thread] = []
    parse, fingerprint = openai.CHAT.parse, Prompt.fingerprint

    def noting_parse(body: bytes) -> Call:
        threads.append(threading.current_thread())
        return parse(body)

    def noting_fingerprint(prompt: Prompt) -> tuple[str, ...]:
        threads.append(threading.current_thread())
        return fingerprint(prompt)

    monkeypatch.setattr(openai, "CHAT", replace(openai.CHAT, parse=noting_parse))
    monkeypatch.setattr(Prompt, "fingerprint", noting_fingerprint)
    house, _, _ = fake_house()
    reply = await post(app_of(house), CHAT, a_chat(messages=[{"role": "user", "content": "a " * words}]))
    assert (reply.status, reply.json()["usage"]["prompt_tokens"]) == (200, words)
    assert [thread is not threading.current_thread() for thread in threads] == [is_beside] * 2


async def test_a_long_body_that_is_nonsense_is_refused_as_a_short_one():
    """With its parameter, and its receipt."""
    house, _, ledger = fake_house()
    reply = await post(app_of(house), CHAT, a_chat(n="many", messages=[{"role": "user", "content": "a " * 50_000}]))
    assert (reply.status, reply.json()["error"]["param"]) == (400, "n")
    assert ledger.receipt(reply.headers["x-taximeter-receipt"]).request.model == "fake"


async def test_the_stamp_is_taken_at_the_door():
    """Everything from the first look at the request on is on the receipt, the reading of the body too."""
    clock = FakeClock()
    house, _, ledger = fake_house(clock=clock)
    caller = Caller(app_of(house), CHAT, a_chat())
    receive = caller._receive

    async def slowly():
        clock.advance(ms=400)
        return await receive()

    caller._receive = slowly
    reply = await caller.call()
    timing = ledger.receipt(reply.headers["x-taximeter-receipt"]).timing
    assert timing.gateway_ns == 400_000_000
    assert timing.total_ns == 400_000_000


async def test_a_stream_ends_only_when_its_receipt_is_durable():
    """The finish chunk, the usage and [DONE] come after the ledger's word."""
    house, _, ledger = fake_house()
    ledger.stuck = True
    caller = Caller(app_of(house), CHAT, a_chat(stream=True, stream_options={"include_usage": True}))
    calling = asyncio.create_task(caller.call())
    await asyncio.to_thread(ledger.answer)  # that the request began
    await caller.until(b" world")
    await asyncio.to_thread(ledger.wait_until_asked)
    assert b'"finish_reason":"stop"' not in caller.reply.body
    assert b"[DONE]" not in caller.reply.body
    await asyncio.to_thread(ledger.answer)
    reply = await calling
    assert b'"finish_reason":"stop"' in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert reply.events()[-1]["usage"]["completion_tokens"] == 3


async def test_a_response_does_not_begin_before_the_first_token():
    """Until then an error can still have its own status."""
    house, backend, _ = fake_house(Script(hold_at=0))
    caller = Caller(app_of(house), CHAT, a_chat(stream=True))
    calling = asyncio.create_task(caller.call())
    await asyncio.to_thread(backend.held.acquire, timeout=WAIT_S)
    assert caller.reply.status == 0
    backend.release()
    assert (await calling).headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_is_noticed_while_nothing_is_written(stream: bool):
    """The answer is cancelled at once, and its receipt says aborted, with what it took."""
    house, backend, ledger = fake_house(Script(hold_at=1))
    caller = Caller(app_of(house), CHAT, a_chat(stream=stream))
    calling = asyncio.create_task(caller.call())
    await asyncio.to_thread(backend.held.acquire, timeout=WAIT_S)
    caller.gone.set()
    await calling
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_tokens == 1
    assert receipt.finish_reasons == ("cancelled",)
    assert not caller.reply.is_ended


async def test_a_client_that_hangs_up_before_its_request_is_whole_asked_for_nothing():
    """There is nobody to answer and nothing to write up."""
    house, _, ledger = fake_house()
    caller = Caller(app_of(house), CHAT, a_chat())
    caller.leave_before_the_body()
    assert (await caller.call()).status == 0
    assert ledger.kept == []


async def test_a_client_that_does_not_read_holds_up_nobody():
    """One client is stuck; another is served, and the stuck one's receipt is written without it."""
    house, _, ledger = fake_house()
    app = app_of(house)
    stuck = Caller(app, CHAT, a_chat(stream=True))
    stuck.may_write.clear()
    calling = asyncio.create_task(stuck.call())
    reply = await post(app, CHAT, a_chat(stream=True))
    assert reply.is_ended
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.COMPLETED] * 2
    stuck.may_write.set()
    assert (await calling).body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_that_breaks_mid_stream_ends_with_an_error_event():
    """In OpenAI's shape, without [DONE], and without a word of what broke."""
    house, _, ledger = fake_house(Script(fail_at=1))
    reply = await post(app_of(house), CHAT, a_chat(stream=True))
    assert reply.status == 200
    assert reply.is_ended
    assert reply.events()[-1]["error"]["code"] == "internal_error"
    assert b"[DONE]" not in reply.body
    assert b"secret" not in reply.body
    assert ledger.receipt(reply.headers["x-taximeter-receipt"]).outcome is Outcome.FAILED


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(refuse=PromptTooLong("too long", hint="shorten it")), 400, "context_length_exceeded"),
        (Script(refuse=CapacityError("the queue is full", retry_after_s=2.1)), 429, "queue_full"),
        (Script(refuse=InvariantBroken("secret")), 500, "internal_error"),
        (Script(refuse=ValueError("secret")), 500, "internal_error"),
        (Script(fail_at=0), 500, "internal_error"),
        (Script(fail_at=0, error=UpstreamError("secret", status=500, body="secret")), 502, "upstream_error"),
    ],
)
async def test_an_error_before_the_first_token_has_its_own_status(script: Script, status: int, code: str, stream: bool):
    """Streamed or not; each has a receipt, and none tells of the inside."""
    house, _, ledger = fake_house(script)
    reply = await post(app_of(house), CHAT, a_chat(stream=stream))
    error = reply.json()["error"]
    assert (reply.status, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert b"secret" not in reply.body
    receipt = ledger.receipt(reply.headers["x-taximeter-receipt"])
    assert receipt.outcome in (Outcome.REFUSED, Outcome.FAILED)
    assert reply.headers.get("retry-after") == ("3" if status == 429 else None)


async def test_a_tokenizer_that_panics_is_an_internal_error(monkeypatch: pytest.MonkeyPatch):
    """Rust's panics are no Exception in Python: the client is told all the same, and there is a receipt."""
    house, backend, ledger = fake_house()

    async def submit(*_: object) -> None:
        raise Panic("secret")

    monkeypatch.setattr(backend, "submit", submit)
    reply = await post(app_of(house), CHAT, a_chat())
    assert (reply.status, reply.json()["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body
    assert ledger.receipt(reply.headers["x-taximeter-receipt"]).outcome is Outcome.FAILED


class Panic(BaseException):
    """As pyo3's PanicException."""


async def test_an_unknown_model_is_not_found():
    """404 with OpenAI's own code, and a refused receipt."""
    house, _, ledger = fake_house()
    reply = await post(app_of(house), CHAT, a_chat(model="gpt-9"))
    assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert reply.json()["error"]["param"] == "model"
    assert ledger.receipt(reply.headers["x-taximeter-receipt"]).outcome is Outcome.REFUSED


async def test_a_model_without_a_chat_template_does_not_chat():
    """It is told so, and completes."""
    house, _, _ = fake_house()
    assert (await post(app_of(house), CHAT, a_chat(model="fake/base"))).status == 400
    assert (await post(app_of(house), COMPLETIONS, {"model": "fake/base", "prompt": "a b"})).status == 200


async def test_a_body_that_names_a_model_and_asks_for_nonsense_has_a_refused_receipt():
    """A refusal is on the books as soon as it is known what was asked for."""
    house, backend, ledger = fake_house()
    reply = await post(app_of(house), CHAT, a_chat(n="many"))
    assert (reply.status, reply.json()["error"]["param"]) == (400, "n")
    receipt = ledger.receipt(reply.headers["x-taximeter-receipt"])
    assert (receipt.outcome, receipt.request.model) == (Outcome.REFUSED, "fake")
    assert backend.submitted == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b'{"model": 3}', {}, 400),
        (b"[" * 300_000, {}, 400),
        (b"{}", {"content-type": "text/plain", "origin": "https://example.org"}, 415),
        (b"{}", {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "cross-site"}, 415),
        (b"{}", {"content-encoding": "gzip"}, 415),
        (b" " * (MAX_BODY_BYTES + 1), {}, 413),
        (b"{}", {"content-length": str(MAX_BODY_BYTES + 1)}, 413),
    ],
)
async def test_a_body_nobody_can_read_is_refused_without_a_receipt(
    path: str, body: bytes, headers: dict[str, str], status: int
):
    """It is not known what was asked for: an id for the log, an error in the usual shape, and nothing on the books."""
    house, _, ledger = fake_house()
    reply = await Caller(app_of(house), path, body, headers=headers).call()
    assert reply.status == status
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "x-taximeter-receipt" not in reply.headers
    assert reply.headers["x-request-id"]
    assert ledger.kept == []


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "text/plain", ""])
async def test_a_body_without_its_type_is_read_unless_a_browser_sends_it(media_type: str):
    """`curl -d` says form when it is told nothing else; a page that says so spends nobody's machine."""
    house, backend, _ = fake_house()
    reply = await Caller(app_of(house), CHAT, a_chat(), headers={"content-type": media_type}).call()
    assert reply.status == 200
    from_a_page = {"content-type": media_type, "origin": "https://example.org"}
    assert (await Caller(app_of(house), CHAT, a_chat(), headers=from_a_page).call()).status == 415
    assert len(backend.submitted) == 1


@pytest.mark.parametrize("value", ["x" * 201, "a\tb", "\ud800"])
async def test_a_group_that_no_report_could_show_is_refused(value: str):
    """Long, unprintable or broken names would be on every page later."""
    house, _, _ = fake_house()
    caller = Caller(app_of(house), CHAT, a_chat())
    caller._scope["headers"].append((b"x-taximeter-task", value.encode("utf-8", "surrogatepass")))
    reply = await caller.call()
    assert (reply.status, reply.json()["error"]["param"]) == (400, "x-taximeter-task")


async def test_shutting_down_tells_streams_and_waiting_clients():
    """503 where nothing was sent yet, an error event where something was; receipts for both."""
    house, backend, ledger = fake_house(Script(hold_at=1))
    app = app_of(house)
    streaming, waiting = Caller(app, CHAT, a_chat(stream=True)), Caller(app, CHAT, a_chat())
    calls = [asyncio.create_task(caller.call()) for caller in (streaming, waiting)]
    for _ in calls:
        await asyncio.to_thread(backend.held.acquire, timeout=WAIT_S)
    await streaming.until(b"Hello")
    await house.relay.aclose()
    streamed, waited = await asyncio.gather(*calls)
    assert streamed.events()[-1]["error"]["code"] == "shutting_down"
    assert (waited.status, waited.json()["error"]["code"]) == (503, "shutting_down")
    assert waited.headers["retry-after"]
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.ABORTED] * 2


async def test_a_server_that_cuts_a_stuck_client_off_leaves_no_answer_running(caplog: pytest.LogCaptureFixture):
    """The handler is cancelled while it writes: the exchange goes on to its receipt, and no traceback is logged."""
    house, backend, ledger = fake_house(Script(hold_at=1))
    caller = Caller(app_of(house), CHAT, a_chat(stream=True))
    calling = asyncio.create_task(caller.call())
    await asyncio.to_thread(backend.held.acquire, timeout=WAIT_S)
    await caller.until(b"Hello")
    with caplog.at_level(logging.WARNING):
        calling.cancel()
        await calling
    receipt = await asyncio.to_thread(ledger.wait_for, caller.reply.headers["x-taximeter-receipt"])
    assert receipt.outcome is Outcome.ABORTED
    assert not any(record.exc_info for record in caplog.records)


async def test_a_bug_in_the_gateway_is_an_internal_error_and_still_a_receipt(monkeypatch: pytest.MonkeyPatch):
    """The last net: whatever raises, the client gets JSON and the answer does not go on unread."""
    house, _, ledger = fake_house()
    monkeypatch.setattr("taximeter.providers.openai.answer._encode", lambda _: 1 / 0)
    monkeypatch.setattr(openai, "CHAT", replace(openai.CHAT, error_body=lambda _: b'{"error": {}}'))
    reply = await post(app_of(house), CHAT, a_chat())
    assert reply.status == 500
    assert json.loads(reply.body) == {"error": {}}
    assert len(ledger.kept) == 1
