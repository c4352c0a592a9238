"""`/v1/embeddings` where nobody makes any: the refusal that our own engine gives, with a receipt like any other.

Owns: the sentence. Refuses to know: providers that do make embeddings; what passes through to them is not read.
"""

from __future__ import annotations

import msgspec

from taximeter.errors import InvariantBroken, RequestError
from taximeter.providers.bodies import check_model_name, decode
from taximeter.providers.door import AnswerWriter, Call
from taximeter.records import Request


class _Named(msgspec.Struct):
    model: str


_decoder = msgspec.json.Decoder(_Named)


def parse_embeddings(body: bytes) -> Call:
    """Always raises RequestError."""
    check_model_name(decode(_decoder, body).model)
    raise RequestError(
        "this engine makes no embeddings", param="model", hint="name a model of a provider that makes them"
    )


def embeddings_writer(request: Request, call: Call) -> AnswerWriter:
    """Always raises InvariantBroken: there is no call that it could be for."""
    raise InvariantBroken(f"request {request.id} for {call.model!r} was refused, and has no answer")
