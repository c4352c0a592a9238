"""Exports of LiteLLM and Langfuse, and tables with a map: the right buckets, and their own figures beside ours."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from taximeter.errors import ConfigError
from taximeter.importers import importing, sources
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.records import Basis, Outcome
from tests.unit.importers.logs import Desk


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as a database's tools write them: objects as JSON in their cells."""
    file = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
        )
    return file.getvalue().encode()


FORMS = {
    "json": lambda rows: json.dumps(rows, indent=1).encode(),
    "jsonl": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "csv": as_csv,
}


def spend(name: str, **more: Any) -> dict[str, Any]:
    """A row of LiteLLM's table."""
    return {
        "request_id": name,
        "call_type": "acompletion",
        "api_key": "a" * 64,
        "spend": 0.12,
        "total_tokens": 11_000,
        "prompt_tokens": 10_000,
        "completion_tokens": 1_000,
        "startTime": "2026-10-29 12:00:00.000",
        "endTime": "2026-10-29 12:00:04.500",
        "completionStartTime": "2026-10-29 12:00:01.500",
        "model": "openai/g5-card",
        "custom_llm_provider": "openai",
        "user": "u1",
        "metadata": {
            "user_api_key_alias": "ci",
            "usage_object": {
                "prompt_tokens": 10_000,
                "completion_tokens": 1_000,
                "total_tokens": 11_000,
                "prompt_tokens_details": {"cached_tokens": 8_000},
                "completion_tokens_details": {"reasoning_tokens": 300},
            },
        },
        "cache_hit": "False",
        "request_tags": ["team:search", "nightly"],
        "session_id": "s1",
    } | more


@pytest.mark.parametrize("form", FORMS)
def test_litellms_spend_logs(desk: Desk, form: str) -> None:
    """Cached tokens stand within a JSON column; times are there; a key is a name, or a digest's beginning."""
    rows = [spend("r1"), spend("r2", cache_hit="True"), spend("r3", metadata={})]
    desk.write(f"spend.{form}", FORMS[form](rows))
    summary = desk.run()
    first, second = sorted(desk.receipts(), key=lambda each: each.request.key or "", reverse=True)
    usage, cost, timing = first.usage, first.cost, first.timing
    assert usage is not None
    assert cost is not None
    assert timing is not None
    assert (usage.input_fresh_tokens, usage.input_cache_read_tokens) == (2_000, 8_000)
    assert (usage.output_text_tokens, usage.output_reasoning_tokens) == (700, 300)
    assert cost.total == Decimal("0.0135")
    assert first.cost_reported == Decimal("0.12")
    assert (timing.total_ns, timing.first_token_ns, timing.basis) == (4_500_000_000, 1_500_000_000, Basis.REPORTED)
    assert first.inter_token_ns == round(3_000_000_000 / 999)
    assert (first.request.key, first.request.session) == ("ci", "s1")
    assert first.request.labels == {"user": "u1", "team": "search", "tag": "nightly"}
    assert second.request.key == "a" * 12
    assert second.cost is not None
    assert second.cost.total == Decimal(10_000 * Decimal("1.25") + 10_000) / 10**6
    assert any("cache" in note for note in summary.notes)
    assert summary.total.difference == Decimal("0.24") - cost.total - second.cost.total


def test_a_key_in_the_clear_is_not_kept(desk: Desk) -> None:
    """Should an export hold one after all."""
    desk.write("spend.jsonl", spend("r1", api_key="sk-live-1234567890abcdef", metadata={}))
    desk.run()
    assert desk.receipts()[0].request.key is None


def test_litellms_failed_calls_are_failed(desk: Desk) -> None:
    """Without tokens there is no price, and no zero."""
    metadata = {"status": "failure", "error_information": {"error_class": "Timeout", "error_message": "after 600 s"}}
    desk.write(
        "spend.jsonl", spend("r1", spend=0, prompt_tokens=0, completion_tokens=0, total_tokens=0, metadata=metadata)
    )
    desk.run()
    (receipt,) = desk.receipts()
    assert (receipt.outcome, receipt.usage, receipt.cost) == (Outcome.FAILED, None, None)
    assert receipt.error == "Timeout: after 600 s"


@pytest.mark.parametrize(
    "given",
    [
        {"call_type": "atranscription", "model": "whisper-1", "spend": 0.006},
        {"call_type": "aimage_generation", "spend": 0},
        {"call_type": "call_mcp_tool", "spend": 0.01},
    ],
)
def test_what_is_not_billed_by_tokens_is_not_free(desk: Desk, given: dict[str, Any]) -> None:
    """Minutes of sound and pictures have rows without tokens: nothing is known of them, which is not nothing."""
    none = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    desk.write("spend.json", json.dumps([spend("r1", **none, metadata={}, **given)]))
    desk.run()
    receipt = desk.receipts()[0]
    assert receipt.cost is None
    assert receipt.usage is None
    assert "something else than tokens" in (receipt.uncosted_reason or "")
    assert receipt.outcome is Outcome.COMPLETED


def test_a_batch_in_litellms_table_costs_what_a_batch_does(desk: Desk) -> None:
    """It is one row, when the batch was asked for and was done."""
    desk.write("spend.json", json.dumps([spend("batch_1", call_type="aretrieve_batch"), spend("r1")]))
    desk.run()
    assert {each.cost.total for each in desk.receipts() if each.cost} == {Decimal("0.00675"), Decimal("0.0135")}


@pytest.mark.parametrize("head", ["", "SET client_encoding = 'UTF8';\n", "--\n-- PostgreSQL database dump\n--\n\n"])
def test_a_dump_is_known_whatever_is_set_before_its_tables(desk: Desk, head: str) -> None:
    columns = ["request_id", "call_type", "spend", "startTime", "endTime", "model", "total_tokens"]
    columns += ["prompt_tokens", "completion_tokens", "metadata"]
    row = [json.dumps(value) if isinstance(value, dict) else str(value) for value in map(spend("r1").get, columns)]
    named = ", ".join(name if name.islower() else f'"{name}"' for name in columns)
    table = f'COPY public."LiteLLM_SpendLogs" ({named}) FROM stdin;\n' + "\t".join(row) + "\n\\.\n"
    desk.write("dump.sql", (head + table).encode())
    desk.run()
    assert desk.tokens() == 11_000


def observation(name: str, **more: Any) -> dict[str, Any]:
    """A generation of Langfuse's."""
    return {
        "id": name,
        "traceId": "t1",
        "type": "GENERATION",
        "name": "answer",
        "startTime": "2026-10-29T12:00:00.000Z",
        "endTime": "2026-10-29T12:00:04.500Z",
        "completionStartTime": "2026-10-29T12:00:01.500Z",
        "model": "opus-card",
        "usageDetails": {},
        "costDetails": {"total": 0.5},
        "level": "DEFAULT",
        "sessionId": "s1",
        "userId": "u1",
    } | more


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "details",
    [
        pytest.param(
            {"input": 5, "cache_read_input_tokens": 128_955, "cache_creation_input_tokens": 1_253, "output": 10},
            id="exclusive",
        ),
        pytest.param(
            {
                "input": 130_213,
                "cache_read_input_tokens": 128_955,
                "cache_creation_input_tokens": 1_253,
                "output": 10,
                "total": 130_223,
            },
            id="inclusive (langfuse/langfuse#12306)",
        ),
    ],
)
def test_langfuses_counts_may_contain_each_other(desk: Desk, details: dict[str, int], form: str) -> None:
    """130,213 tokens of input, of which 128,955 were read and 1,253 written: 5 / 1,253 / 128,955 either way."""
    rows = [observation("o1", usageDetails=details), observation("o2", type="SPAN"), observation("o3", type="TRACE")]
    desk.write(f"observations.{form}", FORMS[form](rows))
    desk.run()
    (receipt,) = desk.receipts()
    usage = receipt.usage
    assert usage is not None
    assert usage.input_fresh_tokens == 5
    assert usage.input_cache_read_tokens == 128_955
    assert usage.input_cache_write_unknown_tokens == 1_253
    assert usage.input_tokens == 130_213
    assert receipt.cost is not None
    assert receipt.cost.input == Decimal("0.07233375")
    assert receipt.cost_reported == Decimal("0.5")
    assert (receipt.request.run, receipt.request.session) == ("t1", "s1")
    assert receipt.timing is not None
    assert receipt.timing.first_token_ns == 1_500_000_000


@pytest.mark.parametrize(
    ("details", "leaves"),
    [
        pytest.param({"total": 1_400}, (100, 1_000, 200, 100, 0), id="the count of writes has the divided ones in it"),
        pytest.param({"total": 1_700}, (100, 1_000, 200, 100, 300), id="it has not"),
        pytest.param({}, (100, 1_000, 200, 100, 0), id="nobody says"),
        pytest.param({"total": 1_555}, None, id="what the counts sum to is not the total"),
        pytest.param({"unit": "CHARACTERS"}, None, id="no tokens"),
        pytest.param({"input_cache_creation": 250}, (100, 1_000, 200, 100, 250), id="fewer than the divided ones"),
    ],
)
def test_langfuses_total_says_what_its_counts_mean(
    desk: Desk, details: dict[str, Any], leaves: tuple[int, ...] | None
) -> None:
    """Every token is in one bucket; where the total says that one is in none, nothing is known."""
    writes = {"input_cache_creation": 300, "input_cache_creation_5m": 200, "input_cache_creation_1h": 100}
    said = {"input": 100, "input_cache_read": 1_000, "output": 0, **writes, **details}
    desk.write("observations.json", json.dumps([observation("o1", usageDetails=said)]))
    desk.run()
    (receipt,) = desk.receipts()
    usage = receipt.usage
    assert usage is not None
    found = (
        usage.input_fresh_tokens,
        usage.input_cache_read_tokens,
        usage.input_cache_write_5m_tokens,
        usage.input_cache_write_1h_tokens,
        usage.input_cache_write_unknown_tokens,
    )
    assert found == (leaves or (None,) * 5)
    assert (receipt.cost is None) == (leaves is None)


def test_langfuses_files_have_other_names_for_the_same(desk: Desk) -> None:
    """As exports to a bucket have them, and an error."""
    row = {
        "id": "o1",
        "trace_id": "t1",
        "type": "GENERATION",
        "start_time": "2026-10-29 12:00:00.000000",
        "end_time": "2026-10-29 12:00:01.000000",
        "provided_model_name": "opus-card",
        "usage_details": {"input": 10, "output": 20, "total": 30},
        "level": "ERROR",
        "status_message": "overloaded",
    }
    desk.write("observations.jsonl", row)
    desk.run()
    (receipt,) = desk.receipts()
    assert (receipt.outcome, receipt.error) == (Outcome.FAILED, "overloaded")
    assert receipt.usage is not None
    assert receipt.usage.total_tokens == 30


MAP = """
source = "our-proxy"
provider = "openai"

[columns]
time = "when"
id = "id"
model = "model"
duration_ms = "took"
cost = "price"
session = "meta.chat"
key = "caller"
outcome = "status"

[tokens]
input = "in"
output = "out"
cache_read = "cached"
reasoning = "thought"

[labels]
team = "meta.team"
"""


def test_any_table_is_read_by_a_map_of_its_columns(desk: Desk) -> None:
    """Dots lead into objects; a row without an id is named by what it says."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    row = {"when": "2026-10-29T12:00:00+02:00", "model": "g5-card", "in": "10000", "cached": 8_000, "out": 1_000}
    row |= {"thought": 300, "took": 1_500, "price": "$0.02", "meta": {"chat": "c1", "team": "search"}, "caller": "ci"}
    rows = [row | {"id": 1, "status": "ok"}, row | {"status": "error 500"}, row | {"status": "error 500"}]
    desk.write("calls.csv", as_csv(rows))
    summary = desk.run(columns=columns)
    receipts = desk.receipts()
    assert len(receipts) == 2
    assert {each.outcome for each in receipts} == {Outcome.COMPLETED, Outcome.FAILED}
    assert {(each.source, each.request.session, each.request.key) for each in receipts} == {("our-proxy", "c1", "ci")}
    assert receipts[0].request.labels == {"team": "search"}
    assert receipts[0].request.received_at.hour == 10
    assert [each.cost.total for each in receipts if each.cost] == [Decimal("0.0135")] * 2
    assert [each.timing.total_ns for each in receipts if each.timing] == [1_500_000_000] * 2
    assert summary.total.reported == Decimal("0.04")
    assert desk.run(columns=columns).files_unchanged == 1
    columns.write_text(MAP.replace('cache_read = "cached"\n', ""))
    assert desk.run(columns=columns).files_read == 1, "another map reads other things"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("0,0056", "0.0056"), ("0,005", "0.005"), ("1,5", "1.5"), ("1.234,50", "1234.50"), ("1,234", None), ("n/a", None)],
)
def test_a_cost_may_have_a_decimal_comma(desk: Desk, written: str, meant: str | None) -> None:
    """Where it cannot be a comma between thousands; what is no number is said, and not nothing."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.csv", f"when;model;in;out;price\n2026-10-29 12:00:00;g5-card;100;10;{written}\n".encode())
    summary = desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.cost_reported == (None if meant is None else Decimal(meant))
    assert summary.notes["a cost that is no number"] == (meant is None)


@pytest.mark.parametrize(
    "wrong", ["columns = 3", '[columns]\ntime = "t"', 'source = "x"\n[columns]\ntime = "t"\nmodle = "m"']
)
def test_a_map_that_is_not_understood_says_so(desk: Desk, wrong: str) -> None:
    """Before anything is read."""
    columns = desk.folder / "map.toml"
    columns.write_text(wrong)
    path = desk.write("calls.csv", b"t\n1\n")
    with pytest.raises(ConfigError, match=r"map\.toml"):
        desk.run(path, columns=columns)


def test_a_column_that_is_not_there_is_named(desk: Desk) -> None:
    """A map for another table, or a heading with a blank before it: not each row's own fault."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.csv", b" when,model,in,out\n2026-10-29 12:00:00,g5-card,100,10\n")
    assert dict(desk.run(columns=columns).notes) == {"a row without the column 'when', which has the time": 1}
    desk.write("calls.csv", b"when,model,in,out\nyesterday,g5-card,100,10\n")
    assert dict(desk.run(columns=columns).notes) == {"a row without a time": 1}


@pytest.mark.parametrize("rows", [1, 400])
def test_a_map_that_was_put_right_puts_receipts_right(desk: Desk, rows: int) -> None:
    """More tokens, fewer, or the same in other buckets: what the map says now counts, once."""
    columns = desk.folder / "map.toml"
    lines = [
        {"when": 1_790_000_000, "id": n, "model": "g5-card", "in": 2_006, "cached": 1_920, "out": 300}
        for n in range(rows)
    ]
    desk.write("calls.jsonl", *lines)
    inclusive = MAP.replace('session = "meta.chat"', "")
    exclusive = inclusive.replace("[tokens]", "[tokens]\ninput_includes_cache = false")
    found: list[tuple[int, int | None, int | None]] = []
    for text in (inclusive.replace('cache_read = "cached"\n', ""), inclusive, exclusive, inclusive):
        columns.write_text(text)
        summary = desk.run(columns=columns)
        used = [each.usage for each in desk.receipts()]
        assert len(used) == rows
        assert used[0] is not None
        assert all(each == used[0] for each in used)
        found.append((summary.corrected, used[0].input_fresh_tokens, used[0].input_cache_read_tokens))
        assert desk.run(columns=columns).corrected == 0
    assert found == [(0, 2_006, 0), (rows, 86, 1_920), (rows, 2_006, 1_920), (rows, 86, 1_920)]


@pytest.mark.parametrize("failed", [False, True])
def test_a_newer_edition_of_a_reader_tells_apart_what_was_together(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """As many tokens, and now in the right buckets: that is a correction."""
    source = sources.SOURCES["litellm"]
    row = spend("r1")
    row["metadata"] |= {"status": "failure"} if failed else {}

    def before(log: LogFile) -> Iterator[LoggedCall]:
        for call in source.read(log):
            call.leaves, call.usage = (10_000, 0, 0, 0, 0, 1_000, 0), None
            yield call

    older = {**sources.SOURCES, "litellm": replace(source, edition="0", read=before)}
    desk.write("spend.json", json.dumps([row]))
    with monkeypatch.context() as patched:
        patched.setattr(sources, "SOURCES", older)
        patched.setattr(importing, "SOURCES", older)
        desk.run()
    assert [each.usage.input_cache_read_tokens for each in desk.receipts() if each.usage] == [0]
    assert desk.run().corrected == 1
    assert [each.usage.input_cache_read_tokens for each in desk.receipts() if each.usage] == [8_000]
    assert desk.tokens() == 11_000
    assert desk.run().files_unchanged == 1


def test_counts_that_contradict_each_other_are_unknown(desk: Desk) -> None:
    """A remainder below zero is a reason, never a zero."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 10, "cached": 20, "out": 1})
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.cost is None
    assert "contradict" in (receipt.uncosted_reason or "")


@pytest.mark.parametrize("missing", ["in", "out"])
def test_a_count_that_a_row_does_not_have_is_unknown(desk: Desk, missing: str) -> None:
    """Not zero: a call whose prompt nobody counted would be cheap. What the row does say stays."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    row = {"when": 1_790_000_000, "model": "g5-card", "in": 10, "out": 7} | {missing: None}
    desk.write("calls.jsonl", row)
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.usage is not None
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (
        None if missing == "in" else 10,
        None if missing == "out" else 7,
    )
    assert receipt.cost is None
    assert "the row does not say how many tokens" in (receipt.uncosted_reason or "")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("ci", "ci"),
        ("nightly-batch-evaluation-in-production", "nightly-batch-evaluation-in-production"),
        ("8d5f6f0e-5b0a-4a5e-9d0e-6d1f0f3c2b1a", "8d5f6f0e-5b0a-4a5e-9d0e-6d1f0f3c2b1a"),
        ("sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", ""),
        ("Bearer abc", ""),
        ("0123456789abcdef" * 2, ""),
        ("Ab3" * 14, ""),
        ("0123456789abcdef" * 4, "0123456789ab"),
    ],
)
def test_a_key_itself_is_never_kept(desk: Desk, said: str, kept: str) -> None:
    """Tables of gateways of one's own have them now and then: the beginning of a digest tells them apart as well."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 1, "out": 1, "caller": said})
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.request.key == (kept or hashlib.sha256(said.encode()).hexdigest()[:12])


def test_a_table_without_answers_has_none(desk: Desk) -> None:
    """Embeddings: where the map has no column for them, they are not looked for."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP.replace('output = "out"\n', "").replace('reasoning = "thought"\n', ""))
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 800_000})
    desk.run(columns=columns)
    assert desk.total() == 1


def test_a_batch_whose_results_are_not_there_is_said(desk: Desk) -> None:
    """What it costs is not zero: it is in another file."""
    counts = {"processing": 0, "succeeded": 5, "errored": 0, "canceled": 0, "expired": 0}
    desk.write("one.json", {"id": "msgbatch_1", "type": "message_batch", "request_counts": counts, "results_url": None})
    desk.write("two.json", {"id": "batch_1", "object": "batch", "output_file_id": "f", "request_counts": {"total": 2}})
    notes = desk.run().notes
    assert [count for note, count in notes.items() if "results are another file" in note] == [2]
    assert sum(notes.values()) == 2


def test_a_providers_report_is_for_another_command(desk: Desk, tmp_path: Path) -> None:
    """Its sums are no calls."""
    assert tmp_path == desk.folder
    desk.write("usage.json", {"object": "page", "data": [{"start_time": 1, "results": []}]})
    desk.write(
        "cost.json",
        {"data": [{"starting_at": "2026-10-01T00:00:00Z", "results": []}], "has_more": False, "next_page": None},
    )
    desk.write("other.json", {"hello": 1})
    summary = desk.run()
    assert desk.receipts() == []
    assert sum(count for reason, count in summary.notes.items() if "reconcile" in reason) == 2
    assert sum(summary.notes.values()) == 3


@pytest.mark.parametrize(
    ("seller", "model", "priced_by"),
    [
        ("openai", "openai/gpt-4o", "openai"),
        ("azure", "azure/gpt-4o", "azure"),
        ("bedrock_converse", "us.anthropic.claude-sonnet-4-20250514-v1:0", "aws"),
        ("vertex_ai", "vertex_ai/gemini-2.5-pro", "google"),
        ("gemini", "gemini/gemini-2.5-pro", "google"),
        ("xai", "xai/grok-3", "x-ai"),
        ("together_ai", "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo", "together"),
        ("moonshot", "moonshot/kimi-k2-0711-preview", "moonshotai"),
        ("openrouter", "openrouter/openai/gpt-4o", "openrouter"),
        ("hosted_vllm", "hosted_vllm/ours", None),
    ],
)
def test_routers_names_of_models_and_providers_are_understood(
    desk: Desk, seller: str, model: str, priced_by: str | None
) -> None:
    """Whose prices hold is said in LiteLLM's words, and the model may have them before its name."""
    desk.write("rows.json", json.dumps([spend("r1", model=model, custom_llm_provider=seller, metadata={})]))
    desk.run()
    (receipt,) = desk.receipts()
    assert receipt.served_by == (priced_by or seller)
    assert (receipt.cost is None) == (priced_by is None)
    assert receipt.model_served is not None
    assert not receipt.model_served.startswith(f"{seller}/")
