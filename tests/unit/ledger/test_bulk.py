"""Many receipts at once: calls of forms are the receipts that they stand for."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import LedgerError
from taximeter.ledger import Call, FileMark, Form, Ledger, bulk, native_rows, rows
from taximeter.ledger.database import Session
from taximeter.pricing.charge import charge
from taximeter.records import (
    Basis,
    Dialect,
    Outcome,
    PriceList,
    Rate,
    Receipt,
    Request,
    Timing,
    Usage,
    new_id,
)
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import NOON, a_receipt, a_request

LEAVES = ("input_fresh_tokens", "input_cache_read_tokens", "input_cache_write_5m_tokens", "output_text_tokens")
PRICES = PriceList(
    model="provider/model",
    rates=tuple(
        Rate(unit=unit, amount=Decimal(dollars), per=1_000_000)
        for unit, dollars in zip(LEAVES, ("3", "0.30", "3.75", "15"), strict=True)
    ),
    source="a catalog",
    checked_on=date(2026, 10, 1),
)


def a_prototype(
    *,
    session: str | None = "a session",
    tokens: Sequence[int] = (1, 1, 1, 1),
    prices: PriceList | None = PRICES,
    timed: bool = False,
    labels: dict[str, str] | None = None,
    basis: Basis = Basis.REPORTED,
) -> Receipt:
    usage = usage_of(tokens, basis)
    return Receipt(
        id="rcpt_prototype",
        request=Request(
            id="req_prototype",
            received_at=NOON,
            received_ns=0,
            dialect=Dialect.ANTHROPIC_MESSAGES,
            model="model",
            session=session,
            labels=labels or {},
            key="who called",
        ),
        closed_at=NOON,
        outcome=Outcome.COMPLETED,
        timing=Timing(upstream_ns=5, total_ns=5, basis=Basis.REPORTED) if timed else None,
        usage=usage,
        cost=None if prices is None else charge(usage, prices),
        uncosted_reason="no price" if prices is None else None,
        unmeasured_reason=None if timed else "transcripts have no times",
        served_by="provider",
        finish_reasons=("stop",),
        source="a log",
    )


def usage_of(tokens: Sequence[int], basis: Basis = Basis.REPORTED) -> Usage:
    fresh, read, write, output = tokens
    return Usage(
        input_fresh_tokens=fresh,
        input_cache_read_tokens=read,
        input_cache_write_5m_tokens=write,
        output_text_tokens=output,
        basis=basis,
    )


def a_call(form: Form, number: int, *, tokens: Sequence[int] = (10, 200, 30, 4), **said: Any) -> Call:
    at = NOON + timedelta(minutes=number)
    received_at, closed_at = (rows.stored_instant(at + timedelta(seconds=later)) for later in (0, 1))
    return Call(form, f"rcpt_{number:05}", f"req_{number:05}", received_at, closed_at, tuple(tokens), **said)


def as_appended(call: Call) -> Receipt:
    """The receipt that an importer would have appended, had it made one."""
    prototype, (task, run, session, key, _, labels) = call.form.prototype, call.form.belongings
    usage = replace(usage_of(call.tokens), basis=prototype.usage.basis if prototype.usage else Basis.REPORTED)
    timing = prototype.timing and replace(
        prototype.timing, upstream_ns=call.total_ns, total_ns=call.total_ns, first_token_ns=call.first_token_ns
    )
    received_at, closed_at = (
        datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (call.received_at, call.closed_at)
    )
    return replace(
        prototype,
        id=call.id,
        request=replace(
            prototype.request,
            id=call.request_id,
            received_at=received_at,
            task=task,
            run=run,
            session=session,
            key=key,
            labels=json.loads(labels or "{}"),
        ),
        closed_at=closed_at,
        usage=usage,
        timing=timing,
        cost=None if prototype.cost is None else charge(usage, PRICES),
        cost_reported=call.reported,
        upstream_request_id=call.upstream_request_id,
        supersedes=call.supersedes,
    )


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3)
_counts = st.integers(0, 10**9) | st.just(0)


@st.composite
def calls(draw: st.DrawFn, ids: Iterator[int]) -> Call:
    timed, priced = draw(st.booleans()), draw(st.booleans())
    form = Form.of(
        a_prototype(
            session=draw(st.none() | _names),
            timed=timed,
            prices=PRICES if priced else None,
            labels=draw(st.dictionaries(_names.map(str.lower), _names, max_size=2)),
            basis=draw(st.sampled_from([Basis.REPORTED, Basis.DERIVED, Basis.ASSUMED])),
        ),
        LEAVES,
    )
    said: dict[str, Any] = {}
    if timed:
        said["total_ns"] = draw(st.integers(0, 10**12))
        said["first_token_ns"] = draw(st.none() | st.integers(0, said["total_ns"]))
    said["reported"] = draw(st.none() | st.integers(0, 10**9).map(lambda count: Decimal(count).scaleb(-6)))
    said["upstream_request_id"] = draw(st.none() | st.text("abc", max_size=3))
    return a_call(form, next(ids), tokens=draw(st.tuples(*[_counts] * 4)), **said)


_ids = iter(range(10**6))


@pytest.fixture(scope="module")
def new_ledger(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Ledger]:
    """Opens a copy of an empty one: making its tables takes longer than all else here."""
    folder = tmp_path_factory.mktemp("new")
    Ledger.open(str(folder / "empty.db")).close()
    numbers = itertools.count()

    def new() -> Ledger:
        return Ledger.open(str(shutil.copy(folder / "empty.db", folder / f"{next(numbers)}.db")))

    return new


@settings(deadline=None, max_examples=30)
@given(said=st.lists(calls(_ids), min_size=1, max_size=6))
def test_a_call_is_the_receipt_it_stands_for(
    shared_ledger_of_each: Ledger, new_ledger: Callable[[], Ledger], said: list[Call]
) -> None:
    """Read one by one and in lists; with the same row and the same sums as that receipt appended by itself."""
    ledger = shared_ledger_of_each
    before = ledger.group("all", "")
    assert ledger.append_many(said).written == len(said)
    expected = [as_appended(call) for call in said]
    assert [ledger.receipt(call.id) for call in said] == expected
    assert [ledger.receipt(call.request_id) for call in said] == expected
    after = ledger.group("all", "")
    assert after is not None
    costs = [receipt.cost.total for receipt in expected if receipt.cost is not None]
    assert after.cost - (before.cost if before else 0) == sum(costs)

    with new_ledger() as one_by_one, new_ledger() as together, new_ledger() as by_rows:
        for receipt in expected:
            one_by_one.append(receipt).result()
        together.append_many(said)
        assert together.receipts() == one_by_one.receipts()
        assert tables_of(together) == tables_of(one_by_one)
        with pytest.MonkeyPatch.context() as patch:  # as where native code was not built
            patch.setattr(native_rows, "are_known", lambda _: False)
            by_rows.append_many(said)
        assert tables_of(by_rows) == tables_of(together)


SUMS = ("usage_by_hour", "group_totals", "group_hours")


def tables_of(ledger: Ledger) -> list[object]:
    """All sums, and rows but for what says where they and their documents are."""
    with closing(sqlite3.connect(ledger._database.name)) as connection:
        connection.row_factory = sqlite3.Row
        sums = [[tuple(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3")] for table in SUMS]
        found = connection.execute("SELECT * FROM receipts ORDER BY id").fetchall()
        return [*sums, [{key: row[key] for key in set(row.keys()) - {"form", "number"}} for row in found]]


def test_what_is_there_is_not_written_again(ledger: Ledger) -> None:
    """A second reading of the same log changes nothing; a fork's copy, of another session, is the same call."""
    form, fork = (Form.of(a_prototype(session=session), LEAVES) for session in ("one", "another"))
    said = [a_call(form, number) for number in range(20)]
    assert ledger.append_many(said[:10]).written == 10
    once = ledger.group("all", "")
    again = ledger.append_many([a_call(fork, number) for number in range(10)])
    assert (again.written, again.present) == (0, [call.id for call in said[:10]])
    assert ledger.group("all", "") == once
    mixed = ledger.append_many([*reversed(said), said[15]])
    assert (mixed.written, sorted(mixed.present)) == (10, [*[call.id for call in said[:10]], said[15].id])
    assert len(ledger.receipts()) == 20
    assert ledger.group("session", "another") is None


def test_other_tokens_are_said_and_can_be_appended_as_a_correction(ledger: Ledger) -> None:
    """The newest receipt in the place is named, with its tokens: also one that corrects."""
    form = Form.of(a_prototype(), LEAVES)
    first, grown = a_call(form, 1), a_call(form, 1, tokens=(10, 200, 30, 400))
    ledger.append_many([first])
    answer = ledger.append_many([grown])
    assert (answer.written, answer.present, answer.refused) == (0, [], [])
    assert answer.different == [(grown, first.id, first.tokens)]
    correction = grown._replace(id="rcpt_00001_2", supersedes=first.id)
    assert ledger.append_many([correction]).written == 1
    assert ledger.receipts() == [as_appended(correction)]
    assert ledger.receipt(first.request_id) == as_appended(correction)
    assert ledger.append_many([grown]).present == [correction.id]
    assert ledger.append_many([first]).different == [(first, correction.id, grown.tokens)]
    group = ledger.group("session", "a session")
    assert group is not None
    assert (group.receipts, group.output_tokens) == (1, 400)


def test_nothing_is_kept_of_a_dry_run(ledger: Ledger) -> None:
    """The same answer, and the ledger as it was: also what guards receipts, and how far files were read."""
    form = Form.of(a_prototype(), LEAVES)
    ledger.append_many([a_call(form, 1)], [FileMark(source="log", path="/a", document="1")])
    mark = FileMark(source="log", path="/a", document="2")
    answer = ledger.append_many([a_call(form, 1), a_call(form, 2), a_receipt()], [mark], dry_run=True)
    assert (answer.written, answer.present) == (2, ["rcpt_00001"])
    assert len(ledger.receipts()) == 1
    assert ledger.file_marks("log") == {"/a": "1"}
    assert ledger.file_marks("other") == {}


def test_whole_receipts_go_with_calls(ledger: Ledger) -> None:
    """Those that no form could say; one that is refused does not keep the others."""
    form = Form.of(a_prototype(), LEAVES)
    whole = [a_receipt(dollars=Decimal(1)) for _ in range(3)]
    ledger.append(whole[0]).result()
    rival = replace(whole[1], id=new_id("rcpt", NOON))
    answer = ledger.append_many([*whole, a_call(form, 1), rival, whole[2]])
    assert (answer.written, answer.present) == (3, [whole[0].id, whole[2].id])
    assert [id_ for id_, _ in answer.refused] == [rival.id]
    assert "has a receipt already" in answer.refused[0][1]
    assert len(ledger.receipts()) == 4


@pytest.mark.parametrize(
    "odd",
    [
        {"tokens": (1, 2, 3)},
        {"tokens": (1, 2, 3, -4)},
        {"tokens": (1, 2, 3, 10**15)},
        {"tokens": (1, 2, 3, 10**14)},  # nine hundred million dollars of them
        {"reported": Decimal("1e-13")},
        {"total_ns": 5},
    ],
)
def test_a_call_that_no_row_can_hold_is_refused_alone(ledger: Ledger, odd: dict[str, Any]) -> None:
    """And said."""
    form = Form.of(a_prototype(), LEAVES)
    wrong = a_call(form, 2, **odd)
    answer = ledger.append_many([a_call(form, 1), wrong, a_call(form, 3)._replace(closed_at="yesterday")])
    assert (answer.written, [id_ for id_, _ in answer.refused]) == (1, [wrong.id, "rcpt_00003"])
    assert len(ledger.receipts()) == 1


def test_a_request_has_one_first_receipt_also_among_calls(ledger: Ledger) -> None:
    """Another id for a request that has a receipt is no second one."""
    form = Form.of(a_prototype(), LEAVES)
    answer = ledger.append_many([a_call(form, 1), a_call(form, 1)._replace(id="rcpt_other")])
    assert answer.written == 1
    assert [id_ for id_, _ in answer.refused] == ["rcpt_other"]


@pytest.mark.parametrize(
    "change",
    [
        lambda receipt: replace(receipt, usage=None, cost=None, uncosted_reason="?", unmeasured_reason="?"),
        lambda receipt: replace(receipt, usage=replace(receipt.usage, output_reasoning_tokens=3)),
        lambda receipt: replace(receipt, usage=replace(receipt.usage, other_units={"searches": 1})),
        lambda receipt: replace(receipt, cost=replace(receipt.cost, price_list=None)),
        lambda receipt: replace(receipt, cost=replace(receipt.cost, basis=Basis.ASSUMED)),
        lambda receipt: replace(
            receipt, cost=replace(receipt.cost, lines=(*receipt.cost.lines, replace(receipt.cost.lines[0], unit="fee")))
        ),
    ],
)
def test_what_tokens_do_not_make_has_no_form(change: Any) -> None:
    """Such receipts are appended whole."""
    with pytest.raises(ValueError, match=r"form|call"):
        Form.of(change(a_prototype()), LEAVES)


@pytest.mark.parametrize("name", ["x" * 500, "nul\0", "half\ud800"])
def test_names_that_columns_change_have_no_form(name: str) -> None:
    """They would not come back from there."""
    form = Form.of(a_prototype(), LEAVES)
    for groups in ({"session": name}, {"labels": {"a": name}}, {"labels": {name: "a"}}):
        with pytest.raises(ValueError, match="names"):
            form.belonging_to(**groups)


def test_a_token_at_less_than_a_picodollar_has_no_form() -> None:
    """It would have to be rounded, and only `charge` rounds."""
    rates = (Rate(unit="input_fresh_tokens", amount=Decimal("0.0000001"), per=1_000_000), *PRICES.rates[1:])
    odd = replace(PRICES, rates=rates)
    with pytest.raises(ValueError, match="picodollars"):
        Form.of(a_prototype(prices=odd), LEAVES)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_receipts_are_guarded_before_and_after(ledger: Ledger, stranger: Session, path: Path) -> None:
    """The trigger that a call need not pass is there for everybody else."""
    form = Form.of(a_prototype(), LEAVES)
    ledger.append_many([a_call(form, 1)])
    with pytest.raises(LedgerError, match="append-only"):
        stranger.tell("INSERT OR REPLACE INTO receipts SELECT * FROM receipts", [()])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'receipts_no_replace'"
        ).fetchone() == (1,)


def test_marks_stand_with_the_receipts_of_their_transaction(ledger: Ledger, stranger: Session, reopen: Open) -> None:
    """What cannot be written moves no mark, and can be tried again."""
    form = Form.of(a_prototype(), LEAVES)
    mark = FileMark(source="log", path="/a\ud800", document='{"offset": 7}')
    with reopen(busy_timeout_s=0.1) as impatient:
        with stranger.transaction(), pytest.raises(LedgerError):
            impatient.append_many([a_call(form, 1)], [mark])
        assert impatient.file_marks("log") == {}
        assert impatient.append_many([a_call(form, 1)], [mark]).written == 1
    assert ledger.file_marks("log") == {"/a\\ud800": '{"offset": 7}'}
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append_many([])


def test_many_forms_in_one_batch_add_up(ledger: Ledger) -> None:
    """Sessions, labels and hours mixed as a log mixes them."""
    chance = random.Random(7)
    forms = [
        Form.of(a_prototype(session=f"s{number}", labels={"project": f"p{number % 3}"}), LEAVES) for number in range(9)
    ]
    said = [a_call(chance.choice(forms), number, tokens=(number, 1, 2, 3)) for number in range(300)]
    ledger.append(a_receipt(a_request())).result()
    assert ledger.append_many(said).written == 300
    for project in range(3):
        mine = [call for call in said if call.form.belongings[-1] == f'{{"project":"p{project}"}}']
        group = ledger.group("label:project", f"p{project}")
        assert group is not None
        assert group.receipts == len(mine)
        assert group.input_tokens == sum(sum(call.tokens[:3]) for call in mine)
        assert {r.id for r in ledger.receipts_of("label:project", f"p{project}", 1_000)} == {call.id for call in mine}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("takes_columns", [True, False])
def test_a_large_ledger_takes_more_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, takes_columns: bool
) -> None:
    """As many as there are tens of receipts, within bounds; where each row is bound by itself, no more than always."""
    if takes_columns:
        pytest.importorskip("taximeter._native")
    else:
        monkeypatch.setattr(native_rows, "are_known", lambda _: False)
    always, most = bulk.MOST_AT_ONCE, bulk._MOST_IN_A_LARGE_ONE
    of_sizes: list[int] = []
    for there in (0, 20 * always, 10**8):
        monkeypatch.setattr(bulk, "next_number", lambda _, there=there: there + 1)
        of_sizes.append(ledger.append_many([a_call(Form.of(a_prototype(), LEAVES), there)]).most_at_once)
    assert of_sizes == ([always, 2 * always, most] if takes_columns else [always] * 3)
    assert ledger.append_many([]).most_at_once == always
