"""`taximeter reprice`: another list is looked at beside the one that a receipt has; what differs becomes a correction,
and both figures stay. Sums are exact, and nothing is written by looking."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.cli.main import app
from taximeter.ledger import Ledger
from taximeter.pricing import charge
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.repricing import Change, Repricer, Repricing
from taximeter.records import Receipt, Terms, Usage, exact_sum, new_id
from tests.price_card import PRICE_CARD, cost, usage
from tests.unit.ledger.records import a_receipt, a_request

CARD = Catalog.load(PRICE_CARD)
DAY = datetime(2026, 11, 10, 9, tzinfo=UTC)
DOUBLE = """
[[price]]
model = "card/opus-5"
input_fresh_per_million_usd = "10"
input_cache_read_per_million_usd = "1"
output_per_million_usd = "50"

[[price]]
model = "card/new"
input_fresh_per_million_usd = "1"
output_per_million_usd = "2"
"""


def paid(model: str, used: Usage, *, at: datetime = DAY, reason: str | None = None, **more: Any) -> Receipt:
    """A receipt as a gateway writes it for an upstream called `card`."""
    receipt = replace(
        a_receipt(a_request(at=at, model=model), closed_at=at + timedelta(seconds=2)),
        usage=used,
        work=None,
        served_by="card",
        model_served=model,
    )
    if reason is None:
        receipt = replace(receipt, cost=cost(CARD, f"card/{model}", used, at=at), uncosted_reason=None)
    return replace(receipt, **more)


@pytest.fixture
def reprice(taximeter_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The command, to its end; its JSON."""
    (taximeter_home / "taximeter.toml").write_text(
        '[upstreams.card]\nurl = "http://127.0.0.1:9"\nspeaks = "openai"\nprovider = "card"\nkey = "env:NOT_HERE"\n'
    )
    (tmp_path / "double.toml").write_text(DOUBLE)

    def called(*arguments: str, with_list: Path | str = tmp_path / "double.toml") -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            app(["reprice", "--with", str(with_list), *arguments, "--json"])
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return json.loads(told.out)

    return called


def ledger() -> Ledger:
    from taximeter.settings import Settings  # noqa: PLC0415  # of the home that the test has

    return Ledger.open(Settings.load().ledger_url)


def keep(*receipts: Receipt) -> None:
    with ledger() as opened:
        for future in [opened.append(receipt) for receipt in receipts]:
            future.result(30)


def test_both_figures_are_shown_and_kept(reprice: Callable[..., dict[str, Any]]) -> None:
    """Looking first: nothing is written. Then a correction for each that differs, of the same moment; the old one is
    there for whoever asks, and a second run finds nothing to do."""
    old = paid("opus-5", usage(fresh=1_000_000, text=100_000))
    same = paid("sonnet-5", usage(fresh=500_000, text=10_000))
    keep(old, same)
    assert old.cost is not None
    assert old.cost.total == 5 + Decimal("2.5")
    looked = reprice("--dry-run")
    opus = looked["models"]["opus-5"]
    assert (opus["before"], opus["after"], opus["difference"], opus["corrected"]) == ("7.5", "15", "7.5", 1)
    assert looked["dry_run"] is True
    with ledger() as opened:
        assert {receipt.id for receipt in opened.receipts()} == {old.id, same.id}
    written = reprice()
    assert {**written, "dry_run": True} == looked, "what was shown is what was done"
    with ledger() as opened:
        [new] = [receipt for receipt in opened.receipts() if receipt.supersedes == old.id]
        assert new.cost is not None
        assert (new.cost.total, new.closed_at, new.request, new.usage) == (15, old.closed_at, old.request, old.usage)
        assert new.cost.price_list is not None
        assert new.cost.price_list.source == "double.toml"
        assert opened.receipt(old.id) == old, "history keeps its own figure"
        assert opened.total_cost() == 15 + same.cost.total
        assert opened.receipt(old.request.id) == new
    again = reprice()
    assert (again["total"]["corrected"], again["total"]["difference"]) == (0, "0")


def test_what_the_list_lacks_stays_as_it_is(reprice: Callable[..., dict[str, Any]]) -> None:
    """A known cost is never traded for an unknown one, and a price that was missing is found; both are counted."""
    lacking = paid("sonnet-5", usage(fresh=1_000))
    unpriced = paid("new", usage(fresh=1_000_000), reason="no-price", uncosted_reason="no price then")
    unknown = paid("no-such", usage(fresh=7), reason="no-price", uncosted_reason="no price then")
    own = a_receipt(a_request(at=DAY), closed_at=DAY)
    keep(lacking, unpriced, unknown, own)
    found = reprice()
    assert found["changes"] == {"left": 2, "priced": 1, "elsewhere": 1}
    assert sum(found["left"].values()) == 2
    assert any("sonnet-5" in reason for reason in found["left"])
    total = found["total"]
    assert (total["before"], total["unpriced_before"]) == ("0.002", 2)
    assert (total["after"], total["unpriced_after"], total["difference"]) == ("1.002", 1, "1")
    with ledger() as opened:
        assert opened.total_cost() == Decimal("1.002")
        assert len(opened.receipts()) == 4


def test_only_the_days_that_were_asked_for(reprice: Callable[..., dict[str, Any]]) -> None:
    """From `--since` on and before `--until`, by when the request came; a day begins in UTC."""
    days = [paid("opus-5", usage(fresh=1_000), at=DAY + timedelta(days=day)) for day in range(5)]
    edge = paid("opus-5", usage(fresh=1_000), at=datetime(2026, 11, 12, tzinfo=UTC))
    late = paid("opus-5", usage(fresh=1_000), at=datetime(2026, 11, 12, 23, 59, 59, tzinfo=UTC))
    late = replace(late, closed_at=datetime(2026, 11, 14, tzinfo=UTC))
    keep(*days, edge, late)
    found = reprice("--since", "2026-11-12", "--until", "2026-11-13")
    assert found["total"]["corrected"] == 3
    with ledger() as opened:
        corrected = {receipt.supersedes for receipt in opened.receipts()} - {None}
    assert corrected == {days[2].id, edge.id, late.id}


def test_a_price_is_of_the_requests_own_day(reprice: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """A list with a change in it: each receipt by the day it was asked."""
    path = tmp_path / "dated.toml"
    entry = '[[price]]\nmodel = "card/opus-5"\ninput_fresh_per_million_usd = "{}"\noutput_per_million_usd = "1"\n'
    path.write_text(entry.format(6) + entry.format(7) + "valid_from = 2026-11-12\n")
    keep(*(paid("opus-5", usage(fresh=1_000_000), at=DAY + timedelta(days=day)) for day in (1, 2)))
    found = reprice(with_list=path)
    assert (found["total"]["before"], found["total"]["after"]) == ("10", "13")


def test_a_wrong_call_is_told(reprice: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """A list that is not there, days the wrong way round: nothing is opened or written."""
    for arguments in (
        ["--with", "no-such.toml"],
        ["--with", "current", "--since", "2026-11-02", "--until", "2026-11-01"],
        ["--with", "current", "--since", "soon"],
    ):
        with pytest.raises(SystemExit) as ended:
            app(["reprice", *arguments])
        assert ended.value.code == 2
    assert "--since is 'soon'" in capsys.readouterr().err


def test_a_table_for_people(
    reprice: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sums, what each lacks, and that looking wrote nothing."""
    keep(
        paid("opus-5", usage(fresh=2_000_000)),
        paid("no-such", usage(fresh=7), reason="no-price", uncosted_reason="no price then"),
    )
    with pytest.raises(SystemExit):
        app(["reprice", "--with", str(tmp_path / "double.toml"), "--dry-run"])
    told = capsys.readouterr().out
    assert "$10.0000 + 1 unpriced" in told
    assert "$20.0000 + 1 unpriced" in told
    assert "1 would be corrected; nothing was written" in told
    assert "1 stay as they are" in told


MODELS = st.sampled_from(["opus-5", "sonnet-5", "haiku-4-5", "no-such"])
COUNTS = st.integers(0, 10**7)


@given(st.lists(st.tuples(MODELS, COUNTS, COUNTS), max_size=25), st.integers(1, 10**6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_sums_are_those_of_the_receipts(drawn: list[tuple[str, int, int]], cents: int) -> None:
    """To the last picodollar, whatever the list: before, after, and what a ledger with the corrections has."""
    price = f'input_fresh_per_million_usd = "{Decimal(cents) / 1000}"\noutput_per_million_usd = "3.3"\n'
    from taximeter.pricing.overlay import Overlay  # noqa: PLC0415

    listed = Overlay.parse(f'[[price]]\nmodel = "card/opus-5"\n{price}', name="other")
    repricer, repricing = Repricer(Catalog(listed, Overlay([]), Overlay([])), {"card": "card"}), Repricing()
    receipts = [
        paid(model, usage(fresh=fresh, text=text))
        if model != "no-such"
        else paid(model, usage(fresh=fresh, text=text), reason="x", uncosted_reason="no price")
        for model, fresh, text in drawn
    ]
    current: list[Receipt] = []
    for receipt in receipts:
        found = repricer.look(receipt)
        repricing.add(found)
        current.append(found.correction(new_id("rcpt", DAY)) or receipt)
    for amount, kept in ((repricing.total.before, receipts), (repricing.total.after, current)):
        assert amount == exact_sum(each.cost.total for each in kept if each.cost is not None)
    assert repricing.total.unpriced_after == sum(each.cost is None for each in current)
    by_model = repricing.models.values()
    assert exact_sum(each.difference for each in by_model) == repricing.total.difference
    assert sum(each.receipts for each in by_model) == repricing.total.receipts == len(receipts)
    assert all(repricer.look(each).correction("rcpt_x") is None for each in current), "once is enough"


def test_an_imported_call_names_its_provider_itself() -> None:
    """Also one that the published prices have never heard of: a price that comes later finds the calls that waited for
    it, and without one the reason is said."""
    repricer = Repricer(CARD, {})
    waiting = {"reason": "x", "uncosted_reason": "no price", "served_by": "card", "source": "our-proxy"}
    assert repricer.look(paid("opus-5", usage(fresh=1), **waiting)).change is Change.PRICED
    unheard = repricer.look(paid("no-such", usage(fresh=1), **waiting))
    assert unheard.change is Change.LEFT
    assert "card/no-such" in (unheard.reason or "")


def test_who_is_not_paid_by_the_token_is_left_alone() -> None:
    """A machine by the hour, an unknown upstream, a request that nobody served."""
    repricer = Repricer(CARD, {"card": "card"})
    by_the_hour = a_receipt(dollars=Decimal("0.5"))
    stranger = paid("opus-5", usage(fresh=1), reason="x", uncosted_reason="no price", served_by="elsewhere")
    refused = paid("opus-5", usage(fresh=1), reason="x", uncosted_reason="refused", served_by=None)
    nothing = paid("opus-5", usage(fresh=1), reason="x", uncosted_reason="?", usage=None, unmeasured_reason="?")
    assert {repricer.look(each).change for each in (stranger, refused, nothing)} == {Change.ELSEWHERE}
    assert repricer.look(by_the_hour).change is not Change.CHANGED


def test_terms_and_searches_count_as_they_did() -> None:
    """Tier, place and extras are those of the answer."""
    used = usage(fresh=10_000, text=500, web_searches=2)
    receipt = paid("sonnet-4-6", used)
    assert Repricer(CARD, {}).look(receipt).change is Change.SAME
    flex = paid("gpt-5", usage(fresh=1_000_000), terms=Terms(tier="flex"))
    again = Repricer(CARD, {}).look(flex)
    assert again.cost is not None
    assert (again.change, again.cost.total) == (Change.CHANGED, Decimal("0.625"))
    assert charge(used, CARD.price_list("card/sonnet-4-6", at=DAY, input_tokens=10_000)) == receipt.cost
