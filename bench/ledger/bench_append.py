"""How fast receipts become durable: requests per second, the latency of a note and of a receipt, and what either takes
of a processor, by number of threads.

    python bench/ledger/bench_append.py [--receipts N] [--threads 1 8 64] [--folder PATH] [--url URL] [--json]

Each thread notes that a request began, then appends its receipt and waits until that is durable, as a request does
before its answer ends. The figure depends on the disk: `--folder` says which. `bare sync` is the same disk's time for
one small write and sync, the floor under one thread's latency. `--url` measures an empty Postgres instead of a file.
`making` is the part of the processor's time that goes into rows and documents, before any database sees them.
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
from taximeter.ledger.transactions import NewReceipt, NewRequest
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


def making_us(times: int = 2_000) -> tuple[float, float]:
    """What a note and a receipt take to be made, in microseconds of a processor."""
    receipt = a_receipt(datetime.now(UTC))
    taken: list[float] = []
    for make in (lambda: NewRequest.of(receipt.request, receipt.id, "writer"), lambda: NewReceipt.of(receipt)):
        make()
        begun_ns = time.process_time_ns()
        for _ in range(times):
            make()
        taken.append(round((time.process_time_ns() - begun_ns) / times / 1e3, 1))
    return taken[0], taken[1]


def measure(folder: Path, *, url: str | None, threads: int, receipts: int) -> dict[str, float]:
    """One run in a new ledger. Latencies in milliseconds."""
    notes_ns: list[list[int]] = [[] for _ in range(threads)]
    waits_ns: list[list[int]] = [[] for _ in range(threads)]
    with Ledger.open(url or str(folder / "ledger.db"), spool=folder) as ledger:
        share = [a_receipt(datetime.now(UTC)) for _ in range(receipts)]
        start = threading.Barrier(threads + 1)

        def work(number: int) -> None:
            start.wait()
            for receipt in share[number::threads]:
                begun_ns = time.perf_counter_ns()
                ledger.begin(receipt.request, receipt.id).result()
                noted_ns = time.perf_counter_ns()
                ledger.append(receipt).result()
                notes_ns[number].append(noted_ns - begun_ns)
                waits_ns[number].append(time.perf_counter_ns() - noted_ns)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        begun_ns, begun_cpu_s = time.perf_counter_ns(), time.process_time()
        for worker in workers:
            worker.join()
        took_s, cpu_s = (time.perf_counter_ns() - begun_ns) / 1e9, time.process_time() - begun_cpu_s
        counts = ledger.counts()
    if counts.written != receipts:
        raise SystemExit(f"not all was written, so nothing was measured: {counts}")
    note, receipt = (
        statistics.quantiles((wait / 1e6 for waits in all_ns for wait in waits), n=100)
        for all_ns in (notes_ns, waits_ns)
    )
    return {
        "threads": threads,
        "requests_per_s": round(receipts / took_s, 1),
        "note_p50_ms": round(note[49], 3),
        "note_p99_ms": round(note[98], 3),
        "receipt_p50_ms": round(receipt[49], 3),
        "receipt_p99_ms": round(receipt[98], 3),
        "cpu_us_per_request": round(cpu_s / receipts * 1e6, 1),
        "bytes_per_receipt": 0 if url else round((folder / "ledger.db").stat().st_size / receipts),
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
    parser.add_argument("--url", help="a database of Postgres instead of a file; it is not emptied")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sync_ms = bare_sync_ms(Path(folder))
    note_us, receipt_us = making_us()
    runs: list[dict[str, float]] = []
    for threads in options.threads:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            runs.append(measure(Path(folder), url=options.url, threads=threads, receipts=options.receipts))
    if options.json:
        making = {"note_us": note_us, "receipt_us": receipt_us}
        json.dump({"bare_sync_ms": sync_ms, "making": making, "runs": runs}, sys.stdout, indent=2)
        return
    print(f"bare sync {sync_ms} ms, {options.receipts:,} requests a run")
    print(f"making a note {note_us} µs, a receipt {receipt_us} µs\n")
    titles = ("threads", "requests/s", "note p50 ms", "p99", "receipt p50 ms", "p99", "CPU µs each", "bytes each")
    print("  ".join(titles))
    for run in runs:
        print("  ".join(f"{value:>{len(title)},}" for title, value in zip(titles, run.values(), strict=True)))


if __name__ == "__main__":
    main()
