"""Names for things: sortable by time, unguessable, and readable over the phone."""

from __future__ import annotations

import secrets
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_TIME_DIGITS = 10
_RANDOM_DIGITS = 12


def new_id(prefix: str, at: datetime) -> str:
    """`prefix_` then 10 digits of milliseconds since 1970 and 12 random ones: ids sort by time of birth."""
    ms = int(at.timestamp() * 1000)
    stamp = ""
    for _ in range(_TIME_DIGITS):
        ms, digit = divmod(ms, 32)
        stamp = _ALPHABET[digit] + stamp
    return f"{prefix}_{stamp}" + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_DIGITS))
