"""What crosses the gateway of headers. Owns: their names. Refuses to know: their values."""

from __future__ import annotations

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


def crosses(name: bytes) -> bool:
    """Whether a client's header, by its name in small letters, goes on to an upstream. Compressed answers could not be
    looked at, so none are asked for."""
    return not (name in HOP_BY_HOP or name in (b"accept-encoding", b"cookie") or name.startswith(b"x-taximeter-"))
