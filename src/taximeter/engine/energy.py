"""What the processor has used, where Linux tells (RAPL).

Owns: reading the counters, and their wrapping round. Refuses to know: who used it. A package's counter has everything
that runs on it, other programs included, and nothing of the rest of the machine.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's processors are under this name too


class EnergyMeter:
    """Sums all packages' counters from when it was made on. `unknown_reason` says why it cannot, None when it can."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._files: list[int] = []
        self._ranges: list[int] = []
        self._last: list[int] = []
        self._total_uj = 0
        self.unknown_reason = self._open(root)

    def read_uj(self) -> int | None:
        """Microjoules since this was made, which only grows; None where it is not known. To be called more often than
        a counter wraps round, which takes minutes under full load."""
        if self.unknown_reason is not None:
            return None
        try:
            now = [_number(os.pread(file, 32, 0)) for file in self._files]
        except (OSError, ValueError) as error:
            self.unknown_reason = f"the energy counter cannot be read any more: {error}"
            return None
        for value, before, size in zip(now, self._last, self._ranges, strict=True):
            self._total_uj += value - before if value >= before else value - before + size
        self._last = now
        return self._total_uj

    def close(self) -> None:
        """Let go of the counters."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)
        self.unknown_reason = self.unknown_reason or "the energy counter is closed"

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    def _open(self, root: Path) -> str | None:
        """Why there is nothing to read, None when there is."""
        try:
            packages = sorted(path for path in root.iterdir() if _PACKAGE.fullmatch(path.name))
        except OSError:
            packages = []
        if not packages:
            return "the system has no energy counter (RAPL)"
        try:
            for package in packages:
                self._files.append(os.open(package / "energy_uj", os.O_RDONLY))
                self._ranges.append(_number((package / "max_energy_range_uj").read_bytes()))
            self._last = [_number(os.pread(file, 32, 0)) for file in self._files]
        except PermissionError:
            return "only root may read the energy counter"
        except (OSError, ValueError) as error:
            return f"the energy counter cannot be read: {error}"
        return None


def _number(text: bytes) -> int:
    return int(text)
