"""Models from a hub: a stand-in on this machine answers as the real one does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_FILE = b"GGUF, or what a hub sends"
_COMMIT = "0" * 39 + "1"


class _Hub(BaseHTTPRequestHandler):
    """One repository with one file; a gated one; and no other."""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.startswith("/owner/repo/resolve/main/model.gguf"):
            etag = hashlib.sha1(_FILE, usedforsecurity=False).hexdigest()
            self._send(200, {"X-Repo-Commit": _COMMIT, "ETag": f'"{etag}"'}, _FILE if with_body else b"")
        elif self.path.startswith("/owner/repo/"):
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": _COMMIT})
        elif self.path.startswith("/owner/gated/"):
            self._send(403, {"X-Error-Code": "GatedRepo"})
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body or _FILE) if status == 200 else 0))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - theirs
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The stand-in's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def path_of(reference: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`taximeter models path REFERENCE --json`, in a process of its own: the hub's library reads its environment when
    it is imported."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TAXIMETER_"))}
    environ |= {
        "HF_HOME": str(cache),
        "TAXIMETER_HOME": str(cache),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_ETAG_TIMEOUT": "5",
    }
    return subprocess.run(
        [sys.executable, "-m", "taximeter", "models", "path", reference, "--json"],
        env=environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_file_is_fetched_once_into_the_hubs_own_cache(endpoint: str, tmp_path: Path) -> None:
    """The second time it is found without the hub."""
    first = path_of("hf:owner/repo/model.gguf", tmp_path, HF_ENDPOINT=endpoint)
    assert first.returncode == 0, first.stderr
    path = Path(json.loads(first.stdout)["path"])
    assert path.read_bytes() == _FILE
    assert path.is_relative_to(tmp_path)
    second = path_of("hf:owner/repo/model.gguf", tmp_path, HF_HUB_OFFLINE="1")
    assert json.loads(second.stdout) == {"path": str(path)}


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("hf:owner/repo/other.gguf", "owner/repo has no file other.gguf"),
        ("hf:owner/gated/model.gguf", "owner/gated asks its users to accept terms first"),
        ("hf:owner/nothing/model.gguf", "the hub has no repository owner/nothing"),
    ],
)
def test_what_a_hub_refuses_is_told_in_our_words(endpoint: str, tmp_path: Path, reference: str, told: str) -> None:
    """One line with what to do, and exit code 1: the call was right."""
    answer = path_of(reference, tmp_path, HF_ENDPOINT=endpoint)
    assert answer.returncode == 1
    error = json.loads(answer.stderr.splitlines()[-1])["error"]
    assert error["type"] == "DownloadError"
    assert told in error["message"]


def test_without_a_hub_the_error_says_so(tmp_path: Path) -> None:
    """Offline, and not in the cache."""
    answer = path_of("hf:owner/repo", tmp_path, HF_HUB_OFFLINE="1")
    assert answer.returncode == 1
    error = json.loads(answer.stderr.splitlines()[-1])["error"]
    assert "the hub cannot be reached" in error["message"]
    assert "models pull" in error["hint"]
