"""Errors as HTTP: the only place that knows status codes.

Owns: which error is which status, code and header, and what a stranger may read of it. Refuses to know: when errors
happen, and how a dialect writes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from taximeter.errors import (
    CapacityError,
    LedgerError,
    ModelNotFound,
    PromptTooLong,
    RequestError,
    TaximeterError,
    UpstreamError,
    UpstreamRefused,
)
from taximeter.gateway.relay import ShuttingDown
from taximeter.providers.door import Fault, FaultKind
from taximeter.upstreams.dispatch import NobodyAnswers

Headers = list[tuple[bytes, bytes]]


class DoorError(RequestError):
    """A request that HTTP itself already tells to be wrong, before anybody reads what it asks."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpError:
    """An error as it goes out, but for the words of a dialect."""

    status: int
    fault: Fault
    headers: Headers = field(default_factory=list[tuple[bytes, bytes]])


_KINDS: Mapping[int, FaultKind] = {
    401: FaultKind.AUTHENTICATION,
    403: FaultKind.PERMISSION,
    404: FaultKind.NOT_FOUND,
    413: FaultKind.TOO_LARGE,
    429: FaultKind.RATE_LIMIT,
    500: FaultKind.SERVER,
    502: FaultKind.SERVER,
    503: FaultKind.OVERLOADED,
    529: FaultKind.OVERLOADED,
}


def as_http(error: Exception, request_id: str | None = None) -> HttpError:
    """The status, the fault and the headers for `error`, which became of the request with that id.

    What is nobody's but our own fault says so, and no more: its words stay in the log.
    """
    match error:
        case DoorError():
            return _told(error, request_id, error.status, error.code)
        case ModelNotFound():
            return _told(error, request_id, 404, "model_not_found")
        case PromptTooLong():
            return _told(error, request_id, 400, "context_length_exceeded")
        case RequestError():
            return _told(error, request_id, 400, None)
        case ShuttingDown():
            return _told(error, request_id, 503, "shutting_down", retry_after_s=error.retry_after_s)
        case CapacityError():
            return _told(error, request_id, 429, "queue_full", retry_after_s=error.retry_after_s)
        case UpstreamRefused(status=int() as status):
            return _told(error, request_id, status, "upstream_refused", retry_after_s=error.retry_after_s)
        case NobodyAnswers():
            # One that rests has a time at which it is worth another try.
            status = 502 if error.retry_after_s is None else 503
            return _told(error, request_id, status, "upstream_unreachable", retry_after_s=error.retry_after_s)
        case UpstreamError():
            return _http(502, request_id, "the provider failed", "upstream_error")
        case LedgerError():
            return _http(503, request_id, "the ledger cannot be read just now", "ledger_unavailable")
        case _:
            return _http(500, request_id, "something broke here; the server's log says what", "internal_error")


def _told(
    error: TaximeterError, request_id: str | None, status: int, code: str | None, *, retry_after_s: float | None = None
) -> HttpError:
    param = error.param if isinstance(error, RequestError) else None
    headers: Headers = []
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    return _http(status, request_id, str(error), code, param=param, headers=headers)


def _http(
    status: int,
    request_id: str | None,
    message: str,
    code: str | None,
    *,
    param: str | None = None,
    headers: Headers | None = None,
) -> HttpError:
    kind = _KINDS.get(status, FaultKind.SERVER if status >= 500 else FaultKind.INVALID_REQUEST)
    fault = Fault(kind=kind, message=message, code=code, param=param, request_id=request_id)
    return HttpError(status=status, fault=fault, headers=headers or [])
