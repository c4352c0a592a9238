"""Ledgers of any content, from hypothesis; and a plain one by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from taximeter.records import (
    Basis,
    Cost,
    CostLine,
    Dialect,
    Outcome,
    Rate,
    Receipt,
    Request,
    Task,
    TaskVerb,
    TaskWord,
    Timing,
    Usage,
    new_id,
)
from tests.slices_oracle import ReceiptsInMemory

NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
MONTHS_AGO = NOW - timedelta(days=70)
_UNITS = ("input_fresh_tokens", "input_cache_read_tokens", "output_text_tokens", "compute_ns", "web_search")


def a_receipt(
    at: datetime = NOW - timedelta(hours=1),
    *,
    dollars: str | None = "0.25",
    task: str | None = None,
    run: str | None = None,
    session: str | None = None,
    labels: dict[str, str] | None = None,
    model: str = "m",
    tokens: int = 100,
    outcome: Outcome = Outcome.COMPLETED,
    timing: Timing | None = None,
    usage: Usage | None = None,
) -> Receipt:
    """One that was closed at `at`; unpriced with `dollars` None."""
    cost = None
    if dollars is not None:
        amount = Decimal(dollars)
        rate = Rate(unit="input_fresh_tokens", amount=amount, per=tokens)
        line = CostLine(unit=rate.unit, quantity=tokens, rate=rate, amount=amount, basis=Basis.DERIVED)
        cost = Cost(lines=(line,), basis=Basis.DERIVED)
    return Receipt(
        id=new_id("rcpt", at),
        request=Request(
            id=new_id("req", at),
            received_at=at - timedelta(seconds=1),
            received_ns=0,
            dialect=Dialect.OPENAI_CHAT,
            model=model,
            task=task,
            run=run,
            session=session,
            labels=labels or {},
        ),
        closed_at=at,
        outcome=outcome,
        timing=timing,
        usage=usage or Usage(input_fresh_tokens=tokens, input_cache_read_tokens=0, output_text_tokens=0),
        cost=cost,
        uncosted_reason="no price" if cost is None else None,
        unmeasured_reason="a log" if timing is None else None,
    )


def ended(name: str, at: datetime = NOW - timedelta(minutes=5), *, succeeded: bool = True) -> Task:
    return Task(name=name, finished_at=at, succeeded=succeeded)


_names = st.none() | st.sampled_from(("a", "b", "日本", "=SUM(A1)", "<b>&\"'|*", "x\x1b[31m"))
# Around midnights and the ends of summer time in both halves of the world, to the microsecond.
instants = st.one_of(
    st.datetimes(MONTHS_AGO.replace(tzinfo=None), NOW.replace(tzinfo=None), timezones=st.just(UTC)),
    st.datetimes(NOW.replace(tzinfo=None) - timedelta(days=5), NOW.replace(tzinfo=None), timezones=st.just(UTC)),
    st.builds(
        lambda day, hour, microsecond: (
            datetime(2026, 10, 25, tzinfo=UTC) + timedelta(days=day, hours=hour, microseconds=microsecond)
        ),
        st.sampled_from((-21, -1, 0, 1, 7, 8, 35)),
        st.integers(0, 23),
        st.sampled_from((-1, 0, 1)),
    ),
)
_amounts = st.integers(0, 10**16).map(lambda picodollars: Decimal(picodollars).scaleb(-12))


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    at = draw(instants)
    lines = [
        CostLine(unit=unit, quantity=1, rate=Rate(unit=unit, amount=amount, per=1), amount=amount, basis=Basis.DERIVED)
        for unit, amount in draw(st.dictionaries(st.sampled_from(_UNITS), _amounts, max_size=3)).items()
    ]
    cost = draw(st.none() | st.just(Cost(lines=tuple(lines), basis=draw(st.sampled_from(Basis)))))
    phases = draw(st.lists(st.integers(0, 10**10), min_size=3, max_size=3))
    timing = Timing(
        gateway_ns=phases[0],
        upstream_ns=phases[1],
        decode_ns=phases[2],
        total_ns=sum(phases),
        first_token_ns=draw(st.none() | st.just(phases[0])),
    )
    usage = Usage(
        input_fresh_tokens=draw(st.none() | st.integers(0, 10**6)),
        input_cache_read_tokens=draw(st.integers(0, 10**6)),
        input_cache_write_1h_tokens=draw(st.integers(0, 10**3)),
        output_text_tokens=draw(st.integers(0, 10**4)),
        output_reasoning_tokens=draw(st.integers(0, 10**4)),
        unknown_reasons={"input_fresh_tokens": "nobody says"},
        basis=draw(st.sampled_from(Basis)),
    )
    return Receipt(
        id=new_id("rcpt", at),
        request=Request(
            id=new_id("req", at),
            received_at=at,
            received_ns=0,
            dialect=Dialect.OPENAI_CHAT,
            model=draw(st.sampled_from(("m", "n/o", "<i>"))),
            task=draw(_names),
            run=draw(_names),
            session=draw(_names),
            labels=draw(st.dictionaries(st.sampled_from(("team", "branch")), st.sampled_from(("x", "y")), max_size=2)),
        ),
        closed_at=at,
        outcome=draw(st.sampled_from(Outcome)),
        timing=draw(st.none() | st.just(timing)),
        usage=draw(st.none() | st.just(usage)),
        cost=cost,
        uncosted_reason="no price" if cost is None else None,
        unmeasured_reason="a log",
    )


words = st.one_of(
    st.builds(
        TaskWord,
        verb=st.just(TaskVerb.ASSIGN),
        said_at=instants,
        task=st.none() | st.sampled_from(("a", "c")),
        kind=st.sampled_from(("session", "run", "task", "label:team")),
        name=st.sampled_from(("a", "b", "x")),
    ),
    st.builds(TaskWord, verb=st.just(TaskVerb.START), said_at=instants, task=st.sampled_from(("a", "w"))),
    st.builds(
        TaskWord,
        verb=st.just(TaskVerb.EACH),
        said_at=instants,
        kind=st.none() | st.sampled_from(("session", "label:team")),
        idle_s=st.none() | st.integers(1, 10**6),
    ),
)
ends = st.builds(ended, st.sampled_from(("a", "b", "c", "w")), instants, succeeded=st.booleans())

worlds = st.builds(
    lambda found, said, ended: ReceiptsInMemory(
        found,
        sorted(said, key=lambda word: word.said_at),
        sorted(ended, key=lambda end: end.finished_at or NOW),
    ),
    st.lists(receipts(), max_size=12),
    st.lists(words, max_size=4),
    st.lists(ends, max_size=4),
)
