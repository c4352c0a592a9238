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
- memory does not grow over the second half, and no task, thread or open file is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import resource
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from taximeter.clock import SYSTEM_CLOCK
from taximeter.engine.backend import EmbeddedBackend
from taximeter.errors import InvariantBroken
from taximeter.ledger import Ledger
from taximeter.records import Outcome, Receipt
from taximeter.serve import House, serve
from taximeter.settings import Settings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATIENCE_S = 300.0  # the longest that any answer may take here
SAMPLE_EVERY_S = 0.5
MOST_GROWTH_MB = 6.0  # what memory may grow by in the second half, by its trend: the ledger's cache, some more threads
TEXT = """
    the a one old new small river meter clock price engine street morning taxi token answers counts carries keeps
    writes turns under over beside before slowly never always bright cold seven twelve because while and but
"""
WORDS = TEXT.split()


@dataclass
class Tally:
    """What the clients saw. `finished` has the receipt of every answer that was read to its end, `refused` that of
    every error, `left` the labels of the requests whose client hung up."""

    asked: int = 0
    finished: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    answers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    repeats: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `key` names a greedy one whose answer has to be the same each time; `status` is what must come;
    `leaves_after` so many pieces of the answer, or seconds, the client hangs up."""

    kind: str
    path: str
    body: bytes
    key: str | None = None
    status: int = 200
    leaves_after_pieces: int | None = None
    leaves_after_s: float | None = None


def text_of(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


class Mixture:
    """What is asked: the same for the same seed, client by client."""

    def __init__(self, model: str, seed: int, kv_tokens: int) -> None:
        fixed = random.Random(seed)  # noqa: S311 - prompts to measure with
        self._model = model
        self._prefixes = [text_of(fixed, words) for words in (60, 150, 300, 450, 600, 900)]
        self._too_long = text_of(fixed, kv_tokens)

    def ask(self, chance: random.Random) -> Ask:
        """The next one."""
        kind = chance.choices(("greedy", "sampled", "chat", "hangup", "bad"), (25, 20, 25, 20, 10))[0]
        match kind:
            case "greedy":
                prefix, tail = chance.randrange(len(self._prefixes)), chance.randrange(4)
                tokens = (4, 24, 80)[tail % 3]
                prompt = f"{self._prefixes[prefix]} {WORDS[tail]}"
                return self._completion(
                    kind, chance, prompt, key=f"{prefix}/{tail}", max_tokens=tokens, temperature=0, ignore_eos=True
                )
            case "sampled":
                prompt = text_of(chance, chance.choice((3, 30, 120, 500)))
                return self._completion(
                    kind, chance, prompt, n=chance.choice((1, 1, 2)), max_tokens=chance.randint(1, 60), temperature=1
                )
            case "chat":
                return self._chat(chance, kind)
            case "hangup":
                ask = self._chat(chance, kind, stream=True, max_tokens=400)
                if chance.random() < 0.5:
                    return dataclasses.replace(ask, leaves_after_pieces=chance.randint(1, 20))
                return dataclasses.replace(ask, leaves_after_s=chance.choice((0.0, 0.05, 0.5, 3.0)))
            case _:
                return self._bad(chance)

    def _completion(
        self, kind: str, chance: random.Random, prompt: str, *, key: str | None = None, **fields: object
    ) -> Ask:
        body = {"model": self._model, "prompt": prompt, "stream": chance.random() < 0.5, **fields}
        return Ask(kind=kind, path=COMPLETIONS, body=json.dumps(body).encode(), key=key)

    def _chat(self, chance: random.Random, kind: str, **fields: object) -> Ask:
        turns = [{"role": "system", "content": self._prefixes[chance.randrange(4)]}]
        for _ in range(chance.randint(0, 2)):
            turns.append({"role": "user", "content": text_of(chance, chance.randint(1, 60))})
            turns.append({"role": "assistant", "content": text_of(chance, chance.randint(1, 60))})
        turns.append({"role": "user", "content": text_of(chance, chance.randint(1, 60))})
        body = {"model": self._model, "messages": turns, "max_tokens": chance.randint(1, 80)}
        body |= {"stream": chance.random() < 0.7, "temperature": chance.choice((0, 0.7, 1.5)), **fields}
        return Ask(kind=kind, path=CHAT, body=json.dumps(body).encode())

    def _bad(self, chance: random.Random) -> Ask:
        status, body = chance.choice(
            (
                (404, {"model": "nobody", "prompt": "hello"}),
                (400, {"model": self._model, "prompt": self._too_long}),
                (400, {"model": self._model, "prompt": "hello", "temperature": -7}),
                (400, {"model": self._model, "prompt": ""}),
                (400, {"model": self._model, "prompt": "hello", "logit_bias": {"999999999": 1}}),
            )
        )
        return Ask(kind="bad", path=COMPLETIONS, body=json.dumps(body).encode(), status=status)


async def client(url: str, mixture: Mixture, tally: Tally, chance: random.Random, until_ns: int) -> None:
    """Ask one thing after the other. Any failure is written down, and the next thing asked."""
    while SYSTEM_CLOCK.monotonic_ns() < until_ns:
        ask = mixture.ask(chance)
        tally.asked += 1
        tally.kinds[ask.kind] += 1
        label = f"soak-{tally.asked}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                await put(url, ask, label, tally)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            tally.wrong.append(f"{label} ({ask.kind}): {type(error).__name__}: {error}")


async def put(url: str, ask: Ask, label: str, tally: Tally) -> None:
    """Put one request on the wire, by a connection of its own, and see how it ends."""
    async with connection(url, ask, label) as reader:
        if ask.leaves_after_s is not None:
            tally.left.append(label)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ask.leaves_after_s):
                    await reader.read()
            return
        status, headers = await read_head(reader)
        if status != ask.status:
            raise ValueError(f"status {status} instead of {ask.status}: {(await read_whole(reader, headers))[:300]}")
        if status != 200:
            await read_whole(reader, headers)
            tally.refused.append(headers["x-taximeter-receipt"])
            return
        if "event-stream" in headers["content-type"]:
            answer = ""
            pieces = 0
            async for data in events(reader):
                answer += "".join(said(choice) for choice in data.get("choices", ()))
                pieces += 1
                if pieces == ask.leaves_after_pieces:
                    tally.left.append(label)
                    return
        else:
            whole = json.loads(await read_whole(reader, headers))
            answer = "".join(said(choice) for choice in whole["choices"])
        tally.finished.append(headers["x-taximeter-receipt"])
        if ask.key is not None:
            known = tally.answers.setdefault(ask.key, set())
            tally.repeats += bool(known)
            known.add(answer)


@contextlib.asynccontextmanager
async def connection(url: str, ask: Ask, label: str) -> AsyncGenerator[asyncio.StreamReader]:
    """A connection with the request on its way; at the end it is closed, whatever is still to come."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST {ask.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"x-taximeter-task: {label}\r\ncontent-length: {len(ask.body)}\r\n\r\n"
    )
    writer.write(head.encode() + ask.body)
    try:
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}


async def read_whole(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    return await reader.readexactly(int(headers["content-length"]))


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The events of a chunked stream up to its [DONE]. Raises ValueError for an error in it, or one that just ends."""
    stream = b""
    while (size := int(await reader.readline(), 16)) > 0:
        stream += await reader.readexactly(size)
        await reader.readline()
        *whole, stream = stream.split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if b'"error"' in data[:20]:
                raise ValueError(f"the stream broke: {data[:300]}")
            yield json.loads(data)
    raise ValueError("the stream ended without [DONE]")


def said(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def memory_mb() -> float:
    """What is resident of this process, server and clients."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize() / 1e6


@dataclass
class Watch:
    """Looks at the server while it is busy: memory by time, and the audits."""

    backend: EmbeddedBackend
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    audits: int = 0
    fullest_blocks: int = 0
    broken: list[str] = field(default_factory=list[str])

    async def look(self) -> None:
        """For ever."""
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        while True:
            try:
                census = await self.backend.audit()
                self.fullest_blocks = max(self.fullest_blocks, census.used)
            except InvariantBroken as error:
                self.broken.append(str(error))
            self.audits += 1
            self.memory.append(((SYSTEM_CLOCK.monotonic_ns() - began_ns) / 60e9, memory_mb()))
            await asyncio.sleep(SAMPLE_EVERY_S)

    def growth_mb(self) -> float:
        """Over the second half, by the straight line that fits best."""
        half = self.memory[len(self.memory) // 2 :]
        minutes, megabytes = zip(*half, strict=True)
        return statistics.linear_regression(minutes, megabytes).slope * (minutes[-1] - minutes[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One promise: what was seen of it, and what is wrong with that, if anything."""

    promise: str
    seen: str
    wrong: str | None


def held() -> Counter[str]:
    """What a server can leave behind, now."""
    return Counter(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        files=len(list(Path("/proc/self/fd").iterdir())),
    )


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
        *judge_receipts(tally, receipts, house),
        judge_answers(tally),
        judge_memory_blocks(watch, at_rest.used),
        judge_bill(house, receipts),
        judge_leftovers(before, after),
        judge_growth(watch),
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


def judge_receipts(tally: Tally, receipts: list[Receipt], house: House) -> list[Verdict]:
    by_id = Counter(receipt.id for receipt in receipts)
    outcomes = {receipt.id: receipt.outcome for receipt in receipts}
    by_label = Counter(receipt.request.task for receipt in receipts)
    wrong = list(tally.wrong)
    for ids, outcome in ((tally.finished, Outcome.COMPLETED), (tally.refused, Outcome.REFUSED)):
        wrong += [f"{one}: {outcomes.get(one)} in the ledger, {outcome} for its client" for one in ids
                  if outcomes.get(one) is not outcome]  # fmt: skip
    # Whoever hangs up may do so before the request is read; then nothing was asked.
    wrong += [f"{label}: {by_label[label]} receipts" for label in tally.left if by_label[label] > 1]
    known = {*tally.finished, *tally.refused}
    left = set(tally.left)
    wrong += [f"{receipt.id}: nobody asked" for receipt in receipts
              if receipt.id not in known and receipt.request.task not in left]  # fmt: skip
    wrong += [f"{one}: {times} receipts" for one, times in by_id.items() if times > 1]
    failed = [receipt.error or "" for receipt in receipts if receipt.outcome is Outcome.FAILED]
    counts = house.ledger.counts()
    lost = counts.lost + counts.waiting + house.relay.receipts_lost
    seen = Counter(outcome.value for outcome in outcomes.values())
    return [
        Verdict(
            promise="every request has one receipt, with the outcome that its client saw",
            seen=", ".join(f"{count:,} {outcome}" for outcome, count in seen.most_common()),
            wrong=first_of(wrong),
        ),
        Verdict(
            promise="no request failed, no receipt was lost",
            seen=f"{len(failed)} failed, {lost} lost",
            wrong=first_of([*failed, *(["receipts are lost"] if lost else [])]),
        ),
    ]


def judge_answers(tally: Tally) -> Verdict:
    differing = [f"{key}: {len(answers)} answers" for key, answers in tally.answers.items() if len(answers) > 1]
    return Verdict(
        promise="a greedy answer is the same each time",
        seen=f"{tally.repeats:,} repeats of {len(tally.answers)} prompts",
        wrong=first_of(differing) or (None if tally.repeats else "nothing was asked twice"),
    )


def judge_memory_blocks(watch: Watch, used_at_rest: int) -> Verdict:
    wrong = [*watch.broken, *([f"{used_at_rest} blocks are still held"] if used_at_rest else [])]
    return Verdict(
        promise="the audit holds, and no block is held at the end",
        seen=f"{watch.audits:,} audits, at most {watch.fullest_blocks} blocks held",
        wrong=first_of(wrong),
    )


def judge_bill(house: House, receipts: list[Receipt]) -> Verdict:
    assert house.machine is not None  # noqa: S101 - a rate is always set here
    time = house.backend.machine_time()
    assert time is not None  # noqa: S101 - the embedded engine knows
    statement = house.machine.statement(time)
    on_receipts_ns = sum(receipt.work.compute_ns for receipt in receipts if receipt.work is not None)
    on_receipts = house.ledger.total_cost()
    wrong: list[str] = []
    if on_receipts_ns != time.busy_ns:
        wrong.append(f"{on_receipts_ns} ns on receipts, {time.busy_ns} ns busy")
    if on_receipts + statement.idle != statement.total or statement.in_flight_ns:
        wrong.append(f"{on_receipts} on receipts, {statement}")
    return Verdict(
        promise="receipts and idle time are the machine's whole bill",
        seen=f"{time.busy_ns / 1e9:,.3f} s on receipts + {(time.wall_ns - time.busy_ns) / 1e9:,.3f} s idle",
        wrong=first_of(wrong),
    )


def judge_leftovers(before: Counter[str], after: Counter[str]) -> Verdict:
    # Pools of threads grow up to their own limit; tasks and files have to be what they were.
    grown = [f"{after[name] - before[name]} {name} more" for name in ("tasks", "files") if after[name] > before[name]]
    return Verdict(
        promise="nothing is left behind",
        seen=", ".join(f"{after[name]} {name}" for name in after),
        wrong=first_of(grown),
    )


def judge_growth(watch: Watch) -> Verdict:
    growth_mb = watch.growth_mb()
    return Verdict(
        promise="memory is flat over the second half",
        seen=f"{growth_mb:+.2f} MB by its trend, {watch.memory[-1][1]:,.0f} MB at the end",
        wrong=f"more than {MOST_GROWTH_MB} MB" if growth_mb > MOST_GROWTH_MB else None,
    )


def first_of(wrong: list[str]) -> str | None:
    """What is wrong, in short."""
    return None if not wrong else f"{len(wrong):,}: " + "; ".join(wrong[:3])


def judge_next_opening(path: Path, receipts: float) -> Verdict:
    """After everything: the next process finds nothing to clear up."""
    with Ledger.open(str(path)) as ledger:
        found = Counter(receipt.outcome for receipt in ledger.receipts(limit=100_000))
    interrupted = found[Outcome.INTERRUPTED]
    return Verdict(
        promise="the next opening has nothing to clear up",
        seen=f"{found.total():,} receipts of {receipts:,} requests",
        wrong=f"{interrupted} interrupted" if interrupted else None,
    )


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
        verdicts.append(judge_next_opening(ledger, figures["requests"]))
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
