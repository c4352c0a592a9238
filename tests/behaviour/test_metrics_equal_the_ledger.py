"""What a monitoring system reads at the door, and what a collector is sent, is what the ledger has."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from taximeter.errors import ConfigError
from taximeter.serve import House
from taximeter.settings import Settings
from taximeter.telemetry import names
from tests.fakes import WAIT_S
from tests.gateway_harness import listening
from tests.otlp_harness import attributes, collecting

SECRET = "sk-upstream-secret"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Upstream(BaseHTTPRequestHandler):
    """Answers chats, refuses the model `full`, and has a page of metrics."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] == "full":
            self._answer(429, b'{"error": {"message": "slow down", "type": "rate_limit"}}', retry_after="60")
            return
        usage = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
            body = {"id": "x", "object": "chat.completion", "model": asked["model"], "choices": [choice]}
            self._answer(200, json.dumps({**body, "usage": usage}).encode())
            return
        deltas = [{"role": "assistant", "content": ""}, *({"content": f"t{number} "} for number in range(5))]
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
        lines = [f"data: {json.dumps({'model': asked['model'], **event})}\n\n" for event in events]
        self._answer(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    def do_GET(self) -> None:
        self._answer(200, b"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n", "text/plain")

    def _answer(self, status: int, body: bytes, media_type: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def upstream() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


def samples_of(page: str) -> Counter[tuple[str, str]]:
    """Sums over all series of a metric, and over those with each label."""
    sums: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name, ""] += sample.value  # type: ignore[assignment]
            for label, value in sample.labels.items():
                sums[sample.name, f"{label}={value}"] += sample.value  # type: ignore[assignment]
    return sums


def test_a_collector_that_cannot_be_is_told_before_anything_is_open(tmp_path: Path):
    """ConfigError, and not even a ledger."""
    (tmp_path / "taximeter.toml").write_text('otlp_endpoint = "localhost:4318"\n')
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        House.of(Settings.load(environ={"TAXIMETER_HOME": str(tmp_path)}), None)
    assert [each.name for each in tmp_path.iterdir()] == ["taximeter.toml"]


def test_the_page_the_collector_and_the_ledger_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Streams, whole answers, refusals and names that nobody knows, through the door with the official client."""
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    with upstream() as url, collecting() as collector:
        (tmp_path / "taximeter.toml").write_text(
            f'port = 0\notlp_endpoint = "{collector.url}"\n'
            f'[upstreams.farm]\nurl = "{url}"\nspeaks = "openai"\nkey = "env:UPSTREAM_KEY"\nretries = 0\n'
            f'machine_rate = "3.6/h"\nmetrics_url = "{url}/metrics"\n'
            '[[routes]]\nmodel = "llama"\nupstreams = ["farm"]\n[[routes]]\nmodel = "full"\nupstreams = ["farm"]\n'
        )
        house = House.of(Settings.load(environ={"TAXIMETER_HOME": str(tmp_path)}), None)
        with listening(house) as door:
            client = openai.OpenAI(
                base_url=f"{door}/v1", api_key="mine", max_retries=0, default_headers={"traceparent": TRACEPARENT}
            )
            talk = [{"role": "user", "content": "a prompt that is nobody's business"}]
            for _ in range(3):
                client.chat.completions.create(model="llama", messages=talk)
                for _chunk in client.chat.completions.create(model="llama", messages=talk, stream=True):
                    pass
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="full", messages=talk)
            for number in range(3):
                with pytest.raises(openai.NotFoundError):
                    client.chat.completions.create(model=f"no-such-{number}", messages=talk)
            receipts = house.ledger.receipts(limit=100)  # waits until what the journal has is in the tables
            page = httpx.get(f"{door}/metrics")
            told = httpx.get(f"{door}/api/upstreams").json()["upstreams"]
            cost = house.ledger.total_cost()
            counts = house.ledger.counts()
        spans = collector.spans(len(receipts))
        metrics = collector.newest_metrics()

    sums = samples_of(page.text)
    assert page.headers["content-type"].startswith("text/plain")
    assert len(receipts) == 10 == sums["taximeter_receipts_total", ""]
    assert sums["taximeter_receipts_total", "outcome=completed"] == 6
    assert sums["taximeter_receipts_total", "model=other"] == 3
    tokens: Counter[str] = Counter()
    for receipt in receipts:
        if receipt.usage is not None:
            tokens.update({leaf: count for leaf, count in receipt.usage.leaves().items() if count})
    assert tokens == {"input_fresh_tokens": 6 * 16, "input_cache_read_tokens": 6 * 4, "output_text_tokens": 6 * 5}
    for leaf, count in tokens.items():
        assert sums["taximeter_tokens_total", f"bucket={leaf.removesuffix('_tokens')}"] == count
    assert abs(Decimal(sums["taximeter_cost_dollars_total", ""]) - cost) <= Decimal("1e-9")
    assert cost > 0
    total_ns = sum(receipt.timing.total_ns for receipt in receipts if receipt.timing is not None)
    assert sums["taximeter_request_duration_seconds_sum", ""] == pytest.approx(total_ns / 1e9)
    assert sums["taximeter_phase_seconds_sum", ""] == pytest.approx(total_ns / 1e9)
    assert sums["taximeter_overhead_seconds_count", ""] == 10
    assert sums["taximeter_time_to_first_token_seconds_count", ""] == 3
    assert sums["taximeter_upstream_tries_total", "status=429"] == 1
    assert sums["taximeter_ledger_accepted_receipts_total", ""] == counts.accepted == 10
    assert sums["taximeter_ledger_written_receipts_total", ""] == counts.written == 10
    assert sums["taximeter_machine_dollars", "use=charged"] == pytest.approx(float(cost))

    [farm] = told
    assert (farm["name"], farm["breaker"], farm["tries"]) == ("farm", "closed", {"200": 6, "429": 1})
    assert farm["models"] == ["llama", "full"]
    assert set(farm["engine"]["unknown_reasons"]) >= {"queue"}

    assert sum(int(point.as_int) for point in metrics[names.USAGE_INPUT].sum.data_points) == 6 * 20
    assert sum(int(point.as_int) for point in metrics[names.OWN_METRIC_RECEIPTS].sum.data_points) == 10
    said = [attributes(span) for span in spans]
    assert {each["taximeter.receipt.id"] for each in said} == {receipt.id for receipt in receipts}
    assert {span.parent_span_id.hex() for span in spans} == {"00f067aa0ba902b7"}
    streamed = [each for each in said if each.get("gen_ai.request.stream") and each["taximeter.outcome"] == "completed"]
    assert len(streamed) == 3
    for each in streamed:
        assert 0 < each["gen_ai.response.time_to_first_chunk"] <= each["taximeter.time_to_first_token"]
    everything = b"".join(collector.bodies) + page.content
    for text in (SECRET, "nobody's business", "mine", "slow down", "hello"):
        assert text.encode() not in everything
