"""A receipt of the embedded engine says how near its work came to what the machine can do, once that was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taximeter.cli.main import app
from taximeter.engine import limits
from taximeter.ledger.documents import record_from
from taximeter.records import Receipt, to_json
from tests.engine_harness import TINY_LLAMA
from tests.unit.engine.test_limits import known
from tests.unit.ledger.records import a_receipt


def ask() -> dict[str, object]:
    """The work on the receipt of one answer."""
    arguments = ["ask", "Once", "--model", str(TINY_LLAMA), "--max-tokens", "8", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["receipt"]["work"]


def test_shares_of_a_measured_machine(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read and computed, the ceiling, and their ratio; all of it also in the ledger's copy."""
    monkeypatch.setattr(limits.MachineLimits, "stale_reason", lambda _: None)
    limits.remember(known(), taximeter_home / "machine.json")
    work = ask()
    ceiling = work["ceiling"]
    assert isinstance(ceiling, dict)
    assert ceiling["read_bytes_per_s"] in {25_500_000_000, 33_000_000_000}
    assert ceiling["unit"] in {"int8", "bf16", "f32"}
    for name in ("decode_read_bytes", "prefill_operations", "decode_bus_ratio", "prefill_peak_ratio"):
        assert isinstance(work[name], int | float)
        assert work[name] > 0
    listed = CliRunner().invoke(app, ["receipts", "--json"])
    assert json.loads(listed.stdout)["receipts"][0]["work"] == work


def test_a_machine_that_was_not_measured(taximeter_home: Path) -> None:
    """The counts, no shares, and the reason with what to do."""
    work = ask()
    assert isinstance(work["decode_read_bytes"], int)
    assert work["ceiling"] is work["decode_bus_ratio"] is work["prefill_peak_ratio"] is None
    reasons = work["unknown_reasons"]
    assert isinstance(reasons, dict)
    assert reasons["ceiling"] == "the machine's limits have not been measured: taximeter machine"


def test_a_receipt_from_before_this_was_counted_is_still_read() -> None:
    """Its work has no such counts: they are unknown, and the rest is as it was."""
    receipt = a_receipt()
    document = to_json(receipt)
    assert isinstance(document, dict)
    work = document["work"]
    assert isinstance(work, dict)
    for name in ("decode_compute_ns", "decode_read_bytes", "prefill_operations", "ceiling", "energy_uj"):
        del work[name]
    del work["unknown_reasons"], work["decode_bus_ratio"], work["prefill_peak_ratio"]
    assert record_from(json.dumps(document), Receipt) == receipt
