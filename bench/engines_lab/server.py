"""One server process: started, timed to its first token, weighed, and ended.

Owns: the process and what its start costs. Refuses to know: which engine it is; what is asked of it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines_lab.door import Door, Void
from engines_lab.processes import end, proportional_mb

_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a server. `files` are what it will read: they are in the page cache before the clock starts."""

    command: Sequence[str]
    environment: Mapping[str, str]
    door: Door
    files: Sequence[Path]
    patience_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that has answered once."""

    door: Door
    start_s: float
    memory_mb: float


@contextlib.asynccontextmanager
async def running(launch: Launch, first_prompt: Sequence[int], log: Path) -> AsyncGenerator[Started]:
    """A server for the time of the block. What it prints goes to `log`. Raises Void when it does not come up."""
    for file in launch.files:
        _read_through(file)
    environment = {**os.environ, **launch.environment}
    with log.open("wb") as output:
        start_at = time.perf_counter()
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it is what is timed
            launch.command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            first_token_at = await _first_token_at(process, launch, first_prompt, start_at)
            memory_mb = proportional_mb(process.pid)
            yield Started(door=launch.door, start_s=first_token_at - start_at, memory_mb=memory_mb)
        finally:
            await end(process)


async def _first_token_at(
    process: subprocess.Popen[bytes], launch: Launch, prompt: Sequence[int], start_at: float
) -> float:
    """Knock until the first answer comes, and say when its first token did."""
    while True:
        if process.poll() is not None:
            raise Void(f"the server ended with {process.returncode} while it started")
        try:
            return (await launch.door.ask(prompt, 2)).first_token_at
        except Void as no_answer:  # not listening yet, or still loading
            if time.perf_counter() - start_at > launch.patience_s:
                raise Void(f"no first token within {launch.patience_s:.0f} s: {no_answer}") from no_answer
        await asyncio.sleep(_POLL_S)


def _read_through(path: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while stream.read(1 << 24):
                    pass
