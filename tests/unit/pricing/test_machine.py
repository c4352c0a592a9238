"""An hourly rate, divided without losing or finding a picodollar."""

import threading
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import InvariantBroken
from taximeter.pricing import MachineMeter
from taximeter.records import NS_PER_HOUR, Basis, MachineRate, MachineTime, exact_sum

rates = st.decimals(min_value=0, max_value=10**6, places=9).map(lambda amount: MachineRate(amount_per_hour=amount))
HALF_A_DOLLAR = MachineRate(amount_per_hour=Decimal("0.50"))


@given(rates, st.lists(st.integers(0, 10**13)), st.integers(0, 10**13), st.integers(0, 10**15))
def test_receipts_and_idle_are_the_whole_bill(rate: MachineRate, shares: list[int], in_flight_ns: int, idle_ns: int):
    """Receipts + in flight + idle = rate x wall time, to the last picodollar, however the time was divided."""
    meter = MachineMeter(rate)
    receipts = exact_sum(meter.charge(share_ns).total for share_ns in shares)
    busy_ns = sum(shares) + in_flight_ns
    statement = meter.statement(MachineTime(wall_ns=busy_ns + idle_ns, busy_ns=busy_ns))
    assert statement.charged == receipts
    assert receipts + statement.in_flight + statement.idle == statement.total
    assert (statement.charged_ns, statement.in_flight_ns, statement.idle_ns) == (sum(shares), in_flight_ns, idle_ns)
    exact = rate.amount_per_hour * (busy_ns + idle_ns) / NS_PER_HOUR
    assert abs(statement.total - exact) <= Decimal("0.6e-12")  # half a picodollar, and the division's own rounding


@given(rates, st.lists(st.integers(0, 10**13), min_size=1))
def test_one_receipt_is_at_most_a_picodollar_off(rate: MachineRate, shares: list[int]):
    """Telescoping moves a receipt by less than a picodollar from its own exact share."""
    meter = MachineMeter(rate)
    for share_ns in shares:
        exact = rate.amount_per_hour * share_ns / NS_PER_HOUR
        assert abs(meter.charge(share_ns).total - exact) <= Decimal("1.1e-12")


def test_an_hour_costs_the_hourly_rate():
    """The line shows the time, the rate and what it comes to."""
    cost = MachineMeter(HALF_A_DOLLAR).charge(NS_PER_HOUR)
    (line,) = cost.lines
    assert (line.unit, line.quantity, line.rate.amount, line.rate.per) == (
        "compute_ns",
        NS_PER_HOUR,
        Decimal("0.50"),
        NS_PER_HOUR,
    )
    assert cost.total == Decimal("0.50")
    assert cost.price_list is None
    assert cost.input is None


def test_a_rate_that_somebody_named_makes_an_assumed_cost():
    """Time is measured, but the cost is only as good as the rate."""
    assert MachineMeter(HALF_A_DOLLAR).charge(1).basis is Basis.ASSUMED
    billed = MachineRate(amount_per_hour=Decimal(1), basis=Basis.REPORTED)
    assert MachineMeter(billed).charge(1).basis is Basis.DERIVED


def test_ten_years_at_a_high_rate_stay_exact():
    """Amounts past 64 bits of picodollars neither wrap nor round."""
    ten_years_ns = 10 * 365 * 24 * NS_PER_HOUR
    meter = MachineMeter(MachineRate(amount_per_hour=Decimal("98765.432109876543")))
    assert meter.charge(ten_years_ns).total == 87_600 * Decimal("98765.432109876543")


def test_threads_share_one_meter():
    """Receipts that are settled at the same time still sum to the bill."""
    meter = MachineMeter(MachineRate(amount_per_hour=Decimal("0.333333333")))
    amounts: list[Decimal] = []

    def settle(seed: int) -> None:
        amounts.extend([meter.charge(seed * 7_919 + step).total for step in range(500)])

    threads = [threading.Thread(target=settle, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy_ns = sum(seed * 7_919 + step for seed in range(8) for step in range(500))
    assert meter.charged_ns == busy_ns
    assert exact_sum(amounts) == meter.statement(MachineTime(wall_ns=busy_ns, busy_ns=busy_ns)).total


@pytest.mark.parametrize(("busy_ns", "wall_ns"), [(9, 100), (101, 100)])
def test_a_bill_that_does_not_add_up_is_refused(busy_ns: int, wall_ns: int):
    """More charged than worked, or more worked than lived, is a bug and not a statement."""
    meter = MachineMeter(HALF_A_DOLLAR)
    meter.charge(10)
    with pytest.raises(InvariantBroken, match="does not add up"):
        meter.statement(MachineTime(wall_ns=wall_ns, busy_ns=busy_ns))


def test_a_statement_may_be_drawn_up_for_an_earlier_reading():
    """While requests are served, the meter's earlier reading goes with the machine's earlier time."""
    meter = MachineMeter(HALF_A_DOLLAR)
    meter.charge(10)
    read_ns, time = meter.charged_ns, MachineTime(wall_ns=100, busy_ns=10)
    meter.charge(5)
    assert meter.statement(time, charged_ns=read_ns).in_flight_ns == 0


def test_time_does_not_run_backwards():
    """A negative share is a bug in whoever measured it, and leaves the meter where it was."""
    meter = MachineMeter(HALF_A_DOLLAR)
    with pytest.raises(InvariantBroken, match="never negative"):
        meter.charge(-1)
    assert meter.charged_ns == 0
