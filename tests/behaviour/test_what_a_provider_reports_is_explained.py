"""`taximeter reconcile`: a provider's sum beside ours, by model and bucket. What differs is explained by cause, and the
causes add up to the difference, to the last picodollar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.cli.main import app
from taximeter.errors import RequestError
from taximeter.ledger import Ledger
from taximeter.pricing import charge
from taximeter.pricing.catalog import Catalog
from taximeter.reconcile.books import Books, Names
from taximeter.reconcile.comparing import NO_MODEL, Cause, Reconciliation, reconcile
from taximeter.reconcile.reading import Kind, read_reports
from taximeter.records import Basis, Outcome, Receipt, Usage, exact_sum
from taximeter.settings import Settings
from tests.price_card import cost, usage
from tests.unit.ledger.records import a_receipt, a_request

CATALOG = Catalog.load()
DAY = datetime(2026, 11, 10, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
LATER = datetime(2026, 11, 20, tzinfo=UTC)
OPUS, SONNET = "claude-opus-5-5", "claude-sonnet-5-5"


def paid(
    model: str = OPUS, used: Usage | None = None, *, at: datetime = NOON, tier: str = "standard", **more: Any
) -> Receipt:
    """A receipt of Anthropic's, at its published price."""
    used = used or usage(fresh=1_000_000, text=100_000)
    receipt = replace(
        a_receipt(a_request(at=at, model=model), closed_at=at + timedelta(seconds=3)),
        usage=used,
        work=None,
        served_by="anthropic",
        model_served=model,
        cost=cost(CATALOG, f"anthropic/{model}", used, at=at, tier=tier),
        uncosted_reason=None,
    )
    return replace(receipt, **more)


def unpriced(model: str, used: Usage | None = None) -> Receipt:
    return replace(paid(OPUS, used), model_served=model, cost=None, uncosted_reason="no price")


def bucket(*rows: Mapping[str, object], day: datetime = DAY, days: int = 1) -> dict[str, object]:
    edges = (day, day + timedelta(days=days))
    starting, ending = (edge.isoformat().replace("+00:00", "Z") for edge in edges)
    return {"starting_at": starting, "ending_at": ending, "results": list(rows)}


def page(*buckets: Mapping[str, object], has_more: bool = False) -> str:
    return json.dumps({"data": list(buckets), "has_more": has_more, "next_page": None})


def used_row(
    model: str | None = OPUS, *, fresh: int = 1_000_000, out: int = 100_000, **more: object
) -> dict[str, object]:
    return {
        "uncached_input_tokens": fresh,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "cache_read_input_tokens": 0,
        "output_tokens": out,
        "server_tool_use": {"web_search_requests": 0},
        "model": model,
        "service_tier": "standard",
        "context_window": "0-200k",
        **more,
    }


def cost_row(cents: str, model: str | None = OPUS, **more: object) -> dict[str, object]:
    return {"amount": cents, "currency": "USD", "cost_type": "tokens", "model": model, **more}


def compared(texts: Sequence[str], receipts: Sequence[Receipt], now: datetime = LATER) -> list[Reconciliation]:
    statements = read_reports({f"page {number}": text for number, text in enumerate(texts)})
    books = [Books(each, Names(CATALOG, each.provider), lambda receipt: receipt.served_by) for each in statements]
    for receipt in receipts:
        for book in books:
            book.add(receipt)
    done = reconcile(books, catalog=CATALOG, now=now)
    for found in done:
        assert exact_sum(found.causes.values()) == found.difference == found.theirs - found.ours
        for line in found.lines:
            assert exact_sum(line.causes.values()) == line.difference
    return done


def one(text: str, *receipts: Receipt, now: datetime = LATER) -> Reconciliation:
    [found] = compared([text], receipts, now)
    return found


def test_equal_sums_need_no_cause() -> None:
    """One dollar for each quarter of a million: 4 and 20 dollars a million. Cents are text, and a hundredth."""
    receipt = paid()
    assert receipt.cost is not None
    assert receipt.cost.total == 4 + 2
    by_cost = one(page(bucket(cost_row("600.00"))), receipt)
    assert (by_cost.theirs, by_cost.ours, by_cost.causes) == (6, 6, {})
    by_usage = one(page(bucket(used_row())), receipt)
    assert (by_usage.theirs, by_usage.ours, by_usage.causes) == (6, 6, {})
    assert [line.model for line in by_usage.lines] == ["anthropic/claude-opus-5-5"]


def test_less_than_the_last_digit_is_rounding() -> None:
    """By how many digits the report has; a whole cent more is not."""
    assert one(page(bucket(cost_row("600.004"))), paid()).causes == {Cause.UNEXPLAINED: Decimal("0.00004")}
    assert one(page(bucket(cost_row("600.4"))), paid()).causes == {Cause.UNEXPLAINED: Decimal("0.004")}
    odd = paid(used=usage(fresh=1_000_001, text=100_000))
    assert one(page(bucket(cost_row("600.0"))), odd).causes == {Cause.ROUNDING: Decimal("-0.000004")}


@pytest.mark.parametrize("requests", [None, 2])
def test_tokens_that_no_receipt_has_are_missing(requests: int | None) -> None:
    """What was asked past the gateway, or lost: in dollars of those tokens."""
    row = used_row(fresh=1_500_000, requests=requests)
    found = one(page(bucket(row)), paid())
    assert found.causes == {Cause.MISSING: Decimal("0.5") * 4}
    assert (found.lines[0].requests, found.lines[0].receipts) == (requests, 1)


def test_a_model_without_any_receipt() -> None:
    """Nobody here knows of it."""
    found = one(page(bucket(used_row(), used_row(SONNET, fresh=1_000_000, out=0))), paid())
    assert found.causes == {Cause.NO_RECEIPTS: 2}


def test_receipts_that_the_report_does_not_have() -> None:
    """It is not in there; or the report has as many groups as it can have, and some are left out."""
    sonnet = paid(SONNET, usage(fresh=1_000_000))
    assert one(page(bucket(used_row())), paid(), sonnet).causes == {Cause.NOT_REPORTED: -2}
    crowd = [used_row(None, fresh=0, out=0, api_key_id=f"key {number}") for number in range(99)]
    cut = one(page(bucket(used_row(), *crowd)), paid(), sonnet)
    assert cut.causes == {Cause.CUT_OFF: -2}
    assert any("as many groups" in note for note in cut.notes)


def test_receipts_without_a_price() -> None:
    """Their tokens are in the report, and are worth this."""
    found = one(page(bucket(used_row(fresh=1_500_000))), paid(), unpriced(OPUS, usage(fresh=500_000)))
    assert found.causes == {Cause.UNPRICED: 2}
    assert found.lines[0].unpriced == 1


def test_rows_without_a_price_are_counted_with_their_reason() -> None:
    """A model that nobody has a price for is in no sum, on neither side."""
    found = one(page(bucket(used_row("claude-secret-9"), used_row())), paid(), unpriced("claude-secret-9"))
    assert (found.theirs, found.ours, found.causes) == (6, 6, {})
    assert [count for reason, count in found.unpriced_rows.items() if "claude-secret-9" in reason] == [1]


def test_a_lower_bound_of_ours() -> None:
    """A stream that was hung up on has what was seen. No request is missing, so that is where the rest is."""
    cut = paid(used=usage(fresh=1_000_000, text=40_000, basis=Basis.DERIVED), outcome=Outcome.ABORTED)
    found = one(page(bucket(used_row(requests=1))), cut)
    assert found.causes == {Cause.ESTIMATED: Decimal("1.2")}
    assert found.lines[0].estimated == 1
    assert one(page(bucket(used_row(requests=2))), cut).causes == {Cause.MISSING: Decimal("1.2")}


def test_the_same_tokens_at_another_rate() -> None:
    """A batch there, and standard here."""
    assert one(page(bucket(used_row(service_tier="batch"))), paid()).causes == {Cause.OTHER_TIER: -3}
    assert one(page(bucket(used_row(speed="fast"))), paid()).causes == {Cause.OTHER_TIER: 6}
    batched = paid(tier="batch")
    assert one(page(bucket(used_row(service_tier="batch"))), batched).causes == {}
    assert one(page(bucket(cost_row("300", service_tier="batch"))), paid()).causes == {Cause.OTHER_TIER: -3}


def test_a_place_that_costs_more() -> None:
    """US-only inference is a tenth more on both sides, if it is on both."""
    assert one(page(bucket(used_row(inference_geo="us"))), paid()).causes == {Cause.OTHER_TIER: Decimal("0.6")}


@pytest.mark.parametrize("is_priced", [True, False])
def test_a_model_that_helped_has_its_own_row(is_priced: bool) -> None:
    """An advisor's tokens are on the receipt of the call that it helped with, and in the provider's report its own."""
    helped = {SONNET: {"input_fresh_tokens": 500_000, "output_text_tokens": 50_000}}
    used = replace(usage(fresh=1_500_000, text=150_000), by_model=helped)
    opus, sonnet = (
        CATALOG.price_list(f"anthropic/{model}", at=NOON, input_tokens=1_000_000) for model in (OPUS, SONNET)
    )
    bill = charge(used, opus, {SONNET: sonnet})
    assert bill.total == 4 + 2 + 1 + Decimal("0.5")
    receipt = replace(paid(), usage=used, cost=bill)
    receipt = receipt if is_priced else replace(receipt, cost=None, uncosted_reason="no price")
    found = one(page(bucket(used_row(), used_row(SONNET, fresh=500_000, out=50_000))), receipt)
    assert [(line.theirs, line.receipts) for line in found.lines] == [(6, 1), (Decimal("1.5"), 0)]
    assert found.causes == ({} if is_priced else {Cause.UNPRICED: Decimal("7.5")})


def test_a_discount_is_known() -> None:
    """Both amounts are in the report."""
    found = one(page(bucket(cost_row("540.0", list_amount="600.0"))), paid())
    assert found.causes == {Cause.DISCOUNT: Decimal("-0.6")}


def test_a_bucket_that_is_not_over() -> None:
    """Whatever differs there will change."""
    found = one(page(bucket(cost_row("100"))), paid(), now=NOON)
    assert found.causes == {Cause.UNFINISHED: -5}


def test_another_currency_is_in_no_sum() -> None:
    """It is told apart."""
    found = one(page(bucket(cost_row("600"), cost_row("700", currency="EUR"))), paid())
    assert (found.theirs, found.causes, found.other_currencies) == (6, {}, {"EUR": 7})


def test_what_is_of_no_model() -> None:
    """Code execution; and searches, which have a row of their own and are a part of our receipts."""
    found = one(page(bucket(cost_row("600"), cost_row("12.5", None, cost_type="code_execution"))), paid())
    assert found.causes == {Cause.NOT_TOKENS: Decimal("0.125")}
    searching = paid(used=usage(fresh=1_000_000, text=100_000, web_searches=3))
    rows = [cost_row("600"), cost_row("3", None, cost_type="web_search")]
    assert one(page(bucket(*rows)), searching).causes == {}
    rows += [cost_row("8", None, cost_type="code_execution"), cost_row("-50", None, cost_type="credit")]
    assert one(page(bucket(*rows)), searching).causes == {Cause.NOT_TOKENS: Decimal("0.08") - Decimal("0.5")}
    assert one(page(bucket(cost_row("603"))), searching).causes == {}


def test_buckets_are_half_open() -> None:
    """Midnight belongs to the day that begins, and nothing is counted twice or not at all."""
    edge = paid(at=DAY + timedelta(days=1))
    last = paid(at=DAY + timedelta(days=1) - timedelta(microseconds=1))
    outside = [paid(at=DAY - timedelta(microseconds=1)), paid(at=DAY + timedelta(days=2))]
    found = one(page(bucket(used_row()), bucket(used_row(), day=DAY + timedelta(days=1))), edge, last, *outside)
    assert found.causes == {}
    assert [line.receipts for line in found.lines] == [1, 1]


def test_a_usage_report_explains_a_cost_report() -> None:
    """Amounts alone say little; together they say which part is which."""
    texts = [page(bucket(cost_row("800"))), page(bucket(used_row(fresh=1_500_000, requests=2)))]
    usage_side, cost_side = compared(texts, [paid()])
    assert (usage_side.kind, cost_side.kind) == (Kind.USAGE, Kind.COST)
    assert cost_side.causes == {Cause.MISSING: 2}
    alone = one(texts[0], paid())
    assert alone.causes == {Cause.UNEXPLAINED: 2}


def test_a_report_that_is_not_divided_has_one_sum() -> None:
    """Over all models, and so have our receipts then; the usage report says what is missing."""
    whole = {"amount": "1000", "currency": "USD"}
    receipts = [paid(), paid(SONNET, usage(fresh=1_000_000))]
    found = one(page(bucket(whole)), *receipts)
    assert [(line.model, line.theirs, line.ours) for line in found.lines] == [("(all models)", 10, 8)]
    assert found.causes == {Cause.UNEXPLAINED: 2}
    assert any("not divided by model" in note for note in found.notes)
    texts = [page(bucket(whole)), page(bucket(used_row(fresh=1_500_000), used_row(SONNET, fresh=1_000_000, out=0)))]
    assert compared(texts, receipts)[1].causes == {Cause.MISSING: 2}
    undivided = openai_page({"object": "organization.costs.result", "amount": {"value": 1.5, "currency": "usd"}})
    assert one(undivided).causes == {Cause.NO_RECEIPTS: Decimal("1.5")}


def test_tokens_of_no_model_have_no_price_and_no_other_tier() -> None:
    """A usage report that is divided by nothing cannot be priced: that is the reason, and nothing else is suspected."""
    found = one(page(bucket(used_row(None))), paid())
    assert (found.theirs, found.causes) == (0, {Cause.UNPRICED: -6})
    assert list(found.unpriced_rows.values()) == [1]


def test_pages_are_one_report() -> None:
    """In one file or several, a list or a line each; a page that comes twice counts once, a missing one is told."""
    first, second = page(bucket(used_row()), has_more=True), page(bucket(used_row(), day=DAY + timedelta(days=1)))
    receipts = [paid(), paid(at=NOON + timedelta(days=1))]
    for texts in ([first, second], [f"[{first}, {second}]"], [f"{first}\n{second}\n"], [second, first, first]):
        [found] = compared(texts, receipts)
        assert (found.theirs, found.causes) == (12, {})
    assert any("further pages" in note for note in one(first, paid()).notes)
    with pytest.raises(RequestError, match="not the same"):
        read_reports({"a": first, "b": page(bucket(used_row(fresh=1)))})
    with pytest.raises(RequestError, match="overlap"):
        read_reports({"a": first, "b": page(bucket(used_row(), days=7))})


OPENAI_USAGE = {
    "object": "organization.usage.completions.result",
    "input_tokens": 1_000_000,
    "input_cached_tokens": 400_000,
    "output_tokens": 50_000,
    "num_model_requests": 1,
    "model": "gpt-5-2025-08-07",
    "batch": False,
    "service_tier": "default",
}


def test_a_page_on_which_nothing_was_used_belongs_to_the_report_it_came_with() -> None:
    """Providers give a bucket for each day, empty ones too, a whole page of them if need be, and say null for what
    does not apply: such a page of a cost report is no usage report."""
    used = cost_row("100.000000", service_tier=None, context_window=None, inference_geo=None)
    first = page(bucket(used), bucket(day=DAY + timedelta(days=1)), has_more=True)
    last = page(bucket(day=DAY + timedelta(days=2)), bucket(day=DAY + timedelta(days=3)))
    (statement,) = read_reports({"1.json": first, "2.json": last})
    assert (statement.kind, statement.is_whole, len(statement.buckets)) == (Kind.COST, True, 4)
    assert [len(each.rows) for each in statement.buckets] == [1, 0, 0, 0]
    assert statement.buckets[0].rows[0].amount == Decimal(1)
    both = read_reports({"1.json": first, "2.json": last, "3.json": page(bucket(used_row(OPUS, fresh=1)))})
    assert {each.kind: len(each.buckets) for each in both} == {Kind.COST: 2, Kind.USAGE: 1}
    (alone,) = read_reports({"2.json": last})
    assert (alone.kind, alone.is_whole, len(alone.buckets)) == (Kind.USAGE, True, 2)


def openai_page(*rows: Mapping[str, object]) -> str:
    start = int(DAY.timestamp())
    each = {"object": "bucket", "start_time": start, "end_time": start + 86_400, "results": list(rows)}
    return json.dumps({"object": "page", "data": [each], "has_more": False, "next_page": None})


def test_endpoints_of_openais_are_parts_of_one_report() -> None:
    """Completions and embeddings are told of by different ones, of the same days; each page counts once."""
    used = usage(fresh=1_000_000)
    model = "text-embedding-3-small"
    embedded = paid(
        model_served=model, used=used, served_by="openai", cost=cost(CATALOG, f"openai/{model}", used, at=NOON)
    )
    answered_usage = usage(fresh=600_000, read=400_000, text=50_000)
    answered = paid(
        model_served="gpt-5",
        used=answered_usage,
        served_by="openai",
        cost=cost(CATALOG, "openai/gpt-5", answered_usage, at=NOON),
    )
    row = {"object": "organization.usage.embeddings.result", "input_tokens": 1_000_000, "model": model}
    completions = openai_page({"object": "organization.usage.completions.result", **OPENAI_USAGE})
    embeddings = openai_page({**row, "num_model_requests": 1})
    [found] = compared([completions, embeddings, embeddings], [embedded, answered])
    assert (found.ours, found.causes) == (Decimal("1.32"), {})
    [alone] = compared([completions], [embedded, answered])
    assert alone.causes == {Cause.NOT_REPORTED: Decimal("-0.02")}
    more = embeddings.replace('"has_more": false', '"has_more": true')
    assert any("further pages" in note for note in compared([completions, more], [answered])[0].notes)


def test_openais_reports() -> None:
    """Input includes what was cached; amounts are numbers in dollars, by line item; a dated name is the same model."""
    used = usage(fresh=600_000, read=400_000, text=50_000)
    amount = cost(CATALOG, "openai/gpt-5", used, at=NOON)
    receipt = paid(model_served="gpt-5", used=used, served_by="openai", cost=amount)
    assert amount.total == Decimal("0.75") + Decimal("0.05") + Decimal("0.5")
    assert one(openai_page(OPENAI_USAGE), receipt).causes == {}
    flex = {**OPENAI_USAGE, "service_tier": "flex"}
    assert one(openai_page(flex), receipt).causes == {Cause.OTHER_TIER: Decimal("-0.65")}
    items = [
        ("gpt-5-2025-08-07, input", 0.75),
        ("gpt-5-2025-08-07, cached input", 0.05),
        ("gpt-5-2025-08-07, output", 0.5),
    ]
    costs = [
        {"object": "organization.costs.result", "amount": {"value": value, "currency": "usd"}, "line_item": item}
        for item, value in items
    ]
    assert one(openai_page(*costs), receipt).causes == {}
    searched = {"object": "organization.costs.result", "amount": {"value": "0.03", "currency": "usd"}}
    found = one(openai_page(*costs, {**searched, "line_item": "web search tool calls"}), receipt)
    assert found.causes == {Cause.NOT_TOKENS: Decimal("0.03")}
    costs[2]["amount"] = {"value": 0.1 + 0.4 + 1e-17, "currency": "usd"}
    assert set(one(openai_page(*costs), receipt).causes) <= {Cause.ROUNDING}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "no JSON"),
        ("{}", "no usage or cost report"),
        ('{"data": [{"results": []}]}', "no start"),
        (page({"starting_at": "2026-11-10", "ending_at": "2026-11-11T00:00:00Z", "results": []}), "no time zone"),
        (
            page({"starting_at": "2026-11-11T00:00:00Z", "ending_at": "2026-11-10T00:00:00Z", "results": []}),
            "before it",
        ),
        (page(bucket(cost_row("NaN"))), "amount"),
        (page(bucket({**cost_row("1"), "amount": 1})), "text of cents"),
        (page(bucket(used_row(fresh=-1))), "no count"),
        (openai_page({**OPENAI_USAGE, "input_cached_tokens": 2_000_000}), "exceed their total"),
        ("[" * 200_000, "no JSON|nested"),
        (page(bucket(cost_row("1e999999999"))), "no amount of money"),
        (page(bucket(cost_row("1e-999999999"))), "no amount of money"),
        (openai_page({"object": "organization.costs.result", "amount": {"value": [1]}}), "value"),
        (page(bucket(used_row())).replace("1000000", "1" + "0" * 400), "no count"),
        ('{"data": [{"start_time": 100000000000000000000, "end_time": 1, "results": []}]}', "the file"),
    ],
)
def test_what_is_no_report_is_refused_by_name(text: str, complaint: str) -> None:
    """Nothing is guessed from a file that is something else."""
    with pytest.raises(RequestError, match=complaint) as refused:
        read_reports({"the file": text})
    assert "the file" in str(refused.value)


KEYS = [
    "data",
    "results",
    "amount",
    "value",
    "currency",
    "start_time",
    "end_time",
    "starting_at",
    "ending_at",
    "model",
    "object",
    "input_tokens",
    "output_tokens",
    "cache_creation",
    "line_item",
    "uncached_input_tokens",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["1e9999", "usd"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(
    JSON,
    st.sampled_from([bucket(cost_row("1.5")), bucket(used_row()), json.loads(openai_page(OPENAI_USAGE))["data"][0]]),
)
@settings(max_examples=300, deadline=None)
def test_hostile_reports_are_refused_or_read(anything: object, plain: dict[str, Any]) -> None:
    """Whatever is in a file, and in whatever place of a true one: a report, or a refusal."""
    row = dict(plain["results"][0])
    for document in (
        anything,
        {"data": anything},
        {"data": [{**plain, "results": anything}]},
        {"data": [{**plain, "results": [{**row, key: anything}]} for key in row]},
        {"data": [{**plain, key: anything} for key in plain]},
    ):
        with suppress(RequestError):
            for statement in read_reports({"the file": json.dumps(document)}):
                book = Books(statement, Names(CATALOG, statement.provider), lambda _: None)
                assert reconcile([book], catalog=CATALOG, now=LATER)[0].ours == 0


def test_an_empty_report_and_no_receipts() -> None:
    """Nothing is nothing, on both sides."""
    assert one(page(bucket())).lines == []
    assert read_reports({"empty": page()})[0].buckets == ()


COUNTS = st.integers(0, 10**8)
ROWS = st.tuples(
    st.sampled_from([OPUS, SONNET, "claude-secret-9", None]), COUNTS, COUNTS, st.sampled_from(["standard", "batch"])
)


@given(st.lists(ROWS, max_size=6), st.lists(ROWS, max_size=6), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_causes_always_add_up(
    theirs: list[tuple[str | None, int, int, str]],
    ours: list[tuple[str | None, int, int, str]],
    is_cost: bool,
    is_over: bool,
) -> None:
    """Whatever is on either side: `compared` asserts it, line by line and in all."""
    rows = [
        cost_row(f"{fresh}.{out}", model, service_tier=tier)
        if is_cost
        else used_row(model, fresh=fresh, out=out, service_tier=tier)
        for model, fresh, out, tier in theirs
    ]
    receipts = [
        unpriced(model or "unknown", usage(fresh=fresh, text=out))
        if model in (None, "claude-secret-9")
        else paid(model, usage(fresh=fresh, text=out), tier=tier)
        for model, fresh, out, tier in ours
    ]
    found = one(page(bucket(*rows)), *receipts, now=LATER if is_over else NOON)
    assert found.ours == exact_sum(receipt.cost.total for receipt in receipts if receipt.cost is not None)
    assert all(line.model == NO_MODEL or line.model for line in found.lines)


@pytest.fixture
def run(taximeter_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command on files with these texts, to its end; what it printed."""

    def called(*texts: str, flags: Sequence[str] = ("--json",)) -> str:
        files = [tmp_path / f"{number}.json" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        with pytest.raises(SystemExit) as ended:
            app(["reconcile", *map(str, files), *flags])
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return told.out

    return called


def test_the_command(run: Callable[..., str], taximeter_home: Path) -> None:
    """Receipts from the ledger, corrections counted and what they correct not; a table, and the same as JSON."""
    (taximeter_home / "taximeter.toml").write_text(
        '[upstreams.theirs]\nurl = "https://api.anthropic.com"\nspeaks = "anthropic"\nprovider = "anthropic"\n'
    )
    wrong = paid(used=usage(fresh=7), served_by="theirs")
    right = replace(paid(served_by="theirs"), request=wrong.request, supersedes=wrong.id)
    by_the_hour = a_receipt(a_request(at=NOON), closed_at=NOON, dollars=Decimal(99))
    with Ledger.open(Settings.load().ledger_url) as ledger:
        others = [unpriced(OPUS, usage(fresh=250_000)), replace(by_the_hour, served_by="embedded")]
        for receipt in (wrong, right, *others):
            ledger.append(receipt).result(30)
    texts = [
        page(bucket(cost_row("720.5"), cost_row("100", "claude-haiku-5-5"))),
        page(bucket(used_row(fresh=1_250_000))),
    ]
    told = json.loads(run(*texts))["reconciliations"]
    assert [each["kind"] for each in told] == ["usage", "cost"]
    assert told[0]["causes"] == {"unpriced": "1"}
    assert (told[1]["theirs"], told[1]["ours"], told[1]["difference"]) == ("8.205", "6", "2.205")
    assert told[1]["causes"] == {"no_receipts": "1", "unpriced": "1.205"}
    text = run(*texts, flags=[])
    assert "$6.0000 + 1 unpriced" in text
    assert "no receipts of it: asked past the gateway, or lost" in text
    assert "+$1.2050" in text
    assert "claude-opus-5-5" in run(*texts, flags=["--lines"])


def test_the_command_refuses_what_it_cannot_read(
    taximeter_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, with the exit code of a wrong call."""
    assert taximeter_home.is_dir()
    (tmp_path / "other.json").write_text('{"hello": 1}')
    (tmp_path / "empty.json").write_text(page())
    (tmp_path / "picture.json").write_bytes(b"\x89PNG")
    complaints = {
        "missing.json": "No such file",
        "other.json": "",
        "empty.json": "",
        "picture.json": "no text in UTF-8",
    }
    for name, complaint in complaints.items():
        with pytest.raises(SystemExit) as ended:
            app(["reconcile", str(tmp_path / name)])
        assert ended.value.code == 2
        assert complaint in capsys.readouterr().err
