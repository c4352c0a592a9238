"""Everything that is watched, and where it can be looked at.

Owns: which sources there are, the pages `/metrics` and `/api/upstreams`, and the beginning and end of what runs beside
the server. Refuses to know: how requests are served, and what a metric is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from taximeter.ledger import LedgerCounts
from taximeter.pricing.machine import MachineStatement
from taximeter.records import EngineLoad, Receipt, to_json
from taximeter.telemetry.engines import FIGURES, nothing_known
from taximeter.telemetry.exporter import Exporter
from taximeter.telemetry.page import Moment, render
from taximeter.telemetry.scraper import Scraper
from taximeter.telemetry.tally import Tally
from taximeter.upstreams.breaker import BreakerState
from taximeter.upstreams.config import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is looked at when somebody looks. `breaker` says how an upstream's stands; `ledger` counts receipts, and
    `receipts_lost` those that were lost before the ledger had them, `lost_before` those that earlier processes lost,
    None while that is not known; `machines` are the bills of machines with a rate;
    `engine` is our own engine's load, None where there is none."""

    models: Callable[[], Sequence[str]]
    in_flight: Callable[[], int]
    ledger: Callable[[], LedgerCounts]
    receipts_lost: Callable[[], int]
    lost_before: Callable[[], int | None]
    machines: Callable[[], Mapping[str, MachineStatement]]
    breaker: Callable[[str], BreakerState]
    engine: Callable[[], EngineLoad] | None = None


class Watch:
    """Watches one house. Give `add` every receipt; it takes microseconds."""

    def __init__(self, sources: Sources, network: Network, *, otlp_endpoint: str | None = None) -> None:
        """`otlp_endpoint` is where OpenTelemetry's signals go, None where its own environment variables say it, or
        nowhere. Raises ConfigError where they cannot be sent."""
        self._sources = sources
        self._network = network
        self._tally = Tally(sources.models())
        self._scraper = Scraper(
            {
                name: upstream.metrics_url
                for name, upstream in network.upstreams.items()
                if upstream.metrics_url is not None
            }
        )
        self._exporter = Exporter.configured(self._tally, network, endpoint=otlp_endpoint)

    def add(self, receipt: Receipt) -> None:
        """One more receipt. Never blocks."""
        self._tally.add(receipt)
        if self._exporter is not None:
            self._exporter.add(receipt)

    def routes(self) -> list[Route]:
        """The pages."""
        return [Route("/metrics", self._metrics), Route("/api/upstreams", self._upstreams)]

    def start(self) -> None:
        """Begin what runs beside the server, on its event loop."""
        self._scraper.start()
        if self._exporter is not None:
            self._exporter.start()

    async def aclose(self) -> None:
        """Send what is left, for a moment, and stop. Idempotent."""
        await self._scraper.aclose()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.close)

    def moment(self) -> Moment:
        """All of it, now."""
        from taximeter import __version__  # noqa: PLC0415  # reads the installation's metadata

        sources, watched = self._sources, self._scraper.watched
        lost = sources.receipts_lost()
        counts = sources.ledger()
        return Moment(
            version=__version__,
            sums=self._tally.sums(),
            in_flight=sources.in_flight(),
            ledger=replace(counts, accepted=counts.accepted + lost, lost=counts.lost + lost),
            lost_before=sources.lost_before(),
            breakers={name: sources.breaker(name) for name in self._network.upstreams},
            machines=sources.machines(),
            engine=None if sources.engine is None else sources.engine(),
            engines={name: page.state for name, page in watched.items()},
            scrapes={(name, result): count for name, page in watched.items() for result, count in page.results.items()},
            spans={} if self._exporter is None else self._exporter.counts(),
        )

    async def _metrics(self, http: HttpRequest) -> Response:
        page, content_type = await asyncio.to_thread(render, self.moment(), http.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def _upstreams(self, _http: HttpRequest) -> Response:
        sums, machines = self._tally.sums(), self._sources.machines()
        told: list[dict[str, object]] = []
        for name, upstream in self._network.upstreams.items():
            tries = {_status(status): count for (at, status), count in sums.tries.items() if at == name}
            told.append(
                {
                    "name": name,
                    "url": upstream.url,
                    "speaks": upstream.speaks.value,
                    "provider": upstream.provider,
                    "models": [route.model for route in self._network.routes if upstream in route.upstreams],
                    "breaker": self._sources.breaker(name).value,
                    "tries": tries,
                    "engine": self._engine(name),
                    "machine": to_json(machines.get(name)),
                }
            )
        return Response(msgspec.json.encode({"upstreams": told}), media_type="application/json")

    def _engine(self, name: str) -> dict[str, object]:
        page = self._scraper.watched.get(name)
        state = nothing_known("no metrics_url is set for it") if page is None else page.state
        figures: dict[str, object] = {figure: getattr(state, figure) for figure in FIGURES}
        read_at = None if page is None or page.read_at is None else page.read_at.isoformat()
        return {"engine": state.engine, **figures, "unknown_reasons": state.unknown_reasons, "read_at": read_at}


def _status(status: int | None) -> str:
    return "none" if status is None else str(status)
