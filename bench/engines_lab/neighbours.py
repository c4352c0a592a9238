"""How much of the machine other programs used while something was measured.

Owns: the arithmetic of everybody's processor time less ours and that of children that ended. Refuses to know: what was
measured.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path


class Neighbours:
    """Watches from when it is made. Children count as ours once they have ended, so ask after that."""

    def __init__(self) -> None:
        self._start = _processor_s()

    def share(self) -> float | None:
        """Of all the processor time there was; None where the system does not tell."""
        now = _processor_s()
        if now is None or self._start is None:
            return None
        everybody, ours, there_was = (after - before for after, before in zip(now, self._start, strict=True))
        return max(0.0, everybody - ours) / there_was if there_was else None


def _processor_s() -> tuple[float, float, float] | None:
    """Everybody's so far, ours, and all there has been."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    ticks = [
        int(word) for word in line.split()[1:9]
    ]  # user, nice, system, idle, waiting, interrupts, soft ones, stolen
    per_s = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ours = sum(usage.ru_utime + usage.ru_stime for usage in used)
    return (sum(ticks) - idle) / per_s, ours, sum(ticks) / per_s
