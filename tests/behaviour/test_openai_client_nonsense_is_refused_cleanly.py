"""Garbage on every endpoint is a 4xx in the usual shape: never a 500, never a dead server."""

from __future__ import annotations

import json
from collections.abc import Generator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, COMPLETIONS, fake_house, listening

PATHS = (
    CHAT,
    COMPLETIONS,
    "/v1/models",
    "/v1/models/x",
    "/healthz",
    "/health",
    "/api/receipts",
    "/api/receipts/x",
    "/api/machine",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ("messages", "prompt", "n", "max_tokens", "stop", "stream", "logprobs", "logit_bias", "stream_options", "seed")
FEW = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def client() -> Generator[httpx.Client]:
    house, _, _ = fake_house()
    with listening(house) as url, httpx.Client(base_url=url, timeout=WAIT_S) as client:
        yield client


def check(response: httpx.Response) -> None:
    """Served, or refused with an error that a program can read."""
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert isinstance(error["message"], str)
        assert set(error) == {"message", "type", "param", "code"}


@FEW
@given(body=st.binary(max_size=300), path=st.sampled_from(PATHS))
def test_bytes(client: httpx.Client, body: bytes, path: str):
    """Any bytes, sent as JSON to any path."""
    check(client.post(path, content=body, headers={"content-type": "application/json"}))


@FEW
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5), path=st.sampled_from((CHAT, COMPLETIONS)))
def test_any_json_for_a_real_model(client: httpx.Client, fields: dict[str, object], path: str):
    """Well-formed JSON, lone surrogates and infinities included, in fields that mean something."""
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"} | fields)
    response = client.post(path, content=body.encode(), headers={"content-type": "application/json"})
    check(response)
    if response.status_code == 200:
        assert response.headers["x-taximeter-receipt"]


@FEW
@given(name=st.text(max_size=30), query=st.text(max_size=30))
def test_names_and_queries(client: httpx.Client, name: str, query: str):
    """Any text as a name in a path, or as the value of a parameter."""
    for path in ("/v1/models/", "/api/receipts/"):
        check(client.get(path + httpx.URL("", params={"x": name}).query.decode()[2:]))
    check(client.get("/api/receipts", params={"limit": query, "before": name}))


@FEW
@given(name=st.sampled_from(["x-taximeter-task", "content-type", "host"]), value=st.binary(max_size=30))
def test_headers(client: httpx.Client, name: str, value: bytes):
    """Any bytes that a client may put into a header; the HTTP parser may refuse them before we see them."""
    sendable = bytes(byte for byte in value if byte >= 0x20 and byte != 0x7F).strip()
    headers = [(b"content-type", b"application/json"), (name.encode(), sendable)]
    response = client.post(CHAT, content=b"{}", headers=headers)
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_beyond_the_limit(client: httpx.Client, path: str):
    """413 whether it says its length or comes in chunks of unknown number."""
    megabyte = b" " * 1_000_000
    headers = {"content-type": "application/json"}
    assert client.post(path, content=megabyte * 34, headers=headers).status_code == 413
    assert client.post(path, content=(megabyte for _ in range(34)), headers=headers).status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_every_method_on_every_path(client: httpx.Client, method: str, path: str):
    """No combination breaks anything."""
    check(client.request(method, path))
