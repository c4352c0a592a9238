"""The composition root: the only place that joins settings, ledger, prices, backend and gateway.

Owns: the order in which a house is built and taken down, and the life of the HTTP server: its socket, its signals, its
patience at the end. Refuses to know: what any room does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Self

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.collecting import without_collecting
from taximeter.engine.backend import EmbeddedBackend, kernel_level
from taximeter.engine.core import EngineOptions
from taximeter.engine.limits import remembered
from taximeter.engine.loading import Loadings
from taximeter.errors import ConfigError
from taximeter.gateway import Relay, Ways, build_app
from taximeter.gateway.app import Door
from taximeter.gateway.edge import protocol_for
from taximeter.ledger import Ledger
from taximeter.opening import begin_loading
from taximeter.pricing import Comparison, MachineMeter, MachineStatement, Settler
from taximeter.pricing.settle import Tariff
from taximeter.pricing.shared_machine import Machines, SharedMachineTariff
from taximeter.records import Backend
from taximeter.settings import Settings
from taximeter.telemetry import Sources, Watch, check_endpoint
from taximeter.upstreams.breaker import BreakerState
from taximeter.upstreams.config import Network, read_network
from taximeter.upstreams.dispatch import Dispatcher
from taximeter.upstreams.secrets import Secret, read_secret
from taximeter.upstreams.switchboard import Switchboard

_GRACE_S = 5.0  # answers in flight may take this long to finish once the server is told to stop
_CUT_OFF_S = 3.0  # and their clients this long to read the end
_KEEP_ALIVE_S = (
    65  # longer than the usual 60 s of proxies and clients: they close idle connections, we do not race them
)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """Everything that one process serves with. `machine` is the meter of our own engine, None where no rate is set, or
    there is no such engine. `network` are the upstreams, `watch` sees every receipt. `kernels` is how our engine
    computes, and why slowly if so."""

    settings: Settings
    backend: Backend
    ledger: Ledger
    relay: Relay
    machine: MachineMeter | None
    network: Network = field(default_factory=Network)
    dispatcher: Dispatcher | None = None
    watch: Watch | None = None
    kernels: tuple[str, str | None] | None = None
    key: Secret | None = None
    profile_ns: Callable[[], Mapping[str, int]] = dict

    @classmethod
    def open(
        cls,
        settings: Settings,
        models: Sequence[str] | None = None,
        on_progress: Callable[[str], None] | None = None,
        *,
        profile: bool = False,
    ) -> Self:
        """Build a house that serves `models` (names, paths or `hf:` references), or the settings' model.

        With `profile`, `profile_ns` says how long the engine's passes took by kind of work.

        Blocks while weights are loaded; `on_progress` is told in words what is going on. Raises ConfigError,
        PricingError or LedgerError, with nothing left open.
        """
        with contextlib.closing(begin_loading(settings, models, on_progress, profile=profile)) as loadings:
            return cls.of(settings, loadings)

    @classmethod
    def of(cls, settings: Settings, loadings: Loadings | None) -> Self:
        """Build a house that serves models which are being loaded, and those that the settings' upstreams serve;
        closing `loadings` is the caller's affair. None is a house without an engine of its own. See `open`."""
        network = read_network(
            settings.upstream_tables, settings.route_tables, path=settings.config_path, environ=os.environ
        )
        key = None
        if settings.api_key is not None:
            key = read_secret(settings.api_key, os.environ, base=settings.config_path.parent)
        check_endpoint(settings.otlp_endpoint)  # before anything is open
        machine = None if settings.machine_rate is None else MachineMeter(settings.machine_rate)
        shared = {
            name: SharedMachineTariff(upstream.machine_rate, started_ns=SYSTEM_CLOCK.monotonic_ns())
            for name, upstream in network.upstreams.items()
            if upstream.machine_rate is not None
        }
        machines = Machines(shared) if shared else None
        tariffs = {**shared, **_published(settings, network)}
        settler = Settler(machine=machine, comparison=_comparison(settings), tariffs=tariffs)
        with contextlib.ExitStack() as undo, without_collecting():
            ledger = Ledger.open(settings.ledger_url, spool=settings.spool_dir, may_be_away=True)
            undo.callback(ledger.close)
            options = EngineOptions(
                step_tokens=settings.step_tokens,
                kv_cache_tokens=settings.kv_cache_tokens,
                max_queued_requests=settings.max_queued_requests,
                kv_format=settings.kv_format,
                limits=remembered(settings.limits_path),
            )
            engine = None if loadings is None else EmbeddedBackend.of(loadings, options=options)
            undo.pop_all()
        if engine is not None:
            network = replace(network, own_models=frozenset(info.id for info in engine.models()))
        backend, dispatcher = _with_upstreams(engine, network, machines)
        relay = Relay(backend=backend, ledger=ledger, settler=settler, machines=machines)
        machine = None if engine is None else machine
        sources = _sources(relay, ledger, engine, machine, machines, dispatcher)
        watch = Watch(sources, network, otlp_endpoint=settings.otlp_endpoint)
        relay.observers.append(watch.add)
        return cls(
            settings=settings,
            backend=backend,
            ledger=ledger,
            relay=relay,
            machine=machine,
            network=network,
            dispatcher=dispatcher,
            watch=watch,
            kernels=None if engine is None else kernel_level(),
            key=key,
            profile_ns=dict if engine is None else engine.profile_ns,
        )

    async def aclose(self) -> None:
        """End what is in flight, with its receipts; then the backend; the ledger last. Idempotent."""
        try:
            await self.relay.aclose()
            await self.backend.aclose()
            if self.watch is not None:
                await self.watch.aclose()
        finally:
            await asyncio.to_thread(self.ledger.close)


def _with_upstreams(
    engine: Backend | None, network: Network, machines: Machines | None
) -> tuple[Backend, Dispatcher | None]:
    if not network.routes:
        if engine is None:
            raise ConfigError("there is nothing to serve: no model, and no [[routes]] in taximeter.toml")
        return engine, None
    from taximeter.upstreams.client import Client  # noqa: PLC0415  # who has no upstreams starts a tenth of a second sooner

    client = Client()
    dispatcher = Dispatcher(client, listener=machines)
    return Switchboard(engine, network, dispatcher, client), dispatcher


def _sources(
    relay: Relay,
    ledger: Ledger,
    engine: EmbeddedBackend | None,
    machine: MachineMeter | None,
    machines: Machines | None,
    dispatcher: Dispatcher | None,
) -> Sources:
    """What a watch looks at."""

    def bills() -> Mapping[str, MachineStatement]:
        found = {} if machines is None else machines.statements(SYSTEM_CLOCK.monotonic_ns())
        if engine is not None and machine is not None:
            charged_ns = machine.charged_ns  # before the time: see `MachineMeter.statement`
            found[engine.name] = machine.statement(engine.machine_time(), charged_ns=charged_ns)
        return found

    def breaker(upstream: str) -> BreakerState:
        if dispatcher is None:
            return BreakerState.CLOSED
        return dispatcher.breaker(upstream).state(SYSTEM_CLOCK.monotonic_ns())

    return Sources(
        models=lambda: [info.id for info in relay.backend.models()],
        in_flight=lambda: relay.in_flight,
        ledger=ledger.counts,
        receipts_lost=lambda: relay.receipts_lost,
        lost_before=lambda: ledger.lost_before,
        machines=bills,
        breaker=breaker,
        engine=None if engine is None else engine.load_now,
    )


def _published(settings: Settings, network: Network) -> Mapping[str, Tariff]:
    """The tariffs of upstreams that are paid by the token. Raises ConfigError for a provider without any price."""
    sellers = {name: upstream.provider for name, upstream in network.upstreams.items() if upstream.provider}
    if not sellers:
        return {}
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # as in `_comparison`
    from taximeter.pricing.tariff import PublishedTariff  # noqa: PLC0415

    catalog = Catalog.load(settings.prices_overlay)
    return {name: PublishedTariff(catalog, provider) for name, provider in sellers.items()}


def _comparison(settings: Settings) -> Comparison | None:
    """The user's own prices are read even where nothing is compared: a mistake in them is told at every start."""
    if settings.priced_as is None and not settings.prices_overlay.exists():
        return None
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # the price data take an eighth of a second

    catalog = Catalog.load(settings.prices_overlay)
    return None if settings.priced_as is None else Comparison(catalog, settings.priced_as)


def run(house: House, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then close the house. See `serve`."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(serve(house, on_ready))


async def serve(house: House, on_ready: Callable[[str], None], *, stop: asyncio.Event | None = None) -> None:
    """Serve until told to stop by `stop` or, on the main thread, by a signal; then close the house.

    `on_ready` gets the URL once the socket listens. It runs on a thread of its own, so that it may use the server;
    what it raises stops the server and is raised here. At the end no new connection is taken, answers in flight may
    finish for a few seconds, and are then cancelled; each has its receipt. A second signal ends the process at once.

    Raises ConfigError when the address cannot be listened on, or would be open to everybody unasked.
    """
    hosts = own_names(house.settings.host)
    if hosts is None and house.key is None and not house.settings.allow_anyone:
        raise ConfigError(
            f"{house.settings.host} is open to other machines, and no key is asked for",
            hint="give --api-key env:NAME with the key in that variable, or --allow-anyone to let everybody in",
        )
    ways = Ways(relay=house.relay, dispatcher=house.dispatcher, network=house.network)
    key = None if house.key is None else house.key.reveal()
    more = [] if house.watch is None else house.watch.routes()
    app = build_app(ways=ways, ledger=house.ledger, machine=house.machine, hosts=hosts, key=key, more=more)
    server = _Server(_uvicorn_config(app, house.relay.clock), house.relay, on_ready=on_ready, stop=stop)
    with server.obeying_signals():
        try:
            if house.watch is not None:
                house.watch.start()
            await server.serve(sockets=[_listen(house.settings.host, house.settings.port)])
            server.raise_what_broke()
        finally:
            await house.aclose()


def _uvicorn_config(app: Door, clock: Clock) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        access_log=False,
        date_header=True,
        http=protocol_for(app, clock),
        lifespan="off",
        log_config=None,
        log_level="warning",
        proxy_headers=False,  # nobody asks who the client is
        server_header=False,
        timeout_graceful_shutdown=int(_GRACE_S + _CUT_OFF_S),
        timeout_keep_alive=_KEEP_ALIVE_S,
        ws="none",
    )


class _Server(uvicorn.Server):
    """uvicorn, with our own beginning and end: it greets when it listens, and its signals end in receipts."""

    def __init__(
        self,
        config: uvicorn.Config,
        relay: Relay,
        *,
        on_ready: Callable[[str], None],
        stop: asyncio.Event | None,
    ) -> None:
        super().__init__(config)
        self._relay = relay
        self._on_ready = on_ready
        self._stop = stop
        self._broke: Exception | None = None
        self._beside: list[asyncio.Task[None]] = []

    @contextlib.contextmanager
    def obeying_signals(self) -> Generator[None]:
        """Stop at SIGINT and SIGTERM, on the main thread; elsewhere Python has no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Not uvicorn's way: it lets go before the house is closed, and raises again what it has obeyed."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks, the second does not: what is in flight then is written up by the next start."""
        del frame
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    def raise_what_broke(self) -> None:
        """Raises what `on_ready` raised, if it did."""
        if self._broke is not None:
            raise self._broke

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            self._run_beside(self._greet(_url(listening)))
        if self._stop is not None:
            self._run_beside(self._obey(self._stop))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._run_beside(self._end_answers())
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # a client that reads nothing would keep its socket open for ever
        for task in self._beside:
            task.cancel()
        await asyncio.sleep(0)  # the loop closes what was aborted

    async def _greet(self, url: str) -> None:
        try:
            await asyncio.to_thread(self._on_ready, url)
        except Exception as error:  # noqa: BLE001 - the caller's own, raised again where the server was started
            if not self.should_exit:  # else the greeting only met the end of the server
                self._broke = error
            self.should_exit = True

    async def _obey(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True

    async def _end_answers(self) -> None:
        await asyncio.sleep(_GRACE_S)
        await self._relay.aclose()

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._beside.append(asyncio.create_task(work))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is not an address of this machine: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        hints = {
            errno.EADDRINUSE: "something else listens there: stop it, or choose another port (0 takes any free one)",
            errno.EACCES: "ports below 1024 belong to the system: choose a higher one",
        }
        hint = hints.get(error.errno or 0)
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}", hint=hint) from error
    return listening


def own_names(host: str) -> frozenset[str] | None:
    """The names a server on `host` goes by, as in URLs; None when other machines reach it, by names of their own."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        if not ipaddress.ip_address(address).is_loopback:
            return None
    except OSError:
        return None  # it cannot be listened on either
    configured = f"[{host}]" if ":" in host else host.lower()
    return frozenset({"localhost", "127.0.0.1", "[::1]", configured})


def _url(listening: socket.socket) -> str:
    """Where to reach it from this machine."""
    host, port = listening.getsockname()[:2]
    if listening.family == socket.AF_INET6:
        return f"http://[{'::1' if host == '::' else host}]:{port}"
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104 - recognized, not bound
