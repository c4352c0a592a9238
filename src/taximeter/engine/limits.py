"""What this machine can do at most, measured once and remembered.

Owns: what is measured, the file it is kept in, and when that no longer holds. Refuses to know: what anybody's work came
to beside it (`records.Work` does), and where the file is.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.engine import kernels
from taximeter.engine.models import Arithmetic
from taximeter.errors import ConfigError
from taximeter.records import Ceiling, to_json

VERSION = 1
"""Of the measurement: figures of another one are not comparable, and are measured again."""

Report = Callable[[str], None]
"""Told what is being measured."""

_SECONDS = 0.5  # each figure; the best of some dozen rounds
_LEAST_READ_BYTES = 256 << 20
_CACHES = 2  # what is read is at least this many times as large as the last cache
_CACHE_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What so many threads reach together, in 10⁹ a second. A unit that the processor lacks has None: its numbers are
    computed as f32."""

    threads: int
    read_gb_per_s: float
    int8_gop_per_s: float | None
    bf16_gop_per_s: float | None
    f32_gop_per_s: float

    def ceiling(self, unit: Arithmetic) -> Ceiling:
        """The limits for work in `unit` numbers, or in f32 where there is no such unit."""
        rate = {"int8": self.int8_gop_per_s, "bf16": self.bf16_gop_per_s, "f32": self.f32_gop_per_s}[unit]
        return Ceiling(
            read_bytes_per_s=round(self.read_gb_per_s * 1e9),
            operations_per_s=round((self.f32_gop_per_s if rate is None else rate) * 1e9),
            unit="f32" if rate is None else unit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """One machine's limits, `rates` by ascending threads from 1 on. `level` is the native level that measured."""

    version: int
    cpu: str
    level: str
    measured_at: datetime
    read_bytes: int
    rates: tuple[Rates, ...]

    def __post_init__(self) -> None:
        if not self.rates or self.rates[0].threads != 1:
            raise ValueError("there is nothing for one thread")

    def at(self, threads: int) -> Rates:
        """The figures for `threads`, or for the nearest number below that was measured."""
        return [rates for rates in self.rates if rates.threads <= max(1, threads)][-1]

    def stale_reason(self) -> str | None:
        """Why this is not about the machine we are on, None when it is."""
        if self.version != VERSION:
            return "another version of Taximeter measured the machine"
        if self.cpu != processor_name():
            return f"another processor was measured: {self.cpu}"
        if f"native:{self.level}" != kernels.levels()[-1]:
            return f"another kernel level was measured: {self.level}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLimits:
    """Limits that hold here, or None and the reason."""

    limits: MachineLimits | None
    unknown_reason: str | None = None


NOT_TOLD = KnownLimits(limits=None, unknown_reason="the engine was not told the machine's limits")


def measure(
    report: Report = lambda _: None, *, seconds: float = _SECONDS, clock: Clock = SYSTEM_CLOCK
) -> MachineLimits:
    """Measure this machine, a few seconds for each number of threads. Raises ConfigError without native kernels."""
    level = kernels.levels()[-1]
    if not level.startswith("native:"):
        raise ConfigError(
            "the machine can only be measured by the native kernels, which are not here", hint=kernels.reason()
        )
    read_bytes = _read_bytes()
    rates: list[Rates] = []
    for threads in _thread_counts(kernels.threads()):
        report(f"measuring {threads} thread{'' if threads == 1 else 's'}")
        rates.append(_measure_threads(level.removeprefix("native:"), threads, read_bytes, seconds))
    return MachineLimits(
        version=VERSION,
        cpu=processor_name(),
        level=level.removeprefix("native:"),
        measured_at=clock.utc_now(),
        read_bytes=read_bytes,
        rates=tuple(rates),
    )


def _measure_threads(level: str, threads: int, read_bytes: int, seconds: float) -> Rates:
    from taximeter import _native  # noqa: PLC0415 - absent where it was not built

    int8, bf16, f32 = (_native.gop_per_s(level, unit, threads, seconds) for unit in ("int8", "bf16", "f32"))
    assert f32 is not None  # noqa: S101 - every level has float32
    return Rates(
        threads=threads,
        read_gb_per_s=_native.read_gb_per_s(level, threads, read_bytes, seconds),
        int8_gop_per_s=int8,
        bf16_gop_per_s=bf16,
        f32_gop_per_s=f32,
    )


def remembered(path: Path) -> KnownLimits:
    """What `remember` wrote, if it still holds. A file that is missing or damaged is a reason, not an error."""
    try:
        limits = msgspec.convert(json.loads(path.read_text("utf-8")), MachineLimits)
    except FileNotFoundError:
        return KnownLimits(limits=None, unknown_reason="the machine's limits have not been measured: taximeter machine")
    except (OSError, ValueError, msgspec.ValidationError) as error:
        return KnownLimits(limits=None, unknown_reason=f"the machine's limits cannot be read: {error}")
    stale = limits.stale_reason()
    if stale is not None:
        return KnownLimits(limits=None, unknown_reason=f"{stale}; run taximeter machine")
    return KnownLimits(limits=limits)


def remember(limits: MachineLimits, path: Path) -> None:
    """Write `limits` to `path`, whole or not at all. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(to_json(limits), file, indent=2)
        Path(file.name).replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def processor_name() -> str:
    """What the processor calls itself."""
    try:
        for line in _CPU_FILE.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def _read_bytes() -> int:
    """How much to read: more than the last cache holds, and not more than a quarter of the memory."""
    try:
        text = _CACHE_FILE.read_text("ascii").strip()
        cache = int(text.removesuffix("K")) << 10 if text.endswith("K") else int(text)
    except (OSError, ValueError):
        cache = 0
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 4 * _LEAST_READ_BYTES
    return min(max(_LEAST_READ_BYTES, _CACHES * cache), memory // 4)
