"""Names for things: sortable by time, unguessable, and readable over the phone."""

from __future__ import annotations

import secrets
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_TIME_BITS = 50  # ten digits
_RANDOM_BITS = 60  # twelve
# Two digits at a time, and all chance in one question to the system: every request needs two names.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(_TIME_BITS + _RANDOM_BITS - 10, -1, -10)


def new_id(prefix: str, at: datetime) -> str:
    """`prefix_` then 10 digits of milliseconds since 1970 and 12 random ones: ids sort by time of birth."""
    number = int(at.timestamp() * 1000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_" + "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
