"""What a request belongs to, by its headers, or by its path where a client can only be given a base URL.

Owns: the names of the headers, ours and those that others have taught clients to send, which of them wins, and the
words that a path may begin with. Refuses to know: what is done with groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from taximeter.errors import RequestError
from taximeter.records import MOST_GROUP_NAME_CHARACTERS, MOST_LABELS, Groups, is_group_name

# The first one that is there counts. A group named by nobody is none.
_TASK: Final = (b"x-taximeter-task",)
_RUN: Final = (b"x-taximeter-run",)
_SESSION: Final = (b"x-taximeter-session", b"helicone-session-id", b"x-claude-code-session-id")
_LABEL: Final = b"x-taximeter-label-"
# Helicone's clients send these; they are labels here.
_LABELS: Final = {b"helicone-session-name": "session-name", b"helicone-session-path": "session-path"}
_HELICONE_PROPERTY: Final = b"helicone-property-"
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?![^-])"
)
# `/task/NAME/run/NAME/label/KEY/VALUE`, and behind it the path proper. Every word and name is whole, percent-encoded.
_PREFIX: Final = re.compile(rb"(?:/(?:task|run|session)/[^/]*|/label/[^/]+/[^/]*)+(?=/v1(?:/|$))")
_WORD: Final = re.compile(rb"/(?:(?P<kind>task|run|session)|label/(?P<label>[^/]+))/(?P<name>[^/]*)")
_KEY: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # what a header can be called
_NONE: Final = Groups()


def split_path(raw_path: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The path without the groups that it begins with, and these as our headers would name them.

    Whoever can tell a program no more than where the API is, says there what its requests belong to:
    `http://127.0.0.1:8000/task/nightly/v1`. A path that does not begin so is given back whole.
    """
    prefix = None if raw_path.startswith(b"/v1/") else _PREFIX.match(raw_path)
    if prefix is None:
        return raw_path, []
    named: list[tuple[bytes, bytes]] = []
    for word in _WORD.finditer(prefix[0]):
        kind = word["kind"] or b"label-" + unquote_to_bytes(word["label"]).lower()
        if not _KEY.fullmatch(kind):
            raise RequestError("a label in a path has a key that no header could have: letters, digits and -_. only")
        named.append((b"x-taximeter-" + kind, unquote_to_bytes(word["name"])))
    return raw_path[prefix.end() :], named


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
        f"{shown} must be at most {MOST_GROUP_NAME_CHARACTERS} printable characters in UTF-8, in a header or a path",
        param=shown,
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
    if len(labels) > MOST_LABELS:
        raise RequestError(f"a request has at most {MOST_LABELS} labels", param="x-taximeter-label-*")
    return labels


def _trace(traceparent: bytes) -> tuple[str | None, str | None]:
    """The trace, and as much of the header as is known: later versions of it may have more at the end."""
    match = _TRACEPARENT.match(traceparent)
    return (None, None) if match is None else (match["trace"].decode(), match[0].decode())
