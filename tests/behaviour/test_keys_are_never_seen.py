"""The upstream's key, the client's and the gateway's own: everything that a real process wrote is searched for them,
after successes, refusals, failures, a crash and a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, MESSAGES
from tests.passing import CHAT_STREAM, CHAT_TEXT, CHAT_USAGE, asking, asking_messages
from tests.upstream_harness import Asked, Do, ScriptedUpstream, Steps, streamed, whole
from tests.wire import chat, sse

UPSTREAM_KEY = "sk-upstream-4f1d9a77c2"
GATEWAY_KEY = "gateway-key-86b0e3d51a"
CLIENT_KEY = "sk-client-0c6e2f9b48"
PROMPT = "the secret of the prompt 7d3a"
KEYS = (UPSTREAM_KEY, GATEWAY_KEY, CLIENT_KEY, PROMPT)


def repeating(asked: Asked) -> Steps:
    """What a server says that repeats all it was shown."""
    shown = json.dumps(asked.headers)
    return whole({"error": {"message": f"No: {shown}", "type": "t"}}, status=401)


def telling(asked: Asked) -> Steps:
    """The same within a stream."""
    shown = asked.headers.get("authorization")
    return streamed(*CHAT_TEXT[:2], sse({"error": {"message": f"No: {shown}", "type": "t"}}))


def test_keys_are_never_seen(taximeter_home: Path) -> None:
    """Log, standard output, ledger and every other file, headers and bodies of answers."""
    answers: list[Steps | Callable[[Asked], Steps]] = [
        whole(chat(CHAT_USAGE)),
        streamed(*CHAT_STREAM),
        repeating,
        telling,
        [Do.CLOSE],
        [b"HTTP/1.1 200 OK\r\nx: \x01\r\n\r\n", Do.CLOSE],
        streamed(*CHAT_TEXT[:2], Do.RESET, ends=False),
        streamed(*CHAT_TEXT[:2], Do.SILENCE),
    ]

    def chosen(asked: Asked) -> Steps:
        answer = answers[int(asked.headers.get("x-answer", "2"))]
        return answer(asked) if callable(answer) else answer

    with ScriptedUpstream(chosen).listening() as up:
        (taximeter_home / "taximeter.toml").write_text(
            f'[upstreams.up]\nurl = "{up.url}"\nspeaks = "openai"\nkey = "env:UPSTREAM_KEY"\nretries = 0\n'
            f'[upstreams.theirs]\nurl = "{up.url}"\nspeaks = "openai"\nretries = 0\n'
            '[[routes]]\nmodel = "*"\nupstreams = ["up"]\n[[routes]]\nmodel = "theirs"\nupstreams = ["theirs"]\n'
        )
        environ = os.environ | {"UPSTREAM_KEY": UPSTREAM_KEY, "GATEWAY_KEY": GATEWAY_KEY, "PYTHONASYNCIODEBUG": "1"}
        command = [
            sys.executable,
            "-X",
            "dev",
            "-m",
            "taximeter",
            "serve",
            "--port",
            "0",
            "--api-key",
            "env:GATEWAY_KEY",
        ]
        seen: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        ) as process:
            try:
                url = first_url(process, seen)
                keys = {"authorization": f"Bearer {GATEWAY_KEY}", "x-api-key": CLIENT_KEY}
                with httpx.Client(base_url=url, headers=keys, timeout=WAIT_S) as client:
                    said = {"messages": [{"role": "user", "content": PROMPT}]}
                    for model in ("any", "theirs"):
                        body = asking(model=model, stream=True) | said
                        asks = [{"x-answer": str(number)} for number in range(7)]
                        seen += [shown(client.post(CHAT, json=body, headers=headers)) for headers in asks]
                    beside = {"x-taximeter-key": GATEWAY_KEY, "authorization": f"Bearer {CLIENT_KEY}"}
                    asks_with_both = [{**beside, "x-answer": str(number)} for number in range(7)]
                    seen += [shown(client.post(CHAT, json=body, headers=headers)) for headers in asks_with_both]
                    seen.append(shown(client.post(MESSAGES, json=asking_messages() | said)))
                    seen.append(shown(httpx.post(url + CHAT, json=asking(), headers={"x-api-key": CLIENT_KEY})))
                    seen.append(shown(client.post(CHAT, content=b'{"model": ')))
                    last = {"x-answer": "7"}
                    with client.stream("POST", CHAT, json=asking(stream=True) | said, headers=last) as response:
                        for piece in response.iter_text():
                            if "Hello" in piece:
                                break
                        seen.append(shown(client.get("/api/receipts")))
                        process.send_signal(signal.SIGKILL)
            finally:
                process.kill()
            seen.append(process.communicate(timeout=WAIT_S)[0])
    assert len(up.books) >= 3 * 7 + 2
    with_both = [asked for asked in up.books if asked.headers.get("authorization") == f"Bearer {CLIENT_KEY}"]
    told = {asked.headers["x-answer"] for asked in with_both}
    assert len(told) == 7, "a caller's own key is for the upstream that has none, and for nobody else"
    assert all("x-taximeter-key" not in asked.headers for asked in up.books)
    assert up.books[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert CLIENT_KEY not in repr([asked.headers for asked in up.books if asked not in with_both])
    assert GATEWAY_KEY not in repr([asked.headers for asked in up.books])
    written = {path: path.read_bytes() for path in taximeter_home.rglob("*") if path.is_file()}
    assert any(b"SQLite" in content for content in written.values())
    for key in KEYS:
        for path, content in written.items():
            assert key.encode() not in content, path
        for text in seen:
            assert key not in text


def first_url(process: subprocess.Popen[str], seen: list[str]) -> str:
    """Where the server listens, by its greeting."""
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:[0-9]+", line):
            return found[0]
    raise AssertionError(seen)


def shown(response: httpx.Response) -> str:
    return f"{response.status_code} {response.headers.multi_items()} {response.text}"
