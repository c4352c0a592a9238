"""What a body says that only passes through.

Owns: the few fields that decide where it goes and what its receipt says, and the two that may have to change on the
way. Refuses to know: whether the rest makes sense: that is for whoever answers. All other bytes stay as they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from taximeter.errors import RequestError
from taximeter.records import Dialect

_MOST_MODEL_CHARACTERS: Final = 256
_MOST_PARTS: Final = 512  # of a prompt, on a receipt; the rest is one more


class _Body(msgspec.Struct):
    model: str
    stream: object = None
    stream_options: msgspec.Raw = msgspec.Raw()
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    n: object = None
    service_tier: object = None
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


class _StreamOptions(msgspec.Struct):
    include_usage: object = None


_body = msgspec.json.Decoder(_Body)
_options = msgspec.json.Decoder(_StreamOptions)
_KEY: Final = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*')
_AFTER_VALUE: Final = re.compile(rb"[ \t\r\n]*[,}]")
_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """What was seen. `wants_usage` is whether the client asked for the usage at the end of its stream."""

    model: str
    stream: bool
    wants_usage: bool
    max_output_tokens: int | None
    choices: int
    tier: str | None
    _read: _Body = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """One hash for each tool, each system text and each turn, as the client wrote them. Made when it is asked for:
        nothing waits for it."""
        return tuple(_fingerprint(self._read))


def peek(body: bytes) -> Peek:
    """Look at a JSON body. Raises RequestError when it names no model, for then nobody knows where it goes."""
    try:
        read = _body.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError("the body must be a JSON object with a text `model`", param="model") from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {str(error)[:120]}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    if not (0 < len(read.model) <= _MOST_MODEL_CHARACTERS and read.model.isprintable()):
        raise RequestError(
            f"`model` must be a printable name of at most {_MOST_MODEL_CHARACTERS} characters", param="model"
        )
    limits = (read.max_completion_tokens, read.max_output_tokens, read.max_tokens)
    return Peek(
        model=read.model,
        stream=read.stream is True,
        wants_usage=_wants_usage(read.stream_options),
        max_output_tokens=next((limit for limit in limits if type(limit) is int and limit > 0), None),
        choices=read.n if type(read.n) is int and 0 < read.n <= 128 else 1,
        tier=read.service_tier if isinstance(read.service_tier, str) else None,
        _read=read,
    )


def sent(body: bytes, seen: Peek, dialect: Dialect, *, send_as: str | None) -> bytes:
    """The body as it goes on: the client's own bytes, unless the upstream has another name for the model, or must be
    asked for the usage of a stream."""
    changes: dict[str, object] = {}
    if send_as is not None:
        changes["model"] = send_as
    if dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS) and seen.stream and not seen.wants_usage:
        options = _body.decode(body).stream_options
        if (written := bytes(options)) in (b"", b"null"):
            changes["stream_options"] = {"include_usage": True}
        elif written[:1] == b"{":
            changes["stream_options"] = msgspec.Raw(spliced(written, {"include_usage": True}))
        # Anything else is for the upstream to refuse.
    return spliced(body, changes) if changes else body


def spliced(text: bytes, changes: Mapping[str, object]) -> bytes:
    """A JSON object, with other values for some of its keys; where it has none of that name, it is put in front. All
    other bytes stay as they are. Raises msgspec.DecodeError for what is no object.

    An object that has a key twice is written anew, with its last values: which of them others read is uncertain.
    """
    fields = _object.decode(text)
    encoded = {key: msgspec.json.encode(value) for key, value in changes.items()}
    places = _places(text, fields)
    if places is None:
        return msgspec.json.encode(fields | {key: msgspec.Raw(value) for key, value in encoded.items()})
    pieces: list[bytes] = []
    opened = text.index(b"{") + 1
    pieces.append(text[:opened])
    new = [b'"%s":%s' % (key.encode(), value) for key, value in encoded.items() if key not in fields]
    pieces.append(b",".join(new))
    if new and fields:
        pieces.append(b",")
    done = opened
    for start, end, key in sorted((*places[key], key) for key in encoded if key in places):
        pieces += [text[done:start], encoded[key]]
        done = end
    pieces.append(text[done:])
    return b"".join(pieces)


def _places(text: bytes, fields: Mapping[str, msgspec.Raw]) -> dict[str, tuple[int, int]] | None:
    """Where the value of each key of an object stands; None where a key comes twice. The values' own lengths are known,
    so that nothing within them is looked at."""
    places: dict[str, tuple[int, int]] = {}
    at = text.index(b"{") + 1
    for name, value in fields.items():
        key = _KEY.match(text, at)
        if key is None or msgspec.json.decode(key[1]) != name:
            return None
        end = key.end() + len(memoryview(value))
        # A value that is not the one at this place is a later one of the same key.
        if not text.startswith(memoryview(value), key.end()) or (after := _AFTER_VALUE.match(text, end)) is None:
            return None
        places[name] = (key.end(), end)
        at = after.end()
    return places if text[at - 1 : at] == b"}" or not fields else None


def _wants_usage(options: msgspec.Raw) -> bool:
    try:
        return bool(bytes(options)) and _options.decode(options).include_usage is True
    except msgspec.DecodeError:
        return False


def _fingerprint(read: _Body) -> list[str]:
    parts: list[bytes] = []
    for raw in (read.tools, read.system, read.instructions, read.messages, read.input, read.prompt):
        text = bytes(raw)
        if text[:1] != b"[":
            parts += [text] if text and text != b"null" else []
            continue
        try:
            items = [bytes(part) for part in _list.decode(text)]
        except msgspec.DecodeError:
            items = []
        # A list of token ids is one text.
        parts += items if items and items[0][:1] in b'"{[' else [text]
    if len(parts) > _MOST_PARTS:
        parts[_MOST_PARTS:] = [b"\0".join(parts[_MOST_PARTS:])]
    return ["sha256:" + hashlib.sha256(part).hexdigest()[:16] for part in parts]
