"""Addresses as people paste them, and what a server says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.target import Target, find_target, is_address, root_of, usual_key
from taximeter.records import Dialect
from taximeter.upstreams.client import Client
from tests.measurement_harness import serving_app


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("https://api.example.com/v1/chat/completions", "https://api.example.com"),
        ("https://gate.example.com/team/v1/", "https://gate.example.com/team"),
        ("http://[::1]:8000/v1/models", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_as_it_is_pasted(text: str, root: str) -> None:
    assert is_address(text)
    assert root_of(text) == root


@pytest.mark.parametrize("text", ["smollm2-135m-instruct", "hf:owner/repo/file.gguf", "./models/a.gguf", "C:/a.gguf"])
def test_a_model_is_no_address(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize("text", ["ftp://server", "http://", "http://server:port", "http://user:key@server"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        root_of(text)
    assert "key@" not in str(caught.value)


def test_a_key_goes_to_whom_it_belongs() -> None:
    assert usual_key("https://api.openai.com/v1") == "env:OPENAI_API_KEY"
    assert usual_key("https://api.anthropic.com") == "env:ANTHROPIC_API_KEY"
    assert usual_key("https://api.openai.com.example.com") is None
    assert usual_key("http://localhost:8000") is None


Page = Callable[[HttpRequest], Awaitable[Response]]


def found(pages: dict[str, object], **options: object) -> Target:
    """What is found out of a server that has these pages and no others."""

    def page(content: object) -> Page:
        async def answer(_: HttpRequest) -> Response:
            return PlainTextResponse(content) if isinstance(content, str) else JSONResponse(content)

        return answer

    async def work() -> Target:
        app = Starlette(routes=[Route(path, page(content)) for path, content in pages.items()])
        async with serving_app(app) as url:
            client = Client()
            try:
                return await find_target(client, url, **options)  # type: ignore[arg-type]
            finally:
                await client.aclose()

    return asyncio.run(work())


def models(*entries: dict[str, object]) -> dict[str, object]:
    return {"object": "list", "data": list(entries)}


def test_vllm() -> None:
    target = found(
        {
            "/v1/models": models({"id": "m", "owned_by": "vllm", "max_model_len": 4096}),
            "/version": {"version": "0.20.1"},
            "/metrics": "vllm:num_requests_running 0\n",
        }
    )
    assert (target.engine, target.server_version, target.context_tokens) == ("vllm", "0.20.1", 4096)
    assert target.dialect is Dialect.OPENAI_COMPLETIONS
    assert target.metrics_url == f"{target.url}/metrics"
    assert target.obeys


def test_llama_cpp() -> None:
    target = found(
        {
            "/v1/models": models({"id": "m", "owned_by": "llamacpp"}),
            "/props": {"build_info": "b9999", "total_slots": 4, "default_generation_settings": {"n_ctx": 2048}},
        }
    )
    assert (target.engine, target.server_version, target.context_tokens) == ("llama.cpp", "b9999", 2048)
    assert target.setup["total_slots"] == "4"
    assert target.metrics_url is None


def test_a_stranger_says_nothing_and_nothing_is_guessed() -> None:
    target = found({"/v1/models": models({"id": "m", "owned_by": "someone"})})
    assert (target.engine, target.context_tokens, target.dialect) == (None, None, Dialect.OPENAI_CHAT)
    assert not target.obeys


def test_a_server_without_a_list_needs_a_name() -> None:
    with pytest.raises(RequestError, match="does not list its models"):
        found({})
    assert found({}, model="m").model == "m"


def test_of_several_models_one_must_be_named() -> None:
    pages: dict[str, object] = {"/v1/models": models({"id": "a"}, {"id": "b"})}
    with pytest.raises(RequestError, match="2 models"):
        found(pages)
    assert found(pages, model="b").model == "b"
    with pytest.raises(RequestError, match="no model 'c'"):
        found(pages, model="c")


@pytest.mark.parametrize("page", ["no json", ["a"], {"data": "x"}, {"data": [1, {"id": None}]}])
def test_a_list_that_is_none(page: object) -> None:
    with pytest.raises(RequestError, match="does not list its models"):
        found({"/v1/models": page})


def test_nobody_there() -> None:
    async def work() -> None:
        client = Client()
        try:
            await find_target(client, "127.0.0.1:1")
        finally:
            await client.aclose()

    with pytest.raises(UpstreamError, match="refused"):
        asyncio.run(work())


def test_a_target_describes_itself_without_its_key() -> None:
    from taximeter.upstreams.secrets import Secret  # noqa: PLC0415

    pages: dict[str, object] = {"/v1/models": models({"id": "m"})}
    target = found(pages, key=Secret("sk-very-secret", "env:KEY"))
    assert "sk-very-secret" not in repr(target) + repr(target.describe())
