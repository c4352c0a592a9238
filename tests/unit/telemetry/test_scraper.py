"""Engines' pages are read as long as the server runs, and may fail as they like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from taximeter.telemetry.scraper import Scraper
from tests.fakes import WAIT_S

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"


class Page:
    """Answers `body` with `status`."""

    def __init__(self) -> None:
        self.status, self.body, self.reads = 200, PAGE, 0
        self.was_read_often = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.reads += 1
        if self.reads == 3:
            self.was_read_often.set()
        head = f"HTTP/1.1 {self.status} x\r\ncontent-length: {len(self.body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + self.body)
        writer.close()


@asynccontextmanager
async def serving() -> AsyncGenerator[Page]:
    page = Page()
    server = await asyncio.start_server(page.serve, "127.0.0.1", 0)
    page.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    async with server:
        yield page


async def test_a_page_is_read_again_and_again():
    """As long as the server runs; how often is counted."""
    async with serving() as page:
        scraper = Scraper({"farm": page.url}, every_s=0)
        scraper.start()
        async with asyncio.timeout(WAIT_S):
            await page.was_read_often.wait()
        await scraper.aclose()
        await scraper.aclose()
        assert scraper.watched["farm"].state.running == 3
        assert scraper.watched["farm"].results["ok"] >= 2


async def test_what_a_page_says_now_counts():
    """Before it was read nothing is known, and what it no longer says is not known either."""
    async with serving() as page:
        scraper = Scraper({"farm": page.url})
        watched = scraper.watched["farm"]
        assert watched.state.unknown_reasons["running"] == "its page was not read yet"
        await scraper.read()
        assert (watched.state.engine, watched.state.running, watched.state.queue) == ("vllm", 3, 2)
        page.body = b"vllm:num_requests_running 4\n"
        await scraper.read()
        assert (watched.state.running, watched.state.queue) == (4, None)
        assert watched.read_at is not None
        await scraper.aclose()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"", "status 404"),
        (302, b"", "status 302"),
        (200, b'vllm:num_requests_running{a="} x\n', "it is not in Prometheus' text format"),
        (200, b"x" * (8 * 1024 * 1024 + 1), "longer than 8388608 bytes"),
    ],
)
async def test_a_page_that_fails_is_counted_and_its_figures_are_not_known(
    status: int, body: bytes, why: str, caplog: pytest.LogCaptureFixture
):
    """What it said before is no figure of now. The log has it once, without the page."""
    caplog.set_level(logging.WARNING)
    async with serving() as page:
        scraper = Scraper({"farm": page.url})
        watched = scraper.watched["farm"]
        await scraper.read()
        page.status, page.body = status, body
        await scraper.read()
        await scraper.read()
        assert watched.results == {"ok": 1, "failed": 2}
        assert (watched.state.engine, watched.state.running) == ("vllm", None)
        assert watched.state.unknown_reasons["running"] == f"its page cannot be read: {why}"
        page.status, page.body = 200, PAGE
        await scraper.read()
        assert watched.state.running == 3
        await scraper.aclose()
    assert [record.message for record in caplog.records] == [f"the page of farm cannot be read: {why}"]


async def test_nobody_there_harms_nobody():
    """A port on which nothing listens, beside one on which something does."""
    async with serving() as page:
        scraper = Scraper({"farm": page.url, "gone": "http://127.0.0.1:1/metrics"})
        await scraper.read()
        assert scraper.watched["farm"].state.running == 3
        assert "127.0.0.1" not in scraper.watched["gone"].state.unknown_reasons["running"]
        assert scraper.watched["gone"].results == {"failed": 1}
        await scraper.aclose()


async def test_without_pages_nothing_runs():
    """Not even a task."""
    scraper = Scraper({})
    scraper.start()
    assert len(asyncio.all_tasks()) == 1
    await scraper.aclose()
