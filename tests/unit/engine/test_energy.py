"""Energy counters: all packages, round their wrap, and a reason where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from taximeter.engine.energy import EnergyMeter


def package(root: Path, name: str, uj: int, range_uj: int = 1000) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    return folder / "energy_uj"


def test_packages_are_summed_and_their_parts_are_not(tmp_path: Path) -> None:
    """What is inside a package (its cores, its memory) is in the package's figure already."""
    first, second = package(tmp_path, "intel-rapl:0", 100), package(tmp_path, "intel-rapl:1", 700)
    part = package(tmp_path, "intel-rapl:0:0", 50)
    meter = EnergyMeter(tmp_path)
    assert meter.unknown_reason is None
    assert meter.read_uj() == 0
    first.write_text("130\n")
    second.write_text("705\n")
    part.write_text("900\n")
    assert meter.read_uj() == 35
    assert meter.read_uj() == 35


def test_a_counter_that_wraps_round_goes_on(tmp_path: Path) -> None:
    """From 900 of 1,000 to 50 are 150."""
    counter = package(tmp_path, "intel-rapl:0", 900)
    meter = EnergyMeter(tmp_path)
    counter.write_text("50\n")
    assert meter.read_uj() == 150


def test_no_counter_is_a_reason(tmp_path: Path) -> None:
    """On most virtual machines."""
    for root in (tmp_path, tmp_path / "missing"):
        meter = EnergyMeter(root)
        assert meter.read_uj() is None
        assert meter.unknown_reason == "the system has no energy counter (RAPL)"


def test_a_counter_for_root_only_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is on most machines since 2020."""
    package(tmp_path, "intel-rapl:0", 1)

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr("os.open", refuse)
    assert EnergyMeter(tmp_path).unknown_reason == "only root may read the energy counter"


def test_a_damaged_counter_is_a_reason(tmp_path: Path) -> None:
    """At the beginning, and when it breaks later; it stays unknown then."""
    package(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "max_energy_range_uj").write_text("much")
    assert str(EnergyMeter(tmp_path).unknown_reason).startswith("the energy counter cannot be read: ")
    counter = package(tmp_path, "intel-rapl:0", 1)
    meter = EnergyMeter(tmp_path)
    counter.write_text("x")
    assert meter.read_uj() is None
    counter.write_text("2")
    assert meter.read_uj() is None
    assert str(meter.unknown_reason).startswith("the energy counter cannot be read any more: ")
