"""A thin OpenAI-style door before OpenVINO GenAI, whose package has no server.

    PYTHON_WITH_OPENVINO_GENAI bench/peers/openvino_server.py MODEL_FOLDER --port 8192 --threads 2

Owns: /v1/completions by token ids, streamed, with usage. Needs `openvino-genai`, `aiohttp` and `numpy`, and nothing of
ours: it runs in the peer's own environment.

The pipeline's `step()` holds Python's lock all along. In a thread of its own it let the HTTP side run one slice a
step, and every token came late; so steps and HTTP take turns on one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai
from aiohttp import web

_TURNS_BETWEEN_STEPS = 8


class Pipeline:
    """The engine, stepped as long as anybody waits. Each request's new tokens come over a queue, which None ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.cache_gb
        scheduler.max_num_batched_tokens = options.step_tokens
        scheduler.max_num_seqs = options.streams
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._ids = itertools.count(1)
        self._live: dict[int, tuple[openvino_genai.GenerationHandle, asyncio.Queue[list[int] | None]]] = {}
        self._wake = asyncio.Event()

    def add(self, prompt: Sequence[int], output_tokens: int) -> asyncio.Queue[list[int] | None]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        request_id = next(self._ids)
        tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
        arrived: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self._live[request_id] = (self._pipeline.add_request(request_id, tensor, config), arrived)
        self._wake.set()
        return arrived

    def text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)

    async def run(self) -> None:
        while True:
            if not self._pipeline.has_non_finished_requests():
                self._wake.clear()
                await self._wake.wait()
            self._pipeline.step()
            for request_id, (handle, arrived) in list(self._live.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        arrived.put_nowait(list(output.generated_ids))
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    arrived.put_nowait(None)
                    del self._live[request_id]
            for _ in range(_TURNS_BETWEEN_STEPS):
                await asyncio.sleep(0)


async def complete(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions, always streamed."""
    body = await request.json()
    prompt, pipeline = body["prompt"], request.app[_PIPELINE]
    arrived = pipeline.add(prompt, body["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    written, held = 0, []
    while (tokens := await arrived.get()) is not None:
        written += len(tokens)
        held += tokens
        text = pipeline.text(held)
        if text.endswith("\ufffd"):  # the beginning of a character
            text = ""
        else:
            held = []
        await _send(response, {"choices": [{"index": 0, "text": text, "finish_reason": None}]})
    usage = {"prompt_tokens": len(prompt), "completion_tokens": written, "total_tokens": len(prompt) + written}
    await _send(response, {"choices": [], "usage": usage})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, event: object) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


_PIPELINE = web.AppKey("pipeline", Pipeline)
_STEPPING = web.AppKey("stepping", asyncio.Task)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that optimum-cli exported")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-gb", type=int, default=1, help="the most its KV cache grows to")
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--streams", type=int, default=64)
    options = parser.parse_args()

    async def start(app: web.Application) -> None:
        app[_PIPELINE] = Pipeline(options)
        app[_STEPPING] = asyncio.create_task(app[_PIPELINE].run())

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", complete)
    app.on_startup.append(start)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
