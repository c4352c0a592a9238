"""The machine's limits: measured, remembered, and forgotten when they are of another machine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taximeter.engine import kernels, limits
from taximeter.engine.limits import MachineLimits, Rates, measure, processor_name, remember, remembered
from taximeter.errors import ConfigError
from taximeter.records import Ceiling

LEVEL = kernels.levels()[-1].removeprefix("native:")
ONE = Rates(threads=1, read_gb_per_s=25.5, int8_gop_per_s=459.0, bf16_gop_per_s=None, f32_gop_per_s=115.0)
FOUR = Rates(threads=4, read_gb_per_s=33.0, int8_gop_per_s=910.0, bf16_gop_per_s=455.0, f32_gop_per_s=229.0)


def known() -> MachineLimits:
    return MachineLimits(
        version=limits.VERSION,
        cpu=processor_name(),
        level=LEVEL,
        measured_at=datetime(2026, 11, 29, 12, 0, tzinfo=UTC),
        read_bytes=1 << 28,
        rates=(ONE, FOUR),
    )


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembering does not need the kernels that measured."""
    if LEVEL == "reference":
        monkeypatch.setattr(kernels, "levels", lambda: ("reference", "native:reference"))


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    """Every digit, from a folder that is made."""
    path = tmp_path / "home" / "machine.json"
    remember(known(), path)
    assert remembered(path).limits == known()
    assert remembered(path).unknown_reason is None
    assert [entry.name for entry in path.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": limits.VERSION + 1}, "another version of Taximeter measured the machine; run taximeter machine"),
        ({"cpu": "another"}, "another processor was measured: another; run taximeter machine"),
        ({"level": "portable-2"}, "another kernel level was measured: portable-2; run taximeter machine"),
    ],
)
def test_another_machines_limits_do_not_hold(tmp_path: Path, change: dict[str, str], said: str) -> None:
    """A home may be copied, a processor changed, Taximeter upgraded."""
    path = tmp_path / "machine.json"
    remember(replace(known(), **change), path)
    assert remembered(path).limits is None
    assert remembered(path).unknown_reason == said


def test_a_missing_or_damaged_file_is_a_reason(tmp_path: Path) -> None:
    """Never an error: receipts without shares are better than none."""
    path = tmp_path / "machine.json"
    assert remembered(path).unknown_reason == "the machine's limits have not been measured: taximeter machine"
    remember(known(), path)
    document = json.loads(path.read_text())
    for damaged in ("", "{", "[]", json.dumps({**document, "rates": []}), json.dumps({**document, "rates": [{}]})):
        path.write_text(damaged)
        assert remembered(path).limits is None
        assert str(remembered(path).unknown_reason).startswith("the machine's limits cannot be read: ")


def test_a_folder_that_cannot_be_written_is_the_operators(tmp_path: Path) -> None:
    """With its name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/machine\.json cannot be written"):
        remember(known(), tmp_path / "file" / "machine.json")


def test_the_nearest_number_of_threads_below_counts() -> None:
    """Three threads are at least as fast as one, and no more is known."""
    assert [known().at(threads).threads for threads in (1, 3, 4, 64)] == [1, 1, 4, 4]


def test_numbers_without_a_unit_are_computed_as_f32() -> None:
    """And the ceiling says so."""
    assert FOUR.ceiling("bf16") == Ceiling(
        read_bytes_per_s=33_000_000_000, operations_per_s=455_000_000_000, unit="bf16"
    )
    assert ONE.ceiling("bf16") == Ceiling(read_bytes_per_s=25_500_000_000, operations_per_s=115_000_000_000, unit="f32")
    assert ONE.ceiling("int8").unit == "int8"


def test_threads_that_are_measured() -> None:
    """Doubling, and all of them."""
    assert [limits._thread_counts(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_a_measured_machine_can_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure of every number of threads, from a measurement that is too short to be exact. Without native
    kernels nothing is measured: numpy's speed says nothing about the machine."""
    monkeypatch.setattr(limits, "_read_bytes", lambda: 8 << 20)
    if LEVEL == "reference":
        monkeypatch.setattr(kernels, "levels", lambda: ("reference",))
        with pytest.raises(ConfigError, match="can only be measured by the native kernels"):
            measure()
        return
    said: list[str] = []
    found = measure(said.append, seconds=0.001)
    assert found.stale_reason() is None
    assert len(said) == len(found.rates) >= 1
    for rates in found.rates:
        assert rates.read_gb_per_s > 0.1
        assert rates.f32_gop_per_s > 0.1
        for rate in (rates.int8_gop_per_s, rates.bf16_gop_per_s):
            assert rate is None or rate > 0.1


def test_every_level_measures_what_it_has() -> None:
    """Units come with levels; nonsense is refused."""
    wanted = {"portable": {"f32"}, "avx2": {"int8", "f32"}, "avx512": {"int8", "f32"}}
    for level in (name.removeprefix("native:") for name in kernels.levels() if name.startswith("native:")):
        if level == "reference":  # of the fixture
            continue
        from taximeter import _native  # noqa: PLC0415 - absent where it was not built

        assert _native.read_gb_per_s(level, 2, 1 << 20, 0.001) > 0
        units = {unit for unit in ("int8", "bf16", "f32") if _native.gop_per_s(level, unit, 1, 0.001) is not None}
        assert units == wanted.get(level, {"int8", "bf16", "f32"})
        for unknown, unit, threads in (("no level", "f32", 1), (level, "f64", 1), (level, "f32", 0)):
            with pytest.raises(ValueError, match=r"no (level|unit|machine)"):
                _native.gop_per_s(unknown, unit, threads, 0.001)
