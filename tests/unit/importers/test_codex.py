"""Rollouts of Codex: each call once, compactions too, and what a fork has copied stays its parent's."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest

from tests.unit.importers.logs import Desk

AT = "2026-10-29T12:{:02d}:{:02d}.000Z"


def counts(given: int, cached: int = 0, out: int = 0, reasoning: int = 0) -> dict[str, int]:
    """A usage object as rollouts have it."""
    return {
        "input_tokens": given,
        "cached_input_tokens": cached,
        "output_tokens": out,
        "reasoning_output_tokens": reasoning,
        "total_tokens": given + out,
    }


def added(*usages: Mapping[str, int]) -> dict[str, int]:
    """The totals after these calls."""
    return {name: sum(usage[name] for usage in usages) for name in usages[0]}


def meta(session: str, *, at: str = AT.format(0, 0), **more: Any) -> dict[str, Any]:
    """The first line."""
    payload = {"id": session, "cwd": "/Users/dev/shop", "git": {"branch": "main"}, "model_provider": "openai"} | more
    return {"timestamp": at, "type": "session_meta", "payload": payload}


def context(model: str = "g5-card") -> dict[str, Any]:
    """A turn begins."""
    return {"timestamp": AT.format(0, 0), "type": "turn_context", "payload": {"model": model, "cwd": "/Users/dev/shop"}}


def event(kind: str, at: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": at, "type": "event_msg", "payload": {"type": kind, **payload}}


def told(last: Mapping[str, int], total: Mapping[str, int] | None, at: str) -> dict[str, Any]:
    """The event of one call."""
    info = {"last_token_usage": dict(last)} | ({} if total is None else {"total_token_usage": dict(total)})
    return event("token_count", at, info=info)


def session(name: str, *calls: Mapping[str, int], minute: int = 1, **more: Any) -> list[dict[str, Any]]:
    """A rollout of these calls."""
    told_calls = [
        told(call, added(*calls[: number + 1]), AT.format(minute + number, 0)) for number, call in enumerate(calls)
    ]
    return [meta(name, **more), context(), *told_calls]


def test_each_event_of_usage_is_a_call_and_a_repeated_one_is_none(desk: Desk) -> None:
    """The program says the same totals again when limits change."""
    lines = session("s1", counts(1_000, 800, 100, 40), counts(2_000, 1_800, 50))
    repeated = lines[-1] | {"timestamp": AT.format(5, 0)}
    no_info = event("token_count", AT.format(6, 0), info=None)
    desk.write("2026/10/29/rollout-x-s1.jsonl", *lines, repeated, no_info)
    desk.run()
    first, second = desk.receipts()
    assert first.usage is not None
    assert (first.usage.input_fresh_tokens, first.usage.input_cache_read_tokens) == (200, 800)
    assert (first.usage.output_text_tokens, first.usage.output_reasoning_tokens) == (60, 40)
    assert first.cost is not None
    assert first.cost.total == (200 * Decimal("1.25") + 800 * Decimal("0.125") + 100 * 10) / 10**6
    assert second.usage is not None
    assert second.usage.total_tokens == 2_050
    assert first.request.session == "s1"
    assert first.request.labels == {"project": "~/shop", "branch": "main"}
    assert (first.source, first.model_served) == ("codex", "g5-card")


def test_totals_alone_are_read_by_their_differences(desk: Desk) -> None:
    """Older rollouts have only what was used so far."""
    calls = [counts(100, 0, 10), counts(150, 90, 20)]
    lines = [meta("s1"), context()]
    for number in range(2):
        total = added(*calls[: number + 1])
        lines.append(event("token_count", AT.format(number, 1), info={"total_token_usage": total}))
    desk.write("rollout-s1.jsonl", *lines)
    desk.run()
    assert [each.usage.total_tokens for each in desk.receipts() if each.usage] == [110, 170]


def test_the_agents_own_compaction_is_a_call(desk: Desk) -> None:
    """Twelve calls of 1,800 tokens in all and a compaction of 192,000 are 13 receipts, 193,800 tokens
    (openai/codex#47003)."""
    calls = [counts(140, 0, 10)] * 12
    lines = session("s1", *calls)
    record = {
        "timestamp": AT.format(20, 0),
        "type": "token_usage_record",
        "payload": {"response_id": "resp_1", "usage": counts(190_000, 0, 2_000)},
    }
    marker = {"timestamp": AT.format(20, 1), "type": "compacted", "payload": {"compaction_response_id": "resp_1"}}
    after = event("token_count", AT.format(20, 2), info={"total_token_usage": added(*calls)})
    desk.write("rollout-s1.jsonl", *lines, record, marker, after)
    desk.run()
    assert len(desk.receipts()) == 13
    assert desk.tokens() == 193_800


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_record_of_usage_that_is_counted_too_is_one_call(desk: Desk, is_counted: bool) -> None:
    """Calls are told with their response's id, and once more as a count; a record alone is no call of its own."""
    record = {
        "timestamp": AT.format(1, 0),
        "type": "token_usage_record",
        "payload": {"response_id": "resp_1", "usage": counts(300, 0, 30)},
    }
    marker = {"timestamp": AT.format(3, 0), "type": "compacted", "payload": {"compaction_response_id": "resp_1"}}
    count = told(counts(300, 0, 30), counts(300, 0, 30), AT.format(2, 0))
    desk.write("rollout-s1.jsonl", meta("s1"), context(), record, *([count, marker] if is_counted else []))
    desk.run(source="codex")
    assert [each.usage.total_tokens for each in desk.receipts() if each.usage] == ([330] if is_counted else [])


A = [counts(60, 0, 10), counts(25, 20, 5)]
B = [*A, counts(40, 30, 10)]


def rewritten(lines: list[dict[str, Any]], at: str) -> list[dict[str, Any]]:
    """Lines as a fork has them that writes its history anew."""
    return [line | {"timestamp": at} for line in lines]


@pytest.mark.parametrize("order", ["parent first", "fork first", "parent gone", "parent packed", "parent never there"])
@pytest.mark.parametrize("stamps", ["kept", "rewritten"])
def test_a_fork_adds_only_its_own_calls(desk: Desk, order: str, stamps: str) -> None:
    """A of 100 tokens, and a fork of 150 that begins with A's history, are 150 (ccusage/ccusage#950)."""
    fork_at = AT.format(30, 0)
    parent = session("aaaa", *A)
    history = parent[2:] if stamps == "kept" else rewritten(parent[2:], fork_at)
    own = told(B[-1], added(*B), AT.format(31, 0))
    fork = [meta("bbbb", at=fork_at, forked_from_id="aaaa"), *history[:0], parent[0], context(), *history, own]
    if order in ("parent first", "parent gone", "parent packed"):
        path = desk.write("sessions/rollout-1-aaaa.jsonl", *parent)
        desk.run()
        if order == "parent packed":
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        if order != "parent first":
            path.unlink()
    desk.write("sessions/rollout-2-bbbb.jsonl", *fork)
    if order == "fork first":
        desk.write("sessions/rollout-1-aaaa.jsonl", *parent)
    desk.run()
    assert desk.tokens() == 150
    assert len(desk.receipts()) == 3


def test_a_rollout_that_was_packed_is_the_same_one(desk: Desk) -> None:
    """Also where only the file's name says which session it is."""
    path = desk.write("sessions/rollout-1.jsonl", context(), *session("", *A)[2:])
    desk.run(source="codex")
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert desk.run(source="codex").total.calls == 0
    assert desk.tokens() == 100


C = [*B, counts(70, 30, 10)]


def turn(at: str) -> dict[str, Any]:
    """A turn begins, and its id says when."""
    milliseconds = round(datetime.fromisoformat(at).timestamp() * 1_000)
    begun = context()
    begun["payload"]["turn_id"] = str(UUID(int=(milliseconds << 80) | (7 << 76) | (2 << 62)))
    return begun | {"timestamp": at}


def three_generations(
    stamps: str, *, with_first_lines: bool, with_turns: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """A, its fork B, and a fork C of that: 230 tokens in four calls, of which A made two. Forks hold their parent's
    first lines too, and turns, if they do."""
    lines = {"aaaa": session("aaaa", *A)}
    if with_turns:
        lines["aaaa"][1] = turn(AT.format(0, 30))
    for number, (name, parent, held) in enumerate((("bbbb", "aaaa", B), ("cccc", "bbbb", C)), start=1):
        at = AT.format(20 * number, 0)
        kinds = {
            "event_msg",
            *(["session_meta"] if with_first_lines else []),
            *(["turn_context"] if with_turns else []),
        }
        copied = [line for line in lines[parent] if line["type"] in kinds]
        own = told(held[-1], added(*held), AT.format(20 * number + 1, 0))
        lines[name] = [
            meta(name, at=at, forked_from_id=parent) | {"timestamp": at},
            *(rewritten(copied, at) if stamps == "rewritten" else copied),
            turn(AT.format(20 * number, 30)) if with_turns else context(),
            own,
        ]
        lines[name][0]["payload"]["timestamp"] = at
    return lines


@pytest.mark.parametrize("order", list(permutations(("aaaa", "bbbb", "cccc"))), ids="-".join)
@pytest.mark.parametrize("with_first_lines", [True, False])
@pytest.mark.parametrize("stamps", ["kept", "rewritten"])
def test_a_fork_of_a_fork_adds_only_its_own_calls(
    desk: Desk, stamps: str, with_first_lines: bool, order: tuple[str, ...]
) -> None:
    """Each call stays with the session that made it, over all generations, whichever file is read first."""
    lines = three_generations(stamps, with_first_lines=with_first_lines)
    for number, name in enumerate(order):
        desk.write(f"sessions/rollout-{number}-{name}.jsonl", *lines[name])
    desk.run()
    assert desk.tokens() == 230
    assert len(desk.receipts()) == 4


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("order", list(permutations(("aaaa", "bbbb", "cccc"))), ids="-".join)
@pytest.mark.parametrize("times", ["of events", "of turns"])
def test_generations_that_come_one_by_one_are_told_apart_by_their_times(
    desk: Desk, times: str, order: tuple[str, ...], stays: bool
) -> None:
    """Also the youngest first, and each gone before the next comes: the grandparent's calls are no parent's."""
    stamps = "kept" if times == "of events" else "rewritten"
    lines = three_generations(stamps, with_first_lines=True, with_turns=times == "of turns")
    for number, name in enumerate(order):
        path = desk.write(f"sessions/rollout-{number}-{name}.jsonl", *lines[name])
        desk.run()
        if not stays:
            path.unlink()
    assert desk.tokens() == 230
    assert len(desk.receipts()) == 4


@pytest.mark.parametrize("name", ["t-1", "", 7, None, "ffffffff-ffff-7fff-bfff-ffffffffffff", str(UUID(int=4 << 76))])
def test_a_turn_whose_name_is_no_time_tells_nothing(desk: Desk, name: object) -> None:
    """Then the copies are the parent's."""
    lines = three_generations("rewritten", with_first_lines=True, with_turns=True)["cccc"]
    for line in lines:
        if line["type"] == "turn_context":
            line["payload"]["turn_id"] = name
    desk.write("sessions/rollout-1-cccc.jsonl", *lines)
    desk.run()
    assert desk.tokens() == 230
    desk.write("sessions/rollout-2-bbbb.jsonl", *session("bbbb", *B))
    desk.run()
    assert desk.tokens() == 230


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("stamps", ["kept", "rewritten"])
def test_a_fork_whose_parent_comes_later_has_the_grandparents_calls_from_its_file(
    desk: Desk, stamps: str, grows: bool
) -> None:
    """Where no time tells whose a copied call is. The grandparent went on after its fork, and that is its own; and the
    youngest may be read while its history is still being copied."""
    lines = three_generations(stamps, with_first_lines=True)
    after = told(counts(9, 0, 1), added(*A, counts(9, 0, 1)), AT.format(30, 0))
    desk.write("sessions/rollout-1-aaaa.jsonl", *lines["aaaa"], after)
    if grows:
        path = desk.write("sessions/rollout-2-cccc.jsonl", *lines["cccc"][:4])
        desk.run()
        desk.append(path, *lines["cccc"][4:])
    else:
        desk.write("sessions/rollout-2-cccc.jsonl", *lines["cccc"])
    desk.run()
    desk.write("sessions/rollout-3-bbbb.jsonl", *lines["bbbb"])
    desk.run()
    assert desk.tokens() == 240
    assert len(desk.receipts()) == 5


def test_sessions_that_are_each_others_parents_are_read_to_their_ends(desk: Desk) -> None:
    """Nobody writes that; whatever it comes to, it comes to an end."""
    first, second = meta("aaaa", forked_from_id="bbbb"), meta("bbbb", forked_from_id="aaaa")
    desk.write("sessions/rollout-1-aaaa.jsonl", first, second, first, second, *session("aaaa", *A)[1:])
    desk.write("sessions/rollout-2-bbbb.jsonl", second, first, second, first, *session("bbbb", *A)[1:])
    desk.write("sessions/rollout-3-cccc.jsonl", meta("cccc", forked_from_id="cccc"), *session("cccc", *A))
    desk.run()
    assert desk.receipts()


def test_two_sessions_that_begin_alike_are_two(desk: Desk) -> None:
    """The same prompt costs the same twice."""
    desk.write("rollout-1-aaaa.jsonl", *session("aaaa", counts(100, 0, 10)))
    desk.write("rollout-2-bbbb.jsonl", *session("bbbb", counts(100, 0, 10)))
    desk.run()
    assert len(desk.receipts()) == 2


def test_a_session_that_goes_on_is_read_on(desk: Desk) -> None:
    """Model, tier and totals are remembered from run to run; an archived copy is the same session."""
    lines = session("aaaa", *A)
    tier = event("thread_settings_applied", AT.format(0, 1), thread_settings={"service_tier": "fast"})
    path = desk.write("sessions/rollout-1-aaaa.jsonl", lines[0], lines[1], tier, lines[2])
    desk.run()
    rest = event("token_count", AT.format(9, 0), info={"total_token_usage": added(*B)})
    desk.append(path, lines[3], rest)
    summary = desk.run()
    assert summary.files_resumed == 1
    desk.write("archived_sessions/rollout-1-aaaa.jsonl", path.read_bytes())
    desk.run()
    receipts = desk.receipts()
    assert [each.usage.total_tokens for each in receipts if each.usage] == [70, 30, 50]
    assert {each.model_served for each in receipts} == {"g5-card"}
    assert {each.cost.price_list.tier for each in receipts if each.cost and each.cost.price_list} == {"priority"}


@pytest.mark.parametrize("where", ["payload", "info", "record"])
def test_a_count_may_say_in_which_tier_its_call_was_served(desk: Desk, where: str) -> None:
    """As rollouts since the summer of 2026 do: what was asked for is no longer what counts."""
    lines: list[dict[str, Any]] = [*session("aaaa", *A)]
    record: dict[str, Any] = {"timestamp": AT.format(1, 0), "type": "token_usage_record"}
    record["payload"] = {"response_id": "resp_1", "usage": dict(A[0])}
    said = {"payload": lines[2]["payload"], "info": lines[2]["payload"]["info"], "record": record["payload"]}[where]
    said["service_tier"] = "priority"
    desk.write("rollout-1-aaaa.jsonl", *lines[:2], record, *lines[2:])
    desk.run()
    tiers = [each.cost.price_list.tier for each in desk.receipts() if each.cost and each.cost.price_list]
    assert tiers == ["priority", "standard"]


@pytest.mark.parametrize("settings", [{"service_tier": None}, {"model": "g5-card"}, {"service_tier": "default"}])
def test_settings_without_a_tier_end_the_one_before(desk: Desk, settings: dict[str, object]) -> None:
    """They are all of a session's settings, not what has changed."""
    lines = session("aaaa", *A)
    fast = event("thread_settings_applied", AT.format(0, 1), thread_settings={"service_tier": "fast"})
    usual = event("thread_settings_applied", AT.format(0, 2), thread_settings=settings)
    desk.write("rollout-1-aaaa.jsonl", *lines[:2], fast, lines[2], usual, lines[3])
    desk.run()
    tiers = [each.cost.price_list.tier for each in desk.receipts() if each.cost and each.cost.price_list]
    assert tiers == ["priority", "standard"]


def test_a_rollout_without_a_model_is_not_priced(desk: Desk) -> None:
    """Whose price that would be is not guessed."""
    desk.write("rollout-1.jsonl", meta("s1"), told(counts(10, 0, 1), counts(10, 0, 1), AT.format(1, 0)))
    summary = desk.run()
    assert dict(summary.unpriced) == {"the log does not name the model": 1}
