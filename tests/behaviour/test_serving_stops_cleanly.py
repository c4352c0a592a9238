"""A server that is told to stop finishes what it can, writes every receipt, and leaves with success."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from taximeter import serve
from taximeter.errors import ConfigError
from taximeter.records import Outcome
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import CHAT, a_chat, fake_house, listening

ROOT = Path(__file__).parents[2]


def test_it_is_ready_when_it_says_so_and_has_closed_everything_at_the_end():
    """The URL answers at once, port 0 became a real one, and neither ledger, backend nor thread is left open."""
    threads = set(threading.enumerate())
    house, backend, ledger = fake_house()
    with listening(house) as url:
        assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
        assert not ledger.closed
    assert backend.closed
    assert ledger.closed
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        ("127.0.0.1", "evil.example", 403),
        ("127.0.0.1", "localhost:1", 200),
        ("localhost", "evil.example", 403),
        ("127.0.0.9", "127.0.0.9", 200),
        ("127.0.0.9", "evil.example", 403),
        ("0.0.0.0", "box.example", 200),
    ],
)
def test_only_a_server_for_others_answers_to_any_name(host: str, name: str, status: int):
    """One on loopback has visitors from its own machine, whose browser may have been told lies about names."""
    house, _, _ = fake_house()
    object.__setattr__(house.settings, "host", host)
    object.__setattr__(house.settings, "allow_anyone", True)
    with listening(house) as url:
        assert httpx.get(f"{url}/healthz", headers={"host": name}).status_code == status


def test_a_port_that_is_taken_is_the_operators_to_change():
    """ConfigError with a hint; the house is closed all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        house, _, ledger = fake_house()
        object.__setattr__(house.settings, "port", taken.getsockname()[1])
        with pytest.raises(ConfigError) as caught:
            serve.run(house, lambda _: None)
    assert "port" in str(caught.value.hint)
    assert ledger.closed


def test_what_the_greeting_raises_stops_the_server():
    """It is the caller's own error, raised where the server was started."""
    house, _, ledger = fake_house()

    def on_ready(url: str) -> None:
        assert httpx.get(f"{url}/healthz").status_code == 200
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        serve.run(house, on_ready)
    assert ledger.closed


def test_an_answer_in_flight_may_finish():
    """It was told to stop while an answer was held; the answer is whole, and its receipt says completed."""
    house, backend, ledger = fake_house(Script(hold_at=1))
    got: list[httpx.Response] = []
    with listening(house) as url:
        client = threading.Thread(target=lambda: got.append(httpx.post(url + CHAT, json=a_chat(), timeout=WAIT_S)))
        client.start()
        assert backend.held.acquire(timeout=WAIT_S)
        idle = socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=WAIT_S)
        releasing = threading.Thread(target=lambda: (wait_until_hung_up(idle), backend.release()))
        releasing.start()
    client.join(WAIT_S)
    releasing.join()
    assert got[0].json()["choices"][0]["message"]["content"] == "Hello, world"
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.COMPLETED]


def wait_until_hung_up(idle: socket.socket) -> None:
    """A server that stops first hangs up on connections that ask for nothing."""
    with idle, contextlib.suppress(ConnectionResetError):
        assert idle.recv(1) == b""


def test_an_answer_that_outlasts_the_grace_is_cancelled_with_a_receipt(monkeypatch: pytest.MonkeyPatch):
    """Its client is told, and the ledger is closed after its receipt, not before."""
    monkeypatch.setattr(serve, "_GRACE_S", 0.1)
    house, backend, ledger = fake_house(Script(hold_at=1))
    got: list[httpx.Response] = []
    with listening(house) as url:
        client = threading.Thread(target=lambda: got.append(httpx.post(url + CHAT, json=a_chat(), timeout=WAIT_S)))
        client.start()
        assert backend.held.acquire(timeout=WAIT_S)
    client.join(WAIT_S)
    assert (got[0].status_code, got[0].json()["error"]["code"]) == (503, "shutting_down")
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.ABORTED]
    assert ledger.closed


def test_a_client_that_is_stuck_cannot_keep_the_server(monkeypatch: pytest.MonkeyPatch):
    """It reads nothing of an answer too long for any buffer; the server goes all the same, with its receipt."""
    monkeypatch.setattr(serve, "_GRACE_S", 0.1)
    monkeypatch.setattr(serve, "_CUT_OFF_S", 1.0)
    house, _, ledger = fake_house(Script(tokens=("x" * 100_000,) * 200))
    with httpx.Client(timeout=WAIT_S) as client:
        with listening(house) as url:
            request = client.build_request("POST", url + CHAT, json=a_chat(stream=True))
            unread = client.send(request, stream=True)
        unread.close()
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.COMPLETED]


async def test_closing_a_house_twice_is_closing_it_once():
    """Idempotent, as everything that is called at the end must be."""
    house, _, ledger = fake_house()
    await house.aclose()
    await asyncio.gather(house.aclose(), house.aclose())
    assert ledger.closed


PROGRAM = """
import logging, sys
from taximeter import serve
from tests.fakes import Script
from tests.gateway_harness import fake_house

logging.basicConfig(level=logging.WARNING)
serve._GRACE_S = float(sys.argv[1])
house, _, ledger = fake_house(Script(hold_at=1))
serve.run(house, lambda url: print(url, flush=True))
print([receipt.outcome.value for receipt in ledger.kept], ledger.closed, flush=True)
"""


@contextlib.contextmanager
def a_server_with_an_answer_in_flight(grace_s: float) -> Generator[subprocess.Popen[str]]:
    """A process of its own, whose main thread has signals, while one answer is being streamed and held."""
    command = [sys.executable, "-c", PROGRAM, str(grace_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            with httpx.stream("POST", url + CHAT, json=a_chat(stream=True), timeout=WAIT_S) as response:
                lines = response.iter_lines()
                assert "Hello" in next(line for line in lines if "Hello" in line)
                yield server
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_success_and_every_receipt(number: signal.Signals):
    """Exit 0, nothing on stderr, the answer in flight written up, the ledger closed."""
    with a_server_with_an_answer_in_flight(grace_s=0.2) as server:
        server.send_signal(number)
        out, err = server.communicate(timeout=WAIT_S)
    assert (server.returncode, out.strip()) == (0, "['aborted'] True"), err
    assert err == ""


def test_a_second_signal_ends_it_at_once():
    """Who presses Ctrl-C twice means it."""
    with a_server_with_an_answer_in_flight(grace_s=3600) as server:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=WAIT_S)
    assert server.returncode == 128 + signal.SIGTERM
    assert out == ""
    assert "Traceback" not in err
