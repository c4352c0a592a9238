"""Anthropic's dialect: messages, both ways.

For clients, `body` reads what they ask and `answer` writes what they get back; `MESSAGES` is the endpoint. For a
provider behind us, `render` writes what we ask and `reader` reads what it answers.
"""

from taximeter.providers.anthropic.answer import (
    count_body,
    error_body,
    error_event,
    messages_writer,
    model_body,
    models_body,
)
from taximeter.providers.anthropic.body import parse, parse_count
from taximeter.providers.anthropic.reader import MessagesReader, unstreamed
from taximeter.providers.anthropic.render import render
from taximeter.providers.door import Endpoint
from taximeter.records import Dialect

MESSAGES = Endpoint(
    dialect=Dialect.ANTHROPIC_MESSAGES,
    parse=parse,
    writer=messages_writer,
    error_body=error_body,
    error_event=error_event,
    request_id_header=b"request-id",
)

__all__ = [
    "MESSAGES",
    "MessagesReader",
    "count_body",
    "error_body",
    "error_event",
    "model_body",
    "models_body",
    "parse_count",
    "render",
    "unstreamed",
]
