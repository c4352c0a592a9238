"""JSON as strangers leave it: decoded where it is sound, mended where what is wrong is beside the point.

Owns: what is forgiven: a byte order mark, NULs that a crash has left, bytes that are no UTF-8, half of a surrogate pair
where a text was cut in the middle of a character, control characters, NaN. Refuses to know: what the JSON says.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)
"""What decoding a stranger's JSON may raise."""

BLANK = b"\0 \t\r\n"
"""What may stand around JSON, also where a crash has left NULs."""

_AROUND = "\ufeff" + BLANK.decode()
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_decode = msgspec.json.Decoder().decode


def decoded(data: bytes | bytearray | str) -> Any:
    """What `data` says. Raises one of `UNREADABLE` where that cannot be told."""
    try:
        return _decode(data)
    except UNREADABLE:
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        value = json.loads(text.strip(_AROUND), strict=False, parse_constant=lambda _: None)
        if _MAY_BE_HALF.search(text):
            # Halves become question marks: nothing that is kept could hold them.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error
    return value
