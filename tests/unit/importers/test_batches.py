"""Results of batches: half the price, once however often they are fetched, and nothing for what was not answered."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from taximeter.records import Outcome
from tests.unit.importers.logs import Desk


def message(name: str, *, given: int = 5_000, out: int = 800, tier: str | None = "batch") -> dict[str, Any]:
    """An answered request of Anthropic's."""
    usage = {"input_tokens": given, "output_tokens": out} | ({} if tier is None else {"service_tier": tier})
    answer = {"id": f"msg_{name}", "type": "message", "model": "opus-card", "stop_reason": "end_turn", "usage": usage}
    return {"custom_id": name, "result": {"type": "succeeded", "message": answer}}


def completion(name: str, *, given: int = 10_000, cached: int = 8_000, out: int = 1_000) -> dict[str, Any]:
    """An answered request of OpenAI's."""
    usage = {
        "prompt_tokens": given,
        "completion_tokens": out,
        "total_tokens": given + out,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    body = {"id": f"chatcmpl-{name}", "object": "chat.completion", "created": 1_790_000_000, "model": "g5-card"}
    body |= {"usage": usage, "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "…"}}]}
    response = {"status_code": 200, "request_id": f"req-{name}", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": name, "response": response, "error": None}


def test_a_batch_costs_half_and_counts_once_however_often_it_is_fetched(desk: Desk) -> None:
    """5 fetches of one file of results are one receipt for each of its requests."""
    lines = [message("a"), message("b", tier=None)]
    for number in range(5):
        desk.write(f"fetched-{number}.jsonl", *lines)
        desk.run()
    first, second = desk.receipts()
    assert first.cost is not None
    assert second.cost is not None
    assert first.cost.total == second.cost.total == (5_000 * 5 + 800 * 25) / Decimal(2 * 10**6)
    assert first.source == "anthropic-batch"
    assert first.timing is None


def test_what_was_not_answered_is_not_billed_and_says_why(desk: Desk) -> None:
    """Succeeded, errored, expired and canceled, in no order: one is priced, three have a reason."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too large"}}
    desk.write(
        "msgbatch_013Zva2CMHLNnXjNJJKqJ2EF_results.jsonl",
        {"custom_id": "c", "result": {"type": "expired"}},
        {"custom_id": "b", "result": {"type": "errored", "error": error}},
        message("a"),
        {"custom_id": "d", "result": {"type": "canceled"}},
    )
    summary = desk.run()
    receipts = desk.receipts()
    assert len(receipts) == 4
    assert summary.total.unpriced == 3
    unpriced = [each for each in receipts if each.cost is None]
    assert {each.outcome for each in unpriced} == {Outcome.FAILED, Outcome.ABORTED}
    assert any("max_tokens: too large" in (each.error or "") for each in unpriced)
    assert all("not billed" in (each.uncosted_reason or "") for each in unpriced)
    assert {each.request.run for each in receipts} == {"msgbatch_013Zva2CMHLNnXjNJJKqJ2EF"}


def test_openais_batches_are_priced_as_batches_too(desk: Desk) -> None:
    """Nothing in their answers says so."""
    expired = {"id": "batch_req_x", "custom_id": "x", "response": None, "error": {"code": "batch_expired"}}
    refused = {
        "id": "batch_req_y",
        "custom_id": "y",
        "response": {"status_code": 400, "body": {"error": {"message": "no"}}},
    }
    desk.write("batch_abc123_output.jsonl", completion("a"), expired, refused)
    desk.run()
    priced = [each for each in desk.receipts() if each.cost is not None]
    assert len(desk.receipts()) == 3
    assert [each.cost.total for each in priced if each.cost] == [
        (2_000 * Decimal("1.25") + 8_000 * Decimal("0.125") + 1_000 * 10) / 2 / 10**6
    ]
    assert priced[0].upstream_request_id == "req-a"
    assert priced[0].finish_reasons == ("stop",)
