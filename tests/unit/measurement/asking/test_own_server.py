"""A server of our own, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from taximeter.errors import ConfigError
from taximeter.measurement.asking.own_server import own_server


def test_it_serves_and_is_gone_afterwards(taximeter_home: Path, smollm2_path: Path) -> None:
    del taximeter_home

    async def work() -> str:
        async with own_server(str(smollm2_path)) as url:
            models = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/v1/models").read()))
            assert len(models["data"]) == 1
            return url

    url = asyncio.run(work())
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/v1/models")


def test_it_ends_with_whoever_started_it(taximeter_home: Path, smollm2_path: Path) -> None:
    del taximeter_home
    urls: list[str] = []

    async def work() -> None:
        async with own_server(str(smollm2_path)) as url:
            urls.append(url)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{urls[0]}/v1/models")


def test_what_keeps_it_from_starting_is_told(taximeter_home: Path) -> None:
    del taximeter_home

    async def work() -> None:
        async with own_server("no-such-model"):
            pass

    with pytest.raises(ConfigError, match="no-such-model"):
        asyncio.run(work())
