"""What crosses the gateway of headers. Owns: their names, and which of them belong to one connection only. Refuses to
know: what they mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]

KEY_HEADERS: Final = (b"authorization", b"x-api-key", b"api-key")

# A connection's own, by the protocol, and what the next hop says for itself.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OUR_PREFIX: Final = b"x-taximeter-"
_UNSENDABLE_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")
_UNSENDABLE_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def crosses(name: bytes) -> bool:
    """Whether a client's header, by its name in small letters, goes on to an upstream. Compressed answers could not be
    looked at, so none are asked for."""
    return not (name in HOP_BY_HOP or name in (b"accept-encoding", b"cookie") or name.startswith(_OUR_PREFIX))


def crosses_back(name: bytes, value: bytes) -> bool:
    """Whether an upstream's header, by its name in small letters, goes back to the client. Our server dates its answers
    itself, and has a receipt of its own where the upstream is another of us."""
    return not (
        name in HOP_BY_HOP
        or name == b"date"
        or name.startswith(_OUR_PREFIX)
        or _UNSENDABLE_NAME.search(name)
        or _UNSENDABLE_VALUE.search(value)
    )


def crossing_back(headers: Headers, *, without: Collection[bytes] = ()) -> Headers:
    """Those of an answer's headers that go back to the client."""
    hops = named_hops(headers)
    return [each for each in headers if each[0] not in hops and each[0] not in without and crosses_back(*each)]


def named_hops(headers: Iterable[tuple[bytes, bytes]]) -> Collection[bytes]:
    """The further names, in small letters, that `connection` headers name as the connection's own."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(each.strip().lower() for each in value.split(b","))
    return named
