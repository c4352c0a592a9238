"""Names for things: sortable by time, unguessable, and readable over the phone."""

from __future__ import annotations

import os
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_RANDOM_BYTES = 8  # of which 60 bits are used, twelve digits
# Two digits at a time, and all chance in one question to the system: every request needs two names.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def new_id(prefix: str, at: datetime) -> str:
    """`prefix_` then 10 digits of milliseconds since 1970 and 12 random ones: ids sort by time of birth."""
    pairs, ms, chance = _PAIRS, int(at.timestamp() * 1000), int.from_bytes(os.urandom(_RANDOM_BYTES), "big")
    return (
        f"{prefix}_{pairs[ms >> 40 & 1023]}{pairs[ms >> 30 & 1023]}{pairs[ms >> 20 & 1023]}{pairs[ms >> 10 & 1023]}"
        f"{pairs[ms & 1023]}{pairs[chance >> 50 & 1023]}{pairs[chance >> 40 & 1023]}{pairs[chance >> 30 & 1023]}"
        f"{pairs[chance >> 20 & 1023]}{pairs[chance >> 10 & 1023]}{pairs[chance & 1023]}"
    )
