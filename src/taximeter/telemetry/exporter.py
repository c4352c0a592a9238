"""OpenTelemetry, as it leaves this process: spans soon after their receipts, metrics every minute, over OTLP/HTTP.

Owns: when something is sent, what is dropped where nobody takes it, and the one thread that waits for a collector.
Refuses to know: what spans and metrics say.

Only `opentelemetry`'s own exporters speak to the collector, so that its environment variables (endpoints, headers,
certificates, compression, time-outs, resource attributes, samplers) mean here what they mean everywhere. They come with
an optional extra, and are imported on this thread, so that no start waits for them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import ConfigError
from taximeter.records import Receipt
from taximeter.telemetry.tally import Tally
from taximeter.upstreams.config import Network

if TYPE_CHECKING:
    from taximeter.telemetry.otlp import Otlp

_log = logging.getLogger(__name__)

_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_INSTALL: Final = "pip install 'taximeter[otel]'"
_MOST_WAITING: Final = 2048  # as OpenTelemetry's own queue; a receipt is a few kilobytes
_MOST_AT_ONCE: Final = 512
_SPANS_EVERY_S: Final = 5.0
_METRICS_EVERY_NS: Final = 60 * 1_000_000_000
_PATIENCE_AT_THE_END_S: Final = 3.0


class Exporter:
    """Takes receipts from the event loop, and sends them from a thread of its own. What it cannot hold it drops, and
    counts; metrics are sums, and lose nothing by that."""

    def __init__(
        self,
        tally: Tally,
        network: Network,
        *,
        endpoint: str | None,
        spans_every_s: float = _SPANS_EVERY_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tally = tally
        self._network = network
        self._endpoint = endpoint
        self._spans_every_s = spans_every_s
        self._clock = clock
        self._started_at = clock.utc_now()
        self._waiting: deque[Receipt] = deque()
        self._counts: Counter[str] = Counter(sent=0, dropped=0, unsampled=0)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._works = True
        self._otlp: Otlp | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def configured(
        cls, tally: Tally, network: Network, *, endpoint: str | None, environ: Mapping[str, str] | None = None
    ) -> Self | None:
        """An exporter to `endpoint`, or to where OpenTelemetry's variables say; None where nobody says anything.

        Raises ConfigError as `check_endpoint` does. Variables may have been set for all programs of a machine, so where
        only they say something, missing packages are a warning.
        """
        environ = os.environ if environ is None else environ
        if endpoint is None and not any(environ.get(name) for name in _ENDPOINTS):
            return None
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return None
        check_endpoint(endpoint)
        if not _is_installed():
            _log.warning("OTEL_EXPORTER_OTLP_… is set, and OpenTelemetry's packages are missing: %s", _INSTALL)
            return None
        return cls(tally, network, endpoint=endpoint)

    def add(self, receipt: Receipt) -> None:
        """One more receipt. Never blocks: where too many wait, the newest is dropped."""
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                self._counts["dropped"] += 1
                return
            self._waiting.append(receipt)
            is_batch = len(self._waiting) >= _MOST_AT_ONCE
        if is_batch:
            self._wake.set()

    def counts(self) -> Mapping[str, int]:
        """What became of spans: `sent`, `dropped`, and `unsampled` where the caller's trace is not recorded."""
        with self._lock:
            return dict(self._counts)

    def start(self) -> None:
        """Begin to send."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taximeter-otlp", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send what waits, and stop; what a collector does not take within seconds is dropped. Idempotent."""
        self._is_closing = True
        self._wake.set()
        if self._thread is None:
            return
        self._thread.join(_PATIENCE_AT_THE_END_S)
        if self._thread.is_alive() and self._otlp is not None:
            self._otlp.give_up()
            self._thread.join(_PATIENCE_AT_THE_END_S)

    def _run(self) -> None:
        try:
            from taximeter.telemetry.otlp import Otlp  # noqa: PLC0415  # see above

            otlp = self._otlp = Otlp(self._network, endpoint=self._endpoint, started_at=self._started_at)
        except Exception:  # noqa: BLE001 - whoever only wants answers gets them
            _log.exception("nothing is sent to OpenTelemetry")
            with self._lock:
                self._counts["dropped"] += len(self._waiting)
                self._waiting.clear()
            return
        metrics_ns = self._clock.monotonic_ns()
        while True:
            self._wake.wait(self._spans_every_s)
            self._wake.clear()
            is_last = self._is_closing
            while batch := self._batch():
                self._send(otlp, batch)
            now_ns = self._clock.monotonic_ns()
            if is_last or now_ns - metrics_ns >= _METRICS_EVERY_NS:
                metrics_ns = now_ns
                self._send_metrics(otlp)
            if is_last:
                return

    def _batch(self) -> list[Receipt]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]

    def _send(self, otlp: Otlp, batch: list[Receipt]) -> None:
        sampled, works = len(batch), False
        try:
            spans = otlp.spans(batch)
            sampled = len(spans)
            works = not spans or otlp.send_spans(spans)
        except Exception:  # noqa: BLE001 - a bug in here harms nobody else
            _log.exception("spans of %d receipts are dropped", sampled)
        with self._lock:
            self._counts["sent" if works else "dropped"] += sampled
            self._counts["unsampled"] += len(batch) - sampled
        self._note(otlp, works=works)

    def _send_metrics(self, otlp: Otlp) -> None:
        try:
            self._note(otlp, works=otlp.send_metrics(self._tally.sums(), self._clock.utc_now()))
        except Exception:  # noqa: BLE001 - as above; the next time has the sums of this one
            _log.exception("metrics were not sent")

    def _note(self, otlp: Otlp, *, works: bool) -> None:
        """A collector that is away is told of once, and once that it is back."""
        if works != self._works:
            _log.warning("the OpenTelemetry collector %s", "takes data again" if works else "takes no data")
            self._works = works
            otlp.quiet(is_quiet=not works)


def check_endpoint(endpoint: str | None) -> None:
    """Raises ConfigError for an endpoint that is none, and for one that nothing could be sent to, for want of the
    packages. None is always right."""
    if endpoint is None:
        return
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ConfigError("otlp_endpoint must be an http or https URL", hint="such as http://localhost:4318")
    if not _is_installed():
        raise ConfigError("otlp_endpoint is set, and OpenTelemetry's packages are missing", hint=_INSTALL)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
