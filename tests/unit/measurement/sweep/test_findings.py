"""What a sweep's figures come to, and the forms in which they are kept and shown."""

from __future__ import annotations

import json

import pytest

from taximeter.measurement.estimates import Estimate
from taximeter.measurement.pictures.page import page_html
from taximeter.measurement.sweep.findings import conclusions, findings
from taximeter.measurement.sweep.model_work import MachineLimit, ModelShape
from taximeter.measurement.sweep.page import shown_sweep
from taximeter.measurement.sweep.shown import number_text, page_of, share_cell, time_text
from taximeter.measurement.sweep.study import Plan
from tests.measurement_harness import MS, chat
from tests.sweep_harness import LENGTHS, Truth, swept

SMOLLM2 = ModelShape(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1536, vocabulary=49_152,
    step_weight_bytes=269_030_016,
)  # fmt: skip


def test_speeds_and_parts_follow_from_the_curves() -> None:
    """0.5 ms a token are 2,000 tokens/s; 1e-4 ms · n² overtakes it at 5,000; 10 ms and 0.002 ms · depth are even at
    depth 5,000."""
    sweep = swept(Truth(fixed=20, per_token=0.5, per_pair=1e-4, step=10, per_depth=0.002, spread=0).answer)
    found = findings(sweep)
    assert found.prefill_tokens_per_s is not None
    assert found.prefill_tokens_per_s.value == pytest.approx(2000, rel=1e-3)
    assert found.attention_overtakes_at_tokens is not None
    assert found.attention_overtakes_at_tokens.value == pytest.approx(5000, rel=1e-3)
    assert [length.prompt_tokens for length in found.lengths] == list(LENGTHS)
    longest = found.lengths[-1]
    assert longest.attention is not None
    assert longest.attention.value == pytest.approx(0.4096 / 0.9096, rel=1e-3)
    assert longest.kv_cache is not None
    assert longest.kv_cache.value == pytest.approx(0.002 * 4104 / (10 + 0.002 * 4104), rel=1e-3)
    assert (longest.prefill, longest.step) == (None, None)


def test_where_the_model_is_known_its_work_is_too() -> None:
    """512 tokens of 117.85 GF in 256 ms are 460 Gop/s; a step that reads 269 MB and 520 tokens' keys in 10 ms."""
    limit = MachineLimit(operations_per_s=920.7e9, read_bytes_per_s=50e9, says="a machine")
    sweep = swept(Truth(per_token=0.5, step=10, spread=0).answer)
    found = findings(sweep, shape=SMOLLM2, limit=limit).lengths[3]
    assert found.prefill is not None
    assert found.prefill.limit_ratio == pytest.approx(0.5, rel=1e-3)
    assert found.step is not None
    assert found.step.per_s == pytest.approx((269_030_016 + 520 * 23_040) / 0.010, rel=1e-3)


def test_conclusions_are_json_without_infinities() -> None:
    sweep = swept(Truth(per_token=0.5, step=10, spread=0).answer)  # no quadratic part: it overtakes nowhere
    found = conclusions(sweep, findings(sweep, shape=SMOLLM2))
    text = json.dumps(found, allow_nan=False)
    again = json.loads(text)
    assert again["verdict"]["says"] == sweep.verdict.says if sweep.verdict else False
    assert [point["n"] for point in again["points"]] == [5] * len(LENGTHS)
    assert len(again["ttft_fit"]["band"]) == 33
    assert again["findings"]["lengths"][0]["step"]["amount"] > 269_030_016
    assert "observations" not in text


def test_a_warm_run_has_no_verdict_to_show() -> None:
    plan = Plan(prompt_tokens=(64, 128, 256), output_tokens=4)
    sweep = swept(
        lambda asked, _: chat([5, 9, 13, 17], prompt_tokens=asked.asked_prompt_tokens or 0, cached_tokens=32), plan=plan
    )
    shown = shown_sweep(sweep, findings(sweep))
    assert shown.says.startswith("No verdict: this was no cold run, 21.4% of prompt tokens came from a cache")
    assert not shown.is_valid
    assert shown.advice is None


def test_everything_is_on_the_page_and_in_the_tables() -> None:
    sweep = swept(Truth(fixed=20, per_token=0.5, per_pair=1e-4).answer)
    shown = shown_sweep(sweep, findings(sweep, shape=SMOLLM2))
    by_length, work = shown.tables
    assert [row[0] for row in by_length.rows] == ["64", "128", "256", "512", "1,024", "2,048", "4,096"]
    assert all(len(row) == len(by_length.headings) for row in by_length.rows)
    assert all(len(row) == len(work.headings) for row in work.rows)
    assert sum(round(float(share.rstrip("%"))) for share in by_length.rows[0][-5:] if share != "?") in range(98, 103)
    assert shown.facts["Prefill"].endswith("tokens/s, before attention counts")
    html = page_html(page_of(shown, subject="m at s", facts={"Asked": "much"}, made="now"))
    assert sweep.verdict is not None
    assert sweep.verdict.says in html
    assert html.count("<svg") == 3


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (None, "?"),
        (Estimate(value=1.5 * MS, n=1, unknown_reason="few"), "1.5 ms (n too small)"),
        (Estimate(value=12 * MS, low=11.26 * MS, high=13.1 * MS, n=5), "12.0 ms (11.3-13.1)"),
        (Estimate(value=1200 * MS, low=900 * MS, high=1300 * MS, n=5), "1.200 s (0.900-1.300)"),
    ],
)
def test_times_in_cells(estimate: Estimate | None, text: str) -> None:
    assert time_text(estimate) == text


def test_numbers_and_shares_in_cells() -> None:
    assert number_text(Estimate(value=2013.7, low=1999, high=float("inf"), n=5)) == "2,010 (2,000 to ∞)"
    assert number_text(Estimate(value=0.01234, n=1, unknown_reason="few")) == "0.0123"
    assert number_text(Estimate(value=0, low=0, high=1, n=5)) == "0 (0 to 1.00)"
    assert share_cell(None) == "?"
    assert share_cell(Estimate(value=0.5, n=1, unknown_reason="few")) == "50%"
    assert share_cell(Estimate(value=0.5, low=0.4, high=0.6, n=5)) == "50% (40-60)"
