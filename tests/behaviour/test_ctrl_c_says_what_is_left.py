"""Whoever ends a measurement before anything counts is told: nothing was measured, and what was sent has receipts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from taximeter.ledger import Ledger
from taximeter.settings import Settings


class _Server(ThreadingHTTPServer):
    """Says which model it has, and answers nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_asked = threading.Event()
        self.over = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 1024}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.is_asked.set()
        self.server.over.wait()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    running = _Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield running
    running.over.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.mark.parametrize(
    ("command", "how"),
    [("load", signal.SIGINT), ("sweep", signal.SIGINT), ("sweep", signal.SIGTERM), ("compare", signal.SIGINT)],
)
def test_ctrl_c_before_anything_counts(
    command: str, how: signal.Signals, server: _Server, taximeter_home: Path, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{server.server_address[1]}"
    files = [f"--{kind}={tmp_path / kind}" for kind in ("out", "html", "csv")]
    servers = [address] * (2 if command == "compare" else 1)
    running = subprocess.Popen(
        [sys.executable, "-m", "taximeter", command, *servers, *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.is_asked.wait(120)
    running.send_signal(how)
    said, told = running.communicate(timeout=120)
    assert running.returncode == 130
    assert said == ""
    assert "interrupted before anything was measured" in told
    with Ledger.open(Settings.load().ledger_url) as ledger:
        kept = ledger.receipts(limit=10)
    assert f"receipts of {len(kept)} requests" in told
    assert len(kept) == 1
    assert f"taximeter receipts --run {kept[0].request.run}" in told
    assert {path.name for path in tmp_path.iterdir()} <= {taximeter_home.name}
