"""Logs of one JSON object a line, read in blocks.

Owns: finding the lines that matter without looking at the others, half lines, lines beyond measure, and where to go on
the next time. Refuses to know: what is in them.

Most of a log is text that people and models wrote. A line is looked at only where a mark is in it, some bytes that no
line of interest lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from taximeter.importers.logged import LogFile

MOST_LINE_BYTES = 64 << 20
"""Pictures are pasted into logs, and are some megabytes. What is longer is skipped, and said."""

_BLOCK_BYTES = 4 << 20

Mark = bytes | re.Pattern[bytes]


def marked_lines(log: LogFile, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """Where each line with `mark` in it begins, and the line: from `log.offset` on, to where the file ended when it was
    opened.

    Behind them `log.offset` stands after the last whole line. What stands there without a line's end is given too if
    it closes an object, as it does in a file that just ends so; else it is half a line, and is read the next time.
    """
    log.file.seek(log.offset)
    begin, rest, skipping = log.offset, b"", False
    while block := log.file.read(min(_BLOCK_BYTES, log.size - begin - len(rest))):
        log.on_bytes(len(block))
        end = block.rfind(b"\n") + 1
        if not end:  # the line goes on
            rest += block
            if skipping or len(rest) > MOST_LINE_BYTES:
                begin += len(rest)
                rest = b""
                skipping = True
            continue
        buffer = rest + block if rest else block
        end += len(rest)
        first = 0
        if skipping:
            log.note(f"a line of more than {MOST_LINE_BYTES >> 20} MB is skipped")
            first, skipping = buffer.index(b"\n") + 1, False
        for at, line in _marked_in(buffer, first, end, mark):
            yield begin + at, line
        rest = buffer[end:]
        begin += end
        log.offset = begin
    if skipping or not rest.strip():
        return
    if not rest.rstrip().endswith(b"}"):
        log.note("half a line at the end of a file")
    elif _has(rest, mark):
        log.offset = begin + len(rest)
        yield begin, rest


def first_lines(head: bytes) -> Iterator[bytes]:
    """The whole lines in the first bytes of a file, and the last one if there is no other."""
    lines = head.split(b"\n")
    yield from (line for line in (lines[:-1] or lines) if line.strip())


def _has(line: bytes, mark: Mark) -> bool:
    return mark in line if isinstance(mark, bytes) else mark.search(line) is not None


def _marked_in(buffer: bytes, first: int, end: int, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """The lines of `buffer[first:end]` with the mark in them. The last byte of that is a line's end."""
    if isinstance(mark, bytes):
        place = buffer.find(mark, first, end)
        while place >= 0:
            begin = buffer.rfind(b"\n", first, place) + 1 or first
            after = buffer.find(b"\n", place, end)
            yield begin, buffer[begin:after]
            first = after + 1
            place = buffer.find(mark, first, end)
        return
    found = mark.search(buffer, first, end)
    while found is not None:
        begin = buffer.rfind(b"\n", first, found.start()) + 1 or first
        after = buffer.find(b"\n", found.start(), end)
        yield begin, buffer[begin:after]
        first = after + 1
        found = mark.search(buffer, first, end)
