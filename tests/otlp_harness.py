"""A collector for tests: it takes OTLP over HTTP and reads it with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fakes import WAIT_S


class Collector:
    """What has come. While `is_away` it answers 500, and while `is_stuck` nothing."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.is_away = False
        self.is_stuck = False
        self.may_answer = threading.Event()
        self.asked = threading.Semaphore(0)
        self._changed = threading.Condition()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.asked.release()
        if self.is_stuck:
            self.may_answer.wait(WAIT_S)
        with self._changed:
            self.headers.append(headers)
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            self.bodies.append(body)
            if self.is_away:
                return 400  # not worth another try
            if path == "/v1/traces":
                self.traces.append(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(body))
            else:
                return 404
            self._changed.notify_all()
            return 200

    def spans(self, count: int) -> list[Span]:
        """All spans, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans()) >= count, WAIT_S), len(self._spans())
            return self._spans()

    def newest_metrics(self) -> dict[str, Metric]:
        """The last metrics that came, by name."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.metrics, WAIT_S)
            [resource] = self.metrics[-1].resource_metrics
            [scope] = resource.scope_metrics
            return {metric.name: metric for metric in scope.metrics}

    def _spans(self) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Generator[Collector]:
    """A collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = collector.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


def attributes(of: object) -> dict[str, object]:
    """Attributes as Python has them."""
    said: dict[str, object] = {}
    pairs: list[KeyValue] = of.attributes  # type: ignore[attr-defined]
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        found = getattr(pair.value, kind)
        said[pair.key] = [each.string_value for each in found.values] if kind == "array_value" else found
    return said
