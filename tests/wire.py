"""Answers as providers send them, and what a tap finds in them. For tests only."""

from __future__ import annotations

import json
from collections.abc import Mapping

from taximeter.providers.metering import tap_for
from taximeter.providers.sighting import Found, Seen
from taximeter.providers.sse import Framer
from taximeter.records import Dialect

Json = Mapping[str, object]


def sse(*events: Json | bytes) -> bytes:
    """A stream of events: Anthropic's and Responses' are named by their type, as those write them."""
    return b"".join(_event(each) for each in events)


def _event(each: Json | bytes) -> bytes:
    if isinstance(each, bytes):
        return b"data: " + each + b"\n\n"
    name = each.get("type")
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return head + b"data: " + json.dumps(each).encode() + b"\n\n"


def watched(dialect: Dialect, stream: bytes) -> tuple[Found, list[Seen]]:
    """What was found in a stream, and what each of its events was."""
    framer, tap = Framer(), tap_for(dialect, streamed=True)
    frames = framer.feed(stream)
    if (rest := framer.rest()) is not None:
        frames.append(rest)
    seen = [tap.event(frame.name, frame.data) for frame in frames]
    return tap.found(), seen


def streamed(dialect: Dialect, *events: Json | bytes) -> Found:
    """What was found in a stream of these events."""
    return watched(dialect, sse(*events))[0]


def whole(dialect: Dialect, body: Json | bytes) -> Found:
    """What was found in a whole answer."""
    tap = tap_for(dialect, streamed=False)
    tap.whole(body if isinstance(body, bytes) else json.dumps(body).encode())
    return tap.found()


def messages(usage: object, *, model: str = "claude", stop_reason: str = "end_turn") -> dict[str, object]:
    """A whole answer of Anthropic's."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": stop_reason,
        "usage": usage,
    }


def message_start(usage: object, *, model: str = "claude") -> dict[str, object]:
    return {"type": "message_start", "message": {**messages(usage, model=model), "content": [], "stop_reason": None}}


def text_delta(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def message_delta(usage: object, *, stop_reason: str | None = "end_turn") -> dict[str, object]:
    return {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": usage}


MESSAGE_STOP: dict[str, object] = {"type": "message_stop"}


def chat(usage: object, *, model: str = "gpt", **extras: object) -> dict[str, object]:
    """A whole chat completion of OpenAI's."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage, **extras}


def chunk(content: str | None = None, *, usage: object = None, **more: object) -> dict[str, object]:
    """A piece of a streamed chat completion; without content it is the one that has the usage alone."""
    delta = {"content": content, **more}
    choices = [] if content is None and not more else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {"object": "chat.completion.chunk", "model": "gpt", "choices": choices, "usage": usage}


DONE = b"[DONE]"


def response(usage: object, *, status: str = "completed", output: object = (), **more: object) -> dict[str, object]:
    """A Responses object of OpenAI's."""
    return {"object": "response", "model": "gpt", "status": status, "output": output, "usage": usage, **more}
