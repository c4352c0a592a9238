"""A ledger to import into, and the shortest way to the lines of a log. For tests only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from taximeter.importers.booking import Books
from taximeter.importers.importing import Importer, plan
from taximeter.importers.summary import ImportSummary
from taximeter.ledger import Ledger
from taximeter.pricing.catalog import Catalog
from taximeter.records import Receipt, exact_sum

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

PRICES = """
[[price]]
model = "anthropic/opus-card"
input_fresh_per_million_usd = "5"
input_cache_write_5m_per_million_usd = "6.25"
input_cache_write_1h_per_million_usd = "10"
input_cache_read_per_million_usd = "0.50"
output_per_million_usd = "25"
web_searches_per_thousand_usd = "10"

[[price]]
model = "anthropic/opus-card"
tier = "batch"
times_standard = "0.5"
basis = "assumed"

[[price]]
model = "openai/g5-card"
input_fresh_per_million_usd = "1.25"
input_cache_read_per_million_usd = "0.125"
output_per_million_usd = "10"

[[price]]
model = "openai/g5-card"
tier = "batch"
times_standard = "0.5"
basis = "assumed"

[[price]]
model = "openai/g5-card"
tier = "priority"
times_standard = "2"
basis = "assumed"
"""
"""Frozen prices under the providers' own names, where importers look for them."""


@dataclass(slots=True)
class Desk:
    """A ledger, and imports into it."""

    ledger: Ledger
    folder: Path
    catalog: Catalog

    def run(
        self,
        *paths: Path,
        source: str | None = None,
        dry_run: bool = False,
        processes: int = 0,
        columns: Path | None = None,
    ) -> ImportSummary:
        """One import of `paths`, or of all that is in the folder of logs."""
        made = plan(self.ledger, paths or [self.logs], source, environ={}, home=self.folder / "nobody", columns=columns)
        importer = Importer(self.ledger, lambda: Books(self.catalog), now=NOW, dry_run=dry_run, processes=processes)
        return importer.run(made)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def write(self, name: str, *lines: Mapping[str, Any] | str | bytes) -> Path:
        """A log of these lines."""
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(lines))
        return path

    def append(self, path: Path, *lines: Mapping[str, Any] | str | bytes) -> None:
        """More lines of a log."""
        with path.open("ab") as file:
            file.write(content(lines))

    def receipts(self) -> list[Receipt]:
        """All that count, the oldest first."""
        return sorted(self.ledger.receipts(limit=100_000), key=lambda each: (each.request.received_at, each.id))

    def total(self) -> Decimal:
        """What they cost."""
        return exact_sum(each.cost.total for each in self.receipts() if each.cost is not None)

    def tokens(self) -> int:
        """All tokens on them."""
        return sum(total_tokens(each) for each in self.receipts())


def total_tokens(receipt: Receipt) -> int:
    """All tokens of a receipt that has no unknown ones."""
    assert receipt.usage is not None
    assert receipt.usage.total_tokens is not None
    return receipt.usage.total_tokens


def content(lines: Iterable[Mapping[str, Any] | str | bytes]) -> bytes:
    """Lines as the bytes of a file. Bytes are taken as they are, without a line's end."""
    parts: list[bytes] = []
    for line in lines:
        if isinstance(line, bytes):
            parts.append(line)
        else:
            text = line if isinstance(line, str) else json.dumps(line, separators=(",", ":"))
            parts.append(text.encode() + b"\n")
    return b"".join(parts)


@contextmanager
def desk(folder: Path | None = None) -> Iterator[Desk]:
    """An empty ledger, and an empty folder for logs."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) if folder is None else folder
        (place / "logs").mkdir(parents=True, exist_ok=True)
        prices = place / "prices.toml"
        prices.write_text(PRICES)
        with Ledger.open(f"sqlite:///{place / 'ledger.sqlite'}") as ledger:
            yield Desk(ledger, place, Catalog.load(prices))


def transcript_line(
    message: str | None = "msg_1",
    *,
    fresh: int = 0,
    written: int | None = 0,
    read: int = 0,
    out: int = 0,
    request: str | None = "req_1",
    at: str = "2026-10-29T12:00:00.000Z",
    session: str = "session-a",
    model: str = "opus-card",
    usage: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A line of a transcript of Claude Code. `usage` is added to the usage object."""
    counted = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": out,
        "service_tier": "standard",
    }
    line = {
        "parentUuid": None,
        "isSidechain": False,
        "cwd": "/home/dev/shop",
        "sessionId": session,
        "gitBranch": "main",
        "type": "assistant",
        "message": {
            "id": message,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": "…"}],
            "usage": counted | dict(usage or {}),
        },
        "requestId": request,
        "uuid": "u",
        "timestamp": at,
    }
    if request is None:
        del line["requestId"]
    return line | more
