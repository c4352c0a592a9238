"""Billing mistakes that other tools have shipped, from the bytes on the wire to the dollars on the receipt.

The names in brackets are the reports in which users found them. Prices are those of the frozen price card, per million
tokens; amounts are written as arithmetic.
"""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from taximeter.pricing import Settler
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.tariff import PublishedTariff
from taximeter.providers.sighting import Found
from taximeter.records import Basis, Dialect, Outcome, Receipt, Request, Timing, Usage
from tests import wire
from tests.price_card import CHECKED_AT, PRICE_CARD
from tests.wire import DONE, MESSAGE_STOP, chat, chunk, message_delta, message_start, messages, response, text_delta

CHAT, MESSAGES, RESPONSES = Dialect.OPENAI_CHAT, Dialect.ANTHROPIC_MESSAGES, Dialect.OPENAI_RESPONSES
CATALOG = Catalog.load(PRICE_CARD)


def receipt(
    found: Found, model: str, *, tier: str | None = None, provider: str = "card", at: datetime = CHECKED_AT
) -> Receipt:
    """The receipt of an answer in which this was found, for a model of the card."""
    settler = Settler(tariffs={"upstream": PublishedTariff(CATALOG, provider)})
    request = Request(id="req_1", received_at=at, received_ns=0, dialect=CHAT, model=model, tier=tier, stream=True)
    return settler.settle(
        receipt_id="rcp_1",
        request=request,
        closed_at=CHECKED_AT,
        outcome=Outcome.COMPLETED,
        timing=Timing(upstream_ns=1, total_ns=1),
        usage=found.usage,
        served_by="upstream",
        model_served=found.model,
        terms=found.terms,
    )


def dollars(found: Found, model: str, *, tier: str | None = None, provider: str = "card") -> Decimal:
    made = receipt(found, model, tier=tier, provider=provider)
    assert made.cost is not None, made.uncosted_reason
    return made.cost.total


def per_million(text: str) -> Decimal:
    """A sum of `count * price per million` products, as dollars."""
    products = [term.split("*") for term in text.replace(",", "").split("+")]
    return sum((Decimal(count.strip()) * Decimal(price.strip()) for count, price in products), Decimal(0)) / 1_000_000


def claude(*, fresh: int = 0, write: int = 0, read: int = 0, out: int = 0, **more: object) -> dict[str, object]:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": write,
        "cache_read_input_tokens": read,
        "output_tokens": out,
        **more,
    }


def both_ways(usage: dict[str, object]) -> list[Found]:
    """An answer of Anthropic's with this usage: whole, and as a stream that repeats the input at its end."""
    start = {**usage, "output_tokens": 1}
    end = {name: count for name, count in usage.items() if name.endswith("_tokens")}
    stream = [message_start(start), text_delta("Hello"), message_delta(end), MESSAGE_STOP]
    return [wire.whole(MESSAGES, messages(usage)), wire.streamed(MESSAGES, *stream)]


@pytest.mark.parametrize(
    ("model", "usage", "arithmetic", "amount"),
    [
        pytest.param(
            "sonnet-4-6",
            claude(fresh=3, write=12_304, out=550, cache_creation={"ephemeral_5m_input_tokens": 12_304}),
            "3 * 3 + 12,304 * 3.75 + 550 * 15",
            "0.054399",
            id="cache writes are no fresh input (BerriAI/litellm#9812)",
        ),
        pytest.param(
            "haiku-3-5",
            claude(fresh=4, read=2_455, out=23),
            "4 * 0.8 + 2,455 * 0.08 + 23 * 4",
            "0.0002916",
            id="cache reads are no fresh input (BerriAI/litellm#11789)",
        ),
        pytest.param(
            "opus-5",
            claude(fresh=6, write=159_217, out=2_745, cache_creation={"ephemeral_5m_input_tokens": 159_217}),
            "6 * 5 + 159,217 * 6.25 + 2,745 * 25",
            "1.06376125",
            id="writes are not counted again at the end (maximhq/bifrost#3451)",
        ),
        pytest.param(
            "sonnet-4-6",
            claude(fresh=19, read=39_000),
            "19 * 3 + 39,000 * 0.30",
            "0.011757",
            id="more cached than fresh (langchain-ai/langsmith-sdk PR 2519)",
        ),
        pytest.param(
            "opus-5",
            claude(
                write=1_000_000,
                cache_creation={"ephemeral_5m_input_tokens": 600_000, "ephemeral_1h_input_tokens": 400_000},
            ),
            "600,000 * 6.25 + 400,000 * 10",
            "7.75",
            id="1-hour writes cost more than 5-minute ones (earendil-works/pi#5737)",
        ),
        pytest.param(
            "opus-5",
            claude(write=344_139, cache_creation={"ephemeral_1h_input_tokens": 344_139}),
            "344,139 * 10",
            "3.44139",
            id="1-hour writes alone (Owloops/claude-powerline#104)",
        ),
        pytest.param(
            "sonnet-4-6",
            claude(fresh=10_000, out=500, server_tool_use={"web_search_requests": 2, "web_fetch_requests": 3}),
            "10,000 * 3 + 500 * 15 + 2 * 10,000",
            "0.0575",
            id="searches that were made are billed (langfuse/langfuse#15856)",
        ),
        pytest.param(
            "sonnet-4-6",
            claude(fresh=10_000, out=500, server_tool_use={"web_search_requests": 0}),
            "10,000 * 3 + 500 * 15",
            "0.0375",
            id="searches that were only offered are not (BerriAI/litellm#16996)",
        ),
        pytest.param(
            "opus-5-5",
            claude(fresh=5_000, out=800, service_tier="batch"),
            "5,000 * 2 + 800 * 10",
            "0.018",
            id="a batch is known from its result (BerriAI/litellm PR 9077)",
        ),
        pytest.param(
            "opus-5-5",
            claude(fresh=5_000, out=800, service_tier="standard", speed="fast"),
            "5,000 * 8 + 800 * 40",
            "0.072",
            id="speed is a tier",
        ),
    ],
)
def test_a_stream_costs_what_the_whole_answer_costs(model: str, usage: dict[str, object], arithmetic: str, amount: str):
    """Streamed or not, to the digit."""
    for found in both_ways(usage):
        assert dollars(found, model) == per_million(arithmetic) == Decimal(amount)


def test_the_start_of_a_stream_and_its_end_are_not_added():
    """25 in and 1 out, then 15 out, are 25 and 15, whether the end repeats the input or not (tensorzero#5481)."""
    for end in (
        {"output_tokens": 15},
        {"input_tokens": 25, "output_tokens": 15},
        {"input_tokens": None, "output_tokens": 15},
    ):
        found = wire.streamed(
            MESSAGES,
            message_start({"input_tokens": 25, "output_tokens": 1}),
            text_delta("a"),
            message_delta(end),
            MESSAGE_STOP,
        )
        assert (found.usage.input_tokens, found.usage.output_tokens) == (25, 15)
        assert found.usage.basis is Basis.REPORTED


def test_running_totals_are_not_added():
    """100 chunks that report 1, 2, ... 100 tokens are 100 tokens, not 5,050 (griptape-ai/griptape#2275)."""
    usages = [{"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count} for count in range(1, 101)]
    found = wire.streamed(CHAT, *(chunk("a", usage=usage) for usage in usages), DONE)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (7, 100)
    assert found.usage.reported == usages[-1]


@pytest.mark.parametrize("end", [{"cache_creation_input_tokens": 1_000}, {"cache_creation": None}, {}])
def test_how_long_a_write_stays_is_kept_from_the_start(end: dict[str, object]):
    """The end of a stream has the total alone; 1,000 tokens for an hour cost $0.01 and not $0.00625."""
    start = claude(write=1_000, cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1_000})
    found = wire.streamed(MESSAGES, message_start(start), message_delta({**end, "output_tokens": 0}), MESSAGE_STOP)
    assert found.usage.input_cache_write_1h_tokens == 1_000
    assert dollars(found, "opus-5") == per_million("1,000 * 10") == Decimal("0.01")


def test_a_write_that_grew_after_the_start_is_of_unknown_lifetime():
    """What the split of the start does not cover is priced as the shortest, and says that this is assumed."""
    start = claude(write=1_000, cache_creation={"ephemeral_1h_input_tokens": 1_000})
    end = {"cache_creation_input_tokens": 1_500, "output_tokens": 0}
    found = wire.streamed(MESSAGES, message_start(start), message_delta(end), MESSAGE_STOP)
    assert found.usage.input_cache_write_unknown_tokens == 500
    made = receipt(found, "opus-5")
    assert made.cost is not None
    assert made.cost.total == per_million("1,000 * 10 + 500 * 6.25")
    assert {line.unit: line.basis for line in made.cost.lines} == {
        "input_cache_write_1h_tokens": Basis.DERIVED,
        "input_cache_write_unknown_tokens": Basis.ASSUMED,
    }
    assert made.cost.basis is Basis.ASSUMED


def test_compaction_is_billed_beside_the_top_of_the_usage():
    """By the top level alone this documented answer costs $0.084; the compaction before it cost more by far."""
    calls = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ]
    usage = claude(fresh=23_000, out=1_000)
    assert (
        dollars(wire.whole(MESSAGES, messages(usage)), "sonnet-4-6")
        == per_million("23,000 * 3 + 1,000 * 15")
        == Decimal("0.084")
    )
    start, end = message_start(claude(out=1)), message_delta({**usage, "iterations": calls})
    for found in (
        wire.whole(MESSAGES, messages({**usage, "iterations": calls})),
        wire.streamed(MESSAGES, start, text_delta("a"), end, MESSAGE_STOP),
    ):
        amount = per_million("180,000 * 3 + 3,500 * 15 + 23,000 * 3 + 1,000 * 15")
        assert dollars(found, "sonnet-4-6") == amount == Decimal("0.6765")


def test_calls_within_a_request_do_not_make_its_prompt_long():
    """180,000 and 23,000 tokens are two prompts of less than 200,000, and neither costs the long prompt's price."""
    calls = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ]
    found = wire.whole(MESSAGES, messages(claude(fresh=23_000, out=1_000, iterations=calls)))
    assert found.usage.prompts_tokens == (180_000, 23_000)
    assert dollars(found, "sonnet-4-5") == Decimal("0.6765")
    calls[0]["input_tokens"] = 210_000
    found = wire.whole(MESSAGES, messages(claude(fresh=23_000, out=1_000, iterations=calls)))
    assert "cost more" in str(receipt(found, "sonnet-4-5").uncosted_reason)


def test_an_advisor_is_billed_at_its_own_models_price():
    """Tokens of another model than the one that answered have lines of their own, and are in no total of it."""
    calls = [
        {"type": "message", "input_tokens": 400, "output_tokens": 100},
        {"type": "advisor_message", "model": "opus-5", "input_tokens": 800, "output_tokens": 1_600},
        {"type": "message", "input_tokens": 1_300, "cache_read_input_tokens": 400, "output_tokens": 440},
    ]
    usage = claude(fresh=400, out=540, iterations=calls)
    found = wire.whole(MESSAGES, messages(usage, model="sonnet-5"))
    assert found.usage.by_model == {"opus-5": {"input_fresh_tokens": 800, "output_text_tokens": 1_600}}
    assert (found.usage.input_tokens, found.usage.output_tokens) == (2_900, 2_140)
    own, advice = "1,700 * 2 + 400 * 0.20 + 540 * 10", "800 * 5 + 1,600 * 25"
    made = receipt(found, "sonnet-5")
    assert made.cost is not None
    assert made.cost.total == per_million(f"{own} + {advice}")
    assert {line.model for line in made.cost.lines} == {None, "opus-5"}
    unpriced = wire.whole(
        MESSAGES, messages({**usage, "iterations": [{**calls[1], "model": "nobodys"}]}, model="sonnet-5")
    )
    assert "nobodys" in str(receipt(unpriced, "sonnet-5").uncosted_reason)


def test_an_advisors_prompts_may_be_long():
    """How long each of them was is not kept, so where the length makes a price there is none."""
    for tokens, is_priced in ((200_000, True), (200_001, False)):
        advice = {"type": "advisor_message", "model": "sonnet-4-5", "input_tokens": tokens, "output_tokens": 1}
        found = wire.whole(MESSAGES, messages(claude(fresh=5, out=5, iterations=[advice]), model="sonnet-5"))
        made = receipt(found, "sonnet-5")
        assert (made.cost is not None) is is_priced
        assert is_priced or "lengths of its prompts" in str(made.uncosted_reason)


def test_where_it_ran_is_a_line_of_its_own():
    """Confined to the United States tokens cost 1.1 times as much: $0.033 and not $0.03. Searches do not."""
    usage = claude(fresh=1_000, out=1_000, inference_geo="us", server_tool_use={"web_search_requests": 1})
    found = wire.whole(MESSAGES, messages(usage, model="claude-opus-5"))
    made = receipt(found, "claude-opus-5", provider="anthropic")
    assert made.cost is not None
    amounts = {line.unit: line.amount for line in made.cost.lines}
    assert amounts.pop("web_searches") == Decimal("0.01")
    assert amounts["geography_us"] == (per_million("1,000 * 5 + 1,000 * 25")) / 10 == Decimal("0.003")
    assert sum(amounts.values()) == Decimal("0.033")
    assert made.cost.basis is Basis.ASSUMED
    for nowhere in ("global", "not_available", None):
        found = wire.whole(MESSAGES, messages({**usage, "inference_geo": nowhere}, model="claude-opus-5"))
        assert dollars(found, "claude-opus-5", provider="anthropic") == Decimal("0.04")
    found = wire.whole(MESSAGES, messages({**usage, "inference_geo": "moon"}, model="claude-opus-5"))
    assert "moon" in str(receipt(found, "claude-opus-5", provider="anthropic").uncosted_reason)


def usage_of(prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def responses_words(usage: dict[str, object]) -> dict[str, object]:
    """The same counts as Responses writes them."""
    names = {
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "prompt_tokens_details": "input_tokens_details",
        "completion_tokens_details": "output_tokens_details",
    }
    return {names.get(name, name): value for name, value in usage.items()}


@pytest.mark.parametrize(
    ("model", "usage", "arithmetic", "amount"),
    [
        pytest.param(
            "gpt-4o",
            usage_of(2_006, 300, cached=1_920),
            "86 * 2.5 + 1,920 * 1.25 + 300 * 10",
            "0.005615",
            id="cached tokens are a part of the prompt (BerriAI/litellm#6215)",
        ),
        pytest.param(
            "gpt-5.6-sol",
            usage_of(27_985, 60, cached=27_136),
            "849 * 4 + 27,136 * 0.40 + 60 * 20",
            "0.0154504",
            id="a stream's cached tokens reach the price (decolua/9router#2873)",
        ),
        pytest.param(
            "gpt-5-nano",
            usage_of(17, 482, reasoning=448),
            "17 * 0.05 + 482 * 0.4",
            "0.00019365",
            id="reasoning is billed once, and the rest too (BerriAI/litellm#18599)",
        ),
        pytest.param(
            "gpt-5.4",
            usage_of(272_000, 1_000, cached=200_000),
            "72,000 * 2.5 + 200,000 * 0.25 + 1,000 * 15",
            "0.245",
            id="exactly on a threshold is below it (ding113/claude-code-hub#869)",
        ),
        pytest.param(
            "gpt-5.4",
            usage_of(272_001, 1_000, cached=200_000),
            "72,001 * 5 + 200,000 * 0.5 + 1,000 * 22.5",
            "0.482505",
            id="above it everything costs more (junhoyeo/tokscale#862)",
        ),
    ],
)
def test_every_openai_dialect_costs_the_same(model: str, usage: dict[str, object], arithmetic: str, amount: str):
    """Chat or Responses, streamed or not, to the digit; also where the last chunk with a choice has the usage."""
    last = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    responses = responses_words(usage)
    completed = {"type": "response.completed", "response": response(responses)}
    for found in (
        wire.whole(CHAT, chat(usage)),
        wire.streamed(CHAT, chunk("a"), last, chunk(usage=usage), DONE),
        wire.streamed(CHAT, chunk("a"), {**last, "usage": usage}, DONE),
        wire.streamed(CHAT, chunk("a"), {**last, "usage": usage}, chunk(usage=usage), DONE),
        wire.whole(RESPONSES, response(responses)),
        wire.streamed(RESPONSES, {"type": "response.output_text.delta", "delta": "a"}, completed),
    ):
        assert dollars(found, model) == per_million(arithmetic) == Decimal(amount)
        assert found.usage.basis is Basis.REPORTED


def test_a_stream_is_priced_by_the_day_it_was_asked():
    """Its cached tokens at the price of that day: $0.019613, not $0.141725 (decolua/9router#2873)."""
    found = wire.streamed(CHAT, chunk("a"), chunk(usage=usage_of(27_985, 60, cached=27_136)), DONE)
    made = receipt(found, "gpt-5.6-sol", at=datetime(2026, 8, 20, tzinfo=UTC))
    assert made.cost is not None
    assert made.cost.total == per_million("849 * 5 + 27,136 * 0.5 + 60 * 30") == Decimal("0.019613")


@pytest.mark.parametrize(("tier", "amount"), [("default", "0.0135"), ("flex", "0.00675"), ("priority", "0.027")])
def test_the_tier_that_was_served_counts(tier: str, amount: str):
    """It is in the answer, whatever the request asked for (BerriAI/litellm#13810)."""
    usage = usage_of(10_000, 1_000, cached=8_000)
    for asked in (None, "auto", "flex", "priority"):
        found = wire.whole(CHAT, chat(usage, service_tier=tier))
        assert dollars(found, "gpt-5", tier=asked) == Decimal(amount)
        found = wire.streamed(CHAT, {**chunk("a"), "service_tier": tier}, chunk(usage=usage), DONE)
        assert dollars(found, "gpt-5", tier=asked) == Decimal(amount)
        found = wire.whole(RESPONSES, response(responses_words(usage), service_tier=tier))
        assert dollars(found, "gpt-5", tier=asked) == Decimal(amount)


@pytest.mark.parametrize(("served", "asked"), [("scale", None), ("turbo", None), (None, "flex")])
def test_no_tier_is_standard_by_default(served: str | None, asked: str | None):
    """A tier without a price, and one that was asked for and not confirmed, make the cost unknown."""
    found = wire.whole(CHAT, chat(usage_of(10, 10), service_tier=served))
    made = receipt(found, "gpt-5", tier=asked)
    assert made.cost is None
    assert str(served or asked) in str(made.uncosted_reason)


def test_searches_are_counted_when_they_were_made():
    """Output items count, the tool that was offered does not; nor do pages that were opened, or failed calls."""
    items = [
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "web_search_call", "status": "completed"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "open_page"}},
        {"type": "web_search_call", "status": "failed", "action": {"type": "search"}},
        {"type": "file_search_call", "status": "completed"},
        {"type": "message", "status": "completed"},
    ]
    body = response({"input_tokens": 1, "output_tokens": 1}, output=items, tools=[{"type": "web_search"}])
    terminal = {"type": "response.completed", "response": body}
    for found in (wire.whole(RESPONSES, body), wire.streamed(RESPONSES, terminal)):
        assert found.usage.other_units == {"web_searches": 2, "storage_searches": 1}
    found = wire.whole(RESPONSES, response({"input_tokens": 1, "output_tokens": 1}, tools=[{"type": "web_search"}]))
    assert found.usage.other_units == {}


def test_the_end_of_a_responses_stream_has_its_usage():
    """20 and 60 tokens, and not none (maximhq/bifrost#4484)."""
    created = {"type": "response.created", "response": response(None, status="in_progress")}
    completed = {"type": "response.completed", "response": response({"input_tokens": 20, "output_tokens": 60})}
    found, _ = wire.watched(RESPONSES, wire.sse(created, completed))
    assert (found.usage.input_tokens, found.usage.output_tokens, found.is_whole) == (20, 60, True)


def test_a_hang_up_leaves_what_was_known():
    """25 tokens were read for certain, and three pieces of the answer came: at least $0.00006, *derived*."""
    start = message_start({"input_tokens": 25, "output_tokens": 1})
    found = wire.streamed(MESSAGES, start, text_delta("a"), text_delta("b"), text_delta("c"))
    assert (found.usage.input_fresh_tokens, found.usage.output_tokens) == (25, 3)
    assert (found.usage.basis, found.is_whole) == (Basis.DERIVED, False)
    made = receipt(found, "sonnet-5")
    assert made.cost is not None
    assert made.cost.total == per_million("25 * 2 + 3 * 10") >= Decimal("0.00006")
    assert made.cost.basis is Basis.DERIVED
    assert made.inter_token_ns is None


def test_a_placeholder_is_replaced_before_the_price():
    """An answer of 296 tokens costs that, not what its start said (BerriAI/litellm PR 39893)."""
    found = wire.streamed(
        MESSAGES,
        message_start({"input_tokens": 0, "output_tokens": 1}),
        text_delta("a"),
        message_delta({"output_tokens": 296}),
        MESSAGE_STOP,
    )
    assert dollars(found, "sonnet-5") == per_million("296 * 10")


def test_parts_that_exceed_their_total_are_refused():
    """19 tokens of which 39,000 were cached are no usage: no cost is known (langsmith-sdk PR 2519)."""
    usage = {"prompt_tokens": 19, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 39_000}}
    for found in (wire.whole(CHAT, chat(usage)), wire.streamed(CHAT, chunk(usage=usage), DONE)):
        assert set(found.usage.leaves().values()) == {None}
        assert found.usage.reported == usage
        made = receipt(found, "gpt-4o")
        assert made.cost is None
        assert "prompt_tokens is 19, and its parts are more: cached 39000" in str(made.uncosted_reason)


@pytest.mark.parametrize(
    "found",
    [
        wire.whole(MESSAGES, {"id": "b", "type": "message_batch", "processing_status": "ended", "results_url": "u"}),
        wire.whole(CHAT, chat(None)),
        wire.whole(CHAT, b"<html>502</html>"),
        wire.whole(RESPONSES, response(None, status="queued")),
        wire.streamed(CHAT, DONE),
        wire.streamed(CHAT),
    ],
)
def test_no_usage_is_never_none_used(found: Found):
    """What nobody said is unknown, with a reason, and has no cost (BerriAI/litellm#27944)."""
    assert set(found.usage.leaves().values()) == {None}
    assert all(found.usage.unknown_reasons.values())
    assert receipt(found, "gpt-5").cost is None


def test_an_unpriced_model_has_no_cost():
    """The reason stands on the receipt (ccusage/ccusage PR 858)."""
    made = receipt(wire.whole(CHAT, chat(usage_of(1, 1))), "no-such")
    assert made.cost is None
    assert "no-such" in str(made.uncosted_reason)


def test_the_model_that_answered_is_priced():
    """An alias is answered with a version; where the catalog lacks that, with what was asked for."""
    found = wire.whole(CHAT, chat(usage_of(1_000_000, 0), model="gpt-5"))
    assert dollars(found, "gpt-4o") == Decimal("1.25")
    found = wire.whole(CHAT, chat(usage_of(1_000_000, 0), model="gpt-4o-2031-01-01"))
    assert dollars(found, "gpt-4o") == Decimal("2.5")


def test_llama_cpp_says_beside_its_usage_what_was_cached():
    """900 of 1,024 tokens were in its cache: 124 are fresh."""
    timings = {"cache_n": 900, "prompt_n": 124, "prompt_ms": 62.0, "predicted_n": 50, "predicted_ms": 500.0}
    usage = {"prompt_tokens": 1_024, "completion_tokens": 50, "total_tokens": 1_074}
    for found in (
        wire.whole(CHAT, chat(usage, timings=timings)),
        wire.streamed(CHAT, chunk("a"), {**chunk(usage=usage), "timings": timings}, DONE),
        wire.streamed(CHAT, chunk("a"), {**chunk(), "timings": timings}, DONE),
    ):
        used = found.usage
        assert (used.input_fresh_tokens, used.input_cache_read_tokens, used.output_tokens) == (124, 900, 50)
        assert used.basis is Basis.REPORTED


def test_audio_and_rejected_predictions_are_billed():
    """Audio has a bucket of its own; a prediction that was rejected stays in the output."""
    usage = {
        "prompt_tokens": 1_100,
        "completion_tokens": 500,
        "prompt_tokens_details": {"audio_tokens": 1_000, "text_tokens": 100},
        "completion_tokens_details": {"audio_tokens": 300, "rejected_prediction_tokens": 150},
    }
    used = wire.whole(CHAT, chat(usage)).usage
    assert (used.input_fresh_tokens, used.input_audio_tokens) == (100, 1_000)
    assert (used.output_text_tokens, used.output_audio_tokens) == (200, 300)
    usage["prompt_tokens_details"] = {"audio_tokens": 1_000, "cached_tokens": 600}
    used = wire.whole(CHAT, chat(usage)).usage
    assert used.input_audio_tokens is None
    assert "nothing says how many" in used.unknown_reasons["input_audio_tokens"]
    details = {"audio_tokens": 1_000, "cached_tokens": 600, "cached_tokens_details": {"audio_tokens": 550}}
    used = wire.whole(CHAT, chat({**usage, "prompt_tokens_details": details})).usage
    assert (used.input_fresh_tokens, used.input_cache_read_tokens) == (50, 50)
    assert (used.input_audio_tokens, used.input_audio_cache_read_tokens) == (450, 550)


def test_embeddings_have_a_prompt_and_no_answer():
    """Their usage has no output, and that is known to be none."""
    body = {
        "object": "list",
        "data": [{"embedding": "AAAA"}],
        "model": "e",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
    assert wire.whole(Dialect.OPENAI_EMBEDDINGS, body).usage == Usage(
        input_fresh_tokens=8,
        input_cache_read_tokens=0,
        output_text_tokens=0,
        reported={"prompt_tokens": 8, "total_tokens": 8},
    )
