"""OpenAI's dialect: chat completions and legacy completions, with the extensions that vLLM and llama.cpp accept.

`body` reads what a client asks, `answer` writes what it gets back. `CHAT` and `COMPLETIONS` are the two endpoints.
"""

from taximeter.providers.door import Endpoint
from taximeter.providers.openai.answer import (
    chat_writer,
    completion_writer,
    error_body,
    error_event,
    model_body,
    models_body,
)
from taximeter.providers.openai.body import parse_chat, parse_completion
from taximeter.records import Dialect

CHAT = Endpoint(
    dialect=Dialect.OPENAI_CHAT,
    parse=parse_chat,
    writer=chat_writer,
    error_body=error_body,
    error_event=error_event,
)
COMPLETIONS = Endpoint(
    dialect=Dialect.OPENAI_COMPLETIONS,
    parse=parse_completion,
    writer=completion_writer,
    error_body=error_body,
    error_event=error_event,
)

__all__ = ["CHAT", "COMPLETIONS", "error_body", "error_event", "model_body", "models_body"]
