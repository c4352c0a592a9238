"""Transcripts of Claude Code: each call once, whole, whatever files tell of it. Names in brackets are the reports in
which users of other tools found the mistake."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import LedgerError
from taximeter.ledger.batch import Batch
from taximeter.records import Basis, Outcome
from tests.unit.importers.logs import Desk, desk, transcript_line


def test_an_answer_of_several_lines_counts_as_its_last_line_says(desk: Desk) -> None:
    """Lines grow while an answer is streamed: 9, 9, 159 is 159 (ccusage/ccusage#901)."""
    desk.write("a.jsonl", *(transcript_line(out=out) for out in (9, 9, 159)))
    summary = desk.run()
    (receipt,) = desk.receipts()
    assert receipt.usage is not None
    assert receipt.usage.output_tokens == 159
    assert summary.total.calls == 1


@pytest.mark.parametrize("outputs", [(159, 9, 9), (9, 159, 9), (159, 159, 9)])
def test_the_order_of_an_answers_lines_does_not_matter(desk: Desk, outputs: tuple[int, ...]) -> None:
    """The largest account of a call is the whole one."""
    desk.write("a.jsonl", *(transcript_line(out=out) for out in outputs))
    desk.run()
    assert desk.tokens() == 159


def test_without_request_ids_the_message_names_the_call(desk: Desk) -> None:
    """368 lines of 171 messages are 171 calls, 465,781 tokens of input and not 1,071,492 (ccusage/ccusage#976)."""
    inputs = [2_723 + number % 2 for number in range(171)]
    inputs[-1] += 465_781 - sum(inputs)
    first = [transcript_line(f"m{number}", fresh=count, request=None) for number, count in enumerate(inputs)]
    repeats = [*first, *first[: 368 - 2 * 171]]
    desk.write("a.jsonl", *first, *repeats)
    desk.run()
    receipts = desk.receipts()
    assert len(first) + len(repeats) == 368
    assert len(receipts) == 171
    assert sum(each.usage.input_tokens or 0 for each in receipts if each.usage) == 465_781


def test_subagents_and_sidechains_are_calls_too(desk: Desk) -> None:
    """Five calls of the main chain and three of a subagent, in its own file, are eight (ccusage/ccusage#313)."""
    desk.write("p/s.jsonl", *(transcript_line(f"m{number}", out=10) for number in range(5)))
    side = [
        transcript_line(f"s{number}", out=20, isSidechain=True, agentId="a1", session="s", request=f"r{number}")
        for number in range(3)
    ]
    desk.write("p/s/subagents/agent-a1.jsonl", *side)
    desk.run()
    receipts = desk.receipts()
    assert len(receipts) == 8
    assert desk.tokens() == 5 * 10 + 3 * 20
    assert {each.request.run for each in receipts} == {None, "a1"}
    assert sum(each.request.labels.get("sidechain") == "yes" for each in receipts) == 3


def test_an_answer_that_has_grown_stays_where_it_belongs(desk: Desk) -> None:
    """Answers of several sessions that go on between two imports: each correction is of its own session, run, folder,
    and the sums are."""
    sessions = [f"session-{letter}" for letter in "abcde"]

    def lines(session: str, out: int) -> list[dict[str, Any]]:
        where = {"session": session, "cwd": f"/home/dev/{session}", "isSidechain": True, "agentId": f"run-{session}"}
        return [transcript_line(f"{session} {n}", out=out, request=f"{session} {n}", **where) for n in range(3)]

    paths = [desk.write(f"{session}.jsonl", *lines(session, 5)) for session in sessions]
    assert desk.run().total.calls == 15
    for path, session in zip(paths, sessions, strict=True):
        desk.append(path, *lines(session, 100))
    assert desk.run().corrected == 15
    for receipt in desk.receipts():
        request = receipt.request
        assert receipt.supersedes is not None
        assert request.run == f"run-{request.session}"
        assert request.labels["project"] == f"~/{request.session}"
    spent = {part.name: part.output_tokens for part in desk.ledger.groups("session")}
    assert spent == dict.fromkeys(sessions, 300)


def test_who_is_killed_before_corrections_makes_them_the_next_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as read once all that was in them is written, what corrects other receipts too."""
    path = desk.write("a.jsonl", transcript_line("m1", out=5, request="r1"))
    desk.run()
    desk.append(path, transcript_line("m1", out=100, request="r1"), transcript_line("m2", out=7, request="r2"))
    append_many = desk.ledger.append_many

    def killed(entries: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(entries, Batch):
            raise LedgerError("killed")
        return append_many(entries, *args, **options)

    monkeypatch.setattr(desk.ledger, "append_many", killed)
    with pytest.raises(LedgerError, match="killed"):
        desk.run()
    monkeypatch.undo()
    summary = desk.run()
    assert (summary.corrected, summary.total.calls, summary.present) == (1, 0, 1)
    assert desk.tokens() == 107


def test_a_fork_that_holds_the_history_of_another_session_adds_only_its_own(desk: Desk) -> None:
    """A of 100 tokens and a fork of it of 150 are 150, not 250 (ccusage/ccusage#897)."""
    history = [transcript_line(f"m{number}", out=10, request=f"r{number}", session="a") for number in range(10)]
    replayed = [line | {"sessionId": "b"} for line in history]
    own = [transcript_line(f"n{number}", out=10, request=f"q{number}", session="b") for number in range(5)]
    desk.write("a.jsonl", *history)
    desk.write("b.jsonl", *replayed, *own)
    summary = desk.run()
    assert desk.tokens() == 150
    assert (summary.total.calls, summary.present) == (15, 10)


def test_a_replay_under_a_new_request_id_is_the_same_call(desk: Desk) -> None:
    """A side question holds its parent's messages under other requests; the provider's own ids are unique."""
    message = "msg_01XFDUDYJgAACzvnptvVoYEL"
    desk.write("a.jsonl", transcript_line(message, out=10, request="req_1"))
    desk.write("b.jsonl", transcript_line(message, out=10, request="req_2", isSidechain=True))
    desk.run()
    assert len(desk.receipts()) == 1


def test_gateways_that_use_an_id_again_mean_two_calls(desk: Desk) -> None:
    """Where a message's id is not the provider's own, the request's id tells calls apart."""
    desk.write(
        "a.jsonl", transcript_line("chat-1", out=10, request="a"), transcript_line("chat-1", out=10, request="b")
    )
    desk.run()
    assert len(desk.receipts()) == 2


def test_a_message_within_a_message_is_a_call(desk: Desk) -> None:
    """Progress lines have the answer under `data.message.message`."""
    inner = transcript_line("m1", out=7)
    line = {"type": "progress", "timestamp": inner["timestamp"], "sessionId": "s", "cwd": "/home/dev/shop"}
    line["data"] = {"message": {"type": "assistant", "message": inner["message"], "requestId": "req_1"}}
    desk.write("a.jsonl", line, transcript_line("m1", out=7))
    desk.run()
    assert desk.tokens() == 7


def test_what_no_model_answered_is_no_call(desk: Desk) -> None:
    """`<synthetic>` messages, results of tools with somebody's usage in them, and lines without usage."""
    tool_result = {
        "type": "user",
        "timestamp": "2026-10-29T12:00:00.000Z",
        "message": {"role": "user", "content": []},
        "toolUseResult": {"usage": {"input_tokens": 5, "output_tokens": 5}, "totalTokens": 10},
    }
    desk.write("a.jsonl", transcript_line(model="<synthetic>"), tool_result, {"type": "summary", "summary": "usage"})
    summary = desk.run(source="claude-code")
    assert desk.receipts() == []
    assert sum(summary.notes.values()) == 1


def test_a_receipt_says_what_the_transcript_says_and_no_more(desk: Desk) -> None:
    """Buckets, money as of the day, groups; times are unknown, with the reason."""
    desk.write(
        "a.jsonl",
        transcript_line(
            fresh=10,
            written=None,
            read=2_000,
            out=30,
            usage={
                "cache_creation_input_tokens": 1_000,
                "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
            },
        ),
    )
    desk.run()
    (receipt,) = desk.receipts()
    usage, cost = receipt.usage, receipt.cost
    assert usage is not None
    assert cost is not None
    assert (usage.input_fresh_tokens, usage.input_cache_read_tokens, usage.output_text_tokens) == (10, 2_000, 30)
    assert (usage.input_cache_write_5m_tokens, usage.input_cache_write_1h_tokens) == (400, 600)
    assert (
        cost.total
        == (Decimal(10) * 5 + Decimal(2000) * Decimal("0.5") + Decimal(400) * Decimal("6.25") + 600 * 10 + 30 * 25)
        / 10**6
    )
    assert receipt.source == "claude-code"
    assert receipt.timing is None
    assert receipt.unmeasured_reason is not None
    assert receipt.request.received_at == datetime(2026, 10, 29, 12, tzinfo=UTC)
    assert receipt.request.session == "session-a"
    assert receipt.request.labels == {"project": "~/shop", "branch": "main"}
    assert (receipt.served_by, receipt.model_served, receipt.outcome) == ("anthropic", "opus-card", Outcome.COMPLETED)


def test_writes_of_no_known_lifetime_are_priced_by_assumption(desk: Desk) -> None:
    """Old transcripts have the total only: the shortest lifetime's price, marked as assumed."""
    desk.write("a.jsonl", transcript_line("m1", written=1_000), transcript_line("m2", out=1_000))
    desk.run()
    costs = {each.usage.output_text_tokens: each.cost for each in desk.receipts() if each.usage and each.cost}
    assert (costs[0].total, costs[0].basis) == (Decimal("0.00625"), Basis.ASSUMED)
    assert (costs[1_000].total, costs[1_000].basis) == (Decimal("0.025"), Basis.DERIVED)


def test_a_log_that_has_a_price_keeps_it_beside_ours(desk: Desk) -> None:
    """costUSD 0.12 of a call that is 0.11 by our prices: both are kept, the difference is 0.01."""
    desk.write("a.jsonl", transcript_line("m1", out=4_400, costUSD=0.12), transcript_line("m2", out=4_400))
    summary = desk.run()
    told = [each for each in desk.receipts() if each.cost_reported is not None]
    assert len(told) == 1
    assert told[0].cost is not None
    assert (told[0].cost.total, told[0].cost_reported) == (Decimal("0.11"), Decimal("0.12"))
    total = summary.total
    assert (total.cost, total.reported, total.reported_calls) == (Decimal("0.22"), Decimal("0.12"), 1)
    assert total.difference == Decimal("0.01")


def test_searches_and_compactions_are_on_the_bill(desk: Desk) -> None:
    """What is unusual about a usage object goes the long way, to the same receipt."""
    desk.write("a.jsonl", transcript_line("m1", fresh=1_000, usage={"server_tool_use": {"web_search_requests": 2}}))
    compaction = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
    message = {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000}
    iterations = {"iterations": [compaction, message]}
    desk.write("b.jsonl", transcript_line("m2", fresh=23_000, out=1_000, usage=iterations))
    desk.run()
    assert desk.total() == (Decimal(1_000 * 5) / 10**6 + Decimal("0.02") + Decimal(203_000 * 5 + 4_500 * 25) / 10**6)


def test_a_model_without_a_price_is_counted_and_not_priced(desk: Desk) -> None:
    """Unknown is not zero: the sum says how many calls it leaves out."""
    desk.write(
        "a.jsonl",
        transcript_line("m1", out=40_000),
        *(transcript_line(f"n{number}", out=5, model="no-such") for number in range(3)),
    )
    summary = desk.run()
    assert (summary.total.cost, summary.total.unpriced) == (Decimal(1), 3)
    assert sum(summary.unpriced.values()) == 3
    assert [each.cost for each in desk.receipts()].count(None) == 3


def test_a_clock_in_the_future_is_said(desk: Desk) -> None:
    """The call counts; whoever looks at its day is told."""
    desk.write("a.jsonl", transcript_line(out=5, at="2031-01-01T00:00:00.000Z"))
    summary = desk.run()
    assert len(desk.receipts()) == 1
    assert any("future" in reason for reason in summary.notes)


COUNTS = st.integers(0, 200_000)


@settings(deadline=None, max_examples=40)
@given(
    calls=st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), min_size=1, max_size=12),
    data=st.data(),
)
def test_however_the_lines_lie_in_files_and_runs_the_sums_are_the_same(
    calls: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    """Copies, growing lines, other files, several runs: every call once, with its largest account."""
    lines = []
    for number, (fresh, written, read, out) in enumerate(calls):
        whole = {"fresh": fresh, "written": written, "read": read}
        lines.append(transcript_line(f"m{number}", request=f"r{number}", out=out, **whole))
        partly = data.draw(st.lists(st.integers(0, out), max_size=2))
        lines += [transcript_line(f"m{number}", request=f"r{number}", out=part, **whole) for part in partly]
        lines += [lines[-1]] * data.draw(st.integers(0, 1))
    shuffled = data.draw(st.permutations(lines))
    cut = data.draw(st.integers(0, len(shuffled)))
    with desk() as one:
        path = one.write("a.jsonl", *shuffled[:cut])
        one.run(source="claude-code")
        one.append(path, *shuffled[cut:])
        one.write("b.jsonl", *shuffled[: len(shuffled) // 2])
        one.run(source="claude-code")
        assert len(one.receipts()) == len(calls)
        assert one.tokens() == sum(map(sum, calls))
        per_million = (Decimal(5), Decimal("6.25"), Decimal("0.5"), Decimal(25))
        assert one.total() == sum(
            count * price for call in calls for count, price in zip(call, per_million, strict=True)
        ) / Decimal(10**6)
