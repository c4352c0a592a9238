"""What the tests of passing traffic ask and are answered, in both families' words. For tests only."""

from __future__ import annotations

import json

from tests.wire import DONE, MESSAGE_STOP, chunk, message_delta, message_start, sse, text_delta

CHAT_USAGE: dict[str, object] = {
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
}
"""Eight fresh tokens, four from a cache, five of text."""

FINISH = {
    "object": "chat.completion.chunk",
    "model": "gpt",
    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    "usage": None,
}
CHAT_TEXT = (
    sse(chunk("", role="assistant")),
    sse(chunk("Hello")),
    sse(chunk(", ")),
    sse(chunk("world")),
    sse(FINISH),
)
CHAT_USAGE_EVENT = sse(chunk(usage=CHAT_USAGE))
CHAT_END = sse(DONE)
CHAT_STREAM = (*CHAT_TEXT, CHAT_USAGE_EVENT, CHAT_END)

BLOCK_START: dict[str, object] = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "text", "text": ""},
}
BLOCK_STOP: dict[str, object] = {"type": "content_block_stop", "index": 0}
MESSAGES_STREAM = (
    sse(message_start({"input_tokens": 25, "output_tokens": 1})),
    sse(BLOCK_START),
    sse({"type": "ping"}),
    sse(text_delta("Hello")),
    sse(text_delta(", ")),
    sse(text_delta("world")),
    sse(BLOCK_STOP),
    sse(message_delta({"output_tokens": 15})),
    sse(MESSAGE_STOP),
)
"""25 tokens in, 15 out."""


def asking(*, stream: bool = False, usage: bool = False, model: str = "gpt", **more: object) -> dict[str, object]:
    """A chat body."""
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "Good day"}], **more}
    if stream:
        body["stream"] = True
    if usage:
        body["stream_options"] = {"include_usage": True}
    return body


def asking_messages(*, stream: bool = False, model: str = "claude", **more: object) -> dict[str, object]:
    """A body of Anthropic's."""
    body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": "Good day"}], **more}
    return body | {"stream": True} if stream else body


def encoded(body: dict[str, object]) -> bytes:
    return json.dumps(body).encode()
