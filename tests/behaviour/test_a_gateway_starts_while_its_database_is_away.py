"""Postgres is down when the gateway starts: it answers all the same, its health says what is wrong, and when Postgres
comes every receipt is there."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from taximeter.ledger import Ledger
from taximeter.records import Outcome
from taximeter.settings import Settings
from tests import postgres_server
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT
from tests.passing import CHAT_USAGE, asking
from tests.upstream_harness import ScriptedUpstream, whole
from tests.wire import chat


@pytest.mark.skipif(postgres_server.binaries() is None, reason=postgres_server.WHY_NOT)
def test_a_gateway_starts_while_its_database_is_away(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See the module; the first ten are answered before the database was ever seen."""
    with postgres_server.server() as postgres, ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        monkeypatch.setenv("TAXIMETER_LEDGER", postgres.new_database())
        (taximeter_home / "taximeter.toml").write_text(
            f'[upstreams.up]\nurl = "{up.url}"\nspeaks = "openai"\n[[routes]]\nmodel = "*"\nupstreams = ["up"]\n'
        )
        with ExitStack() as undo:
            with postgres.stopped():
                url, lines = undo.enter_context(gateway())
                for _ in range(10):
                    assert httpx.post(url + CHAT, json=asking(), timeout=WAIT_S).status_code == 200
                health = httpx.get(url + "/healthz").json()
                assert health["status"] == "degraded"
                counts = {"accepted": 10, "written": 0, "spooled": 10, "lost": 0, "lost_before": None}
                assert health["receipts"] == counts
                assert "\ntaximeter_ledger_lost_before_receipts " not in httpx.get(url + "/metrics").text
                assert httpx.get(url + "/api/receipts", timeout=WAIT_S).status_code == 503
            until_well(url)
            assert httpx.post(url + CHAT, json=asking(), timeout=WAIT_S).status_code == 200
            receipts = httpx.get(url + "/healthz").json()["receipts"]
            assert receipts == {"accepted": 11, "written": 11, "spooled": 0, "lost": 0, "lost_before": 0}
            assert "\ntaximeter_ledger_lost_before_receipts 0.0\n" in httpx.get(url + "/metrics").text
            assert len(httpx.get(url + "/api/receipts", timeout=WAIT_S).json()["receipts"]) == 11
        settings = Settings.load()
        with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
            assert [receipt.outcome for receipt in ledger.receipts()] == [Outcome.COMPLETED] * 11
    said = "".join(lines)
    assert "a-secret" not in said, "the database's password is nobody's business"
    assert "the database takes receipts again" in said


@contextmanager
def gateway() -> Generator[tuple[str, list[str]]]:
    """A process of its own: where it listens, and what it says."""
    command = [sys.executable, "-m", "taximeter", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        reading: threading.Thread | None = None
        try:
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"http://127\.0\.0\.1:[0-9]+", line):
                    reading = threading.Thread(target=lines.extend, args=(process.stdout,))
                    reading.start()
                    yield found[0], lines
                    break
            else:
                raise AssertionError(lines)
        finally:
            process.terminate()
            if reading is not None:
                reading.join(WAIT_S)


def until_well(url: str) -> None:
    """Wait until the ledger has what was spooled; the drainer looks every few seconds."""
    deadline = time.monotonic() + WAIT_S
    while httpx.get(url + "/healthz").json()["status"] != "ok":
        assert time.monotonic() < deadline, httpx.get(url + "/healthz").text
        time.sleep(0.1)
