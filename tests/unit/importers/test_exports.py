"""Exports of LiteLLM and Langfuse: the right buckets, and their own figures beside ours."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

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
