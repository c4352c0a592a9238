"""Same dialect in and out: what a client sends reaches the upstream, and what that sends reaches the client, byte for
byte, whatever it looks like; and the receipt has what it said."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import anthropic
import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.records import Outcome
from taximeter.upstreams.config import Family
from taximeter.upstreams.secrets import Secret
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, COMPLETIONS, MESSAGES, app_of, listening, post
from tests.passing import (
    CHAT_END,
    CHAT_STREAM,
    CHAT_TEXT,
    CHAT_USAGE,
    MESSAGES_STREAM,
    asking,
    asking_messages,
    encoded,
)
from tests.upstream_harness import Do, ScriptedUpstream, an_upstream, head, passing_house, streamed, whole
from tests.wire import chat, messages

ODD_BODY = (
    b' {"model" : "gpt",\r\n "messages": [{"role":"user","content":"\\u00e9 \xc3\xa9"}], "x-unknown":1e2, "n":1 }\n'
)


async def test_a_whole_answer_is_the_upstreams_own() -> None:
    """Body, status and headers; odd spacing and unknown fields in both directions."""
    answer = b'{"usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},\n "odd":  [1 , 2] }\n'
    with ScriptedUpstream(whole(answer, x_ratelimit_remaining="7", x_request_id="up-1")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT + "", ODD_BODY, user_agent="mine/1", authorization="Bearer theirs")
        await house.aclose()
    assert reply.body == answer
    assert reply.headers["x-ratelimit-remaining"] == "7"
    assert reply.headers["x-request-id"] == "up-1"
    assert reply.headers["content-length"] == str(len(answer))
    [asked] = up.books
    assert asked.body == ODD_BODY
    assert (asked.headers["user-agent"], asked.headers["authorization"]) == ("mine/1", "Bearer theirs")
    assert asked.headers["accept-encoding"] == "identity"
    assert not {"transfer-encoding", "connection", "x-taximeter-task"} & asked.headers.keys()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.upstream_request_id, receipt.served_by) == (Outcome.COMPLETED, "up-1", "up")
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (12, 5)
    assert receipt.usage.reported is not None
    [attempt] = receipt.tries
    assert (attempt.upstream, attempt.status, attempt.error) == ("up", 200, None)
    assert reply.headers["x-taximeter-receipt"] == receipt.id


async def test_the_upstreams_own_key_and_headers_replace_the_clients() -> None:
    """No key of the client's reaches an upstream that has its own; hop-by-hop headers reach nobody."""
    with ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        upstream = an_upstream(up.url, key=Secret("sk-upstream-key", "env:K"), headers={"x-team": "blue"})
        house, _ = passing_house(upstream)
        headers = {"authorization": "Bearer sk-client", "x_api_key": "sk-client", "x_taximeter_task": "t"}
        hops = {"connection": "keep-alive, x-private", "x_private": "1", "te": "trailers", "cookie": "a=b"}
        await post(app_of(house), CHAT, asking(), **headers, **hops)
        await house.aclose()
    [asked] = up.books
    assert (asked.headers["authorization"], asked.headers["x-team"]) == ("Bearer sk-upstream-key", "blue")
    assert not {"x-api-key", "x-taximeter-task", "x-private", "te", "cookie"} & asked.headers.keys()


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
async def test_a_stream_is_the_upstreams_own_wherever_it_is_cut(separator: bytes, cut: int) -> None:
    """Line ends of all three kinds, comments, pings, retry fields, a BOM, and the last event without its empty line."""
    stream = b"\xef\xbb\xbf: hello\n\nretry: 5\n\n" + b"".join(CHAT_STREAM)[:-1].replace(b"\n\n", b"\n: ping\n\n", 3)
    stream = stream.replace(b"\n", separator)
    pieces = [stream[at : at + cut] for at in range(0, len(stream), cut)]
    with ScriptedUpstream(streamed(*pieces)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
    assert reply.body == stream
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.COMPLETED
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (12, 5)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_stream_holds_passes(data: st.DataObject) -> None:
    """Noise between events, cut anywhere: the same bytes, one receipt."""
    noise = st.lists(
        st.sampled_from([b": x\n\n", b"data: {\n\n", b"\n\n", b"event: odd\ndata: \xff\xfe\n\n", b"data\n\n"])
    )
    stream = b""
    for each in CHAT_STREAM:
        stream += b"".join(data.draw(noise)) + each
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]

    async def run() -> bytes:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
        assert [receipt.usage.output_tokens for receipt in ledger.kept] == [5]
        return reply.body

    with ScriptedUpstream(streamed(*pieces)).listening() as up:
        assert asyncio.run(run()) == stream


@pytest.mark.parametrize(("asks", "sees"), [(False, (*CHAT_TEXT, CHAT_END)), (True, CHAT_STREAM)])
async def test_the_usage_is_always_asked_for_and_shown_only_to_who_asked(asks: bool, sees: tuple[bytes, ...]) -> None:
    """S6: a client without the option sees no usage event, and its receipt has the usage all the same."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        body = asking(stream=True, usage=asks)
        reply = await post(app_of(house), CHAT, body)
        await house.aclose()
    assert reply.body == b"".join(sees)
    [asked] = up.books
    assert asked.json()["stream_options"] == {"include_usage": True}
    assert asked.json() == body | {"stream_options": {"include_usage": True}}
    [receipt] = ledger.kept
    assert receipt.usage.input_cache_read_tokens == 4
    assert receipt.usage.output_tokens == 5


async def test_a_model_by_another_name_changes_nothing_else() -> None:
    """`send_as`: the name alone, in a body as odd as any."""
    with ScriptedUpstream(whole(chat(CHAT_USAGE, model="gpt-2026"))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url), send_as="gpt-2026")
        await post(app_of(house), CHAT, ODD_BODY)
        await house.aclose()
    assert up.books[0].body == ODD_BODY.replace(b'"gpt"', b'"gpt-2026"')
    [receipt] = ledger.kept
    assert (receipt.request.model, receipt.model_served) == ("gpt", "gpt-2026")


@pytest.mark.parametrize(
    ("packing", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)], ids=["gzip", "deflate"]
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_that_is_packed_unasked_is_unpacked(packing: str, pack: object, stream: bool) -> None:
    """Nobody could look at it else; and the client did not ask for it either."""
    plain = b"".join(CHAT_STREAM) if stream else encoded(chat(CHAT_USAGE))
    packed: bytes = pack(plain)  # type: ignore[operator]
    pieces = [packed[at : at + 9] for at in range(0, len(packed), 9)]
    media_type = "text/event-stream" if stream else "application/json"
    with ScriptedUpstream(streamed(*pieces, media_type=media_type, content_encoding=packing)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=stream, usage=stream))
        await house.aclose()
    assert reply.body == plain
    assert "content-encoding" not in reply.headers
    assert ledger.kept[0].usage.output_tokens == 5


async def test_an_answer_in_a_packing_that_is_not_known_passes_unread() -> None:
    """With its header, and a receipt that says why it knows nothing."""
    with ScriptedUpstream(whole(b"\x00packed\xff", content_encoding="br")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking())
        await house.aclose()
    assert (reply.body, reply.headers["content-encoding"]) == (b"\x00packed\xff", "br")
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage) == (Outcome.COMPLETED, None)
    assert "'br'" in receipt.unmeasured_reason


async def test_a_gzip_bomb_is_unpacked_in_pieces_and_passes_unread() -> None:
    """200 MB out of 200 kB: nobody's memory holds all of it, and it is not looked at."""
    bomb = gzip.compress(b" " * (200 * 1024 * 1024), 9)
    with ScriptedUpstream(whole(bomb, content_encoding="gzip")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with listening(house) as url, httpx.stream("POST", url + CHAT, json=asking(), timeout=WAIT_S) as response:
            assert sum(len(piece) for piece in response.iter_raw()) == 200 * 1024 * 1024
    [receipt] = ledger.kept
    assert receipt.usage is None
    assert "too long" in receipt.unmeasured_reason


def test_what_a_client_gets_over_a_socket_has_each_header_once() -> None:
    """One date (ours), the upstream's server, no length of a stream that lost an event, and both ids."""
    headers = {"date": "Thu, 01 Jan 1970 00:00:00 GMT", "server": "upstream/1", "request_id": "req_1"}
    headers |= {"keep_alive": "timeout=5", "x_taximeter_receipt": "theirs"}
    with ScriptedUpstream(streamed(*CHAT_STREAM, **headers)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with listening(house) as url:
            response = httpx.post(url + CHAT, json=asking(stream=True), timeout=WAIT_S)
    names = [name for name, _ in response.headers.multi_items()]
    assert len(names) == len(set(names)), names
    assert "1970" not in response.headers["date"]
    assert (response.headers["server"], response.headers["request-id"]) == ("upstream/1", "req_1")
    assert not {"content-length", "keep-alive"} & set(names)
    assert response.headers["x-taximeter-receipt"] == ledger.kept[0].id
    assert ledger.kept[0].upstream_request_id == "req_1"


def test_paths_and_queries_cross_as_they_are() -> None:
    """`?beta=true` is how Anthropic's client asks for what is new."""
    with ScriptedUpstream(whole(messages({"input_tokens": 1, "output_tokens": 1}))).listening() as up:
        house, _ = passing_house(an_upstream(up.url + "/base", Family.ANTHROPIC))
        with listening(house) as url:
            httpx.post(url + MESSAGES + "?beta=true&a=%20b", json=asking_messages(), timeout=WAIT_S)
    assert up.books[0].path == "/base/v1/messages?beta=true&a=%20b"


def test_the_real_clients_work_through_it() -> None:
    """openai: chat, streams, completions, responses, embeddings. One receipt each, each with what was said."""
    completed = {
        "type": "response.completed",
        "response": {"object": "response", "status": "completed", "usage": {"input_tokens": 20, "output_tokens": 60}},
    }
    embeddings = {
        "object": "list",
        "model": "e",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    text = {
        "object": "text_completion",
        "model": "gpt",
        "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}],
    }
    answers = [
        whole(chat(CHAT_USAGE)),
        streamed(*CHAT_STREAM),
        streamed(*CHAT_STREAM),
        whole(text | {"usage": CHAT_USAGE}),
        streamed(b"event: response.completed\ndata: " + json.dumps(completed).encode() + b"\n\n"),
        whole(embeddings),
    ]
    with ScriptedUpstream(*answers).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with listening(house) as url, openai.OpenAI(base_url=url + "/v1", api_key="k", timeout=WAIT_S) as client:
            messages = [{"role": "user", "content": "Good day"}]
            assert client.chat.completions.create(model="gpt", messages=messages).choices[0].message.content == "Hello"
            plain = list(client.chat.completions.create(model="gpt", messages=messages, stream=True))
            assert "".join(each.choices[0].delta.content or "" for each in plain) == "Hello, world"
            options = {"include_usage": True}
            asked = client.chat.completions.create(model="gpt", messages=messages, stream=True, stream_options=options)
            assert [each.usage.completion_tokens for each in asked if not each.choices] == [5]
            assert client.completions.create(model="gpt", prompt="Hi").choices[0].text == "Hi"
            [event] = client.responses.create(model="gpt", input="Hi", stream=True)
            assert event.response.usage.output_tokens == 60
            assert client.embeddings.create(model="e", input="Hi", encoding_format="float").data[0].embedding == [0.5]
    used = [(receipt.usage.input_tokens, receipt.usage.output_tokens) for receipt in ledger.kept]
    assert used == [(12, 5), (12, 5), (12, 5), (12, 5), (20, 60), (3, 0)]
    assert {receipt.outcome for receipt in ledger.kept} == {Outcome.COMPLETED}


def test_anthropics_client_works_through_it() -> None:
    """Whole and streamed: 25 in and 15 out, the start's placeholder is in no sum (S1)."""
    answers = [whole(messages({"input_tokens": 25, "output_tokens": 15})), streamed(*MESSAGES_STREAM)]
    with ScriptedUpstream(*answers).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC, key=Secret("sk-ant-upstream", "env:K")))
        with listening(house) as url, anthropic.Anthropic(base_url=url, api_key="k", timeout=WAIT_S) as client:
            asked = {"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": "Good day"}]}
            assert client.messages.create(**asked).content[0].text == "Hello"
            with client.messages.stream(**asked) as stream:
                assert "".join(stream.text_stream) == "Hello, world"
    assert [(each.usage.input_tokens, each.usage.output_tokens) for each in ledger.kept] == [(25, 15)] * 2
    assert {asked.headers["x-api-key"] for asked in up.books} == {"sk-ant-upstream"}
    assert {asked.connection for asked in up.books} == {0}, "the connection was not used again"


@pytest.mark.parametrize("size", [70_000, 3 * 1024 * 1024])
async def test_long_bodies_cross_whole(size: int) -> None:
    """Beyond what is read at once, and beyond what is sent at once."""
    body = encoded(asking(stream=True) | {"padding": "x" * size})
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        assert (await post(app_of(house), CHAT, body)).status == 200
        await house.aclose()
    assert up.books[0].body == b'{"stream_options":{"include_usage":true},' + body[1:]
    assert ledger.kept[0].outcome is Outcome.COMPLETED


async def test_old_protocols_and_missing_lengths() -> None:
    """HTTP/1.0, and a body that ends with its connection."""
    answer = encoded(chat(CHAT_USAGE))
    old = head().replace(b"HTTP/1.1", b"HTTP/1.0")
    with ScriptedUpstream([old + answer, Do.CLOSE], [head() + answer, Do.CLOSE]).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        for _ in range(2):
            assert (await post(app_of(house), COMPLETIONS, asking())).body == answer
        await house.aclose()
    assert [receipt.usage.output_tokens for receipt in ledger.kept] == [5, 5]
