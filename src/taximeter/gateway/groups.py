"""What a request belongs to, by its headers.

Owns: the names of the headers, ours and those that others have taught clients to send, and which of them wins. Refuses
to know: what is done with groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from taximeter.errors import RequestError
from taximeter.records import MOST_GROUP_NAME_CHARACTERS, is_group_name

# The first one that is there counts. A group named by nobody is none.
_TASK: Final = (b"x-taximeter-task",)
_RUN: Final = (b"x-taximeter-run",)
_SESSION: Final = (b"x-taximeter-session", b"helicone-session-id", b"x-claude-code-session-id")
_LABEL: Final = b"x-taximeter-label-"
# Helicone's clients send these; they are labels here.
_LABELS: Final = {b"helicone-session-name": "session-name", b"helicone-session-path": "session-path"}
_HELICONE_PROPERTY: Final = b"helicone-property-"
_MOST_LABELS: Final = 16
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?![^-])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Names are None where the request gave none. `trace` is the id of a W3C trace, `traceparent` the header that
    says so."""

    task: str | None = None
    run: str | None = None
    session: str | None = None
    trace: str | None = None
    traceparent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


_NONE: Final = Groups()


def groups_of(headers: Iterable[tuple[bytes, bytes]]) -> Groups:
    """What the request belongs to. Raises RequestError for names of ours that no report could show; those that other
    tools send are left out instead, for their senders do not know us."""
    named = {name: value for name, value in headers if name.startswith((b"x-", b"helicone-", b"traceparent"))}
    if not named:
        return _NONE
    trace, traceparent = _trace(named.get(b"traceparent", b""))
    return Groups(
        task=_first(named, _TASK),
        run=_first(named, _RUN),
        session=_first(named, _SESSION),
        trace=trace,
        traceparent=traceparent,
        labels=_labels(named),
    )


def _first(headers: Mapping[bytes, bytes], names: Iterable[bytes]) -> str | None:
    return next((group for name in names if (group := _text(headers, name)) is not None), None)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name, b"").decode("utf-8", "replace").strip()
    if is_group_name(value):
        return value or None
    if not name.startswith(b"x-taximeter-"):
        return None
    shown = name.decode("ascii", "replace")
    raise RequestError(
        f"the header {shown} must be at most {MOST_GROUP_NAME_CHARACTERS} printable characters in UTF-8", param=shown
    )


def _labels(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for name in headers:
        key = _LABELS.get(name)
        for prefix in (_LABEL, _HELICONE_PROPERTY):
            if name.startswith(prefix) and len(name) > len(prefix):
                key = name[len(prefix) :].decode("ascii", "replace")
        if key is not None and (value := _text(headers, name)) is not None:
            labels[key] = value
    if len(labels) > _MOST_LABELS:
        raise RequestError(f"a request has at most {_MOST_LABELS} labels", param="x-taximeter-label-*")
    return labels


def _trace(traceparent: bytes) -> tuple[str | None, str | None]:
    """The trace, and as much of the header as is known: later versions of it may have more at the end."""
    match = _TRACEPARENT.match(traceparent)
    return (None, None) if match is None else (match["trace"].decode(), match[0].decode())
