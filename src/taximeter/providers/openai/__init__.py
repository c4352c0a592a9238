"""OpenAI's dialect: chat, legacy completions and responses, with the extensions that vLLM and llama.cpp accept.

`body` reads what a client asks and `answer` writes what it gets back; `responses_body` and `responses_answer` have what
is different there. `CHAT`, `COMPLETIONS` and `RESPONSES` are the endpoints; `EMBEDDINGS` is one that only refuses.
The other way round, in front of a provider, `render` writes what is asked, and `ChatReader` reads what it answers.
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
from taximeter.providers.openai.chat_reader import ChatReader, unstreamed
from taximeter.providers.openai.embeddings import embeddings_writer, parse_embeddings
from taximeter.providers.openai.render import render
from taximeter.providers.openai.responses_answer import responses_writer
from taximeter.providers.openai.responses_body import parse_responses
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

RESPONSES = Endpoint(
    dialect=Dialect.OPENAI_RESPONSES,
    parse=parse_responses,
    writer=responses_writer,
    error_body=error_body,
    error_event=error_event,
)
EMBEDDINGS = Endpoint(
    dialect=Dialect.OPENAI_EMBEDDINGS,
    parse=parse_embeddings,
    writer=embeddings_writer,
    error_body=error_body,
    error_event=error_event,
)

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBEDDINGS",
    "RESPONSES",
    "ChatReader",
    "error_body",
    "error_event",
    "model_body",
    "models_body",
    "render",
    "unstreamed",
]
