"""Logs that lie packed, or in UTF-16 as some shells write what is sent to a file: read as what they hold.

Owns: telling such files by their first bytes, and the copy that is read instead. What zstd has packed, as Codex packs
old rollouts, is unpacked by zstd itself. Refuses to know: what a log says.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".gz", ".zst")

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5"  # of four: no text in UTF-8 begins so either
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF16_WITHOUT_MARK = re.compile(rb"(?:(?P<little>[\t\n\r -~]\0){2}|(?:\0[\t\n\r -~]){2})")
_BEGUN_BYTES = 4
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_BLOCK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 14  # where a byte of these is wrong, none of what they hold comes out
_MOST_BYTES = 64 << 30  # a small file may unpack to what fills the disk
_MOST_BEGINNING_BYTES = 1 << 18


class Opened(NamedTuple):
    """A file to read: `size` bytes of plain text. `status` is of the file itself, also where `file` is a copy that is
    gone when closed; `damage` is why that is not all of it."""

    file: FileIO
    size: int
    status: os.stat_result
    damage: str | None = None


def is_plain(begun: bytes) -> bool:
    """Whether a file that begins so is read as it lies."""
    return not begun.startswith((_GZIP, _ZSTD)) and _utf16(begun) is None


def opened(path: Path) -> Opened:
    """The file at `path`. Raises OSError."""
    file = path.open("rb", buffering=0)
    status = os.fstat(file.fileno())
    begun = file.read(_BEGUN_BYTES)
    file.seek(0)
    if is_plain(begun):
        return Opened(file, status.st_size, status)
    with closing(file):
        copy = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115 - whoever reads it closes it
        try:
            encoding = _utf16(begun)
            pieces = _READERS[begun[: len(_GZIP)]](file) if encoding is None else _in_utf8(file, encoding)
            damage, size = _copied(pieces, copy)
            if encoding is None:
                copy.seek(0)
                if _utf16(copy.read(_BEGUN_BYTES)) is not None:
                    raise OSError(errno.EILSEQ, "it is packed, and in UTF-16: unpack it, that can be read")
            copy.seek(0)
        except BaseException:
            copy.close()
            raise
    return Opened(copy, size, status, damage)


def beginning(begun: bytes) -> bytes:
    """What the first bytes of a file hold, as far as that shows. Raises OSError where that cannot be unpacked here."""
    if begun.startswith(_GZIP):
        try:
            return zlib.decompressobj(_GZIP_FORMAT).decompress(begun, _MOST_BEGINNING_BYTES)
        except zlib.error:
            return b""
    if begun.startswith(_ZSTD):
        with tempfile.TemporaryFile("w+b", buffering=0) as file:
            file.write(begun)
            file.seek(0)
            with closing(_unpacked_by_zstd(file)) as pieces:
                try:
                    return next(pieces, b"")[:_MOST_BEGINNING_BYTES]
                except EOFError:
                    return b""
    encoding = _utf16(begun)
    return begun if encoding is None else begun.decode(encoding, "ignore").encode("utf-8", "replace")


def _utf16(begun: bytes) -> str | None:
    """Which kind of UTF-16 a file is in that begins so; None for other text. Not every program writes the mark."""
    if begun.startswith(_UTF16):
        return "utf-16"
    found = _UTF16_WITHOUT_MARK.match(begun)
    if found is None:
        return None
    return "utf-16-be" if found["little"] is None else "utf-16-le"


def _copied(pieces: Iterator[bytes], copy: FileIO) -> tuple[str | None, int]:
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > _MOST_BYTES:
                raise OSError(errno.EFBIG, "it unpacks to more than can be read")
            view = memoryview(piece)
            while view:
                view = view[copy.write(view) or 0 :]
    except (EOFError, zlib.error):
        return "a packed file is damaged or breaks off: the rest of it is left out", size
    return None, size


def _unpacked(file: FileIO) -> Iterator[bytes]:
    """What is in it, one packed part behind the other. Raises EOFError, zlib.error behind what could be read."""
    part = zlib.decompressobj(_GZIP_FORMAT)
    while block := file.read(_PACKED_BYTES):
        while block:
            if part.eof:
                part = zlib.decompressobj(_GZIP_FORMAT)
            yield part.decompress(block, _BLOCK_BYTES)
            block = part.unconsumed_tail or part.unused_data.lstrip(b"\0")  # some fill the rest of a block
    if not part.eof:
        raise EOFError


def _unpacked_by_zstd(file: FileIO) -> Generator[bytes]:
    """The same by the program `zstd`. Raises OSError where there is none."""
    program = shutil.which("zstd")
    if program is None:
        raise OSError(errno.ENOTSUP, "zstd has packed it, and that program is not here: install it, or unpack the file")
    with subprocess.Popen(  # noqa: S603 - a program of the machine's own, and a file as its input
        [program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe
        while piece := process.stdout.read(_BLOCK_BYTES):
            yield piece
    if process.returncode:
        raise EOFError


def _in_utf8(file: FileIO, encoding: str) -> Iterator[bytes]:
    decode = codecs.getincrementaldecoder(encoding)("replace").decode
    while piece := file.read(_BLOCK_BYTES):
        yield decode(piece).encode("utf-8", "replace")
    yield decode(b"", final=True).encode("utf-8", "replace")


_READERS: Mapping[bytes, Callable[[FileIO], Iterator[bytes]]] = {_GZIP: _unpacked, _ZSTD: _unpacked_by_zstd}
