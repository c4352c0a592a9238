"""A server of our own, for whoever names a model instead of an address: measured from outside, like all others.

Owns: the child process, from its start to its end. Refuses to know: what it is asked. It writes its receipts into the
same ledger, since it has the same environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from taximeter.errors import ConfigError

_START_PATIENCE_S: Final = 600.0  # a large model is read from disk first
_END_PATIENCE_S: Final = 20.0
_MOST_COMPLAINT_BYTES: Final = 4_000


@asynccontextmanager
async def own_server(model: str, flags: Sequence[str] = ()) -> AsyncGenerator[str]:
    """Serve `model` on a free port of this machine with `taximeter serve`, and give the server's address.

    `flags` are more of that command's. Raises ConfigError with the server's own words when it does not come up. While
    it is there, SIGTERM is taken as Ctrl-C is: whoever ends this process ends the server with it.
    """
    with _obeying_sigterm():
        async with _child(model, flags) as url:
            yield url


@contextlib.contextmanager
def _obeying_sigterm() -> Generator[None]:
    """Turns SIGTERM into a cancellation of this task, and what comes of that, if anything does, into Ctrl-C's."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine is run by one
    was_told = False

    def obey() -> None:
        nonlocal was_told
        was_told = True
        task.cancel()

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, and other threads
            loop.add_signal_handler(signal.SIGTERM, obey)
            stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        try:
            yield
        except asyncio.CancelledError:
            if was_told:
                raise KeyboardInterrupt from None
            raise


@asynccontextmanager
async def _child(model: str, flags: Sequence[str]) -> AsyncGenerator[str]:
    command = (sys.executable, "-m", "taximeter", "serve", "--json", "--port", "0", "--model", model, *flags)
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        url = await _address(child, model)
        reading = [asyncio.create_task(_drain(stream)) for stream in (child.stdout, child.stderr)]
        try:
            yield url
        finally:
            for task in reading:
                task.cancel()
    finally:
        await _end(child)


async def _address(child: asyncio.subprocess.Process, model: str) -> str:
    assert child.stdout is not None and child.stderr is not None  # noqa: S101, PT018 - both are pipes
    try:
        async with asyncio.timeout(_START_PATIENCE_S):
            async for line in child.stdout:
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if said.get("event") == "ready":
                        return str(said["url"])
    except TimeoutError:
        raise ConfigError(f"{model} was not loaded within {_START_PATIENCE_S:g} s") from None
    complaint = (await child.stderr.read(_MOST_COMPLAINT_BYTES)).decode("utf-8", "replace").strip()
    raise ConfigError(_said(complaint) or f"the server of {model} did not start")


def _said(complaint: str) -> str:
    """The message in what the server wrote to its stderr with `--json`, or its last line."""
    for line in reversed(complaint.splitlines()):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(line)["error"]
            return error["message"] + (f" ({error['hint']})" if error.get("hint") else "")
    return complaint.splitlines()[-1] if complaint else ""


async def _drain(stream: asyncio.StreamReader | None) -> None:
    """A pipe that nobody reads would stop the server."""
    while stream is not None and await stream.read(65_536):
        pass


async def _end(child: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_PATIENCE_S):
                await child.wait()
