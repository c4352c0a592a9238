"""Server processes seen from outside: their memory, their processor time, their end.

Owns: what the system says of a process and all its descendants. Refuses to know: what they are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from pathlib import Path

_STOP_PATIENCE_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER_TICKS_AT = 11  # of /proc/PID/stat, behind the name in parentheses
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """From now on, processes that a server leaves behind become children of this one, so that `end` can wait for them
    and what they used counts as ours. Nothing where the system has no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def end(process: subprocess.Popen[bytes]) -> None:
    """End a server that leads a session of its own, and then what it left: a child that lives on would compute beside
    the next one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, _STOP_PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    with contextlib.suppress(ChildProcessError):
        while True:  # those that it left, which are ours by now, or nobody's
            await asyncio.to_thread(os.waitpid, -process.pid, 0)


def proportional_mb(pid: int) -> float:
    """Memory of a process and its descendants; what they share with others counts in parts (PSS)."""
    kilobytes = 0
    for member in _tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


def processor_s(pid: int) -> float:
    """Processor time that a process and its living descendants have used, in seconds, to a hundredth."""
    ticks = 0
    for member in _tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[_USER_TICKS_AT]) + int(fields[_USER_TICKS_AT + 1])
    return ticks / _TICKS_PER_S


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def _tree(pid: int) -> list[int]:
    members = [pid]
    for member in members:  # grows while it is walked
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{member}/task").glob("*/children"):
                members += [int(child) for child in children.read_text().split()]
    return members
