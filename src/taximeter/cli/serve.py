"""`taximeter serve`: the HTTP door, with a greeting, a line for each receipt, and a closing summary.

Owns: what the server prints. Refuses to know: how it serves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from taximeter.cli.console import (
    JsonFlag,
    KVFormatOption,
    MachineRateOption,
    PricedAsOption,
    ThreadsOption,
    WeightsOption,
    out,
    print_json,
    printable,
    waiting,
    without_password,
)
from taximeter.collecting import without_collecting
from taximeter.errors import UpstreamError
from taximeter.figures import duration_text, money_text, rate_text
from taximeter.records import ModelInfo, Receipt
from taximeter.settings import Settings

if TYPE_CHECKING:
    import http.client

    from rich.console import Console

    from taximeter.pricing import MachineStatement
    from taximeter.serve import House

_DEMO_QUESTION = "In one sentence: why is the sky blue?"
_DEMO_BEGINNING = "The sky is blue because"
_DEMO_TOKENS = 60
_DEMO_PATIENCE_S = 300.0
_BETWEEN_BATCHES_S = 0.05
MAX_UNPRINTED = 1000
"""How many receipts wait for a terminal that does not take them."""


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A known name, a path, or hf:owner/repo/file. May be given several times."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = None,
    machine_rate: MachineRateOption = None,
    priced_as: PricedAsOption = None,
    weights: WeightsOption = None,
    kv_format: KVFormatOption = None,
    threads: ThreadsOption = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="Ask callers for a key, which lies at env:NAME or file:PATH.", metavar="WHERE"),
    ] = None,
    allow_anyone: Annotated[
        bool | None, typer.Option("--allow-anyone", help="Let other machines in without a key.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Answer one built-in prompt first, and show its receipt.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Serve models over OpenAI's and Anthropic's HTTP APIs, with a receipt for each request.

    Those that taximeter.toml has routes for are served by its upstreams. Our own engine serves the others; where there
    are routes, it starts only if a model is named for it.
    """
    settings = Settings.load(
        host=host,
        port=port,
        machine_rate=machine_rate,
        priced_as=priced_as,
        weights=weights,
        kv_format=kv_format,
        threads=threads,
        api_key=api_key,
        allow_anyone=allow_anyone or None,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    with without_collecting(), waiting("loading") as say:
        if settings.route_tables and not model and "model" not in settings.origins:
            from taximeter import serve as server  # noqa: PLC0415

            house = server.House.of(settings, None)
        else:
            # The engine: time that --help and mistyped flags need not wait for.
            from taximeter.opening import begin_loading  # noqa: PLC0415

            with contextlib.closing(begin_loading(settings, model, say)) as loadings:
                # All the rest, while weights are being packed.
                from taximeter import serve as server  # noqa: PLC0415

                house = server.House.of(settings, loadings)
    printer = JsonLines(house) if as_json else Lines(house)
    ticker = Ticker(printer.receipt)
    house.relay.observers.append(ticker.add)

    def on_ready(url: str) -> None:
        printer.greet(url)
        ticker.start(skip=printer.demo(url) if demo else None)

    try:
        server.run(house, on_ready)
    finally:
        ticker.close()
    printer.sum_up(ticker)


class Ticker:
    """Receipts as they come, and their sums. A thread of its own prints them, so that a terminal that hangs holds up
    nobody's answer. What it leaves unread is counted and no longer printed: the ledger has all of it. The thread rests
    after each batch: to be woken for every receipt costs the event loop more than the printing."""

    def __init__(self, show: Callable[[Receipt], None]) -> None:
        self.receipts = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self._show = show
        self._skip: str | None = None
        self._closing = threading.Event()
        self._arrived: queue.SimpleQueue[Receipt | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._print, name="taximeter-ticker", daemon=True)

    def add(self, receipt: Receipt) -> None:
        """Count it, and print it once `start` was called. Never blocks."""
        self.receipts += 1
        if receipt.usage is not None:
            self.input_tokens += receipt.usage.input_tokens or 0
            self.output_tokens += receipt.usage.output_tokens or 0
        if self._arrived.qsize() < MAX_UNPRINTED:
            self._arrived.put(receipt)

    def start(self, *, skip: str | None) -> None:
        """Print from now on, but not the receipt `skip`, which has been shown."""
        self._skip = skip
        self._thread.start()

    def close(self) -> None:
        """Print what is left."""
        self._arrived.put(None)
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _print(self) -> None:
        has_reader = True
        while (receipt := self._arrived.get()) is not None:
            if receipt.id == self._skip or not has_reader:
                continue
            try:
                self._show(receipt)
                if self._arrived.empty():
                    sys.stdout.flush()
                    self._closing.wait(_BETWEEN_BATCHES_S)
            except OSError:  # nobody reads what we print; we serve on
                has_reader = False


class Lines:
    """What people see."""

    def __init__(self, house: House) -> None:
        self._house = house

    @cached_property
    def _console(self) -> Console:
        """Made when there is something to print: the server listens before that."""
        return out()

    @cached_property
    def _is_terminal(self) -> bool:
        """Asked once: each question to the system lets go of the interpreter, and taking it back holds up traffic."""
        return sys.stdout.isatty()

    def greet(self, url: str) -> None:
        from taximeter import __version__  # noqa: PLC0415  # reads the installation's metadata

        settings = self._house.settings
        show = self._show_plain_or_bold
        show(("Taximeter", "bold"), f" {__version__} listens on ", (url, "bold cyan"))
        show()
        models = self._house.backend.models()
        for model in models:
            kind = "chat" if model.chat else "completions only"
            context = model.context_length_tokens
            held = f"at {model.owned_by}" if context is None else f"{context:,} tokens of context"
            show(f"  model     {model.id}, {kind}, {held}")
        for route in self._house.network.routes:
            tried = ", then ".join(f"{upstream.name} ({upstream.url})" for upstream in route.upstreams)
            show(f"  route     {route.model} to {tried}")
        if self._house.kernels is not None:
            level, slow_because = self._house.kernels
            slow = "" if slow_because is None else f": the slow reference path is in use, because {slow_because}"
            show(f"  kernels   {level}{slow}")
            show(f"  machine   {_terms(settings)}")
        show(f"  receipts  {without_password(settings.ledger_url)}")
        show()
        if models:
            for line in _curl(url, models[0]).splitlines():
                show(f"  {line}")
            show()
        sys.stdout.flush()

    def _show_plain_or_bold(self, *parts: str | tuple[str, str]) -> None:
        """One line. What draws on terminals takes as long to import as a first token takes to come, and requests may be
        on their way already: a file or a pipe, which shows no bold, does without."""
        if self._is_terminal:
            from rich.text import Text  # noqa: PLC0415  # as in `console`

            self._console.print(Text.assemble(*parts), soft_wrap=True)
        else:
            sys.stdout.write("".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")

    def demo(self, url: str) -> str | None:
        """Ask through the door like any client; show the answer as it comes, and its receipt. Gives its id."""
        from taximeter.cli.receipt_view import ReceiptView  # noqa: PLC0415

        model = self._house.backend.models()[0]
        self._console.print(f"> {_DEMO_QUESTION if model.chat else _DEMO_BEGINNING}", style="bold")
        answer = ask_door(url, model)
        for text in answer.texts:
            sys.stdout.write(printable(text))
            sys.stdout.flush()
        receipt = self._house.ledger.receipt(answer.receipt_id)
        self._console.print()
        self._console.print()
        if receipt is not None:
            self._console.print(ReceiptView(receipt))
        self._console.print()
        self._console.print("Serving; a line for each receipt. Ctrl-C ends it.", style="dim")
        return answer.receipt_id

    def receipt(self, receipt: Receipt) -> None:
        from taximeter.cli.receipt_view import receipt_line, receipt_text  # noqa: PLC0415

        if self._is_terminal:
            self._console.print(receipt_line(receipt), soft_wrap=True)
        else:
            sys.stdout.write(receipt_text(receipt) + "\n")

    def sum_up(self, ticker: Ticker) -> None:
        requests = f"{ticker.receipts:,} request{'' if ticker.receipts == 1 else 's'}"
        said = f"{requests}, {ticker.input_tokens:,} tokens in, {ticker.output_tokens:,} out"
        own = _statement(self._house)
        for name, statement in (
            *([] if own is None else [("the machine", own)]),
            *_shared_statements(self._house).items(),
        ):
            said += (
                f"; {duration_text(statement.wall_ns)} of {name}: {money_text(statement.charged)} on receipts"
                f" + {money_text(statement.idle)} idle = {money_text(statement.total)}"
            )
        if lost := _receipts_lost(self._house):
            said += f"; {lost:,} receipt{'' if lost == 1 else 's'} LOST: not in the ledger"
        self._console.print()
        self._console.print(said, soft_wrap=True)


class JsonLines:
    """What programs read: one JSON document a line, told apart by `event`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def greet(self, url: str) -> None:
        models = self._house.backend.models()
        level, slow_because = self._house.kernels or (None, None)
        ready = {"event": "ready", "url": url, "models": models, "kernels": level, "slow_because": slow_because}
        print_json(ready, one_line=True)

    def demo(self, url: str) -> None:
        for _ in ask_door(url, self._house.backend.models()[0]).texts:
            pass

    def receipt(self, receipt: Receipt) -> None:
        print_json({"event": "receipt", "receipt": receipt}, one_line=True)

    def sum_up(self, ticker: Ticker) -> None:
        closed = {
            "event": "closed",
            "receipts": ticker.receipts,
            "receipts_lost": _receipts_lost(self._house),
            "input_tokens": ticker.input_tokens,
            "output_tokens": ticker.output_tokens,
            "machine": _statement(self._house),
            "machines": _shared_statements(self._house),
        }
        print_json(closed, one_line=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorAnswer:
    """An answer that comes through our own HTTP door. Read `texts` once, to the end."""

    receipt_id: str
    texts: Iterator[str]


def ask_door(url: str, model: ModelInfo) -> DoorAnswer:
    """Ask the built-in prompt over HTTP, as any client would. Raises UpstreamError when the door does not answer."""
    import http.client  # noqa: PLC0415  # brings mail and encryption along, a hundredth of a second

    address = urlsplit(url)
    # Not urllib: it would obey proxy settings, and this never leaves the machine.
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_DEMO_PATIENCE_S)
    path, body = _demo_call(model)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise UpstreamError(f"our own door did not answer: {error}") from error
    if response.status != HTTPStatus.OK:
        said = response.read(1000).decode("utf-8", "replace")
        raise UpstreamError(f"our own door answered {response.status}", status=response.status, body=said)
    receipt_id = response.headers["x-taximeter-receipt"]
    return DoorAnswer(receipt_id=receipt_id, texts=_texts(response, connection))


def _demo_call(model: ModelInfo) -> tuple[str, dict[str, object]]:
    common: dict[str, object] = {
        "model": model.id,
        "stream": True,
        "temperature": 0,
        "max_tokens": _DEMO_TOKENS,
    }
    if model.chat:
        return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": _DEMO_QUESTION}]}
    return "/v1/completions", {**common, "prompt": _DEMO_BEGINNING}


def _texts(response: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> Iterator[str]:
    with contextlib.closing(connection):
        for line in response:
            data = line.removeprefix(b"data: ").strip()
            if not line.startswith(b"data: ") or data == b"[DONE]":
                continue
            for choice in json.loads(data).get("choices", ()):
                yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def _curl(url: str, model: ModelInfo) -> str:
    """A call that can be pasted into a shell as it is."""
    if model.chat:
        path, body = "chat/completions", {"model": model.id, "messages": [{"role": "user", "content": "Hello!"}]}
    else:
        path, body = "completions", {"model": model.id, "prompt": "Once upon a time", "max_tokens": 40}
    data = shlex.quote(json.dumps(body))
    return f"curl {url}/v1/{path} \\\n  -H 'content-type: application/json' \\\n  -d {data}"


def _terms(settings: Settings) -> str:
    rate = settings.machine_rate
    if rate is None:
        said = "no rate is set, so receipts have no cost (--machine-rate 0.50/h)"
    else:
        said = f"{rate_text(rate.amount_per_hour)}/h, {rate.basis}"
    return said if settings.priced_as is None else f"{said}; compared with {settings.priced_as}"


def _receipts_lost(house: House) -> int:
    """How many receipts of this run the ledger does not have, wherever they were lost."""
    return house.ledger.counts().lost + house.relay.receipts_lost


def _statement(house: House) -> MachineStatement | None:
    time = house.backend.machine_time()
    return None if house.machine is None or time is None else house.machine.statement(time)


def _shared_statements(house: House) -> Mapping[str, MachineStatement]:
    """Of the machines behind upstreams."""
    machines = house.relay.machines
    return {} if machines is None else machines.statements(house.relay.clock.monotonic_ns())
