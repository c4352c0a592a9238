"""From a finished request to its receipt."""

import logging
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from taximeter.errors import PricingError
from taximeter.pricing import Comparison, MachineMeter, Settler, SharedMachineTariff
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.tariff import PublishedTariff
from taximeter.records import (
    NS_PER_HOUR,
    Attempt,
    Basis,
    Cost,
    Dialect,
    MachineRate,
    Outcome,
    Receipt,
    Request,
    Terms,
    Timing,
    Usage,
    Work,
)
from tests.price_card import CHECKED_AT, PRICE_CARD, usage

CATALOG = Catalog.load(PRICE_CARD)
CLOSED_AT = datetime(2026, 10, 29, 0, 0, 9, tzinfo=UTC)
WORK = Work(prefill_passes=1, decode_passes=9, computed_tokens=14, compute_ns=NS_PER_HOUR // 1000)
USED = usage(fresh=5, text=10, basis=Basis.MEASURED)
TIMING = Timing(prefill_ns=5, decode_ns=10, total_ns=15)


def meter() -> MachineMeter:
    return MachineMeter(MachineRate(amount_per_hour=Decimal("0.50")))


def settle(settler: Settler, *, received_at: datetime = CHECKED_AT, **fields: Any) -> Receipt:
    request = Request(
        id="req_1", received_at=received_at, received_ns=0, dialect=Dialect.OPENAI_CHAT, model="smollm2-135m-instruct"
    )
    known: dict[str, Any] = {"outcome": Outcome.COMPLETED, "timing": TIMING, "usage": USED, "work": WORK}
    return settler.settle(receipt_id="rcp_1", request=request, closed_at=CLOSED_AT, **{**known, **fields})


def test_work_is_charged_to_the_machine():
    """The machine's time becomes the cost, and everything known is on the receipt."""
    receipt = settle(
        Settler(machine=meter()),
        served_by="embedded",
        model_served="smollm2-135m-instruct",
        finish_reasons=("stop",),
    )
    assert receipt.cost is not None
    assert receipt.cost.total == Decimal("0.50") / 1000
    assert receipt.uncosted_reason is None
    assert receipt.cost_priced_as is None
    assert (receipt.id, receipt.closed_at, receipt.served_by, receipt.finish_reasons) == (
        "rcp_1",
        CLOSED_AT,
        "embedded",
        ("stop",),
    )
    assert (receipt.timing, receipt.usage, receipt.work) == (TIMING, USED, WORK)


def test_a_failed_request_is_charged_for_its_work():
    """An answer that broke or was not wanted has still used the machine."""
    machine = meter()
    settler = Settler(machine=machine)
    for outcome in (Outcome.FAILED, Outcome.ABORTED):
        receipt = settle(settler, outcome=outcome, error="EngineError: broken")
        assert receipt.cost is not None
        assert receipt.error == "EngineError: broken"
    assert machine.charged_ns == 2 * WORK.compute_ns


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outcome": Outcome.REFUSED, "unmeasured_reason": "refused"}, "refused before any work was done"),
        (
            {"outcome": Outcome.FAILED, "unmeasured_reason": "the engine broke"},
            "machine time unknown: the engine broke",
        ),
        ({"outcome": Outcome.COMPLETED, "timing": TIMING, "usage": USED}, "machine time unknown"),
    ],
)
def test_a_receipt_without_a_cost_says_why(fields: dict[str, Any], reason: str):
    """Unknown is not zero: there is no cost, and there is a reason in plain words."""
    receipt = settle(Settler(machine=meter()), **{"timing": None, "usage": None, "work": None, **fields})
    assert receipt.cost is None
    assert receipt.uncosted_reason == reason


def test_a_machine_without_a_rate_has_no_cost():
    """The reason says what to set."""
    receipt = settle(Settler())
    assert receipt.cost is None
    assert receipt.uncosted_reason == "no machine rate: set --machine-rate"


def test_the_same_usage_is_priced_from_a_list_beside_it():
    """What it would have cost there, at the time it was asked, whatever it costs here."""
    settler = Settler(comparison=Comparison(CATALOG, "card/gpt-5.6-sol"))
    before = settle(settler, received_at=datetime(2026, 8, 20, tzinfo=UTC)).cost_priced_as
    after = settle(settler, received_at=datetime(2026, 8, 21, tzinfo=UTC)).cost_priced_as
    assert before is not None
    assert before.total == (5 * Decimal(5) + 10 * Decimal(30)) / 1_000_000
    assert after is not None
    assert after.total == (5 * Decimal(4) + 10 * Decimal(20)) / 1_000_000
    assert after.price_list is not None
    assert after.price_list.model == "card/gpt-5.6-sol"


def test_the_whole_prompt_picks_the_context_price():
    """Cached tokens count towards the length of the prompt."""
    settler = Settler(comparison=Comparison(CATALOG, "card/gpt-5.4"))
    receipt = settle(settler, usage=usage(fresh=72_001, read=200_000))
    assert receipt.cost_priced_as is not None
    assert receipt.cost_priced_as.total == (72_001 * Decimal(5) + 200_000 * Decimal("0.5")) / 1_000_000


@pytest.mark.parametrize(
    ("used", "why"),
    [
        (usage(fresh=5, read=4, text=1), "no price for input_cache_read_tokens"),
        (
            Usage(
                input_fresh_tokens=None,
                input_cache_read_tokens=0,
                output_text_tokens=1,
                unknown_reasons={"input_fresh_tokens": "cut off"},
            ),
            "input_fresh_tokens is unknown.*cut off",
        ),
    ],
)
def test_a_comparison_that_cannot_be_made_is_logged(used: Usage, why: str, caplog: pytest.LogCaptureFixture):
    """It is left out, the receipt is written all the same, and the log says why."""
    settler = Settler(machine=meter(), comparison=Comparison(CATALOG, "card/haiku-4-5"))
    with caplog.at_level(logging.WARNING):
        receipt = settle(settler, usage=used)
    assert receipt.cost is not None
    assert receipt.cost_priced_as is None
    assert re.search(f"rcp_1 is not priced as card/haiku-4-5: .*{why}", caplog.text)


def test_a_bug_in_the_comparison_loses_no_receipt(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """What is only for comparing must not take the receipt with it; the log has the traceback."""

    def broken(*_: object) -> Cost:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("taximeter.pricing.settle.charge", broken)
    machine = meter()
    receipt = settle(Settler(machine=machine, comparison=Comparison(CATALOG, "card/haiku-4-5")))
    assert receipt.cost is not None
    assert receipt.cost_priced_as is None
    assert machine.charged_ns == WORK.compute_ns
    assert "rcp_1 is not priced as card/haiku-4-5" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


def test_a_receipt_that_cannot_be_made_is_not_charged():
    """The meter moves last: what it has charged is what receipts say."""
    machine = meter()
    with pytest.raises(ValueError, match="must say why"):
        settle(Settler(machine=machine), timing=None)
    assert machine.charged_ns == 0


def test_no_usage_no_comparison():
    """Nothing is priced from nothing."""
    settler = Settler(comparison=Comparison(CATALOG, "card/haiku-4-5"))
    receipt = settle(settler, outcome=Outcome.FAILED, usage=None, unmeasured_reason="no usage came")
    assert receipt.cost_priced_as is None


def test_a_typo_in_priced_as_stops_the_start():
    """A model that does not exist is refused before the first request, not at each one."""
    with pytest.raises(PricingError, match="card/gpt-5"):
        Comparison(CATALOG, "card/gpt-55")


UPSTREAM: dict[str, Any] = {"served_by": "upstream", "work": None, "model_served": "gpt-5"}


def test_who_served_says_how_it_is_charged():
    """Each tariff charges its own; what no tariff is for is our machine's."""
    machine = meter()
    settler = Settler(machine=machine, tariffs={"upstream": PublishedTariff(CATALOG, "card")})
    hosted = settle(settler, **UPSTREAM, terms=Terms(tier="flex"))
    assert hosted.cost is not None
    assert hosted.cost.total == (5 * Decimal("1.25") + 10 * Decimal(10)) / 2 / 1_000_000
    assert hosted.cost.price_list is not None
    assert (hosted.cost.price_list.model, hosted.cost.price_list.tier) == ("card/gpt-5", "flex")
    assert (hosted.terms, hosted.uncosted_reason) == (Terms(tier="flex"), None)
    assert machine.charged_ns == 0
    assert settle(settler, served_by="embedded").cost is not None
    assert machine.charged_ns == WORK.compute_ns


def test_tries_and_the_upstreams_own_name_for_the_request_are_kept():
    """What failed before the answer stands on the same receipt."""
    tries = (
        Attempt(upstream="one", started_ns=1, duration_ns=2, status=529, error="overloaded"),
        Attempt(upstream="upstream", started_ns=4, duration_ns=9, status=200),
    )
    settler = Settler(tariffs={"upstream": PublishedTariff(CATALOG, "card")})
    receipt = settle(settler, **UPSTREAM, tries=tries, upstream_request_id="req_011")
    assert (receipt.tries, receipt.attempts, receipt.upstream_request_id) == (tries, 2, "req_011")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_served": None}, "no prices for a model called"),
        ({"terms": Terms(tier="scale")}, "'scale'"),
        ({"usage": usage(write_1h=1)}, "no price for input_cache_write_1h_tokens"),
        ({"usage": Usage.unknown("the stream broke off")}, "the stream broke off"),
        ({"usage": None, "unmeasured_reason": "reset before headers"}, "no usage is known: reset before headers"),
        (
            {"usage": None, "outcome": Outcome.REFUSED, "unmeasured_reason": "no such key"},
            "refused before any work was done",
        ),
    ],
)
def test_what_a_tariff_cannot_price_has_a_reason(fields: dict[str, Any], reason: str):
    """There is a receipt, without a cost."""
    settler = Settler(tariffs={"upstream": PublishedTariff(CATALOG, "card")})
    receipt = settle(settler, **{**UPSTREAM, **fields})
    assert receipt.cost is None
    assert reason in str(receipt.uncosted_reason)


def test_a_bug_in_a_tariff_loses_no_receipt(caplog: pytest.LogCaptureFixture):
    """The log has the traceback, the receipt says where to look."""

    class Broken:
        def cost(self, **_: object) -> Cost:
            raise ZeroDivisionError("a bug")

    receipt = settle(Settler(tariffs={"upstream": Broken()}), **UPSTREAM)
    assert receipt.cost is None
    assert "see the log" in str(receipt.uncosted_reason)
    assert "ZeroDivisionError: a bug" in caplog.text


def test_a_shared_machine_charges_also_what_failed():
    """Its time was used whether or not anything is known of the answer."""
    shared = SharedMachineTariff(MachineRate(amount_per_hour=Decimal("0.50")), started_ns=0)
    shared.begin("req_1", 0)
    shared.end("req_1", NS_PER_HOUR // 1000)
    failed = {"outcome": Outcome.FAILED, "usage": None, "unmeasured_reason": "it hung"}
    receipt = settle(Settler(tariffs={"upstream": shared}), **{**UPSTREAM, **failed})
    assert receipt.cost is not None
    assert receipt.cost.total == Decimal("0.50") / 1000


def test_a_comparison_prices_other_models_tokens_too():
    """What everything would have cost there, whoever read it here."""
    settler = Settler(comparison=Comparison(CATALOG, "card/haiku-4-5"))
    used = Usage(
        input_fresh_tokens=3_000,
        input_cache_read_tokens=0,
        output_text_tokens=0,
        by_model={"advisor": {"input_fresh_tokens": 2_000}},
    )
    receipt = settle(settler, usage=used)
    assert receipt.cost_priced_as is not None
    assert receipt.cost_priced_as.total == Decimal("0.003")


def test_a_name_that_is_not_known_is_looked_for_once():
    """Each answer may name a version that the catalog lacks, and looking for it takes long."""
    looked: list[str] = []

    class Counting(Catalog):
        def resolve(self, model: str) -> str:
            looked.append(model)
            return super().resolve(model)

    catalog = Counting.load(PRICE_CARD)
    settler = Settler(tariffs={"upstream": PublishedTariff(catalog, "card")})
    for _ in range(3):
        receipt = settle(settler, **{**UPSTREAM, "model_served": "gpt-5-of-tomorrow"})
        assert "smollm2-135m-instruct" in str(receipt.uncosted_reason)
    assert looked == ["card/gpt-5-of-tomorrow", "card/smollm2-135m-instruct"]
