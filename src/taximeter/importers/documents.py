"""JSON documents: a list, an object that holds one, or an object by itself.

Owns: where the entries of a list end, so that a long one is never in memory as a whole, and what of a damaged one can
be read. Refuses to know: what is in an entry.

Brackets are counted, outside of texts, by arrays: where as many are closed as were opened since the list began, an
entry ends. What lies between two such places is decoded strictly, and so it is known whether that was right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from taximeter.importers.chunks import CHUNK_BYTES, Objects
from taximeter.importers.counted import Counted
from taximeter.importers.decoding import BLANK, UNREADABLE, decoded
from taximeter.importers.logged import LogFile
from taximeter.importers.strangers import mapping

LISTS = ("data", "observations", "items", "results", "logs", "rows")
"""What an object calls the list that it holds."""

_MOST_ENTRY_BYTES = 64 << 20
_MOST_DOCUMENT_BYTES = 1 << 30  # what holds no list is read as a whole

_BOM = b"\xef\xbb\xbf"
_NAMED = rb"\"(?:" + "|".join(LISTS).encode() + rb")\"\s*:\s*"
_NAMED_BEFORE = re.compile(_NAMED + rb"\Z")
_WITHIN_AN_OBJECT = 2  # its bracket and the list's are open
_MOST_NAME_BYTES = 256  # with the blanks around it
_LIST_SOMEWHERE = re.compile(_NAMED + rb"\[")
_BETWEEN = re.compile(r"[\s,\0]*")
_OPENS = np.isin(np.arange(256), list(b"[{"))
_TO_MARKS = bytes(letter in b'"[]{}' for letter in range(256))  # 1 for each, 0 for all else
_forgiving = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
_decode_list = msgspec.json.Decoder(list[Any]).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def holds_a_list(head: bytes) -> bool:
    """Whether an object that begins so has a list that rows may be in."""
    return _list_in(head, _Brackets().of(head)) is not None


def objects_of(log: LogFile) -> Iterator[Objects]:
    """The entries that are objects. What cannot be read is noted and left out."""
    blocks = _blocks(log)
    brackets = _Brackets()
    first = next(blocks, b"").removeprefix(_BOM).lstrip(BLANK)
    while not first and (block := next(blocks, None)) is not None:
        first = block.lstrip(BLANK)
    marks = brackets.of(first)
    if first.startswith(b"["):
        yield from _entries(blocks, brackets, first, marks, _Begun(0, 1), log)
        return
    searched = [first]
    before = b""
    while (begun := _list_in(searched[-1], marks, before)) is None:
        before = (before + searched[-1])[-_MOST_NAME_BYTES:]
        block = next(blocks, None)
        if block is None:
            yield from _of_an_object(b"".join(searched).strip(BLANK), log)
            return
        if sum(map(len, searched)) > _MOST_DOCUMENT_BYTES:
            log.note("a JSON document of more than 1 GB that holds no list: export it as JSON lines")
            return
        marks = brackets.of(block)
        searched.append(block)
    yield from _entries(blocks, brackets, searched[-1], marks, begun, log)


def _blocks(log: LogFile) -> Iterator[bytes]:
    """The file, in blocks that end in no escape."""
    file = Counted(log).buffered()
    while block := file.read(CHUNK_BYTES):
        while block.endswith(b"\\") and (more := file.read(CHUNK_BYTES)):
            block += more
        yield block


class _Marks(NamedTuple):
    """Brackets outside of texts: where each is, which one, and how many are open behind it."""

    places: NDArray[np.intp]
    letters: NDArray[np.uint8]
    depths: NDArray[np.int64]


class _Brackets:
    """Finds brackets in blocks of one text."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_text = False

    def of(self, block: bytes) -> _Marks:
        """Those in the next block."""
        without_escapes = block.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in block else block
        letters = np.frombuffer(without_escapes, dtype=np.uint8)
        places = np.flatnonzero(np.frombuffer(without_escapes.translate(_TO_MARKS), dtype=np.bool_))
        letters = letters[places]
        is_quote = letters == ord('"')
        quotes = np.cumsum(is_quote) + self._is_in_text
        counts = ~is_quote & (quotes % 2 == 0)
        places, letters = places[counts], letters[counts]
        depths = self._depth + np.cumsum(np.where(_OPENS[letters], 1, -1))
        if len(quotes):
            self._is_in_text = bool(quotes[-1] % 2)
        if len(depths):
            self._depth = int(depths[-1])
        return _Marks(places, letters, depths)


class _Begun(NamedTuple):
    """A list: the place of its bracket in a block, and how many are open behind that."""

    place: int
    depth: int


def _list_in(block: bytes, marks: _Marks, before: bytes = b"") -> _Begun | None:
    """The first list that an object has under one of the names. What stands `before` the block may be part of one."""
    for place in marks.places[(marks.letters == ord("[")) & (marks.depths == _WITHIN_AN_OBJECT)].tolist():
        said = block[max(0, place - _MOST_NAME_BYTES) : place]
        if _NAMED_BEFORE.search(before + said if place < _MOST_NAME_BYTES else said) is not None:
            return _Begun(place, _WITHIN_AN_OBJECT)
    return None


def _entries(
    blocks: Iterator[bytes], brackets: _Brackets, block: bytes, marks: _Marks, begun: _Begun, log: LogFile
) -> Iterator[Objects]:
    """The entries of a list that begins in `block`."""
    within = marks.places > begun.place
    marks = _Marks(marks.places[within], marks.letters[within], marks.depths[within])
    waiting: list[bytes] = []
    start = begun.place + 1
    while True:
        ends = np.flatnonzero(marks.depths < begun.depth)
        if len(ends):
            end = int(marks.places[ends[0]])
            is_sound = marks.letters[ends[0]] == ord("]")
            objects, is_whole = _decoded(b"".join([*waiting, block[start:end]]), log)
            yield objects
            if is_whole and not is_sound:
                log.note(_DAMAGED)
            return
        closed = np.flatnonzero((marks.depths == begun.depth) & ~_OPENS[marks.letters])
        if len(closed):
            end = int(marks.places[closed[-1]]) + 1
            objects, is_whole = _decoded(b"".join([*waiting, block[start:end]]), log)
            yield objects
            if not is_whole:
                return
            waiting, start = [], end
        waiting.append(block[start:])
        if sum(map(len, waiting)) > _MOST_ENTRY_BYTES:
            log.note(f"an entry of more than {_MOST_ENTRY_BYTES >> 20} MB: the rest of its list is left out")
            return
        following = next(blocks, None)
        if following is None:
            objects, is_whole = _decoded(b"".join(waiting), log)
            yield objects
            if is_whole:
                log.note(_DAMAGED)
            return
        block, start = following, 0
        marks = brackets.of(block)


_DAMAGED = "a list that is damaged or breaks off: the rest of it is left out"


def _decoded(text: bytes, log: LogFile) -> tuple[Objects, bool]:
    """The objects among some entries of a list, and whether these were all that is there."""
    text = text.strip(BLANK).removeprefix(b",")
    entries: list[Any]
    is_whole = True
    try:
        entries = _decode_list(b"[" + text + b"]")
    except UNREADABLE:
        try:
            entries = [_mended(bytes(part)) for part in _decode_parts(b"[" + text + b"]")]
        except UNREADABLE:
            entries, is_whole = _as_far_as_they_go(text.decode("utf-8", "replace"))
    rows = Objects(entry for entry in entries if mapping(entry) is not None)
    if len(rows) < len(entries):
        log.note("an entry that is no JSON object", len(entries) - len(rows))
    if not is_whole:
        log.note(_DAMAGED)
    return rows, is_whole


def _as_far_as_they_go(text: str) -> tuple[list[Any], bool]:
    """The entries before the first that is damaged, and whether none is."""
    entries: list[Any] = []
    place = 0
    while True:
        between = _BETWEEN.match(text, place)
        place = place if between is None else between.end()
        if place == len(text):
            return entries, True
        try:
            entry, place = _forgiving.raw_decode(text, place)
        except (ValueError, RecursionError):
            return entries, False
        entries.append(_mended(json.dumps(entry)))


def _mended(entry: bytes | str) -> Any:
    """What an entry says; None where that cannot be told."""
    try:
        return decoded(entry)
    except UNREADABLE:
        return None


def _of_an_object(body: bytes, log: LogFile) -> Iterator[Objects]:
    """An object by itself, or the list in one that is damaged."""
    try:
        _decode_fields(body)
    except UNREADABLE:
        found = _LIST_SOMEWHERE.search(body)
        if found is None:
            log.note("a file that is no JSON")
            return
        rest = body[found.end() - 1 :]
        brackets = _Brackets()
        yield from _entries(iter(()), brackets, rest, brackets.of(rest), _Begun(0, 1), log)
        return
    yield _decoded(body, log)[0]
