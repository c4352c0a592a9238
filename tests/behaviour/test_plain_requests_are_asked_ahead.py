"""A plain request goes on to its upstream before its books are opened, once a connection is kept. Nobody can tell,
but by the clock: the same bytes, the same receipt, the same promises."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from taximeter.gateway import ahead
from taximeter.records import Outcome, Receipt
from taximeter.serve import House
from taximeter.upstreams.config import Family
from taximeter.upstreams.secrets import Secret
from tests.fakes import WAIT_S, MemoryLedger
from tests.gateway_harness import listening
from tests.passing import CHAT_STREAM, CHAT_USAGE, asking, encoded
from tests.upstream_harness import (
    LAST_CHUNK,
    Asked,
    Do,
    ScriptedUpstream,
    Steps,
    an_upstream,
    chunked,
    head,
    passing_house,
    streamed,
    whole,
)

CHAT = "/v1/chat/completions"
ANSWER = encoded(
    {
        "object": "chat.completion",
        "model": "gpt",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": CHAT_USAGE,
    }
)
NEVER_S = 3600.0
EPOCH = datetime.fromtimestamp(0, UTC)


def request(body: bytes = encoded(asking()), path: str = CHAT, **headers: str) -> bytes:
    """One, as bytes."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


@dataclass
class Said:
    """One answer with a length."""

    status: int
    headers: dict[str, str]
    body: bytes


class Line:
    """A client's connection, byte by byte."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self.read = b""

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, text: bytes) -> None:
        """Read until `text` is there."""
        while text not in self.read:
            data = self.socket.recv(65536)
            assert data, f"it ended after {self.read!r}"
            self.read += data

    def rest(self) -> bytes:
        """Everything until the end."""
        while data := self.socket.recv(65536):
            self.read += data
        return self.read

    def answer(self) -> Said:
        self.until(b"\r\n\r\n")
        top, _, self.read = self.read.partition(b"\r\n\r\n")
        first, *lines = top.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        while len(self.read) < length:
            self.read += self.socket.recv(65536) or pytest.fail("it ended")
        body, self.read = self.read[:length], self.read[length:]
        return Said(int(first.split()[1]), headers, body)


@contextmanager
def line_to(
    *answers: Steps | Callable[[Asked], Steps],
    change: Callable[[House], House] = lambda house: house,
    first: bytes = request(),
    **upstream: object,
) -> Generator[tuple[Line, ScriptedUpstream, MemoryLedger, House]]:
    """A client that has had one answer, so that a connection is kept; and then what the upstream says to the next."""
    with ScriptedUpstream(whole(ANSWER), *answers).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, **upstream))
        house = change(house)
        with listening(house) as url:
            line = Line(url)
            with closing(line.socket):
                line.say(first)
                assert line.answer().body == ANSWER
                yield line, up, ledger, house


@pytest.fixture
def no_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Books are opened by the answer alone."""
    monkeypatch.setattr(ahead, "_BOOKS_AFTER_S", NEVER_S)


@pytest.mark.usefixtures("no_books")
def test_the_upstream_is_asked_before_the_books_are_opened() -> None:
    """When it is asked the relay has nothing in flight, and the ledger expects the request all the same: a process that
    is killed now is not silent on it."""
    seen: list[tuple[int, int]] = []

    def asked_now(_: Asked) -> Steps:
        seen.append((house.relay.in_flight, len(ledger.expected)))
        return whole(ANSWER)

    with line_to(asked_now) as (line, up, ledger, house):
        line.say(request())
        assert line.answer().body == ANSWER
        assert up.connections == 1
    assert seen == [(0, 2)]
    assert ledger.expected == [receipt.request.id for receipt in ledger.kept]


def test_nobody_can_tell() -> None:
    """What the upstream is asked, what the client is told, and what the receipts say: as on the ordinary way."""
    more = {"x_taximeter_task": "t", "authorization": "Bearer sk-mine", "x_odd": "é"}
    with line_to(whole(ANSWER, x_request_id="theirs", keep_alive="timeout=5"), first=request(**more)) as world:
        line, up, ledger, _ = world
        line.say(request(**more))
        said = line.answer()
    first, second = ledger.kept
    assert up.books[0].headers == up.books[1].headers
    assert up.books[0].body == up.books[1].body
    assert (said.status, said.body, said.headers["content-length"]) == (200, ANSWER, str(len(ANSWER)))
    assert said.headers["x-request-id"] == "theirs"
    assert said.headers["x-taximeter-request"] == second.request.id
    assert said.headers["x-taximeter-receipt"] == second.id
    assert "keep-alive" not in said.headers
    assert "date" in said.headers
    assert _lasting(first) == _lasting(second)
    for receipt in (first, second):
        [attempt] = receipt.tries
        assert attempt.status == 200
        assert receipt.timing.gateway_ns + receipt.timing.upstream_ns == receipt.timing.total_ns
        assert attempt.duration_ns <= receipt.timing.upstream_ns


def _lasting(receipt: Receipt) -> object:
    """What does not change from one request to the next that is the same."""
    request = replace(receipt.request, id="", received_at=EPOCH, received_ns=0)
    return request, receipt.outcome, receipt.usage, receipt.finish_reasons, receipt.served_by, receipt.cost


@pytest.mark.usefixtures("no_books")
def test_all_but_the_last_byte_is_shown_before_the_books_are_opened() -> None:
    """And the last one when the receipt is durable, not before."""
    with line_to(whole(ANSWER)) as (line, _, ledger, _):
        ledger.stuck_receipts = True
        line.say(request())
        line.until(ANSWER[:-1])
        ledger.wait_until_asked()
        assert not line.read.endswith(ANSWER)
        assert len(ledger.kept) == 1
        ledger.answer()
        assert line.answer().body == ANSWER
    assert len(ledger.kept) == 2


@pytest.mark.parametrize("books_after_s", [0.0, NEVER_S], ids=["books first", "answer first"])
@pytest.mark.parametrize(
    "answer",
    [
        whole(ANSWER),
        [head(content_length=str(len(ANSWER))), ANSWER],
        [head(content_length=str(len(ANSWER))), Do.HOLD, ANSWER[:50], Do.HOLD, ANSWER[50:]],
        [
            head(transfer_encoding="chunked"),
            chunked(ANSWER[:9]),
            Do.HOLD,
            chunked(ANSWER[9:]) + LAST_CHUNK,
        ],
        [head(), ANSWER, Do.CLOSE],
    ],
    ids=["at once", "in two", "in pieces", "in chunks", "until it closes"],
)
def test_however_it_comes_it_is_the_same(answer: Steps, books_after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever is sooner."""
    monkeypatch.setattr(ahead, "_BOOKS_AFTER_S", books_after_s)
    with line_to(answer, whole(ANSWER)) as (line, up, ledger, _):
        for steps in (answer, whole(ANSWER)):
            line.say(request())
            for _ in range(steps.count(Do.HOLD)):
                assert up.held.acquire(timeout=WAIT_S)
                up.release()
            said = line.answer()
            assert (said.status, said.body) == (200, ANSWER)
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.COMPLETED] * 3
    assert {receipt.usage.output_tokens for receipt in ledger.kept if receipt.usage} == {5}


@pytest.mark.parametrize("status", [204, 304, 400, 401, 500])
def test_what_is_no_plain_answer_goes_its_ordinary_way(status: int) -> None:
    """Statuses cross, with what belongs to them."""
    body = b"" if status in (204, 304) else b'{"error": {"message": "no"}}'
    steps = whole(body, status) if body else [f"HTTP/1.1 {status} Said\r\nx-odd: 1\r\n\r\n".encode()]
    with line_to(steps) as (line, _, ledger, _):
        line.say(request())
        line.until(b"\r\n\r\n" + body)
        assert line.read.startswith(b"HTTP/1.1 %d " % status)
        assert b"x-taximeter-receipt: " + ledger.wait_for(ledger.kept[-1].id).id.encode() in line.read or not body
    assert len(ledger.kept) == 2


def test_a_stream_goes_its_ordinary_way() -> None:
    """Its head waits for the note of its request."""
    with line_to(streamed(*CHAT_STREAM)) as (line, _, ledger, _):
        ledger.stuck = True
        line.say(request(encoded(asking(stream=True, usage=True))))
        ledger.wait_until_asked()
        assert line.read == b""
        ledger.answer()  # the note
        line.until(b"world")
        assert b"[DONE]" not in line.read
        ledger.answer()  # the receipt
        line.until(b"[DONE]")
    assert ledger.kept[-1].usage.output_tokens == 5


def test_another_try_comes_after_the_first_that_was_asked_ahead() -> None:
    """Both are on the receipt."""
    with line_to(whole(b"{}", 503), whole(ANSWER), retries=1) as (line, up, ledger, _):
        line.say(request())
        assert line.answer().body == ANSWER
        assert len(up.books) == 3
    assert [attempt.status for attempt in ledger.kept[-1].tries] == [503, 200]


def test_a_connection_that_was_closed_meanwhile_costs_no_try() -> None:
    """The upstream closes idle ones when it likes."""
    with line_to([Do.CLOSE], whole(ANSWER)) as (line, up, ledger, _):
        line.say(request())
        assert line.answer().body == ANSWER
        assert up.connections == 2
    assert ledger.kept[-1].outcome is Outcome.COMPLETED


@pytest.mark.parametrize("steps", [[head(content_length="99") + b"{", Do.CLOSE], [b"nonsense\r\n\r\n"]])
def test_an_answer_that_breaks_off_shows_nothing_of_itself(steps: Steps) -> None:
    """It has a status of its own."""
    with line_to(steps) as (line, _, ledger, _):
        line.say(request())
        said = line.answer()
        assert said.status == 502
        assert json.loads(said.body)["error"]["code"] in ("upstream_error", "upstream_unreachable")
    assert ledger.kept[-1].outcome is Outcome.FAILED


def test_an_upstream_that_does_not_begin_is_late() -> None:
    """Its time runs from when it was asked."""
    with line_to([Do.SILENCE], first_byte_timeout_s=0.5) as (line, up, ledger, _):
        line.say(request())
        assert line.answer().status == 502
        assert up.left.acquire(timeout=WAIT_S)
    [attempt] = ledger.kept[-1].tries
    assert attempt.error is not None
    assert "did not begin to answer" in attempt.error


@pytest.mark.parametrize("books_after_s", [0.0, NEVER_S], ids=["books first", "answer first"])
def test_a_client_that_leaves_before_the_answer(books_after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an aborted receipt, and its upstream is let go of, once the books are open."""
    monkeypatch.setattr(ahead, "_BOOKS_AFTER_S", books_after_s)
    with line_to([Do.HOLD, *whole(ANSWER)]) as (line, up, ledger, _):
        line.say(request())
        assert up.held.acquire(timeout=WAIT_S)
        line.socket.close()
        if books_after_s:
            up.release()
        else:
            assert up.left.acquire(timeout=WAIT_S)
        with ledger._changed:
            assert ledger._changed.wait_for(lambda: len(ledger.kept) == 2, WAIT_S)
    assert ledger.kept[-1].outcome in (Outcome.ABORTED, Outcome.COMPLETED if books_after_s else Outcome.ABORTED)
    assert ledger.kept[-1].request.id == ledger.expected[-1]


@pytest.mark.usefixtures("no_books")
def test_a_client_that_leaves_when_it_has_begun_leaves_too_late() -> None:
    """It was served: completed."""
    with line_to(whole(ANSWER)) as (line, _, ledger, _):
        ledger.stuck_receipts = True
        line.say(request())
        line.until(ANSWER[:-1])
        line.socket.close()
        ledger.answer()
    assert ledger.kept[-1].outcome is Outcome.COMPLETED


@pytest.mark.usefixtures("no_books")
def test_the_server_can_go_away_meanwhile() -> None:
    """Who was asked ahead and has not been answered has a receipt, too."""
    with line_to([Do.HOLD, *whole(ANSWER)]) as (line, up, ledger, house):
        line.say(request())
        assert up.held.acquire(timeout=WAIT_S)
        house.relay._closed = True
        up.release()
        line.until(b"\r\n\r\n")
    assert len(ledger.kept) == 2
    assert ledger.expected == [receipt.request.id for receipt in ledger.kept]


def test_pipelined_requests_are_answered_in_order() -> None:
    """Two in one piece; only the first can be asked ahead."""
    other = encoded({**json.loads(ANSWER), "model": "other"})
    with line_to(whole(ANSWER), whole(other)) as (line, up, ledger, _):
        line.say(request() + request(encoded(asking(model="other"))))
        assert line.answer().body == ANSWER
        assert line.answer().body == other
        assert [asked.json()["model"] for asked in up.books] == ["gpt", "gpt", "other"]
    assert len(ledger.kept) == 3


@pytest.mark.parametrize("cut", [1, 40, -1, -30])
def test_a_request_in_pieces(cut: int) -> None:
    """Waits for its rest, and for nothing else."""
    with line_to(whole(ANSWER)) as (line, up, _, _):
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = request()
        line.say(data[:cut])
        other = Line(f"http://127.0.0.1:{line.socket.getpeername()[1]}")
        with closing(other.socket):
            other.say(request())
            assert other.answer().body == ANSWER
        line.say(data[cut:])
        assert line.answer().body == ANSWER
        assert up.books[-1].body == up.books[0].body


def test_who_expects_to_be_told_to_go_on_is_told() -> None:
    """`100-continue`, even where the body came along."""
    with line_to(whole(ANSWER)) as (line, _, _, _):
        line.say(request(expect="100-continue"))
        line.until(b"\r\n\r\n")
        assert line.read.startswith(b"HTTP/1.1 100 ")
        line.read = line.read.partition(b"\r\n\r\n")[2]
        assert line.answer().body == ANSWER


def test_a_client_that_keeps_no_connection() -> None:
    """Is told so, and it is closed."""
    with line_to(whole(ANSWER)) as (line, _, _, _):
        line.say(request(connection="close"))
        told = line.rest()
        assert told.endswith(ANSWER)
        assert told.lower().count(b"connection: close") == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(b"{"), 400),
        (request(b'{"model": ""}'), 400),
        (request(x_taximeter_task="x" * 300), 400),
        (request(content_encoding="gzip"), 415),
        (request(host="evil.example"), 403),
        (request(path="/v1/chat/completionz"), 404),
        (
            request()
            .replace(b"application/json", b"text/plain")
            .replace(b"content-length", b"origin: x\r\ncontent-length"),
            415,
        ),
    ],
    ids=["no JSON", "no model", "a long name", "packed", "another host", "no such path", "from a page"],
)
def test_what_is_refused_is_refused(data: bytes, status: int) -> None:
    """By its ordinary way: nobody is asked."""
    with line_to(whole(ANSWER)) as (line, up, _, _):
        line.say(data)
        assert line.answer().status == status
        line.say(request())
        assert line.answer().body == ANSWER
        assert len(up.books) == 2


def test_a_gateway_with_a_key_sends_none_of_its_callers() -> None:
    """Whoever shows none is not asked ahead either."""
    key = Secret("sk-gateway", "env:GATEWAY")
    with line_to(
        whole(ANSWER),
        change=lambda house: replace(house, key=key),
        first=request(authorization="Bearer sk-gateway"),
        key=Secret("sk-theirs", "env:THEIRS"),
    ) as (line, up, ledger, _):
        line.say(request())
        assert line.answer().status == 401
        line.say(request(authorization="Bearer sk-wrong"))
        assert line.answer().status == 401
        line.say(request(authorization="Bearer sk-gateway"))
        assert line.answer().body == ANSWER
        assert [asked.headers["authorization"] for asked in up.books] == ["Bearer sk-theirs"] * 2
    assert len(ledger.kept) == 2


def test_a_group_in_the_path_is_read() -> None:
    """And is not sent on."""
    with line_to(whole(ANSWER)) as (line, up, ledger, _):
        line.say(request(path="/task/nightly" + CHAT))
        assert line.answer().body == ANSWER
        assert up.books[-1].path == CHAT
    assert ledger.kept[-1].request.task == "nightly"


def test_anthropics_dialect_goes_ahead_too() -> None:
    """With its own words on the receipt."""
    message = encoded(
        {
            "type": "message",
            "model": "claude",
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 9, "output_tokens": 3},
        }
    )
    asks = request(encoded({"model": "claude", "max_tokens": 9, "messages": []}), "/v1/messages", x_api_key="sk-mine")
    with ScriptedUpstream(whole(message)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        with listening(house) as url:
            line = Line(url)
            with closing(line.socket):
                for _ in range(2):
                    line.say(asks)
                    assert line.answer().body == message
    assert [receipt.usage.output_tokens for receipt in ledger.kept if receipt.usage] == [3, 3]
