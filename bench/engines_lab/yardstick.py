"""What this machine can do at most, taken beside each engine's turn.

Owns: building and running yardstick.c. Refuses to know: what the figures are compared with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("yardstick.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of this minute, in units of 1e9 a second. None: this CPU has no such unit."""

    read_gb_per_s: float
    read_weights_gb_per_s: float
    """Reading as many bytes as the model's weights again and again: a large last cache makes it the faster one."""
    int8_vnni_gop_per_s: float | None
    int8_amx_gop_per_s: float | None
    bf16_dot_gflop_per_s: float | None
    bf16_amx_gflop_per_s: float | None

    @property
    def int8_gop_per_s(self) -> float | None:
        return max(filter(None, (self.int8_vnni_gop_per_s, self.int8_amx_gop_per_s)), default=None)

    @property
    def bf16_gflop_per_s(self) -> float | None:
        return max(filter(None, (self.bf16_dot_gflop_per_s, self.bf16_amx_gflop_per_s)), default=None)


class Yardstick:
    """The measuring program, built once into `folder`. Without a C compiler there is none, and limits are unknown."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._program = folder / "yardstick"
        self._threads = threads
        compiler = os.environ.get("CC") or shutil.which("cc")
        self.missing = None if compiler else "no C compiler was found, so the machine's limits are unknown"
        if compiler:
            command = [compiler, "-O3", "-pthread", str(_SOURCE), "-o", str(self._program)]
            subprocess.run(command, check=True)  # noqa: S603 - the operator's compiler

    def measure(self, weights_bytes: int) -> Machine | None:
        """Takes about three seconds."""
        if self.missing:
            return None
        working_set_mb = min(max(weights_bytes >> 20, 1), 1024)
        command = [self._program, str(self._threads), str(working_set_mb)]
        told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - just built
        return Machine(**json.loads(told.stdout))
