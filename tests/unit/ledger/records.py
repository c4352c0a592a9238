"""Receipts for the ledger's tests: plain ones by hand, and any that the vocabulary allows from hypothesis."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from hypothesis import strategies as st

from taximeter.records import (
    Attempt,
    Basis,
    Ceiling,
    Cost,
    CostLine,
    Dialect,
    Outcome,
    Phase,
    PriceList,
    Rate,
    Receipt,
    Request,
    Sampling,
    Terms,
    Timing,
    Usage,
    Work,
    new_id,
)

NOON = datetime(2026, 10, 29, 12, tzinfo=UTC)


def a_request(*, at: datetime = NOON, model: str = "a/model") -> Request:
    return Request(
        id=new_id("req", at), received_at=at, received_ns=0, dialect=Dialect.OPENAI_CHAT, model=model, stream=True
    )


def a_receipt(
    request: Request | None = None,
    *,
    closed_at: datetime = NOON,
    dollars: Decimal | None = None,
    input_tokens: int = 5,
    receipt_id: str | None = None,
    supersedes: str | None = None,
) -> Receipt:
    """A completed one; without a cost when `dollars` is None."""
    return Receipt(
        id=receipt_id or new_id("rcpt", closed_at),
        request=request or a_request(),
        closed_at=closed_at,
        outcome=Outcome.COMPLETED,
        timing=Timing(prefill_ns=3, decode_ns=4, total_ns=7, first_token_ns=3),
        usage=Usage(input_fresh_tokens=input_tokens, input_cache_read_tokens=0, output_text_tokens=10),
        work=Work(prefill_passes=1, decode_passes=9, computed_tokens=14),
        cost=None if dollars is None else a_cost(dollars),
        uncosted_reason="no price" if dollars is None else None,
        supersedes=supersedes,
    )


def a_cost(dollars: Decimal) -> Cost:
    rate = Rate(unit="compute_ns", amount=dollars, per=1)
    return Cost(
        lines=(CostLine(unit=rate.unit, quantity=1, rate=rate, amount=dollars, basis=Basis.ASSUMED),),
        basis=Basis.ASSUMED,
    )


def picodollars(count: int) -> Decimal:
    return Decimal((int(count < 0), tuple(map(int, str(abs(count)))), -12))


_any_text = st.text(st.characters(), max_size=8)  # half surrogate pairs and NUL among it
_labels = st.none() | _any_text
_instants = st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants it naive
_counts = st.integers(0, 10**25) | st.integers(0, 100)
_floats = st.floats(allow_nan=False)
_amounts = st.integers(-(10**43), 10**43).map(picodollars) | st.integers(-(10**6), 10**15).map(picodollars)
_bases = st.sampled_from(Basis)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | _any_text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_any_text, inner, max_size=2),
    max_leaves=4,
)
_samplings = st.builds(
    Sampling,
    temperature=_floats,
    logit_bias=st.dictionaries(st.integers(0, 10**6), _floats, max_size=3),
    seed=st.none() | st.integers(),
    stop=st.lists(_any_text, max_size=2).map(tuple),
)
_requests = st.builds(
    Request,
    id=st.just(""),
    received_at=_instants,
    received_ns=_counts,
    dialect=st.sampled_from(Dialect),
    model=_any_text,
    sampling=_samplings,
    max_output_tokens=st.none() | _counts,
    stream=st.booleans(),
    prompt_fingerprint=st.lists(_any_text, max_size=2).map(tuple),
    task=_labels,
    run=_labels,
    session=_labels,
    tier=_labels,
    labels=st.dictionaries(_any_text, _any_text, max_size=2),
    trace=_labels,
    key=_labels,
)
_units = _any_text | st.sampled_from([*Usage.INPUT_LEAVES, *Usage.OUTPUT_LEAVES, "compute_ns"])
_rates = st.builds(Rate, unit=_any_text, amount=_amounts, per=st.integers(1, 10**9))
_price_lists = st.builds(
    PriceList,
    model=_any_text,
    rates=st.lists(_rates, max_size=2).map(tuple),
    source=_any_text,
    valid_from=st.none() | _instants,
    valid_until=st.none() | _instants,
    checked_on=st.none() | st.dates(min_value=date(1971, 1, 1)),
    basis=_bases,
)
_costs = st.builds(
    Cost,
    lines=st.lists(
        st.builds(CostLine, unit=_units, quantity=_counts, rate=_rates, amount=_amounts, basis=_bases), max_size=3
    ).map(tuple),
    basis=_bases,
    price_list=st.none() | _price_lists,
)
_timings = st.lists(_counts, min_size=6, max_size=6).map(
    lambda ns: Timing(
        gateway_ns=ns[0],
        queue_ns=ns[1],
        prefill_ns=ns[2],
        decode_ns=ns[3],
        stalled_ns=ns[4],
        upstream_ns=ns[5],
        total_ns=sum(ns),
        first_token_ns=ns[0],
        first_answer_ns=ns[1],
        reported_phases=(Phase.QUEUE, Phase.DECODE),
    )
)
_usages = st.builds(
    Usage,
    input_fresh_tokens=st.none() | _counts,
    input_cache_read_tokens=_counts,
    output_text_tokens=st.integers(10, 10**20),
    by_model=st.dictionaries(_any_text, st.just({"output_text_tokens": 3}), max_size=2),
    other_units=st.dictionaries(_any_text, _counts, max_size=2),
    basis=_bases,
    unknown_reasons=st.just({"input_fresh_tokens": "not reported"}),
    reported=st.none() | st.dictionaries(_any_text, _json, max_size=2),
)
_works = st.builds(
    Work,
    prefill_passes=_counts,
    decode_passes=_counts,
    computed_tokens=_counts,
    compute_ns=_counts,
    kernels=_labels,
    decode_compute_ns=st.none() | _counts,
    decode_read_bytes=st.none() | _counts,
    prefill_operations=st.none() | _counts,
    ceiling=st.none()
    | st.builds(
        Ceiling,
        read_bytes_per_s=st.integers(1, 10**25),
        operations_per_s=st.integers(1, 10**25),
        unit=_any_text,
    ),
    energy_uj=st.none() | _counts,
    unknown_reasons=st.dictionaries(_any_text, _any_text, max_size=2),
)


_tries = st.builds(
    Attempt,
    upstream=_any_text,
    started_ns=_counts,
    duration_ns=_counts,
    status=st.none() | st.integers(100, 599),
    error=_labels,
)


@st.composite
def any_receipts(draw: st.DrawFn) -> Receipt:
    """Every field may be anything that the vocabulary allows; ids are new ones."""
    request = draw(_requests)
    fields = {name: getattr(request, name) for name in request.__slots__} | {"id": new_id("req", NOON)}
    return Receipt(
        id=new_id("rcpt", NOON),
        request=Request(**fields),
        closed_at=draw(_instants),
        outcome=draw(st.sampled_from(Outcome)),
        timing=draw(st.none() | _timings),
        usage=draw(st.none() | _usages),
        work=draw(st.none() | _works),
        cost=draw(st.none() | _costs),
        cost_priced_as=draw(st.none() | _costs),
        uncosted_reason=draw(_any_text),
        unmeasured_reason=draw(_any_text),
        served_by=draw(_labels),
        model_served=draw(_labels),
        finish_reasons=draw(st.lists(_any_text, max_size=2).map(tuple)),
        error=draw(_labels),
        attempts=draw(st.integers(1, 9)),
        tries=draw(st.lists(_tries, max_size=2).map(tuple)),
        terms=draw(st.none() | st.builds(Terms, tier=_labels, speed=_labels, geography=_labels)),
        upstream_request_id=draw(_labels),
        source=draw(_labels),
        cost_reported=draw(st.none() | _amounts),
    )
