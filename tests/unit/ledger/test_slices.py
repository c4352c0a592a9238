"""Sums by any key over any intervals are the sums of the receipts."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.ledger import CostTotals, Ledger, Percentiles, Slice, heaps, hours
from taximeter.ledger.database import Session
from taximeter.records import EXACT, Receipt, TaskVerb, TaskWord, TaskWords, Timing, exact_sum, new_id
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.ledger.records import NOON, a_receipt, a_request, any_receipts

EVER = (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
NAMES = st.none() | st.sampled_from(["one", "two", "Prüfung/3"])
LABELS = st.dictionaries(st.sampled_from(["team", "branch"]), st.sampled_from(["a", "b"]), max_size=2)
KINDS = (None, *hours.KINDS, "label:team", "label:branch", "label:nobody's")


@st.composite
def receipts_nearby(draw: st.DrawFn) -> Receipt:
    """Anything at all, but within a few hours, and of few names; small enough for columns."""
    receipt = draw(any_receipts())
    at = NOON + timedelta(minutes=draw(st.integers(0, 5 * 60)), microseconds=draw(st.integers(0, 5)))
    request = replace(
        receipt.request,
        received_at=at,
        model=draw(st.sampled_from(["small", "large"])),
        labels=draw(LABELS),
        **{kind: draw(NAMES) for kind in ("task", "run", "session", "key")},
    )
    total_ns = draw(st.integers(0, 10**12))
    timing = Timing(decode_ns=total_ns, total_ns=total_ns, first_token_ns=draw(st.none() | st.integers(0, total_ns)))
    usage = receipt.usage
    if usage is not None:
        usage = replace(
            usage,
            **{leaf: count and count % 10**9 + 6 for leaf, count in usage.leaves().items()},
            unknown_reasons=usage.unknown_reasons,
        )
    cost = receipt.cost
    if cost is not None:
        lines = [replace(line, amount=EXACT.remainder(line.amount, Decimal(1000))) for line in cost.lines]
        cost = replace(cost, lines=tuple(lines))
    return replace(
        receipt,
        request=request,
        closed_at=at + timedelta(seconds=draw(st.integers(0, 4_000))),
        timing=draw(st.sampled_from([timing, None])),
        usage=usage,
        cost=cost,
        work=None,
        served_by=draw(NAMES),
        source=draw(NAMES),
        cost_reported=draw(st.none() | st.integers(0, 10**9).map(lambda count: Decimal(count).scaleb(-6))),
    )


@st.composite
def edges(draw: st.DrawFn) -> list[datetime]:
    """Within hours, at hours, and at the beginnings of days."""
    hours_, midnights = st.integers(-1, 7).map(lambda hour: hour * 60), st.sampled_from([-36, -12, 12, 36])
    minutes_ = st.integers(-60, 8 * 60) | hours_ | midnights.map(lambda hour: hour * 60)
    minutes = draw(st.lists(minutes_, min_size=2, max_size=5))
    return [NOON + timedelta(minutes=minute) for minute in sorted(minutes)]


def by_place(found: list[Slice]) -> dict[tuple[int, str | None], Slice]:
    placed = {(one.interval, one.name): one for one in found}
    assert len(placed) == len(found)
    return placed


def in_order(found: list[CostTotals]) -> list[CostTotals]:
    return sorted(found, key=lambda part: (part.interval, part.name is None, part.name or ""))


_examples = itertools.count()


def written(ledger: Ledger, receipts: list[Receipt], number: int) -> list[Receipt]:
    """The receipts in a fortnight of their own, with a label of their own: all examples share the ledger."""
    moved: list[Receipt] = []
    for receipt in receipts:
        later = timedelta(days=14 * number)
        labels = {**receipt.request.labels, "example": str(number)}
        request = replace(receipt.request, received_at=receipt.request.received_at + later, labels=labels)
        moved.append(replace(receipt, request=request, closed_at=receipt.closed_at + later))
        ledger.append(moved[-1]).result()
    return moved


SOME = st.lists(receipts_nearby(), max_size=6)
ONLY = st.lists(st.sampled_from(range(7)), max_size=2)


@settings(deadline=None, max_examples=25)
@given(receipts=SOME, where=edges(), of=st.lists(ONLY, min_size=12, max_size=12))
def test_slices_are_the_sums_of_their_receipts(
    shared_ledger_of_each: Ledger, receipts: list[Receipt], where: list[datetime], of: list[list[int]]
) -> None:
    """Whatever they are asked by and for, on either side of any edge; each part of an interval is in it once."""
    ledger, number = shared_ledger_of_each, next(_examples)
    oracle = ReceiptsInMemory(written(ledger, receipts, number))
    where = [at + timedelta(days=14 * number) for at in where]
    for by, places in zip(KINDS, of, strict=True):
        only = [GROUPS[place] for place in places]
        assert by_place(ledger.slices(by, where, only=only)) == by_place(oracle.slices(by, where, only=only))
    by = (None, "task")[number % 2]
    found, whole = ledger.slices_and_whole(by, where)
    expected, together = oracle.slices_and_whole(by, where)
    assert (by_place(found), whole) == (by_place(expected), together)
    assert ledger.slices_and_whole(by, where, percentiles=False)[1] == together
    assert ledger.costs(by, where) == in_order(oracle.costs(by, where))
    assert ledger.active_hours(where[0], where[-1]) == oracle.active_hours(where[0], where[-1])
    for one in ledger.slices(None, where):
        assert exact_sum(one.money.values()) == one.cost


SAID = [("session", "one"), ("run", "one")]


@settings(deadline=None, max_examples=25)
@given(
    receipts=SOME,
    where=edges(),
    of=ONLY,
    said=st.none() | st.sampled_from(SAID),
    most=st.integers(2, 4),
    data=st.data(),
)
def test_what_costs_most_and_all_others_are_the_whole(
    shared_ledger_of_each: Ledger,
    receipts: list[Receipt],
    where: list[datetime],
    of: list[int],
    said: tuple[str, str] | None,
    most: int,
    data: st.DataObject,
) -> None:
    """By every kind, also where people's words say whose they are: each name once, and the others to the digit; and so
    in the time before."""
    ledger, number = shared_ledger_of_each, next(_examples)
    words = [] if said is None else [assigning(said, "two")]
    oracle = ReceiptsInMemory(written(ledger, receipts, number), words)
    edges_ = [at + timedelta(days=14 * number) for at in where]
    before, since, until = edges_[0], data.draw(st.sampled_from(edges_)), edges_[-1]
    only = [GROUPS[place] for place in of]
    by = data.draw(st.sampled_from(KINDS[1:]))
    assert by is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "task_rules", lambda _: TaskWords.of(words, ()))
        found = ledger.dearest(by, (before, since, until), only=only, most=most)
    assert found == oracle.dearest(by, (before, since, until), only=only, most=most)


GROUPS = [
    ("task", "one"),
    ("session", "Prüfung/3"),
    ("model", "small"),
    ("outcome", "completed"),
    ("label:team", "a"),
    ("label:branch", "b"),
    ("run", "one"),
]


def starting(minute: int, task: str, group: tuple[str, str] | None) -> TaskWord:
    kind, name = group or (None, None)
    return TaskWord(verb=TaskVerb.START, said_at=NOON + timedelta(minutes=minute), task=task, kind=kind, name=name)


WORDS = (
    st.lists(
        st.builds(lambda at, task: assigning(GROUPS[at], task), st.sampled_from([0, 1, 4, 5, 6]), NAMES), max_size=2
    ),
    st.lists(
        st.builds(
            starting,
            st.integers(0, 400),
            st.sampled_from(["one", "new"]),
            st.none() | st.sampled_from([1, 4, 6]).map(lambda at: GROUPS[at]),
        ),
        max_size=3,
    ),
    st.lists(
        st.sampled_from(["session", "run"]).map(lambda kind: TaskWord(verb=TaskVerb.EACH, said_at=NOON, kind=kind)),
        max_size=1,
    ),
)


@settings(deadline=None, max_examples=25)
@given(
    receipts=SOME,
    where=edges(),
    said=st.tuples(*WORDS),
    of=ONLY,
    names=st.sets(st.sampled_from(["one", "two", "new", "Prüfung/3"])),
)
def test_tasks_are_what_people_say_they_are(
    shared_ledger_of_each: Ledger,
    receipts: list[Receipt],
    where: list[datetime],
    said: tuple[list[TaskWord], ...],
    of: list[int],
    names: set[str],
) -> None:
    """By assignment, by the time between a start and an end, and by each session: as their words come to, also
    for the whole life of a task."""
    ledger, number = shared_ledger_of_each, next(_examples)
    later = timedelta(days=14 * number)
    words = [replace(word, said_at=word.said_at + later) for some in said for word in some]
    oracle = ReceiptsInMemory(written(ledger, receipts, number), words)
    where = [at + later for at in where]
    only = [*(GROUPS[place] for place in of), ("label:example", str(number))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "task_rules", lambda _: TaskWords.of(words, ()))
        for by in ("task", "model"):
            assert by_place(ledger.slices(by, where, only=only)) == by_place(oracle.slices(by, where, only=only))
        found = ledger.task_costs(names, where[-1], only=only)
        assert in_order(found) == in_order(oracle.task_costs(names, where[-1], only=only))
        if not TaskWords.of(words, ()).is_empty:
            told_alike(ledger, oracle, sorted(names), later)


def told_alike(ledger: Ledger, oracle: ReceiptsInMemory, names: list[str], later: timedelta) -> None:
    """A task's page, its parts and its receipts, and the list of tasks, where people's words say whose requests are
    whose."""
    since = NOON + later - timedelta(hours=1)
    listed = {each.name: each for each in ledger.groups("task", since)}
    for name in names:
        sums = next((one for one in oracle.slices("task", [since, EVER[1]]) if one.name == name), None)
        mine = [one for one in ledger.receipts_of("task", name) if one.closed_at >= since]
        of_mine = [one for one in oracle.receipts_of("task", name) if one.closed_at >= since]
        assert {one.id for one in mine} == {one.id for one in of_mine}
        assert [one.closed_at for one in mine] == sorted((one.closed_at for one in of_mine), reverse=True)
        assert (name in listed) == (sums is not None)
        group = ledger.group("task", name)
        parts = ledger.usage_of("task", name)
        assert sum(part.receipts for part in parts) == (0 if group is None else group.receipts)
        assert exact_sum(part.cost for part in parts) == (0 if group is None else group.cost)
        if sums is not None:
            assert listed[name] == group
            assert listed[name].last_at == sums.last_at


def assigning(group: tuple[str, str], task: str | None) -> TaskWord:
    return TaskWord(verb=TaskVerb.ASSIGN, said_at=NOON, task=task, kind=group[0], name=group[1])


def test_a_correction_takes_the_place_of_what_it_corrects(ledger: Ledger) -> None:
    """In another hour, task and model too; nothing is left of the first."""
    first = a_receipt(replace(a_request(), task="old"), dollars=Decimal("0.3"))
    request = replace(first.request, task="new", model="another", labels={"team": "a"})
    later = NOON + timedelta(hours=2)
    second = replace(first, id=new_id("rcpt", NOON), request=request, closed_at=later, supersedes=first.id)
    for receipt in (first, second):
        ledger.append(receipt).result()
    for by in KINDS:
        assert ledger.slices(by, EVER) == ReceiptsInMemory([second]).slices(by, EVER)
    assert ledger.slices(None, [NOON, NOON + timedelta(hours=1)]) == []
    assert ledger.active_hours(*EVER) == [later]


def test_what_tasks_cost_is_what_their_receipts_do(ledger: Ledger) -> None:
    """By the sums that are kept of them; and by their receipts, where one is of a time that has not come yet."""
    times = [(name, hour) for name in ("one", "two", "three") for hour in range(30 if name == "two" else 3)]
    receipts = [
        a_receipt(replace(a_request(), task=name), closed_at=NOON + timedelta(hours=hour), dollars=Decimal(hour))
        for name, hour in times
    ]
    for receipt in receipts:
        ledger.append(receipt).result()
    oracle, names = ReceiptsInMemory(receipts), ["one", "two", "four"]
    for until in (NOON + timedelta(hours=7, minutes=1), NOON + timedelta(days=3)):
        assert in_order(ledger.task_costs(names, until)) == in_order(oracle.task_costs(names, until))


def test_labels_are_found_in_whatever_letters(ledger: Ledger) -> None:
    """Headers have no capitals, programs may; a report by one of them has both."""
    for labels in ({"Team": "a"}, {"team": "a"}, {"TEAM": "b"}):
        ledger.append(a_receipt(replace(a_request(), labels=labels))).result()
    for kind in ("label:team", "label:Team"):
        assert [(part.name, part.receipts) for part in ledger.slices(kind, EVER)] == [("a", 2), ("b", 1)]
        assert len(ledger.receipts_of(kind, "a")) == 2
        group = ledger.group(kind, "a")
        assert group is not None
        assert group.receipts == 2
    assert {frozenset(receipt.request.labels) for receipt in ledger.receipts()} == {
        frozenset({name}) for name in ("Team", "team", "TEAM")
    }


def test_what_is_asked_by_nothing_that_is_kept_is_refused(ledger: Ledger) -> None:
    """It is no row of zeros."""
    for question in (("colour", ()), (None, [("colour", "red")])):
        with pytest.raises(ValueError, match="colour"):
            ledger.slices(question[0], EVER, only=question[1])


def test_percentiles_of_very_many_are_of_an_even_part_and_say_so(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the most that are looked at: every so manieth, or of very many those of every so manieth five minutes, each
    in its place."""
    receipts = [timed(number) for number in range(600)]
    for receipt in receipts:
        done = ledger.append(receipt)
    done.result()
    (exact,) = ledger.slices(None, EVER)
    assert exact.total == Percentiles(n=600, of=600, p50_ns=299, p90_ns=539, p95_ns=569, p99_ns=593)
    for most in (200, 60):
        monkeypatch.setattr(heaps, "MOST_TIMED", most)
        (part,) = ledger.slices(None, EVER)
        assert (part.total.of, part.total.exact) == (600, False)
        assert abs(part.total.n - most) <= 5
        assert part.total.p50_ns is not None
        assert abs(part.total.p50_ns - 299) <= 20
        halves, whole = ledger.slices_and_whole(None, [EVER[0], NOON + timedelta(minutes=301), EVER[1]])
        assert whole == part
        assert sum(half.total.n for half in halves) == part.total.n
    (without,) = ledger.slices(None, EVER, percentiles=False)
    assert without.total == Percentiles(of=600)


def timed(number: int) -> Receipt:
    """Each minute takes a nanosecond longer."""
    timing = Timing(upstream_ns=number, total_ns=number)
    return replace(a_receipt(closed_at=NOON + timedelta(minutes=number)), timing=timing)


def test_what_is_off_the_scale_is_counted_and_in_no_sum(ledger: Ledger) -> None:
    """A cost of 10^30 dollars would make every sum useless."""
    ledger.append(a_receipt(dollars=Decimal(10) ** 30)).result()
    ledger.append(a_receipt(dollars=Decimal(1))).result()
    (one,) = ledger.slices(None, EVER)
    assert (one.cost, one.unpriced, one.off_scale, one.money) == (1, 1, 1, {"compute_ns": 1})


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_no_report_scans_a_table(ledger: Ledger, path: Path, asked: list[tuple[str, tuple[object, ...]]]) -> None:
    """SQLite's own plan of each question: days and hours by their key, receipts by their time, groups by their name;
    and the durations of everything from their index alone."""
    for _ in range(50):
        ledger.append(a_receipt(replace(a_request(), task="t", labels={"team": "a"}), closed_at=NOON)).result()
    week = [NOON - timedelta(days=3, minutes=7), NOON + timedelta(minutes=7), NOON + timedelta(days=3)]
    for by in KINDS:
        ledger.slices(by, week, only=[("model", "a/model"), ("label:team", "a")])
        ledger.slices_and_whole(by, week)
        ledger.costs(by, week)
        if by is not None:
            ledger.dearest(by, (week[0], week[1], week[2]), most=2)
    ledger.task_costs(["t"], week[-1])
    ledger.active_hours(week[0], week[-1])
    ledger.receipts_of("label:team", "a", 10)
    ledger.usage_of("label:team", "a")
    assert len(asked) > 40
    with closing(sqlite3.connect(path)) as connection:
        for statement, parameters in asked:
            if "FROM task_rules" in statement:  # people's words are read whole: there are few
                continue
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            own = ("SCAN CONSTANT ROW", "SCAN found")  # what a question makes itself
            assert not [step for step in plan if step.startswith("SCAN") and step not in own], (statement, plan)
            assert any(step.startswith("SEARCH") for step in plan), (statement, plan)
            if "group_concat" in statement and "model" not in statement and "GROUP BY" not in statement:
                assert any("COVERING INDEX receipts_by_time" in step for step in plan), (statement, plan)
    durations = [statement for statement, _ in asked if "group_concat" in statement and "model" not in statement]
    assert any("GROUP BY" not in statement for statement in durations)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_no_report_scans_a_table_of_postgres(
    ledger: Ledger, stranger: Session, asked: list[tuple[str, tuple[object, ...]]]
) -> None:
    """Its planner, told that scans are dear, has an index for each question."""
    for number in range(50):
        ledger.append(a_receipt(replace(a_request(), task="t"), closed_at=NOON + timedelta(hours=number))).result()
    week = [NOON - timedelta(days=3, minutes=7), NOON + timedelta(minutes=7), NOON + timedelta(days=3)]
    assert [kept for (kept,) in stranger.ask("SELECT count(*) > 1 FROM usage_by_day")] == [True]
    for by in KINDS:
        ledger.slices(by, week)
        if by is not None:
            ledger.dearest(by, (week[0], week[1], week[2]), most=2)
    ledger.task_costs(["t"], week[-1])
    ledger.active_hours(week[0], week[-1])
    assert len(asked) > 40
    with stranger.transaction():
        stranger.tell("SET LOCAL enable_seqscan = off", [()])
        for statement, values in asked:
            plan = [step for (step,) in stranger.ask(f"EXPLAIN {statement}", *values)]
            assert not [step for step in plan if "Seq Scan" in step and "next" not in step], (statement, plan)
