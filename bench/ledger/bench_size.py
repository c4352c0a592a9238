"""A ledger of ten million receipts: how fast it is written, and how long reports over a week of it take.

    python bench/ledger/bench_size.py [--receipts 10000000] [--days 365] [--ledger FILE | --url URL] [--asked TEXT]

Calls as importers hand them over: sessions of fifty calls within some hours, tasks of four sessions, runs of ten
calls, twenty models of three backends, two hundred projects as labels, twelve keys; all have times. Names of calls sort
by time; `--hashed` makes them of a hash, as importers name calls whose log has no order. They are written 20,000 at a
time. `--ledger` keeps the file, and asks again of one that is there. A question's time is the median of five on a
warm file, and the first one is told apart; a table is what `taximeter report` shows: thirty rows, and the week before.
Memory is the most that this process had at the end of writing, and of all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

from taximeter.ledger import Call, Form, Ledger
from taximeter.pricing.charge import charge
from taximeter.records import (
    Dialect,
    Outcome,
    PriceList,
    Rate,
    Receipt,
    Request,
    Timing,
    Usage,
)
from taximeter.reports import Question, Row, answer

_START = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH = 20_000
_IN_A_SESSION = 50
_IN_A_RUN = 10
_SESSIONS_IN_A_TASK = 4
_TABLES = ("task", "run", "session", "model", "key", "source", "label:project", "day", "block")
_AT_A_TIME = 40  # sessions that go on side by side: their calls are mixed
_LEAVES = ("input_fresh_tokens", "input_cache_read_tokens", "input_cache_write_5m_tokens", "output_text_tokens")


def forms() -> list[Form]:
    """One for each model."""
    made: list[Form] = []
    for number in range(20):
        rates = tuple(
            Rate(unit=unit, amount=Decimal(dollars) + number, per=1_000_000)
            for unit, dollars in zip(_LEAVES, ("3", "0.30", "3.75", "15"), strict=True)
        )
        prices = PriceList(model=f"a/model-{number}", rates=rates, source="a catalog", checked_on=date(2026, 10, 1))
        usage = Usage(
            input_fresh_tokens=1, input_cache_read_tokens=1, input_cache_write_5m_tokens=1, output_text_tokens=1
        )
        receipt = Receipt(
            id="rcpt_form",
            request=Request(
                id="req_form",
                received_at=_START,
                received_ns=0,
                dialect=Dialect.ANTHROPIC_MESSAGES,
                model=f"a/model-{number}",
                stream=True,
            ),
            closed_at=_START,
            outcome=Outcome.COMPLETED if number % 10 else Outcome.FAILED,
            timing=Timing(total_ns=0),
            usage=usage,
            cost=charge(usage, prices),
            served_by=f"backend-{number % 3}",
            finish_reasons=("stop",),
            source="a log",
        )
        made.append(Form.of(receipt, _LEAVES))
    return made


def calls(receipts: int, days: float, *, hashed: bool) -> Iterator[Call]:
    """All of them, in the order of time."""
    of_models = forms()
    step_us = round(days * 86_400e6 / receipts)
    at = _START
    mixed = _AT_A_TIME * _IN_A_SESSION
    for first in range(0, receipts, mixed):
        sessions = [first // _IN_A_SESSION + place for place in range(_AT_A_TIME)]
        mine: list[Form] = []
        for number in range(first, min(first + mixed, receipts)):
            place = (number - first) % (_AT_A_TIME * _IN_A_RUN)
            if place == 0:  # each session has its next run
                run = (number - first) // (_AT_A_TIME * _IN_A_RUN)
                mine = [
                    of_models[session % len(of_models)].belonging_to(
                        task=f"task-{session // _SESSIONS_IN_A_TASK:07}",
                        run=f"run-{session:07}-{run}",
                        session=f"session-{session:07}",
                        key=f"key-{session % 12}",
                        labels={"project": f"project-{session % 200}", "branch": "main"},
                    )
                    for session in sessions
                ]
            at += timedelta(microseconds=step_us)
            received_at = at.isoformat(" ", "microseconds")[:26]
            name = blake2b(b"%d" % number, digest_size=12).hexdigest() if hashed else f"{number:022}"
            total_ns = 2_000_000_000 + number * 7_919 % 9_000_000_000
            yield Call(
                mine[place % _AT_A_TIME],
                f"rcpt_{name}",
                f"req_{name}",
                received_at,
                received_at,
                (number % 700, 20_000 + number % 50_000, number % 9_000, 20 + number % 800),
                total_ns,
                total_ns // 5,
            )


def fill(ledger: Ledger, made: Iterator[Call]) -> tuple[float, float]:
    """Write all of them; seconds that it took, and seconds of a processor."""
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    while batch := list(islice(made, _BATCH)):
        answer = ledger.append_many(batch)
        if answer.written != len(batch):
            raise SystemExit(f"not all was written, so nothing was measured: {answer.refused[:3]}")
    return time.monotonic() - begun_s, time.process_time() - begun_cpu_s


def questions(ledger: Ledger, days: float) -> dict[str, Callable[[], object]]:
    """What reports ask, by name."""
    week = [_START + timedelta(days=days / 2), _START + timedelta(days=days / 2 + 7)]
    india = [at.replace(hour=18, minute=30) for at in week]
    each_day = [week[0] + timedelta(days=number) for number in range(8)]
    blocks = [week[0] + timedelta(hours=5 * number) for number in range(34)]
    months = [_START + timedelta(days=days / 12 * number) for number in range(13)]
    asked: dict[str, Callable[[], object]] = {
        f"a week by {by}": lambda by=by: ledger.slices(by, week)
        for by in ("task", "run", "session", "model", "key", "label:project", "source", "outcome")
    }
    asked |= {f"the table of a week by {by}": lambda by=by: table(ledger, by, week) for by in _TABLES}
    return asked | {
        "a week by day": lambda: ledger.slices(None, each_day),
        "a week of India by day": lambda: ledger.slices(None, [at + (india[0] - week[0]) for at in each_day]),
        "a week by block": lambda: ledger.slices(None, blocks),
        "a week by task, of one model": lambda: ledger.slices("task", week, only=[("model", "a/model-3")]),
        "a year by month, no percentiles": lambda: ledger.slices(None, months, percentiles=False),
        "a day's total, no percentiles": lambda: ledger.slices(None, each_day[:2], percentiles=False),
        "50 receipts of a label": lambda: ledger.receipts_of("label:project", "project-17"),
        "one run's page": lambda: page(ledger, "run", "run-0000123-2"),
        "the newest 50 receipts": ledger.receipts,
        "the total cost": ledger.total_cost,
    }


def table(ledger: Ledger, by: str, week: list[datetime]) -> list[Row]:
    """The rows that `taximeter report` shows."""
    question = Question(by=by, since=week[0], until=week[1], zone=ZoneInfo("UTC"))
    return [*answer(ledger, question, week[1], most_rows=30).rows]


def page(ledger: Ledger, kind: str, name: str) -> list[Receipt]:
    """What a group's page shows: its sums, what they are made of, and its newest receipts."""
    if ledger.group(kind, name) is None or not ledger.usage_of(kind, name):
        raise SystemExit(f"there is no {kind} {name}, so nothing was measured")
    return ledger.receipts_of(kind, name)


def check(ledger: Ledger, days: float) -> None:
    """Every way to a week's cost must come to the same."""
    week = [_START + timedelta(days=days / 2 + number) for number in range(8)]
    costs = {
        sum(one.cost for one in ledger.slices(by, edges, percentiles=False))
        for by in (None, "task", "run", "session", "model", "key", "label:project")
        for edges in (week, [week[0], week[-1]])
    }
    costs.add(sum(sum(one.cost for one in ledger.usage_by_hour(*pair)) for pair in pairwise(week)))
    if len(costs) != 1 or not costs.pop():
        raise SystemExit("reports do not agree, so nothing was measured")


def most_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=int, default=10_000_000)
    parser.add_argument("--days", type=float, default=365, help="over how much time they are spread")
    parser.add_argument("--ledger", type=Path, help="the file, which is kept (default: one in the temporary folder)")
    parser.add_argument("--url", help="an empty database of Postgres instead of a file")
    parser.add_argument("--hashed", action="store_true", help="names of calls that do not sort by time")
    parser.add_argument("--asked", default="", metavar="TEXT", help="only questions whose name has this in it")
    parser.add_argument("--times", type=int, default=5, help="how often each question is asked again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = options.ledger or Path(folder) / "ledger.db"
        filled: dict[str, float] = {}
        with Ledger.open(options.url or str(path), spool=Path(folder)) as ledger:
            if not ledger.receipts(1):
                took_s, cpu_s = fill(ledger, calls(options.receipts, options.days, hashed=options.hashed))
                making_s = making(options.receipts, options.days, hashed=options.hashed)
                filled = {
                    "receipts_per_s": round(options.receipts / took_s),
                    "cpu_us_each": round(cpu_s / options.receipts * 1e6, 2),
                    "of_which_making_us": round(making_s * 1e6, 2),
                    "most_mb": most_mb(),
                }
        times: dict[str, tuple[float, float, float, int]] = {}
        with Ledger.open(options.url or str(path), spool=Path(folder)) as ledger:
            check(ledger, options.days)
            for question, ask in questions(ledger, options.days).items():
                if options.asked not in question:
                    continue
                taken: list[float] = []
                cpu: list[float] = []
                for _ in range(options.times + 1):
                    begun_ns, begun_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
                    found = ask()
                    taken.append(round((time.perf_counter_ns() - begun_ns) / 1e6, 1))
                    cpu.append(round((time.process_time_ns() - begun_cpu_ns) / 1e6, 1))
                rows = len(found) if isinstance(found, list) else 1
                times[question] = (taken[0], statistics.median(taken[1:]), statistics.median(cpu[1:]), rows)
        size_bytes = 0 if options.url else path.stat().st_size
    result = {"receipts": options.receipts, "days": options.days, "bytes": size_bytes, "most_mb": most_mb()}
    if options.json:
        json.dump({**result, "filled": filled, "ms": times}, sys.stdout)
        return
    print(f"{options.receipts:,} receipts over {options.days:g} days, {size_bytes / 1e9:.2f} GB")
    if filled:
        print(
            f"written {filled['receipts_per_s']:,} a second, {filled['cpu_us_each']} µs of a processor each,"
            f" of which making them {filled['of_which_making_us']} µs; {filled['most_mb']} MB at most"
        )
    print(f"{most_mb()} MB at most with all questions\n")
    print(f"{'':34} {'first ms':>9} {'median ms':>9} {'CPU ms':>9} {'rows':>8}")
    for question, (first, median, cpu_ms, rows) in times.items():
        print(f"{question:34} {first:>9,} {median:>9,} {cpu_ms:>9,} {rows:>8,}")


def making(receipts: int, days: float, *, hashed: bool) -> float:
    """Seconds of a processor that one call takes to be made up, without a ledger."""
    some = min(receipts, 100_000)
    begun_s = time.process_time()
    for _ in calls(some, days * some / receipts, hashed=hashed):
        pass
    return (time.process_time() - begun_s) / some


if __name__ == "__main__":
    main()
