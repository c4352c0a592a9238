"""Thousands of mixed requests, of which some are hung up on and some meet a fault, through a real process that is
killed three times: every request has one receipt or is in the lost count, and the sums are those of the upstream's own
books, to the digit.

`TAXIMETER_STORM_REQUESTS` makes it larger.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from taximeter.ledger import Ledger
from taximeter.records import Outcome, Receipt
from tests.gateway_harness import CHAT, MESSAGES
from tests.passing import BLOCK_START, BLOCK_STOP, CHAT_END, CHAT_TEXT, asking, asking_messages
from tests.upstream_harness import Asked, Do, ScriptedUpstream, Steps, streamed, whole
from tests.wire import MESSAGE_STOP, chat, chunk, message_delta, message_start, messages, sse, text_delta

REQUESTS = int(os.environ.get("TAXIMETER_STORM_REQUESTS", "1000"))
KILLS = 3
AT_ONCE = 24
NOT_ANSWERED = (Outcome.FAILED, Outcome.REFUSED)

FAULTS = ("closed", "reset", "busy", "refused", "says so", "short")


@dataclass
class Plan:
    """One request, and what is to become of it. Its tokens are its own, so that no two can be mistaken."""

    number: int
    speaks: str  # what the client speaks
    upstream: str  # and what the upstream does
    stream: bool
    fault: str | None
    hangs_up: bool
    # What happened.
    status: int | None = None
    saw_events: bool = False
    saw_end: bool = False
    is_whole: bool = False

    @property
    def tokens(self) -> tuple[int, int]:
        return 1_000 + self.number, 3 + self.number % 97

    @property
    def path(self) -> str:
        return CHAT if self.speaks == "openai" else MESSAGES

    def body(self) -> bytes:
        model = f"{self.upstream}-{self.number}"
        more = {"metadata": {"user_id": str(self.number)}} if self.speaks == "anthropic" else {}
        asks = asking if self.speaks == "openai" else asking_messages
        return json.dumps(asks(stream=self.stream, model=model, **more)).encode()


def a_plan(number: int, dice: random.Random) -> Plan:
    fate = dice.random()
    hangs_up = 0.05 <= fate < 0.10
    return Plan(
        number=number,
        speaks=dice.choice(["openai", "anthropic"]),
        upstream=dice.choice(["openai", "anthropic"]),
        stream=dice.random() < 0.6 or hangs_up,
        fault=dice.choice(FAULTS) if fate < 0.05 else None,
        hangs_up=hangs_up,
    )


@dataclass
class Books:
    """The upstream's own: which requests it answered to the end, by number, and with how many tokens."""

    plans: dict[int, Plan]
    answered: Counter[int] = field(default_factory=Counter)
    asked: set[int] = field(default_factory=set)

    def answer(self, asked: Asked) -> Steps:
        number = int(re.search(rb'"model": ?"[a-z]+-(\d+)"', asked.body)[1])
        plan = self.plans[number]
        self.asked.add(number)
        steps = self._steps(plan, asked)
        self.answered[number] += plan.fault is None and not plan.hangs_up
        return steps

    def _steps(self, plan: Plan, asked: Asked) -> Steps:
        prompt, completion = plan.tokens
        match plan.fault:
            case "closed":
                return [b"HTTP/1.1 2", Do.CLOSE]
            case "busy":
                return whole({"error": {"type": "overloaded_error", "message": "busy"}}, status=529)
            case "refused":
                return whole({"error": {"type": "invalid_request_error", "message": "no"}}, status=400)
        if asked.path == CHAT:
            usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
            events = [*CHAT_TEXT, sse(chunk(usage=usage)), CHAT_END]
            error = sse({"error": {"type": "server_error", "message": "broken"}})
            body = chat(usage)
        else:
            usage = {"input_tokens": prompt, "output_tokens": completion}
            events = [
                sse(message_start({"input_tokens": prompt, "output_tokens": 1})),
                sse(BLOCK_START),
                *[sse(text_delta(text)) for text in ("Hello", ", ", "world")],
                sse(BLOCK_STOP),
                sse(message_delta({"output_tokens": completion})),
                sse(MESSAGE_STOP),
            ]
            error = sse({"type": "error", "error": {"type": "overloaded_error", "message": "broken"}})
            body = messages(usage)
        is_stream = asked.json().get("stream") is True
        if plan.hangs_up:
            return streamed(*events[:3], Do.SILENCE)
        match plan.fault:
            case "reset":
                half = streamed(*events[:3], Do.RESET, ends=False)
                return half if is_stream else [whole(body)[0][:150], Do.RESET]
            case "short":
                return streamed(*events[:3]) if is_stream else [whole(body)[0][:-5], Do.CLOSE]
            case "says so":
                return streamed(*events[:3], error) if is_stream else whole({"error": {"message": "x"}}, status=500)
            case _:
                return streamed(*events) if is_stream else whole(body)


class Server:
    """The gateway as a process of its own, which is killed and started again."""

    def __init__(self) -> None:
        self.url = ("", 0)
        self.is_up = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "taximeter", "serve", "--port", "0"]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if found := re.search(rb"http://(127\.0\.0\.1):([0-9]+)", line):
                self.url = (found[1].decode(), int(found[2]))
                self.is_up.set()
                self._reading = asyncio.create_task(self._process.stdout.read())
                return
        raise AssertionError("the server did not start")

    async def stop(self, number: signal.Signals) -> None:
        assert self._process is not None
        self.is_up.clear()
        self._process.send_signal(number)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    try:
        yield server
    finally:
        if server.is_up.is_set():
            await server.stop(signal.SIGKILL)


async def ask(server: Server, plan: Plan) -> None:
    """Send it, and read what comes; hang up in the middle if that is its fate."""
    await server.is_up.wait()
    body = plan.body()
    lines = [
        f"POST {plan.path} HTTP/1.1",
        "host: localhost",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-taximeter-session: {plan.number}",
    ]
    try:
        reader, writer = await asyncio.open_connection(*server.url)
    except OSError:
        return  # it was never asked: the server had just been killed
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        answer = b""
        while piece := await reader.read(65_536):
            answer += piece
            plan.saw_events = plan.saw_events or b"text/event-stream" in answer
            if plan.hangs_up and b"Hello" in answer:
                return
        head, _, rest = answer.partition(b"\r\n\r\n")
        if head:
            plan.status = int(head.split(b" ")[1])
            length = re.search(rb"content-length: (\d+)", head)
            plan.saw_end = rest.endswith(b"0\r\n\r\n") if length is None else len(rest) == int(length[1])
            plan.is_whole = plan.saw_end and b'"error"' not in rest and plan.status == 200
    except OSError:
        return
    finally:
        writer.close()


async def storm(plans: list[Plan]) -> None:
    waiting = iter(plans)
    done = 0
    may_kill = asyncio.Event()

    async with serving() as server:

        async def client() -> None:
            nonlocal done
            for plan in waiting:
                await ask(server, plan)
                done += 1
                if done % (len(plans) // (KILLS + 1)) == 0 and done < len(plans) - AT_ONCE:
                    may_kill.set()

        async def killer() -> None:
            for _ in range(KILLS):
                await may_kill.wait()
                may_kill.clear()
                await server.stop(signal.SIGKILL)
                await server.start()

        killing = asyncio.create_task(killer())
        await asyncio.gather(*[client() for _ in range(AT_ONCE)])
        await asyncio.wait_for(killing, 60)
        await server.stop(signal.SIGTERM)


def test_a_storm_adds_up(taximeter_home: Path) -> None:
    """See the module."""
    dice = random.Random(4)
    plans = {number: a_plan(number, dice) for number in range(REQUESTS)}
    books = Books(plans)
    with ScriptedUpstream(books.answer).listening() as up:
        tables = [
            f'[upstreams.{name}]\nurl = "{up.url}"\nspeaks = "{name}"\nkey = "file:key"\nretries = 0\n'
            f'[[routes]]\nmodel = "{name}-*"\nupstreams = ["{name}"]\n'
            for name in ("openai", "anthropic")
        ]
        (taximeter_home / "key").write_text("sk-0123456789")
        (taximeter_home / "taximeter.toml").write_text("\n".join(tables))
        asyncio.run(storm(list(plans.values())))
    ledger = Ledger.open(f"sqlite:///{taximeter_home / 'ledger.sqlite'}")
    receipts: list[Receipt] = []
    while page := ledger.receipts(1000, receipts[-1].id if receipts else None):
        receipts += page
    lost = ledger.lost_before
    ledger.close()
    assert lost is not None
    check(plans, books, receipts, lost)


def check(plans: dict[int, Plan], books: Books, receipts: list[Receipt], lost: int) -> None:
    by_number: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        by_number.setdefault(int(receipt.request.session or "-1"), []).append(receipt)
    assert by_number.keys() <= plans.keys()
    assert max(len(each) for each in by_number.values()) == 1, "a request has two receipts"
    outcomes: Counter[Outcome] = Counter()
    charged = said = 0
    without: list[Plan] = []
    for number, plan in plans.items():
        if number not in by_number:
            without.append(plan)
            continue
        [receipt] = by_number[number]
        outcomes[receipt.outcome] += 1
        if plan.hangs_up:
            assert receipt.outcome in (Outcome.ABORTED, Outcome.INTERRUPTED), (plan, receipt)
        if plan.is_whole:
            assert receipt.outcome is Outcome.COMPLETED, (plan, receipt)
        if plan.fault is not None:
            assert receipt.outcome in (*NOT_ANSWERED, Outcome.INTERRUPTED, Outcome.ABORTED), (plan, receipt)
        if receipt.outcome is Outcome.COMPLETED:
            assert receipt.usage is not None
            assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == plan.tokens, (plan, receipt)
            assert books.answered[number] == 1
            charged += receipt.usage.total_tokens or 0
            said += sum(plan.tokens)
    assert charged == said
    # A server that is killed loses only streams that nobody has seen a byte of, and bodies that nobody has seen the
    # last byte of, refusals among them where a stream was asked for; and it knows how many those are. The others never
    # came to it: it was not there, or died before it had read them.
    assert not [plan for plan in without if plan.saw_events or plan.saw_end]
    never_came = [plan for plan in without if plan.number not in books.asked]
    assert len(without) - len(never_came) <= lost <= len(without)
    assert len(receipts) + lost + len(never_came) >= len(plans)
    assert outcomes[Outcome.COMPLETED] > 0.7 * len(plans)
    assert outcomes[Outcome.ABORTED] > 0
    assert sum(outcomes[each] for each in NOT_ANSWERED) > 0
