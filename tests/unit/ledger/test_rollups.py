"""Sums that are kept are the sums."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.ledger import GroupTotals, Ledger, UsageTotals, migrations
from taximeter.ledger.columns import DAY_KEYS, HOUR_AMOUNTS, HOUR_SUMS, MONEY_COLUMNS, RECEIPT_COLUMNS, SPAN_COLUMNS
from taximeter.ledger.database import Session, database_at
from taximeter.ledger.documents import document
from taximeter.ledger.rows import LARGEST, receipt_row, split_cost, stored_name
from taximeter.records import PICODOLLARS_PER_DOLLAR, Outcome, Receipt, Usage, exact_sum, new_id
from tests.unit.ledger.records import NOON, a_receipt, a_request, any_receipts
from tests.unit.ledger.tables import metadata

LEAVES = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
EVER = (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
Key = tuple[object, ...]


def within(number: int | None) -> int | None:
    return None if number is None or abs(number) > LARGEST else number


def leaves_of(receipt: Receipt) -> dict[str, int | None]:
    return {leaf: None if receipt.usage is None else within(getattr(receipt.usage, leaf)) for leaf in LEAVES}


def cost_of(receipt: Receipt) -> Decimal | None:
    return None if receipt.cost is None or split_cost(receipt.cost) is None else receipt.cost.total


def by_hour(receipts: list[Receipt]) -> dict[Key, UsageTotals]:
    """The definition: what `usage_by_hour` must say about these."""
    grouped: dict[Key, list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        hour = receipt.closed_at.replace(minute=0, second=0, microsecond=0)
        served_by = None if receipt.served_by is None else stored_name(receipt.served_by)
        grouped[hour, stored_name(receipt.request.model), served_by, receipt.outcome].append(receipt)
    found: dict[Key, UsageTotals] = {}
    for (hour, model, served_by, outcome), group in grouped.items():
        totals = [within(receipt.timing and receipt.timing.total_ns) for receipt in group]
        firsts = [within(receipt.timing and receipt.timing.first_token_ns) for receipt in group]
        found[hour, model, served_by, outcome] = UsageTotals(
            hour=hour,
            model=model,
            served_by=served_by,
            outcome=outcome,
            receipts=len(group),
            tokens={leaf: sum(leaves_of(receipt)[leaf] or 0 for receipt in group) for leaf in LEAVES},
            unknown={leaf: sum(leaves_of(receipt)[leaf] is None for receipt in group) for leaf in LEAVES},
            cost=exact_sum(cost_of(receipt) or Decimal(0) for receipt in group),
            unpriced=sum(cost_of(receipt) is None for receipt in group),
            total_ns=sum(total or 0 for total in totals),
            timed=sum(total is not None for total in totals),
            first_token_ns=sum(first or 0 for first in firsts),
            first_tokens=sum(first is not None for first in firsts),
            compute_ns=sum(within(receipt.work and receipt.work.compute_ns) or 0 for receipt in group),
            off_scale=0,
        )
    return found


def kept_by_hour(ledger: Ledger, start: datetime = EVER[0], until: datetime = EVER[1]) -> dict[Key, UsageTotals]:
    found = ledger.usage_by_hour(start, until)
    kept = {(row.hour, row.model, row.served_by, row.outcome): replace(row, off_scale=0) for row in found}
    assert len(kept) == len(found)
    return kept


@settings(deadline=None, max_examples=40)
@given(receipts=st.lists(any_receipts(), min_size=1, max_size=4), data=st.data())
def test_rollups_are_the_sums_after_any_sequence_of_receipts_and_corrections(
    shared_ledger_of_each: Ledger, receipts: list[Receipt], data: st.DataObject
) -> None:
    """By hour and by group, whatever the records hold: the corrected ones count no longer, wherever they counted."""
    ledger = shared_ledger_of_each
    newest = {receipt.request.id: receipt for receipt in receipts}
    for receipt in receipts:
        ledger.append(receipt)
    for _ in range(data.draw(st.integers(0, 4))):
        old = data.draw(st.sampled_from(sorted(newest.values(), key=lambda receipt: receipt.id)))
        other = data.draw(any_receipts())
        request = replace(other.request, id=old.request.id)
        new = replace(other, id=new_id("rcpt", NOON), request=request, supersedes=old.id)
        ledger.append(new)
        newest[request.id] = new
    ledger.append(receipts[0]).result()  # which is there already

    current = ledger.receipts(100_000)
    assert kept_by_hour(ledger) == by_hour(current)
    with closing(ledger._database.session(patience_s=9)) as session:
        check_days(session)
    for kind in ("task", "run", "session"):
        for name in {getattr(receipt.request, kind) for receipt in current} - {None}:
            check_group(ledger, kind, name, [r for r in current if getattr(r.request, kind) == name])
    for receipt in newest.values():
        for label, value in receipt.request.labels.items():
            mine = [r for r in current if stored_name(r.request.labels.get(label, "\0none")) == stored_name(value)]
            check_group(ledger, f"label:{label}", value, mine)


def check_days(session: Session) -> None:
    """Each column of `usage_by_day` is what its hours have, of all runs together."""
    expected: dict[Key, dict[str, Any]] = {}
    for hour in whole_table(session, "usage_by_hour", "hour, digest"):
        key = (f"{hour['hour'][:10]} 00:00:00", *(hour[name] for name in DAY_KEYS))
        known = expected.setdefault(key, dict.fromkeys(hour, 0) | {name: hour[name] for name in SPAN_COLUMNS})
        for name, better in zip(SPAN_COLUMNS, (min, max), strict=True):
            known[name] = better(known[name], hour[name])
        for name in HOUR_SUMS:
            known[name] += hour[name]
    for known in expected.values():
        for dollars, picodollars in HOUR_AMOUNTS.values():
            carried, known[picodollars] = divmod(known[picodollars], PICODOLLARS_PER_DOLLAR)
            known[dollars] += carried
    days = {
        (day["day"][:19], *(day[name] for name in DAY_KEYS)): day
        for day in whole_table(session, "usage_by_day", "day, digest")
    }
    names = (*HOUR_SUMS, *SPAN_COLUMNS)
    assert {key: [day[name] for name in names] for key, day in days.items()} == {
        key: [known[name] for name in names] for key, known in expected.items()
    }


def check_group(ledger: Ledger, kind: str, name: str, receipts: list[Receipt]) -> None:
    group = ledger.group(kind, name)
    assert group is not None
    leaves = [leaves_of(receipt) for receipt in receipts]
    assert (group.receipts, group.failures) == (
        len(receipts),
        sum(receipt.outcome is not Outcome.COMPLETED for receipt in receipts),
    )
    assert group.input_tokens == sum(known[leaf] or 0 for known in leaves for leaf in Usage.INPUT_LEAVES)
    assert group.output_tokens == sum(known[leaf] or 0 for known in leaves for leaf in Usage.OUTPUT_LEAVES)
    assert group.uncounted == sum(None in known.values() for known in leaves)
    assert group.cost == exact_sum(cost_of(receipt) or Decimal(0) for receipt in receipts)
    assert group.unpriced == sum(cost_of(receipt) is None for receipt in receipts)
    assert {r.id for r in ledger.receipts_of(kind, name, 100_000)} == {r.id for r in receipts}


def test_days_of_any_zone_add_up(ledger: Ledger) -> None:
    """2026-08-06T04:30Z is 2026-08-05 in Los Angeles; and where days begin within an hour of UTC, or at a change of
    clocks, each receipt is still in exactly one of them."""
    night = datetime(2026, 8, 6, 4, 30, tzinfo=UTC)
    instants = [night + timedelta(minutes=7 * number, microseconds=number) for number in range(600)]
    instants += [datetime(2026, 11, 1, 5, 0, tzinfo=UTC) + timedelta(minutes=10 * number) for number in range(300)]
    for at in instants:
        ledger.append(a_receipt(closed_at=at, dollars=Decimal("0.01")))
    ledger.append(a_receipt(closed_at=night, dollars=Decimal("0.05"))).result()
    for name in ("UTC", "America/Los_Angeles", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe"):
        zone = ZoneInfo(name)
        day = datetime(2026, 8, 4, tzinfo=zone)
        days: dict[str, Decimal] = {}
        while day < datetime(2026, 11, 6, tzinfo=zone):
            following = (day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
            days[f"{day:%F}"] = sum((row.cost for row in ledger.usage_by_hour(day, following)), Decimal(0))
            day = following
        assert sum(days.values()) == ledger.total_cost() == 900 * Decimal("0.01") + Decimal("0.05")
        expected: dict[str, Decimal] = defaultdict(Decimal)
        for at in instants:
            expected[f"{at.astimezone(zone):%F}"] += Decimal("0.01")
        expected[f"{night.astimezone(zone):%F}"] += Decimal("0.05")
        assert {key: cost for key, cost in days.items() if cost} == expected
        if name == "America/Los_Angeles":
            assert f"{night.astimezone(zone):%F}" == "2026-08-05"


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4 * 60), min_size=2, max_size=4))
def test_intervals_that_follow_each_other_add_up(shared_ledger: Ledger, minutes: list[int]) -> None:
    """Half-open at any instant, also within an hour."""
    if shared_ledger.latest() is None:
        for number in range(48):
            shared_ledger.append(a_receipt(closed_at=NOON + timedelta(minutes=5 * number), dollars=Decimal(1))).result()
    bounds = [NOON + timedelta(minutes=minute) for minute in sorted(minutes)]
    parts = [row for pair in pairwise(bounds) for row in shared_ledger.usage_by_hour(*pair)]
    whole = shared_ledger.usage_by_hour(bounds[0], bounds[-1])
    expected = sum(bounds[0] <= NOON + timedelta(minutes=5 * number) < bounds[-1] for number in range(48))
    assert sum(row.receipts for row in parts) == sum(row.receipts for row in whole) == expected
    assert sum(row.cost for row in parts) == sum(row.cost for row in whole) == expected


def in_a_group(at: datetime, **groups: str) -> Receipt:
    return a_receipt(replace(a_request(), received_at=at, **groups), closed_at=at + timedelta(seconds=1))


def test_groups_are_listed_by_their_newest_receipt(ledger: Ledger) -> None:
    """And say when they began and ended; one run of another task is none of theirs."""
    for number in range(5):
        at = NOON + timedelta(hours=number)
        ledger.append(in_a_group(at, task="report", run=f"run {number % 3}")).result()
    ledger.append(in_a_group(NOON, task="other")).result()
    assert [group.name for group in ledger.groups("run")] == ["run 1", "run 0", "run 2"]
    assert [group.name for group in ledger.groups("run", limit=1)] == ["run 1"]
    assert [group.name for group in ledger.groups("run", since=NOON + timedelta(hours=3))] == ["run 1", "run 0"]
    assert ledger.group("run", "run 1") == GroupTotals(
        kind="run",
        name="run 1",
        receipts=2,
        failures=0,
        input_tokens=2 * 5,
        output_tokens=2 * 10,
        uncounted=0,
        cost=Decimal(0),
        unpriced=2,
        off_scale=0,
        first_at=NOON + timedelta(hours=1),
        last_at=NOON + timedelta(hours=4, seconds=1),
    )
    assert ledger.group("task", "unheard of") is None
    assert ledger.groups("session") == []


def test_pages_of_a_group_follow_each_other(ledger: Ledger) -> None:
    """Newest first, without the corrected, and only its own."""
    mine = [in_a_group(NOON + timedelta(seconds=number // 3), run="mine") for number in range(20)]
    for receipt in mine:
        ledger.append(receipt)
        ledger.append(in_a_group(NOON, run="another"))
    corrected = replace(mine[7], id=new_id("rcpt", NOON), supersedes=mine[7].id)
    ledger.append(corrected).result()
    mine[7] = corrected
    expected = sorted(mine, key=lambda receipt: (receipt.closed_at, receipt.id), reverse=True)
    seen = ledger.receipts_of("run", "mine", limit=6)
    while page := ledger.receipts_of("run", "mine", limit=6, before=seen[-1].id):
        seen += page
    assert seen == expected
    assert ledger.receipts_of("run", "nobody's") == []


def test_a_receipt_is_found_by_its_labels(ledger: Ledger) -> None:
    """Each label is a group, with its sums; names of any length can be asked for."""
    long = "x" * 5_000
    request = replace(a_request(), labels={"team": "search", "branch": long, long: "y"})
    receipt = a_receipt(request, dollars=Decimal("0.25"))
    for one in (receipt, a_receipt(replace(a_request(), labels={"team": "ads"}))):
        ledger.append(one).result()
    for name, value in request.labels.items():
        assert ledger.receipts_of(f"label:{name}", value) == [receipt]
        group = ledger.group(f"label:{name}", value)
        assert group is not None
        assert group.cost == Decimal("0.25")
    assert ledger.receipts_of("label:branch", "x" * 4_999) == []
    assert {group.name for group in ledger.groups("label:team")} == {"search", "ads"}


def test_a_model_with_a_name_as_long_as_a_book_is_kept(ledger: Ledger) -> None:
    """It is whole in the document, and its own row in the sums."""
    receipts = [a_receipt(a_request(model="m" * 100_000 + end)) for end in "ab"]
    for receipt in receipts:
        ledger.append(receipt).result()
        assert ledger.receipt(receipt.id) == receipt
    assert len({row.model for row in ledger.usage_by_hour(*EVER)}) == 2


OLD_COLUMNS = tuple(
    name
    for name in RECEIPT_COLUMNS
    if not name.endswith("_picodollars") or name in MONEY_COLUMNS
    if name not in ("key", "source", "labels", "usage_basis", "cost_basis", "upstream_request_id", "itl_ns", "form")
)


@pytest.fixture
def old_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    """Another place of the same kind as `url`."""
    return request.getfixturevalue("postgres").new_database() if "://" in url else str(tmp_path / "old.db")


def test_an_older_ledger_is_copied_with_all_that_it_says(
    ledger: Ledger, stranger: Session, old_url: str, tmp_path: Path
) -> None:
    """Receipts, columns that are new, and sums are as if they had been written today."""
    request = replace(a_request(), task="a task", run="a run", labels={"team": "a", "x" * 500: "é"})
    first = a_receipt(request, dollars=Decimal("0.999999999999"))
    second = replace(first, id="rcpt_second", supersedes=first.id, outcome=Outcome.FAILED, upstream_request_id="theirs")
    others = [a_receipt(dollars=Decimal("-0.25"), closed_at=NOON + timedelta(hours=number)) for number in range(4)]
    odd = [a_receipt(input_tokens=10**25), a_receipt(dollars=Decimal(10) ** 7), replace(a_receipt(), served_by="us")]
    written = sorted([first, second, *others, *odd], key=lambda receipt: receipt.id)
    for receipt in sorted(written, key=lambda receipt: receipt.supersedes is not None):
        ledger.append(receipt).result()

    database = database_at(old_url, spool=tmp_path)
    assert database is not None
    with closing(database.session(patience_s=9)) as session:
        migrations.upgrade(session, "0003")
        for receipt in sorted(written, key=lambda receipt: receipt.supersedes is not None):
            row = dict(zip(RECEIPT_COLUMNS, receipt_row(receipt), strict=True))
            insert(session, "receipts", {name: row[name] for name in OLD_COLUMNS})
            insert(session, "documents", {"receipt_id": receipt.id, "document": document(receipt)})
        for sums in whole_table(stranger, "group_totals", "kind, name"):
            insert(session, "group_totals", sums)
    with Ledger.open(old_url, spool=tmp_path) as again, closing(database.session(patience_s=9)) as session:
        assert again.receipts() == ledger.receipts()
        for table, order in (
            ("usage_by_hour", "hour, digest"),
            ("usage_by_day", "day, digest"),
            ("group_hours", "kind, name, hour"),
            ("receipts", "id"),
        ):
            assert without_numbers(session, table, order) == without_numbers(stranger, table, order)
        check_days(session)
        again.append(replace(second, id="rcpt_third", supersedes=second.id)).result()
        check_days(session)
        assert len(again.receipts()) == len(ledger.receipts())
        assert again.append_many([first]).present == [first.id]


def insert(session: Session, table: str, row: dict[str, Any]) -> None:
    session.tell(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [tuple(row.values())])


def whole_table(session: Session, table: str, order: str) -> list[dict[str, Any]]:
    names = [column.name for column in metadata.tables[table].columns]
    return [
        dict(zip(names, row, strict=True))
        for row in session.ask(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}")
    ]


def without_numbers(session: Session, table: str, order: str) -> list[dict[str, Any]]:
    """And without sums of receipts that are all corrected."""
    return [row | {"number": None} for row in whole_table(session, table, order) if row.get("receipts") != 0]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_no_question_reads_a_whole_table(
    ledger: Ledger, path: Path, asked: list[tuple[str, tuple[object, ...]]]
) -> None:
    """SQLite's own plan of each: nothing is scanned but the newest receipts, in order, up to the limit; and the index
    of those few that no sum takes."""
    for number in range(50):
        ledger.append(in_a_group(NOON + timedelta(minutes=number), task="t", run="r")).result()
    newest = ledger.receipts(3)[-1].id
    ledger.receipts(3, before=newest)
    ledger.receipt(newest[:-1])
    ledger.receipt("nobody's")
    ledger.receipt(ledger.receipts(1)[0].request.id)
    ledger.total_cost()
    ledger.usage_by_hour(NOON + timedelta(minutes=5), NOON + timedelta(hours=3, minutes=5))
    ledger.group("run", "r")
    ledger.groups("task", since=NOON)
    ledger.receipts_of("run", "r", 3, before=newest)
    ledger.task("t")
    assert len(asked) > 15
    with closing(sqlite3.connect(path)) as connection:
        for statement, parameters in asked:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            scans = [
                step for step in plan if step.startswith("SCAN") and step != "SCAN task_rules"
            ]  # people's words: few
            scanned = [step for step in scans if "INDEX receipts_off_scale" not in step]
            in_order = "LIMIT" in statement and not any("TEMP B-TREE" in step for step in plan)
            assert not scanned or (in_order and all("INDEX receipts_by_time" in step for step in scanned)), plan


def test_a_groups_usage_is_that_of_its_receipts(ledger: Ledger) -> None:
    """By model, backend and outcome; what is corrected counts no more, and other groups do not count."""
    first = a_receipt(replace(a_request(), task="report"))
    other = a_receipt(replace(a_request(), task="another"))
    corrected = replace(first, id=new_id("rcpt", NOON), supersedes=first.id)
    for receipt in (first, other, corrected):
        ledger.append(receipt).result()
    assert first.usage is not None
    (part,) = ledger.usage_of("task", "report")
    assert part.receipts == 1
    assert part.hour is None
    assert part.tokens == {leaf: count or 0 for leaf, count in first.usage.leaves().items()}
    assert ledger.usage_of("task", "nothing") == []
