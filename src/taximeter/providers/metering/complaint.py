"""What a provider says went wrong, as one line that may be kept.

Owns: finding the words in the shapes that errors come in, and taking out of them what looks like a key. Refuses to
know: what becomes of the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

MOST_CHARACTERS = 200

_MASK = "***"
_SECRETS = re.compile(
    r"""
    (?P<scheme>\b(?:bearer|basic|token)\s+)\S+                                    # a header's value
    | (?P<named>\b(?:api|secret|access|auth)[\s_-]?(?:key|token)s?(?:\s+provided)?\s*["']?\s*[:=]\s*["']?)[^\s"',;]+
    | \b(?:sk|pk|rk|gsk|xai|hf|pplx|nvapi|r8|key|AIza|AKIA|ghp)[-_]?[\w*.-]{8,}     # keys that say whose they are
    | \beyJ[\w-]{8,}(?:\.[\w-]+)*                                                   # a signed token
    | (?=[\w-]*\d)(?=[\w-]*[A-Za-z])\b[\w-]{32,}                                    # long, and no word of a language
    """,
    re.VERBOSE | re.IGNORECASE,
)


def complaint(error: object) -> str | None:
    """An error's type and message, at most 200 characters of one line without what looks like a key; None for none.

    `error` is what the provider put there: an object with a `type` (or `code`) and a `message`, or a text.
    """
    if error is None:
        return None
    if isinstance(error, Mapping):
        said = cast("Mapping[str, object]", error)
        kind, message = _text(said.get("type")) or _text(said.get("code")), _text(said.get("message"))
        text = ": ".join(part for part in (kind, message) if part)
    else:
        text = _text(error)
    return _kept(text) or "an error without a message"


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _kept(text: str) -> str:
    # A little more than is kept, so that a key at the cut is seen whole, and no more: expressions take their time.
    line = " ".join(text[: 20 * MOST_CHARACTERS].split())
    masked = _SECRETS.sub(lambda found: (found["scheme"] or found["named"] or "") + _MASK, line)
    printable = "".join(character if character.isprintable() else "?" for character in masked)
    return printable if len(printable) <= MOST_CHARACTERS else printable[: MOST_CHARACTERS - 1] + "…"
