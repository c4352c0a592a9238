"""Errors as HTTP: the only place that knows status codes.

Owns: which error is which status, code and header, and what a stranger may read of it. Refuses to know: when errors
happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from taximeter.errors import (
    CapacityError,
    LedgerError,
    ModelNotFound,
    PromptTooLong,
    RequestError,
    TaximeterError,
    UpstreamError,
)
from taximeter.gateway.relay import ShuttingDown
from taximeter.providers import openai

Headers = list[tuple[bytes, bytes]]


class DoorError(RequestError):
    """A request that HTTP itself already tells to be wrong, before anybody reads what it asks."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpError:
    """An error as it goes out."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=list[tuple[bytes, bytes]])


def as_http(error: Exception) -> HttpError:
    """The status, the body in OpenAI's shape, and the headers for `error`.

    What is nobody's but our own fault says so, and no more: its words stay in the log.
    """
    match error:
        case DoorError():
            return _told(error, error.status, "invalid_request_error", error.code)
        case ModelNotFound():
            return _told(error, 404, "invalid_request_error", "model_not_found")
        case PromptTooLong():
            return _told(error, 400, "invalid_request_error", "context_length_exceeded")
        case RequestError():
            return _told(error, 400, "invalid_request_error", None)
        case ShuttingDown():
            return _told(error, 503, "server_error", "shutting_down", retry_after_s=error.retry_after_s)
        case CapacityError():
            return _told(error, 429, "rate_limit_error", "queue_full", retry_after_s=error.retry_after_s)
        case UpstreamError():
            return _untold(502, "the provider failed", "upstream_error")
        case LedgerError():
            return _untold(503, "the ledger cannot be read just now", "ledger_unavailable")
        case _:
            return _untold(500, "something broke here; the server's log says what", "internal_error")


def _told(
    error: TaximeterError, status: int, kind: str, code: str | None, *, retry_after_s: float | None = None
) -> HttpError:
    param = error.param if isinstance(error, RequestError) else None
    headers: Headers = []
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    body = openai.error_body(message=str(error), kind=kind, param=param, code=code)
    return HttpError(status=status, body=body, headers=headers)


def _untold(status: int, message: str, code: str) -> HttpError:
    return HttpError(status=status, body=openai.error_body(message=message, kind="server_error", param=None, code=code))
