"""Whatever an upstream does wrong, the client is told so in its own dialect, never gets an answer that is silently
short, and there is one receipt that says what happened."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx
import openai
import pytest

from taximeter.records import Basis, Outcome
from taximeter.upstreams.config import Family
from taximeter.upstreams.secrets import Secret
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, MESSAGES, Reply, app_of, listening, post
from tests.passing import CHAT_STREAM, CHAT_TEXT, CHAT_USAGE, MESSAGES_STREAM, asking, asking_messages
from tests.upstream_harness import (
    Do,
    Pauses,
    ScriptedUpstream,
    Steps,
    an_upstream,
    chunked,
    head,
    passing_house,
    streamed,
    whole,
)
from tests.wire import chat, chunk, sse

DEAD = "http://127.0.0.1:9"  # the discard port: nobody listens
OVERLOADED = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


def complaint(reply: Reply) -> str:
    """What a client reads of an error, whichever dialect it is in."""
    return str(reply.json()["error"]["message"])


def last_event(reply: Reply) -> dict[str, object]:
    return json.loads(reply.body.rstrip().rpartition(b"data: ")[2])


NO_ANSWER: dict[str, tuple[Steps, str]] = {
    "closed before a byte": ([Do.CLOSE], "it closed the connection"),
    "reset before a byte": ([Do.RESET], "reset"),
    "closed in the status line": ([b"HTTP/1.1 20", Do.CLOSE], "it closed the connection"),
    "closed in the headers": ([b"HTTP/1.1 200 OK\r\ncontent-type: app", Do.CLOSE], "it closed the connection"),
    "no HTTP": ([b"220 smtp.example.com ESMTP\r\n", Do.CLOSE], "not HTTP"),
    "a status that is none": ([b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n"], "status 999"),
    "a switch of protocols": ([b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], ""),
    "a header without end": ([b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000], "not HTTP"),
}


@pytest.mark.parametrize("fault", NO_ANSWER)
async def test_nobody_answers(fault: str) -> None:
    """502 in the dialect, at once, with what happened in words; the receipt has the try and no usage (S11)."""
    steps, why = NO_ANSWER[fault]
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        reply = await post(app_of(house), MESSAGES, asking_messages(stream=True))
        await house.aclose()
    assert reply.status == 502
    assert reply.json()["type"] == "error"
    assert why in complaint(reply)
    assert up.url.removeprefix("http://") not in complaint(reply)
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage, receipt.timing.first_token_ns) == (Outcome.FAILED, None, None)
    [attempt] = receipt.tries
    assert (attempt.status, why in (attempt.error or "")) == (None, True)
    assert receipt.timing.upstream_ns > 0


async def test_everybody_is_down() -> None:
    """Several of them: every try is on the receipt, in order, and it takes no time."""
    pauses = Pauses()
    upstreams = [an_upstream(DEAD, name="first", retries=2), an_upstream("http://nowhere.invalid", name="second")]
    house, ledger = passing_house(*upstreams, pauses=pauses)
    reply = await post(app_of(house), CHAT, asking())
    await house.aclose()
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_unreachable")
    [receipt] = ledger.kept
    assert [attempt.upstream for attempt in receipt.tries] == ["first", "first", "first", "second"]
    assert receipt.attempts == 4
    assert receipt.served_by == "second"
    assert len(pauses.taken_s) == 2
    assert pauses.taken_s[0] < pauses.taken_s[1] < 0.6


BROKEN_STREAMS: dict[str, tuple[list[bytes | Do], bool]] = {
    "reset": ([*CHAT_TEXT[:3], Do.RESET], False),
    "closed": ([*CHAT_TEXT[:3], Do.CLOSE], False),
    "closed within an event": ([*CHAT_TEXT[:3], CHAT_TEXT[3][:20], Do.CLOSE], False),
    "ended early": ([*CHAT_TEXT[:3]], True),
    "ended within an event": ([*CHAT_TEXT[:3], CHAT_TEXT[3][:20]], True),
}


@pytest.mark.parametrize("fault", BROKEN_STREAMS)
async def test_a_stream_breaks_off(fault: str) -> None:
    """The client reads an error after what there was; the receipt has what was seen, as derived."""
    pieces, ends = BROKEN_STREAMS[fault]
    with ScriptedUpstream(streamed(*pieces, ends=ends)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True))
        await house.aclose()
    assert reply.status == 200
    assert reply.body.startswith(b"".join(CHAT_TEXT[:3]))
    assert "error" in last_event(reply)
    assert b"[DONE]" not in reply.body
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.FAILED
    assert receipt.usage.output_text_tokens == 2
    assert receipt.usage.basis is Basis.DERIVED
    assert [attempt.status for attempt in receipt.tries] == [200]


async def test_a_stream_that_never_began() -> None:
    """200, and nothing: an error, not an empty answer."""
    with ScriptedUpstream(streamed(), streamed(Do.CLOSE, ends=False)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        for _ in range(2):
            reply = await post(app_of(house), CHAT, asking(stream=True))
            assert "error" in last_event(reply)
        await house.aclose()
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.FAILED] * 2


@pytest.mark.parametrize(
    "steps",
    [
        [head(content_length="500") + b'{"choices": [', Do.CLOSE],
        [head(content_length="500") + b'{"choices": [', Do.RESET],
        [head(transfer_encoding="chunked") + chunked(b'{"choices": ['), Do.CLOSE],
        [head(transfer_encoding="chunked") + b"zz\r\n{}", Do.CLOSE],
    ],
    ids=["short", "reset", "chunks without end", "no chunks"],
)
async def test_a_whole_answer_breaks_off(steps: Steps) -> None:
    """The client gets none of it, and a status of its own."""
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking())
        await house.aclose()
    assert reply.status == 502
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.FAILED
    assert receipt.usage is None
    assert receipt.unmeasured_reason in ("it broke off", "no upstream began to answer")


def test_what_broke_off_unread_does_not_look_whole() -> None:
    """An answer too long to be looked at has begun; the connection to the client ends without its end."""
    large = b"x" * (65 * 1024 * 1024)
    with ScriptedUpstream([head(content_length=str(2 * len(large))), large, Do.CLOSE]).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with listening(house) as url, httpx.stream("POST", url + CHAT, json=asking(), timeout=WAIT_S) as response:
            assert response.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in response.iter_raw():
                    pass
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.FAILED]


def test_an_error_within_a_stream_is_passed_on_in_its_own_words() -> None:
    """Overloaded in the middle of a 200: failed, with the provider's words, and nothing of ours beside them."""
    pieces = [*MESSAGES_STREAM[:5], OVERLOADED]
    with ScriptedUpstream(streamed(*pieces)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        with listening(house) as url, anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
            reply = httpx.post(url + MESSAGES, json=asking_messages(stream=True), timeout=WAIT_S)
            with (
                pytest.raises(anthropic.APIStatusError) as caught,
                client.messages.stream(**asking_messages()) as asked,
            ):
                asked.until_done()
    assert reply.content == b"".join(pieces)
    assert "Overloaded" in str(caught.value)
    assert {receipt.outcome for receipt in ledger.kept} == {Outcome.FAILED}
    assert ledger.kept[0].error == "overloaded_error: Overloaded"
    assert ledger.kept[0].usage.input_tokens == 25


@pytest.mark.parametrize(
    ("status", "outcome", "error"),
    [
        (400, Outcome.REFUSED, openai.BadRequestError),
        (401, Outcome.REFUSED, openai.AuthenticationError),
        (404, Outcome.REFUSED, openai.NotFoundError),
        (429, Outcome.REFUSED, openai.RateLimitError),
        (500, Outcome.FAILED, openai.InternalServerError),
        (503, Outcome.FAILED, openai.InternalServerError),
        (529, Outcome.FAILED, openai.InternalServerError),
    ],
)
def test_refusals_pass_as_they_are(status: int, outcome: Outcome, error: type[Exception]) -> None:
    """Status, body and retry-after are the provider's; its client raises what it always raises."""
    said = {"error": {"message": "No.", "type": "t", "param": None, "code": "c"}}
    with ScriptedUpstream(whole(said, status=status, retry_after="7")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with (
            listening(house) as url,
            openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client,
            pytest.raises(error) as caught,
        ):
            client.chat.completions.create(**asking())
    assert caught.value.response.json() == said
    assert caught.value.response.headers["retry-after"] == "7"
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage) == (outcome, None)
    assert receipt.error is not None
    assert "No." in receipt.error
    assert receipt.unmeasured_reason == f"up answered with status {status}"


@pytest.mark.parametrize("status", [301, 302, 307])
async def test_redirects_are_not_followed(status: int) -> None:
    """A key would go along."""
    with ScriptedUpstream(whole(b"", status=status, location="http://127.0.0.1:9/")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking())
        await house.aclose()
    assert (reply.status, reply.headers["location"], len(up.books)) == (status, "http://127.0.0.1:9/", 1)
    assert ledger.kept[0].outcome is Outcome.FAILED


@pytest.mark.parametrize("body", [b"", b"<html>Welcome to the hotel</html>", b"[1, 2]", b'{"a": ', b"\xff\xfe"])
async def test_an_answer_that_is_none(body: bytes) -> None:
    """200 and no JSON: it passes as it is, and is not called completed."""
    with ScriptedUpstream(whole(body, media_type="text/html")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking())
        await house.aclose()
    assert (reply.status, reply.body) == (200, body)
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.FAILED
    assert receipt.error == f"UpstreamError: up answered with status 200 and {'no JSON' if body else 'nothing'}"
    assert receipt.usage.output_tokens is None


async def test_a_stream_without_its_last_event_is_whole_when_its_choices_are() -> None:
    """Some servers never say [DONE]; every choice had its finish reason."""
    with ScriptedUpstream(streamed(*CHAT_STREAM[:-1])).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
    assert reply.body == b"".join(CHAT_STREAM[:-1])
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)


@pytest.mark.parametrize("media_type", ["application/json", "text/plain", "application/octet-stream"])
async def test_a_stream_that_is_called_something_else_is_a_stream(media_type: str) -> None:
    """Its first bytes tell, however they are cut: it is passed on as it comes, and metered."""
    events = b": hello\n\n" + b"".join(CHAT_STREAM)
    pieces = (events[:1], events[1:40], events[40:])
    with ScriptedUpstream(streamed(*pieces, media_type=media_type)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
    assert reply.body == events
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)
    assert receipt.timing.first_token_ns is not None


async def test_nothing_counts_behind_the_end_of_a_stream() -> None:
    """What follows passes on, and is no part of the answer: it may come with the end in one piece, or later."""
    behind = sse(chunk(usage={"prompt_tokens": 99, "completion_tokens": 99, "total_tokens": 198}))
    with ScriptedUpstream(streamed(b"".join((*CHAT_STREAM, behind)))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        reply = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
    assert reply.body == b"".join((*CHAT_STREAM, behind))
    assert ledger.kept[0].usage.output_tokens == 5


async def test_it_fails_over_before_the_first_byte_only() -> None:
    """The second answers where the first does not; in the middle nobody takes over."""
    broken = streamed(*CHAT_TEXT[:2], Do.CLOSE, ends=False)
    with (
        ScriptedUpstream(whole(b"{}", status=503), broken).listening() as first,
        ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as second,
    ):
        house, ledger = passing_house(an_upstream(first.url, name="a"), an_upstream(second.url, name="b"))
        saved = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        lost = await post(app_of(house), CHAT, asking(stream=True, usage=True))
        await house.aclose()
    assert saved.body == b"".join(CHAT_STREAM)
    assert "error" in last_event(lost)
    assert len(second.books) == 1
    assert second.books[0].body == first.books[0].body
    one, two = ledger.kept
    assert [(each.upstream, each.status, each.error) for each in one.tries] == [
        ("a", 503, "status 503"),
        ("b", 200, None),
    ]
    assert (one.served_by, one.outcome, one.attempts) == ("b", Outcome.COMPLETED, 2)
    assert (two.served_by, two.outcome, two.attempts) == ("a", Outcome.FAILED, 1)


async def test_the_last_refusal_is_the_answer() -> None:
    """All are busy: the client reads the provider's own 529, after as many tries as were allowed."""
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    pauses = Pauses()
    with ScriptedUpstream(whole(said, status=529, retry_after="2")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC, retries=2), pauses=pauses)
        reply = await post(app_of(house), MESSAGES, asking_messages())
        await house.aclose()
    assert (reply.status, reply.json(), reply.headers["retry-after"]) == (529, said, "2")
    assert len(up.books) == 3
    assert [pause >= 2 for pause in pauses.taken_s] == [True, True]
    assert [each.status for each in ledger.kept[0].tries] == [529] * 3
    assert {asked.connection for asked in up.books} == {0}, "an answer that was read whole keeps its connection"


async def test_it_does_not_wait_for_long() -> None:
    """An upstream that wants to be left alone for a minute is: the client hears that at once."""
    pauses = Pauses()
    with ScriptedUpstream(whole(b"{}", status=429, retry_after="60")).listening() as up:
        house, _ = passing_house(an_upstream(up.url, retries=5), pauses=pauses)
        reply = await post(app_of(house), CHAT, asking())
        await house.aclose()
    assert (reply.status, len(up.books), pauses.taken_s) == (429, 1, [])


async def test_one_that_fails_again_and_again_is_left_alone() -> None:
    """After five failures it is not asked for a while: 503, with the time after which it is worth another try."""
    house, ledger = passing_house(an_upstream(DEAD))
    app = app_of(house)
    replies = [await post(app, CHAT, asking()) for _ in range(6)]
    await house.aclose()
    assert [reply.status for reply in replies] == [502] * 5 + [503]
    assert 1 <= int(replies[-1].headers["retry-after"]) <= 5
    assert ledger.kept[-1].tries[0].duration_ns == 0
    assert ledger.kept[-1].tries[0].error == "not tried: it failed several times just now"


async def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """The other end may close an idle connection just as it is used again; the request goes on on a new one, without a
    pause, even where no retry is allowed."""
    pauses = Pauses()
    with ScriptedUpstream(whole(chat(CHAT_USAGE)), [Do.CLOSE], whole(chat(CHAT_USAGE))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url), pauses=pauses)
        app = app_of(house)
        assert [(await post(app, CHAT, asking())).status for _ in range(2)] == [200, 200]
        await house.aclose()
    assert [asked.connection for asked in up.books] == [0, 0, 1]
    assert pauses.taken_s == []
    assert [each.error for each in ledger.kept[1].tries] == [
        "up had closed a connection that was kept for reuse",
        None,
    ]


@pytest.mark.parametrize(
    ("limits", "steps", "said"),
    [
        ({"first_byte_timeout_s": 0.05}, [Do.SILENCE], "up did not begin to answer in 0.05 s"),
        ({"first_byte_timeout_s": 0.05}, [b"HTTP/1.1 200 OK\r\n", Do.SILENCE], "up did not begin to answer in 0.05 s"),
        ({"idle_timeout_s": 0.05}, streamed(CHAT_TEXT[0], Do.SILENCE), "up sent nothing for 0.05 s"),
        ({"idle_timeout_s": 0.05}, [head(content_length="9"), Do.SILENCE], "up sent nothing for 0.05 s"),
    ],
    ids=["no head", "half a head", "a stream that stalls", "a body that stalls"],
)
async def test_patience_has_an_end(limits: dict[str, float], steps: Steps, said: str) -> None:
    """Each of the time-outs, by its own words on the receipt; and the upstream is let go."""
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, **limits))
        async with asyncio.timeout(WAIT_S):
            reply = await post(app_of(house), CHAT, asking(stream=True))
        assert await asyncio.to_thread(up.left.acquire, timeout=WAIT_S)
        await house.aclose()
    assert reply.status in (502, 200)
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.FAILED
    assert said in receipt.error


async def test_events_that_keep_coming_are_not_silence() -> None:
    """The limit is for each wait, not for the answer."""
    pings = [b": ping\n\n", Do.HOLD] * 4
    with ScriptedUpstream(streamed(*pings, *CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, idle_timeout_s=0.4))
        posting = asyncio.create_task(post(app_of(house), CHAT, asking(stream=True, usage=True)))
        for _ in range(4):
            assert await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)
            await asyncio.sleep(0.15)  # time itself is what is tested here
            up.release()
        assert (await posting).body.endswith(b"".join(CHAT_STREAM))
        await house.aclose()
    assert ledger.kept[0].outcome is Outcome.COMPLETED


async def test_a_key_that_an_upstream_repeats_goes_no_further() -> None:
    """In a refusal, and in an error within a stream: neither the client nor the receipt sees it."""
    key = "sk-upstream-0123456789"
    refusal = {"error": {"message": f"Incorrect API key: {key}", "type": "invalid_request_error"}}
    answers = [whole(refusal, status=401), streamed(*CHAT_TEXT[:2], sse(refusal))]
    with ScriptedUpstream(*answers).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, key=Secret(key, "env:K")))
        replies = [await post(app_of(house), CHAT, asking(stream=True)) for _ in range(2)]
        await house.aclose()
    for reply, receipt in zip(replies, ledger.kept, strict=True):
        assert key not in reply.body.decode()
        assert b"Incorrect API key: [key]" in reply.body
        assert key not in repr(receipt)
        assert "Incorrect API key" in receipt.error


async def test_a_wrong_length_is_noticed() -> None:
    """Longer than it said: that is no HTTP, so it is no answer; and its connection is not used again."""
    answer = json.dumps(chat(CHAT_USAGE)).encode()
    steps = [head(content_length=str(len(answer))) + answer + b"GARBAGE"]
    with ScriptedUpstream(steps, whole(answer)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        app = app_of(house)
        replies = [await post(app, CHAT, asking()) for _ in range(2)]
        await house.aclose()
    assert [reply.status for reply in replies] == [502, 200]
    assert [asked.connection for asked in up.books] == [0, 1]
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.FAILED, Outcome.COMPLETED]
