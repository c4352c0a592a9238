"""Whether a server that is asked all day is as good in the evening: a day's mixture of requests in a few minutes.

    python bench/soak.py [--model NAME_OR_PATH] [--minutes N] [--clients N] [--kv-tokens N] [--seed N] [--json]

A real server on a free port, with a KV cache that is too small for its clients, so that requests queue and are thrown
out of memory again. They are chats and completions, short and long, streamed and whole, with prefixes in common, of
one choice or two; some clients hang up, some ask for what is not there. Prints a line for each promise and exits 1 if
one is broken:

- every request that was taken up has one receipt, with the outcome that its client saw;
- a greedy answer is the same each time, whoever kept it company and however often it lost its memory;
- the engine's audit holds, between steps and at the end, when nobody holds a block any more;
- receipts and idle time are the machine's whole bill, to the nanosecond and the picodollar;
- memory does not grow over the second half, and no task and no open file is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from soak_lab import verdicts as judged
from soak_lab.clients import Mixture, Tally, client
from soak_lab.verdicts import Verdict, Watch, held

from taximeter.clock import SYSTEM_CLOCK
from taximeter.engine.backend import EmbeddedBackend
from taximeter.serve import House, serve
from taximeter.settings import Settings


async def soak(house: House, options: argparse.Namespace) -> tuple[Tally, list[Verdict], dict[str, float]]:
    """Serve, ask, and judge what is at rest after it."""
    assert isinstance(house.backend, EmbeddedBackend)  # noqa: S101 - for the type
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    is_ready: asyncio.Future[str] = loop.create_future()
    serving = asyncio.create_task(
        serve(house, lambda url: loop.call_soon_threadsafe(is_ready.set_result, url), stop=stop)
    )
    url = await is_ready
    tally, watch = Tally(), Watch(house.backend)
    mixture = Mixture(house.backend.models()[0].id, options.seed, options.kv_tokens)

    async def ask_for(minutes: float, clients: int) -> None:
        until_ns = SYSTEM_CLOCK.monotonic_ns() + round(minutes * 60e9)
        chances = (random.Random(f"{options.seed}/{minutes}/{number}") for number in range(clients))  # noqa: S311
        await asyncio.gather(*(client(url, mixture, tally, chance, until_ns) for chance in chances))
        while house.relay.in_flight:  # noqa: ASYNC110 - what was left in the middle has its end still to come
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # and connections are closed from both sides

    await ask_for(0.05, 4)  # what is made when first needed: threads for long bodies, the ledger's reader
    house.ledger.receipts(limit=1)
    before = held()
    watching = asyncio.create_task(watch.look())
    await ask_for(options.minutes, options.clients)
    watching.cancel()
    await asyncio.wait([watching])
    after = held()
    at_rest = await house.backend.audit()
    time = house.backend.machine_time()
    receipts = await asyncio.to_thread(house.ledger.receipts, 100_000)
    verdicts = [
        *judged.judge_receipts(tally, receipts, house),
        judged.judge_answers(tally),
        judged.judge_memory_blocks(watch, at_rest.used),
        judged.judge_bill(house, receipts),
        judged.judge_leftovers(before, after),
        judged.judge_growth(watch),
    ]
    stop.set()
    await serving
    work = [receipt.work for receipt in receipts if receipt.work is not None]
    figures = {
        "minutes": round(watch.memory[-1][0], 2),
        "requests": tally.asked,
        "computed_tokens": sum(one.computed_tokens for one in work),
        "reused_tokens": sum(one.reused_tokens for one in work),
        "recomputed_tokens": sum(one.recomputed_tokens for one in work),
        "preemptions": sum(one.preemptions for one in work),
        "busy_share": round(time.busy_ns / time.wall_ns, 3),
        "memory_begin_mb": round(watch.memory[0][1], 1),
        "memory_end_mb": round(watch.memory[-1][1], 1),
    }
    return tally, verdicts, figures


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kv-tokens", type=int, default=2048, help="how small the KV cache is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.sqlite"
        settings = dataclasses.replace(
            Settings.load(host="127.0.0.1", port=0, machine_rate="0.50/h"),
            ledger_url=str(ledger),
            kv_cache_tokens=options.kv_tokens,
        )
        house = House.open(settings, [options.model])
        tally, verdicts, figures = asyncio.run(soak(house, options))
        verdicts.append(judged.judge_next_opening(ledger, figures["requests"]))
    if options.json:
        said = {"figures": figures, "kinds": tally.kinds, "verdicts": [dataclasses.asdict(one) for one in verdicts]}
        print(json.dumps(said, indent=2))
    else:
        show(tally, verdicts, figures)
    sys.exit(any(verdict.wrong for verdict in verdicts))


def show(tally: Tally, verdicts: list[Verdict], figures: dict[str, float]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no width
    table = Table(box=SIMPLE_HEAD)
    for heading in ("promise", "seen", "held"):
        table.add_column(heading)
    for verdict in verdicts:
        table.add_row(verdict.promise, verdict.seen, "yes" if verdict.wrong is None else f"NO: {verdict.wrong}")
    console.print(table)
    console.print("  " + ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items()))
    console.print("  asked: " + ", ".join(f"{count:,} {kind}" for kind, count in tally.kinds.most_common()))


if __name__ == "__main__":
    main()
