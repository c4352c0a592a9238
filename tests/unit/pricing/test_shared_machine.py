"""An engine's hour, divided among those who shared it without losing or finding a picodollar."""

from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import PricingError
from taximeter.pricing import SharedMachineTariff
from taximeter.pricing.shared_machine import Machines
from taximeter.records import NS_PER_HOUR, Basis, Cost, Dialect, MachineRate, Phase, Request, Usage, exact_sum
from tests.price_card import CHECKED_AT, usage

DOLLAR = MachineRate(amount_per_hour=Decimal(1))
SECOND = 10**9
rates = st.decimals(min_value=0, max_value=10**4, places=9).map(lambda amount: MachineRate(amount_per_hour=amount))


def charged(tariff: SharedMachineTariff, request_id: str, used: Usage | None = None) -> Cost:
    request = Request(
        id=request_id, received_at=CHECKED_AT, received_ns=0, dialect=Dialect.OPENAI_CHAT, model="our-model"
    )
    return tariff.cost(
        receipt_id=f"rcp_{request_id}", request=request, model_served=None, usage=used, terms=None, at=CHECKED_AT
    )


def seconds(cost: Cost) -> float:
    (line,) = cost.lines
    return line.quantity / SECOND


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "tokens", "end", "settle", "pass"]),
        st.integers(0, 5),
        st.integers(-10, 10**11),
        st.integers(0, 10**5),
    ),
    max_size=60,
)


@given(rates, steps)
def test_any_interleaving_sums_to_the_whole_bill(rate: MachineRate, interleaving: list[tuple[str, int, int, int]]):
    """Receipts + in flight + idle = rate x wall time, to the last picodollar, at every moment."""
    tariff = SharedMachineTariff(rate, started_ns=5)
    now_ns, number = 5, 0
    flying: list[str] = []
    ended: list[str] = []
    receipts: list[Cost] = []
    for what, which, ns, tokens in interleaving:
        now_ns += ns  # some stamps come late: another thread was faster
        match what:
            case "begin":
                number += 1
                flying.append(str(number))
                tariff.begin(str(number), now_ns, prompt_tokens=tokens)
            case "tokens" if flying:
                tariff.progress(flying[which % len(flying)], tokens)
            case "end" if flying:
                request_id = flying.pop(which % len(flying))
                spent = {Phase.DECODE: ns} if ns > 0 and tokens % 2 else {}
                tariff.end(request_id, now_ns, usage=usage(fresh=tokens, text=which), spent_ns=spent)
                tariff.end(request_id, now_ns)
                ended.append(request_id)
            case "settle" if ended:
                receipts.append(charged(tariff, ended.pop(which % len(ended))))
            case _:
                pass
        statement = tariff.statement(now_ns)
        assert statement.charged == exact_sum(cost.total for cost in receipts)
        assert statement.charged + statement.in_flight + statement.idle == statement.total
        assert flying or ended or statement.in_flight_ns == 0
    for request_id in flying:
        tariff.end(request_id, now_ns)
    receipts += [charged(tariff, request_id) for request_id in flying + ended]
    statement = tariff.statement(now_ns)
    assert statement.in_flight == 0
    assert exact_sum(cost.total for cost in receipts) + statement.idle == statement.total


@given(st.integers(2, 8), st.integers(1, 1_000))
def test_equal_requests_at_the_same_time_pay_the_same(count: int, tokens: int):
    """One after the other they end, a moment apart, and each pays its part of the time they shared."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    for number in range(count):
        tariff.begin(str(number), 0, prompt_tokens=500)
    for number in range(count):
        tariff.progress(str(number), tokens)
    used = usage(fresh=500, text=tokens)
    for number in range(count):
        tariff.end(str(number), 60 * SECOND + number, usage=used)
    shares = [seconds(charged(tariff, str(number), used)) for number in range(count)]
    assert shares == pytest.approx([60 / count] * count, abs=1e-6)


def test_who_works_more_pays_more():
    """Of two who share a minute, the one with three times the work pays three quarters."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    tariff.begin("long", 0)
    tariff.begin("short", 0)
    tariff.progress("long", 300)
    tariff.progress("short", 100)
    tariff.end("short", 60 * SECOND)
    tariff.end("long", 60 * SECOND)
    assert seconds(charged(tariff, "short")) == pytest.approx(15)
    assert seconds(charged(tariff, "long")) == pytest.approx(45)


def test_time_alone_is_ones_own():
    """10 s alone at 10 tokens a second, then 10 s together at 5 tokens a second each: 15 s and 5 s."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    tariff.begin("first", 0)
    tariff.progress("first", 100)
    tariff.begin("second", 10 * SECOND)
    tariff.progress("first", 50)
    tariff.progress("second", 50)
    tariff.end("first", 20 * SECOND)
    tariff.end("second", 20 * SECOND)
    assert seconds(charged(tariff, "first")) == pytest.approx(15)
    assert seconds(charged(tariff, "second")) == pytest.approx(5)


def test_a_stream_of_short_requests_does_not_eat_a_long_ones_time():
    """One long request beside ten short ones in a row, all at the same speed: half of the time is its own."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    tariff.begin("long", 0)
    for number in range(10):
        tariff.begin(str(number), number * SECOND)
        tariff.progress("long", 10)
        tariff.progress(str(number), 10)
        tariff.end(str(number), (number + 1) * SECOND)
    tariff.end("long", 10 * SECOND)
    assert seconds(charged(tariff, "long")) == pytest.approx(5)
    assert seconds(charged(tariff, "7")) == pytest.approx(0.5)


def test_cached_tokens_are_no_work_and_the_engines_own_time_counts():
    """A prompt from the cache was not computed; and where the engine says how long it worked, that is its work."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    tariff.begin("cached", 0)
    tariff.begin("fresh", 0, prompt_tokens=1_000)
    tariff.end("cached", SECOND, usage=usage(read=1_000_000))
    tariff.end("fresh", SECOND, usage=usage(fresh=1_000))
    assert seconds(charged(tariff, "cached")) == 0
    assert seconds(charged(tariff, "fresh")) == 1

    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    for name in ("yardstick", "slow"):
        tariff.begin(name, 0, prompt_tokens=100)
    tariff.end("yardstick", 0, usage=usage(fresh=100), spent_ns={Phase.PREFILL: SECOND})
    tariff.begin("other", 0, prompt_tokens=100)
    tariff.end("slow", 4 * SECOND, usage=usage(fresh=100), spent_ns={Phase.PREFILL: 2 * SECOND, Phase.DECODE: SECOND})
    # Its 3 s are, at 200 tokens in 4 s, the work of 150; the other has been seen to do 100.
    assert seconds(charged(tariff, "slow")) == pytest.approx(4 * 150 / 250)


def test_nobody_worked_and_all_pay_alike():
    """Without anything to measure by, time is divided by heads."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    for name in "abc":
        tariff.begin(name, 0)
    for name in "abc":
        tariff.end(name, 3 * SECOND)
    assert [seconds(charged(tariff, name)) for name in "abc"] == [1, 1, 1]


def test_a_request_that_is_tried_twice_pays_for_both():
    """Each try was on the machine."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    for begin in (0, 10):
        tariff.begin("again", begin * SECOND)
        tariff.end("again", (begin + 1) * SECOND)
    assert seconds(charged(tariff, "again")) == 2
    assert tariff.statement(20 * SECOND).idle_ns == 18 * SECOND


@dataclass(frozen=True)
class Sent:
    """A request on its way, as machines see it."""

    request_id: str
    body: bytes = b""


def test_what_a_request_took_in_vain_elsewhere_is_idle_there():
    """It failed over from one machine to the other: its receipt is the second one's, and both bills add up."""
    first, second = (SharedMachineTariff(DOLLAR, started_ns=0) for _ in range(2))
    machines = Machines({"first": first, "second": second})
    machines.sent("first", Sent("one"), 0)
    machines.refused(Sent("one"), 2 * SECOND)
    machines.sent("second", Sent("one"), 3 * SECOND)
    machines.ended("one", 10 * SECOND, served_by="second")
    assert seconds(charged(second, "one")) == 7
    bills = machines.statements(10 * SECOND)
    assert (bills["first"].in_flight_ns, bills["first"].idle_ns) == (0, 10 * SECOND)
    assert (bills["second"].charged_ns, bills["second"].idle_ns) == (7 * SECOND, 3 * SECOND)


def test_an_hour_is_the_rate_and_its_division_is_modelled():
    """The amount is exact, and what is whose is known as well as its model: no better than the rate."""
    for rate, basis in (
        (DOLLAR, Basis.ASSUMED),
        (MachineRate(amount_per_hour=Decimal(1), basis=Basis.REPORTED), Basis.MODELLED),
    ):
        tariff = SharedMachineTariff(rate, started_ns=0)
        tariff.begin("one", 0)
        tariff.end("one", NS_PER_HOUR)
        cost = charged(tariff, "one")
        assert (cost.total, cost.basis) == (Decimal(1), basis)


def test_what_never_began_has_no_cost():
    """The machine was not told of it, and nothing is invented."""
    tariff = SharedMachineTariff(DOLLAR, started_ns=0)
    tariff.progress("nobody")
    tariff.end("nobody", 5)
    with pytest.raises(PricingError, match="never began or ended"):
        charged(tariff, "nobody")
