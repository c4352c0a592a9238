"""Log files: which there are, which have changed since they were last read, and where to read on.

Owns: walking folders, and the identity of a file: its size and times while it is left alone, its beginning and the end
of what was read once it has changed. Refuses to know: what is in a log.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import msgspec

from taximeter.importers.packed import SUFFIXES

BEGINNING_BYTES, END_BYTES = 4_096, 512
"""Of a file, by which it is known again."""


class FileState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is remembered of a file that was read. `offset` is where to read on, `digest` is of the first bytes before
    it and the last. `memory` is the reader's own, `edition` which one it was."""

    device: int
    inode: int
    size: int
    modified_ns: int
    offset: int
    digest: str
    edition: str
    memory: str = ""

    def is_unchanged(self, status: os.stat_result, edition: str) -> bool:
        """Whether the file has been left alone since."""
        return (
            self.size == status.st_size
            and self.modified_ns == status.st_mtime_ns
            and (self.device, self.inode) == (status.st_dev, status.st_ino)
            and self.edition == edition
        )


def state_of(text: str) -> FileState | None:
    """What `state_text` made; None where another version did."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return None


def state_text(state: FileState) -> str:
    """The state as text, for the ledger."""
    return msgspec.json.encode(state).decode()


_decode = msgspec.json.Decoder(FileState).decode


def walk(paths: Iterable[Path], suffixes: tuple[str, ...], notes: Counter[str]) -> list[tuple[Path, os.stat_result]]:
    """Every file at `paths`, and in those that are folders each whose name ends so, packed or not, the oldest first. A
    file that is found twice, under two names even, comes once. What cannot be read is noted."""
    found: dict[tuple[int, int], tuple[str, os.stat_result]] = {}
    for path in paths:
        is_folder = path.is_dir()
        for each in _names_in(path, suffixes, notes) if is_folder else [str(path)]:
            try:
                status = os.stat(each)  # noqa: PTH116 - a path for each of ten thousand takes as long as asking
            except OSError as error:
                if not (is_folder and isinstance(error, FileNotFoundError)):  # a link to nothing is no file
                    notes[f"a file cannot be read: {why(error)}"] += 1
                continue
            if not is_folder or S_ISREG(status.st_mode):  # a pipe would never end
                found.setdefault((status.st_dev, status.st_ino), (each, status))
    # The older is the original where one file is the copy of another, and goes on.
    in_order = sorted(found.values(), key=lambda each: (each[1].st_mtime_ns, each[0]))
    return [(Path(name), status) for name, status in in_order]


def reading_offset(state: FileState | None, file: BinaryIO, size: int, edition: str) -> int:
    """Where to read: behind what was read the last time, if the file still begins and goes on until there as it did;
    else from its beginning."""
    if state is None or state.edition != edition or not 0 < state.offset <= size:
        return 0
    return state.offset if digest(file, state.offset) == state.digest else 0


def digest(file: BinaryIO, offset: int) -> str:
    """Of the first bytes of what lies before `offset`, and of its last ones."""
    file.seek(0)
    begins = file.read(min(BEGINNING_BYTES, offset))
    file.seek(max(0, offset - END_BYTES))
    return digest_of(begins, file.read(min(END_BYTES, offset)), offset)


def digest_of(began: bytes, before: bytes, offset: int) -> str:
    """The same of the first bytes of a file, and those before `offset`."""
    return hashlib.sha256(began[:offset] + before).hexdigest()[:32]


def why(error: OSError) -> str:
    """What is wrong with a file, without its name."""
    return (error.strerror or type(error).__name__).lower()


def _names_in(folder: Path, suffixes: tuple[str, ...], notes: Counter[str]) -> Iterator[str]:
    """The files in a folder and in those below it, links to folders too: each once, wherever links lead."""

    def unreadable(error: OSError) -> None:
        notes[f"a folder cannot be read: {why(error)}"] += 1

    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        try:
            status = Path(place).stat()
        except OSError as error:
            unreadable(error)
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        yield from (
            os.path.join(place, name)  # noqa: PTH118 - as above
            for name in names
            if unpacked_name(name).endswith(suffixes)
        )


def unpacked_name(name: str) -> str:
    """The name of a file without what says that it is packed."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
