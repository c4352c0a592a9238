"""With a key of its own the gateway still lets callers pay with theirs: its key has a header to itself, and what comes
under the usual names then goes to an upstream that has none. Our key goes to nobody."""

from __future__ import annotations

from dataclasses import replace

import anthropic
import openai
import pytest
from starlette.types import ASGIApp

from taximeter.gateway import Ways, build_app
from taximeter.serve import House
from taximeter.upstreams.config import Family
from taximeter.upstreams.secrets import Secret, caller_named
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, MESSAGES, Caller, listening
from tests.passing import CHAT_STREAM, CHAT_USAGE, MESSAGES_STREAM, asking, asking_messages
from tests.upstream_harness import ScriptedUpstream, an_upstream, passing_house, streamed, whole
from tests.wire import chat, messages

KEY = "gateway-key-5c1e"
OWN = "sk-own-77aa01"
USAGE = {"input_tokens": 25, "output_tokens": 15}


def with_key(house: House) -> House:
    return replace(house, key=Secret(KEY, "env:GATEWAY_KEY"))


def locked(house: House) -> ASGIApp:
    return build_app_of(house, key=KEY)


def build_app_of(house: House, *, key: str | None = None) -> ASGIApp:
    ways = Ways(relay=house.relay, dispatcher=house.dispatcher, network=house.network)
    return build_app(ways=ways, ledger=house.ledger, machine=None, key=key)


@pytest.mark.parametrize(
    ("shown", "status", "sent"),
    [
        ({"x-taximeter-key": KEY, "authorization": f"Bearer {OWN}"}, 200, {"authorization": f"Bearer {OWN}"}),
        ({"x-taximeter-key": KEY, "x-api-key": OWN}, 200, {"x-api-key": OWN}),
        ({"x-taximeter-key": KEY}, 200, {}),
        # Some clients show the same key everywhere: it is still ours.
        ({"x-taximeter-key": KEY, "authorization": f"bearer  {KEY}", "x-api-key": OWN}, 200, {"x-api-key": OWN}),
        ({"x-taximeter-key": KEY, "authorization": KEY, "x-api-key": KEY}, 200, {}),
        # As before: under the usual names it takes the caller's own with it.
        ({"authorization": f"Bearer {KEY}", "x-api-key": OWN}, 200, {}),
        ({"x-api-key": KEY, "api-key": OWN}, 200, {}),
        # A wrong one is not made good by a right one elsewhere.
        ({"x-taximeter-key": "wrong", "authorization": f"Bearer {KEY}"}, 401, None),
        ({"x-taximeter-key": "", "authorization": f"Bearer {KEY}"}, 401, None),
        ({"authorization": f"Bearer {OWN}"}, 401, None),
        ({"x-taximeter-key": f"Bearer {KEY}"}, 401, None),
        ({}, 401, None),
    ],
)
async def test_whose_key_goes_where(shown: dict[str, str], status: int, sent: dict[str, str] | None) -> None:
    """What opens the door, and what the upstream gets of it."""
    with ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        house, _ = passing_house(an_upstream(up.url))
        reply = await Caller(locked(house), CHAT, asking(), headers=shown).call()
        await house.aclose()
    assert reply.status == status
    got = [
        {name: value for name, value in asked.headers.items() if "key" in name or name == "authorization"}
        for asked in up.books
    ]
    assert got == ([] if sent is None else [sent])


@pytest.mark.parametrize(
    ("shown", "caller"),
    [
        ({"x-taximeter-key": KEY, "authorization": f"Bearer {OWN}"}, OWN),
        ({"authorization": f"Bearer {KEY}", "x-api-key": OWN}, OWN),
        ({"x-api-key": KEY}, KEY),
        ({"x-taximeter-key": KEY}, KEY),
        ({"x-taximeter-key": KEY, "authorization": "Bearer "}, KEY),
    ],
)
async def test_receipts_say_by_which_key_somebody_called(shown: dict[str, str], caller: str) -> None:
    """By the caller's own where there is one, and by a name that tells nothing of it."""
    with ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        await Caller(locked(house), CHAT, asking(), headers=shown).call()
        await Caller(build_app_of(house), CHAT, asking()).call()
        await house.aclose()
    # In no order: both may be of the same millisecond.
    (named,) = (key for receipt in ledger.receipts() if (key := receipt.request.key) is not None)
    assert len(ledger.receipts()) == 2
    assert named == caller_named(caller.encode())
    assert named.startswith("key-")
    assert caller not in named
    assert caller_named(OWN.encode()) != caller_named(KEY.encode())


async def test_an_upstream_with_a_key_of_its_own_keeps_it() -> None:
    """The operator pays there, whoever else has a key."""
    with ScriptedUpstream(whole(messages(USAGE))).listening() as up:
        house, _ = passing_house(an_upstream(up.url, Family.ANTHROPIC, key=Secret("sk-ours", "env:K")))
        shown = {"x-taximeter-key": KEY, "x-api-key": OWN, "authorization": f"Bearer {OWN}"}
        reply = await Caller(locked(house), MESSAGES, asking_messages(), headers=shown).call()
        counted = await Caller(locked(house), MESSAGES + "/count_tokens", asking_messages(), headers=shown).call()
        await house.aclose()
    assert (reply.status, counted.status) == (200, 200)
    assert [asked.headers["x-api-key"] for asked in up.books] == ["sk-ours"] * 2
    assert OWN not in repr(up.books)


async def test_it_does_not_go_to_another_dialect() -> None:
    """A key for Anthropic says nothing to an upstream that speaks like OpenAI, and is none of its business."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, _ = passing_house(an_upstream(up.url))
        shown = {"x-taximeter-key": KEY, "x-api-key": OWN}
        reply = await Caller(locked(house), MESSAGES, asking_messages(), headers=shown).call()
        await house.aclose()
    assert reply.status == 200
    assert OWN not in repr(up.books)
    assert KEY not in repr(up.books)


def test_the_official_clients_can_do_it() -> None:
    """With a header of their own, as they are."""
    ours = {"x-taximeter-key": KEY}
    with ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        house = with_key(passing_house(an_upstream(up.url))[0])
        with (
            listening(house) as url,
            openai.OpenAI(base_url=url + "/v1", api_key=OWN, default_headers=ours, timeout=WAIT_S) as client,
        ):
            client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "Good day"}])
    assert up.books[0].headers["authorization"] == f"Bearer {OWN}"
    with ScriptedUpstream(streamed(*MESSAGES_STREAM)).listening() as up:
        house = with_key(passing_house(an_upstream(up.url, Family.ANTHROPIC))[0])
        with (
            listening(house) as url,
            anthropic.Anthropic(base_url=url, api_key=OWN, default_headers=ours, timeout=WAIT_S) as client,
            client.messages.stream(**asking_messages()) as stream,
        ):
            assert "".join(stream.text_stream) == "Hello, world"
    assert OWN in repr(up.books[0].headers), "under the name that the client chose"
    assert KEY not in repr(up.books)
