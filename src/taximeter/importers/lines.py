"""Logs of one JSON object a line, read in blocks.

Owns: whole lines, half lines, lines beyond measure, where to go on the next time, and finding the lines that matter
without looking at the others. Refuses to know: what is in them.

Most of a log is text that people and models wrote. A line is looked at only where a mark is in it, some bytes that no
line of interest lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from taximeter.importers.logged import LogFile

MOST_LINE_BYTES = 64 << 20
"""Pictures are pasted into logs, and are some megabytes. What is longer is skipped, and said."""

BLOCK_BYTES = 1 << 18
"""As much is read at a time: it is looked at while the processor's cache still has it."""

_KEPT_BYTES = 8 << 20

Mark = bytes | re.Pattern[bytes]
Buffer = bytes | bytearray

# Rooms for blocks, to be used again: the system takes as long to make one as to fill it.
_rooms: list[bytearray] = []


class Block(NamedTuple):
    """Whole lines, each with its end: `buffer[first:end]`, until the next block is asked for. The buffer's first byte
    stands at `offset` in the file."""

    offset: int
    buffer: bytearray
    first: int
    end: int


def blocks(log: LogFile, mark: Mark) -> Iterator[Block]:
    """All whole lines from `log.offset` on, to where the file ended when it was opened.

    Behind them `log.offset` stands after the last one. What stands there without a line's end is given too if it has
    `mark` in it and closes an object, as it does in a file that just ends so; else it is half a line, and is read the
    next time.
    """
    room = _rooms.pop() if _rooms else bytearray(BLOCK_BYTES)
    log.file.seek(log.offset)
    begin, held, skipping = log.offset, 0, False  # `held` bytes are of a line that goes on
    while True:
        if len(room) - held < BLOCK_BYTES:
            room += bytes(BLOCK_BYTES)
        with memoryview(room) as view, view[held : held + min(BLOCK_BYTES, log.size - begin - held)] as rest:
            count = log.file.readinto(rest) or 0
        if not count:
            break
        log.on_bytes(count)
        end = room.rfind(b"\n", held, held + count) + 1
        held += count
        if not end:  # the line goes on
            if skipping or held > MOST_LINE_BYTES:
                begin, held, skipping = begin + held, 0, True
            continue
        first = 0
        if skipping:
            log.note(f"a line of more than {MOST_LINE_BYTES >> 20} MB is skipped")
            first, skipping = room.index(b"\n") + 1, False
        if first < end:
            yield Block(begin, room, first, end)
        room[: held - end] = room[end:held]
        begin, held = begin + end, held - end
        log.offset = begin
    rest = b"" if skipping else bytes(room[:held])
    if rest.strip():
        if not rest.rstrip().endswith(b"}"):
            log.note("half a line at the end of a file")
        elif _has(rest, mark):
            log.offset = begin + held
            room[held : held + 1] = b"\n"
            yield Block(begin, room, 0, held + 1)
    if len(room) <= _KEPT_BYTES:
        _rooms.append(room)


def marked_lines(log: LogFile, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """Where each line with `mark` in it begins, and the line: of all `blocks`."""
    for offset, buffer, first, end in blocks(log, mark):
        for begin, after in marked_in(buffer, first, end, mark):
            yield offset + begin, bytes(buffer[begin:after])


def first_lines(head: bytes) -> Iterator[bytes]:
    """The whole lines in the first bytes of a file, and the last one if there is no other."""
    lines = head.split(b"\n")
    yield from (line for line in (lines[:-1] or lines) if line.strip())


def marked_in(buffer: Buffer, first: int, end: int, mark: Mark) -> Iterator[tuple[int, int]]:
    """Where the lines of `buffer[first:end]` begin and end that have the mark in them. The last byte of that is a
    line's end."""
    if isinstance(mark, bytes):
        place = buffer.find(mark, first, end)
        while place >= 0:
            begin = buffer.rfind(b"\n", first, place) + 1 or first
            after = buffer.find(b"\n", place, end)
            yield begin, after
            first = after + 1
            place = buffer.find(mark, first, end)
        return
    found = mark.search(buffer, first, end)
    while found is not None:
        begin = buffer.rfind(b"\n", first, found.start()) + 1 or first
        after = buffer.find(b"\n", found.start(), end)
        yield begin, after
        first = after + 1
        found = mark.search(buffer, first, end)


def _has(line: bytes, mark: Mark) -> bool:
    return mark in line if isinstance(mark, bytes) else mark.search(line) is not None
