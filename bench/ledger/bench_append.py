"""How fast receipts become durable: appends per second and their latency, by number of threads.

    python bench/ledger/bench_append.py [--receipts N] [--threads 1 8 64] [--folder PATH] [--synchronous FULL] [--json]

Each thread appends one receipt and waits until it is on disk, as a request does before its answer ends. The figure
depends on the disk: `--folder` says which. `bare sync` is the same disk's time for one small write and sync, the floor
under one thread's latency. `--synchronous NORMAL` shows what syncing at every commit costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

from taximeter.ledger import Ledger
from taximeter.records import (
    Basis,
    Cost,
    CostLine,
    Dialect,
    Outcome,
    PriceList,
    Rate,
    Receipt,
    Request,
    Timing,
    Usage,
    Work,
    new_id,
)


def a_receipt(at: datetime) -> Receipt:
    """A whole one: streamed, timed, priced by the token."""
    rates = tuple(
        Rate(unit=unit, amount=Decimal(dollars), per=1_000_000)
        for unit, dollars in (("input_fresh_tokens", 2), ("input_cache_read_tokens", "0.2"), ("output_text_tokens", 10))
    )
    quantities = (500, 2_500, 400)
    lines = tuple(
        CostLine(
            unit=rate.unit,
            quantity=quantity,
            rate=rate,
            amount=quantity * rate.amount / rate.per,
            basis=Basis.DERIVED,
        )
        for rate, quantity in zip(rates, quantities, strict=True)
    )
    price_list = PriceList(
        model="a/model", rates=rates, source="a catalog", valid_from=at, checked_on=date(2026, 10, 1)
    )
    return Receipt(
        id=new_id("rcpt", at),
        request=Request(
            id=new_id("req", at),
            received_at=at,
            received_ns=time.perf_counter_ns(),
            dialect=Dialect.OPENAI_CHAT,
            model="a/model",
            stream=True,
            prompt_fingerprint=("sha256:0123456789abcdef",) * 4,
            task="bench",
        ),
        closed_at=at,
        outcome=Outcome.COMPLETED,
        timing=Timing(
            prefill_ns=500_000_000, decode_ns=7_980_000_000, total_ns=8_480_000_000, first_token_ns=500_000_000
        ),
        usage=Usage(input_fresh_tokens=500, input_cache_read_tokens=2_500, output_text_tokens=400),
        work=Work(prefill_passes=1, decode_passes=399, computed_tokens=899, reused_tokens=2_500),
        cost=Cost(lines=lines, basis=Basis.DERIVED, price_list=price_list),
        served_by="embedded",
        finish_reasons=("stop",),
    )


def measure(folder: Path, *, threads: int, receipts: int, synchronous: str) -> dict[str, float]:
    """One run in a new ledger. Latencies in milliseconds."""
    waits_ns: list[list[int]] = [[] for _ in range(threads)]
    with Ledger.open(str(folder / "ledger.db")) as ledger:
        ledger._writer._connection.execute(f"PRAGMA synchronous = {synchronous}")  # noqa: SLF001 - no option of users
        share = [a_receipt(datetime.now(UTC)) for _ in range(receipts)]
        start = threading.Barrier(threads + 1)

        def work(number: int) -> None:
            start.wait()
            for receipt in share[number::threads]:
                begun_ns = time.perf_counter_ns()
                ledger.append(receipt).result()
                waits_ns[number].append(time.perf_counter_ns() - begun_ns)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        begun_ns = time.perf_counter_ns()
        for worker in workers:
            worker.join()
        took_s = (time.perf_counter_ns() - begun_ns) / 1e9
    percentiles = statistics.quantiles((wait / 1e6 for waits in waits_ns for wait in waits), n=100)
    return {
        "threads": threads,
        "receipts_per_s": round(receipts / took_s, 1),
        "p50_ms": round(percentiles[49], 3),
        "p99_ms": round(percentiles[98], 3),
        "bytes_per_receipt": round((folder / "ledger.db").stat().st_size / receipts),
    }


def bare_sync_ms(folder: Path, times: int = 200) -> float:
    """Median time to write 8 KiB and have it on disk."""
    waits_ns: list[int] = []
    with (folder / "bare").open("wb", buffering=0) as file:
        for _ in range(times):
            begun_ns = time.perf_counter_ns()
            file.write(bytes(8192))
            os.fdatasync(file.fileno())
            waits_ns.append(time.perf_counter_ns() - begun_ns)
    return round(statistics.median(waits_ns) / 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=int, default=8_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--folder", type=Path, help="where to make the ledgers (default: the temporary folder)")
    parser.add_argument("--synchronous", choices=["FULL", "NORMAL"], default="FULL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sync_ms = bare_sync_ms(Path(folder))
    runs: list[dict[str, float]] = []
    for threads in options.threads:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            runs.append(
                measure(Path(folder), threads=threads, receipts=options.receipts, synchronous=options.synchronous)
            )
    if options.json:
        json.dump({"synchronous": options.synchronous, "bare_sync_ms": sync_ms, "runs": runs}, sys.stdout, indent=2)
        return
    print(f"synchronous = {options.synchronous}, bare sync {sync_ms} ms, {options.receipts:,} receipts a run\n")
    print(f"{'threads':>8} {'receipts/s':>11} {'p50 ms':>8} {'p99 ms':>8} {'bytes each':>11}")
    for run in runs:
        print(
            f"{run['threads']:>8} {run['receipts_per_s']:>11,.0f} {run['p50_ms']:>8} {run['p99_ms']:>8}"
            f" {run['bytes_per_receipt']:>11,}"
        )


if __name__ == "__main__":
    main()
