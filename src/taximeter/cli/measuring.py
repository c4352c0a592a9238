"""What `sweep`, `load` and `compare` share: from the words of a command line to somebody who can be asked.

Owns: the order in which a bench is built and taken down: a server of our own where a model was named, the target, the
ledger, the prices. Refuses to know: what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from taximeter.cli.console import EXIT_INTERRUPTED, err
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.books import Books
from taximeter.measurement.asking.own_server import own_server
from taximeter.measurement.asking.spending import Purse
from taximeter.measurement.asking.target import Target, find_target, is_address, usual_key
from taximeter.pricing import Settler, SharedMachineTariff, Tariff
from taximeter.records import Dialect, MachineRate
from taximeter.settings import Settings
from taximeter.upstreams.client import Client
from taximeter.upstreams.secrets import Secret, read_secret

if TYPE_CHECKING:
    from taximeter.ledger import Ledger

_MOST_COUNTED: Final = 1_000
_APIS: Final = {
    "completions": Dialect.OPENAI_COMPLETIONS,
    "chat": Dialect.OPENAI_CHAT,
    "messages": Dialect.ANTHROPIC_MESSAGES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to get at one server, as the user said it: an address or a model's name, and the options above."""

    where: str
    model: str | None = None
    key: str | None = None
    api: str | None = None
    provider: str | None = None
    machine_rate: str | None = None
    name: str | None = None
    serve_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Somebody who can be asked. `tariff` is what the target charges, None where that is not known."""

    settings: Settings
    client: Client
    target: Target
    books: Books
    purse: Purse
    tariff: Tariff | None
    run: str

    def asker(self, *, began_ns: int | None = None, on_progress: Callable[[int], object] | None = None) -> Asker:
        """Who asks; its requests are on the books."""
        return self.target.asker(self.client, self.run, books=self.books, began_ns=began_ns, on_progress=on_progress)

    @property
    def why_no_price(self) -> str:
        """The reason where there is no tariff."""
        return "no price is known: say --provider NAME, or --machine-rate for a machine of your own"


@asynccontextmanager
async def bench(
    access: Access,
    ledger: Ledger,
    settings: Settings,
    *,
    run: str,
    purse: Purse | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> AsyncGenerator[Bench]:
    """Get at the server, or start one. At the end all receipts are durable; raises LedgerError where some are not."""
    purse = purse or Purse()
    dialect = _dialect(access.api)
    rate = _rate(access.machine_rate)
    async with contextlib.AsyncExitStack() as stack:
        address, own = access.where, not is_address(access.where)
        if own:
            say(f"starting a server for {access.where}")
            flags = (
                *access.serve_flags,
                *(() if access.machine_rate is None else ("--machine-rate", access.machine_rate)),
            )
            address = await stack.enter_async_context(own_server(access.where, flags))
        client = Client()
        stack.push_async_callback(client.aclose)
        say(f"looking at {address}")
        target = await find_target(
            client,
            address,
            model=access.model,
            dialect=dialect,
            key=_key(access, address),
            provider=access.provider,
            machine_rate=rate,
            name=access.name or (access.where if own else None),
        )
        tariff = _tariff(target, settings)
        books = Books(
            ledger,
            Settler(tariffs={} if tariff is None else {target.name: tariff}),
            server=target.name,
            machine=tariff if isinstance(tariff, SharedMachineTariff) else None,
            purse=purse,
            may_be_kept_there=target.is_taximeter,
        )
        try:
            yield Bench(
                settings=settings, client=client, target=target, books=books, purse=purse, tariff=tariff, run=run
            )
        finally:
            books.settle_up()


@contextlib.contextmanager
def nothing_counted_yet(ledger: Ledger, run: str) -> Generator[None]:
    """Ctrl-C before anything counts leaves here: it says that nothing was measured, and what was sent all the same.
    SIGTERM is a Ctrl-C meanwhile. Raises typer.Exit."""
    usual = signal.signal(signal.SIGTERM, _as_ctrl_c) if _is_main_thread() else None
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        sent = len(ledger.receipts_of("run", run, _MOST_COUNTED))
        many = f"{sent:,} or more" if sent == _MOST_COUNTED else f"{sent:,}"
        told = f"receipts of {many} requests that found out and warmed up: taximeter receipts --run {run}"
        says = f"interrupted before anything was measured; {told if sent else 'no request was sent'}"
        err().print(says, style="yellow", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if usual is not None:
            signal.signal(signal.SIGTERM, usual)


def _as_ctrl_c(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def _is_main_thread() -> bool:
    """Only that one may say what becomes of signals."""
    return threading.current_thread() is threading.main_thread()


def new_run(kind: str) -> str:
    """A name for a run, which its receipts carry."""
    return f"{kind}-{SYSTEM_CLOCK.utc_now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def parse_max_cost(text: str | None) -> Decimal | None:
    """Dollars as people write them. Raises RequestError for what is none."""
    if text is None:
        return None
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise RequestError(f"{text!r} is no amount of dollars", param="max-cost", hint="--max-cost 0.50")
    return amount


def count_range(text: str, param: str, *, most: int = 10_000_000) -> tuple[int, int]:
    """`64..4096`, or one number for both ends. Raises RequestError for what is none."""
    low, dots, high = text.partition("..")
    try:
        first, last = int(low), int(high if dots else low)
    except ValueError:
        first, last = 0, 0
    if not 1 <= first <= last <= most:
        raise RequestError(f"{text!r} is no range", param=param, hint=f"--{param} 64..4096, or one number")
    return first, last


def _dialect(api: str | None) -> Dialect | None:
    if api is None:
        return None
    if api not in _APIS:
        raise RequestError(f"there is no API {api!r} here", param="api", hint=", ".join(_APIS))
    return _APIS[api]


def _key(access: Access, address: str) -> Secret | None:
    where = access.key
    if where is None:
        usual = usual_key(address)
        if usual is None or not os.environ.get(usual.removeprefix("env:")):
            return None
        where = usual
    return read_secret(where, os.environ, base=Path.cwd())


def _rate(text: str | None) -> MachineRate | None:
    try:
        return None if text is None else MachineRate.parse(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is no rate: it is {error}", param="machine-rate") from error


def _tariff(target: Target, settings: Settings) -> Tariff | None:
    upstream = target.upstream
    if upstream.machine_rate is not None:
        return SharedMachineTariff(upstream.machine_rate, started_ns=SYSTEM_CLOCK.monotonic_ns())
    if upstream.provider is None:
        return None
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # the price data take an eighth of a second
    from taximeter.pricing.tariff import PublishedTariff  # noqa: PLC0415

    return PublishedTariff(Catalog.load(settings.prices_overlay), upstream.provider)


def described(target: Target, flags: Sequence[str]) -> dict[str, Any]:
    """The target for a result file, with what a server of our own was told by its flags."""
    told = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in pairwise(flags)
        if flag.startswith("--") and not value.startswith("--")
    }
    return {**target.describe(), "setup": {**target.setup, **told}}


def kept_flags(options: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """Flags for `taximeter serve`, of those that were given."""
    return tuple(part for name, value in options if value is not None for part in (name, value))
