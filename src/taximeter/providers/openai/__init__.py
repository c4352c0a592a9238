"""OpenAI's dialect: chat completions and legacy completions, with the extensions that vLLM and llama.cpp accept.

`body` reads what a client asks, `answer` writes what it gets back. `CHAT` and `COMPLETIONS` are the two endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taximeter.providers.openai.answer import (
    AnswerWriter,
    chat_writer,
    completion_writer,
    error_body,
    model_body,
    models_body,
)
from taximeter.providers.openai.body import Call, model_named_in, parse_chat, parse_completion
from taximeter.records import Dialect, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Both directions of one endpoint.

    `parse` raises RequestError; `writer` is for the answer to one request, and takes the request and whether the
    stream is to end with the usage.
    """

    dialect: Dialect
    parse: Callable[[bytes], Call]
    writer: Callable[[Request, bool], AnswerWriter]


CHAT = Endpoint(dialect=Dialect.OPENAI_CHAT, parse=parse_chat, writer=chat_writer)
COMPLETIONS = Endpoint(dialect=Dialect.OPENAI_COMPLETIONS, parse=parse_completion, writer=completion_writer)

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "AnswerWriter",
    "Call",
    "Endpoint",
    "error_body",
    "model_body",
    "model_named_in",
    "models_body",
]
