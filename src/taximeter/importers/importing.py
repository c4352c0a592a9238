"""One import: find the logs, read what is new in them, and append it to the ledger.

Owns: what is read again and what is not, and how much is appended at a time. Refuses to know: formats and prices.

A call counts once, whatever files it is in.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taximeter.collecting import without_collecting
from taximeter.errors import RequestError
from taximeter.importers.appending import Anew, Became, Shelf, append
from taximeter.importers.decoding import BLANK
from taximeter.importers.files import state_of, state_text, walk, why
from taximeter.importers.instants import text_of
from taximeter.importers.once import Entry, each_once, ids_of, without
from taximeter.importers.packed import beginning
from taximeter.importers.pieces import Piece, Task
from taximeter.importers.sources import HEAD_BYTES, SOURCES, Source, source_named, source_of, suffixes
from taximeter.importers.summary import ImportSummary
from taximeter.importers.workers import reading
from taximeter.ledger import FileMark
from taximeter.ledger.batch import Batch
from taximeter.ledger.bulk import MOST_AT_ONCE

if TYPE_CHECKING:
    from taximeter.importers.booking import Books  # a year of prices, which an import of nothing new needs not

COLUMNS = "columns"
_BATCH = 10_000  # are appended where nothing else is being, and otherwise what comes together meanwhile
_FUTURE = timedelta(days=1)  # clocks differ, and zones are forgotten
_SMALL_HEAD_BYTES = 1 << 14

Progress = Callable[[int, int], None]
"""Is told how many bytes were read, and of how many."""


@dataclass(slots=True)
class Plan:
    """What an import will read. `unchanged` files were read before and have been left alone since; `anew` is why
    some are read once more that have not just grown."""

    tasks: list[Task]
    size_bytes: int = 0
    unchanged: int = 0
    unchanged_bytes: int = 0
    anew: Anew = Anew.NOT
    notes: Counter[str] = field(default_factory=Counter[str])


def plan(
    shelf: Shelf,
    paths: Sequence[Path],
    source: str | None,
    *,
    environ: Mapping[str, str],
    home: Path,
    columns: Path | None = None,
) -> Plan:
    """Which files are to be read, and from where.

    `paths` are files and folders, of `source` if that is given, or tables with the map in the file `columns`; without
    any, the usual places are meant. Raises RequestError for a source that is not known and for a path that is not
    there, ConfigError for a map that is not understood.
    """
    if source is not None and source not in SOURCES:
        raise RequestError(f"there is no source {source!r}", param="from", hint=f"one of {', '.join(SOURCES)}")
    for path in paths:
        if not path.exists():
            raise RequestError(f"{path} does not exist", param="path")
    if columns is not None:
        chosen = [source_named(COLUMNS, columns)]
    else:
        chosen = list(SOURCES.values()) if source is None else [SOURCES[source]]
    known = {each.name: shelf.file_marks(each.name) for each in chosen}
    made = Plan([])
    if paths:
        for path, status in walk(paths, suffixes(chosen), made.notes):
            mine = chosen[0] if len(chosen) == 1 else _source_of(path, known, made.notes)
            if mine is not None:
                _add(made, mine, path, status, known[mine.name], columns)
        return made
    for each in chosen:
        places = [place for place in each.places(environ, home) if place.is_dir()]
        for path, status in walk(places, each.suffixes, made.notes):
            _add(made, each, path, status, known[each.name])
    return made


def _add(
    made: Plan,
    source: Source,
    path: Path,
    status: os.stat_result,
    known: Mapping[str, str],
    columns: Path | None = None,
) -> None:
    name = str(path.absolute())
    text = known.get(name)
    state = None if text is None else state_of(text)
    size = status.st_size
    if state is not None and state.is_unchanged(status, source.edition):
        made.unchanged += 1
        made.unchanged_bytes += size
        return
    if state is not None and state.edition != source.edition:
        made.anew = Anew.BY_ANOTHER_EDITION if columns is None else Anew.BY_ANOTHER_MAP
    made.tasks.append(Task(source.name, Path(name), state, columns, size))
    made.size_bytes += size


def _source_of(path: Path, known: Mapping[str, Mapping[str, str]], notes: Counter[str]) -> Source | None:
    """Which log a file is: the one that it was before, or what it looks like."""
    name = str(path.absolute())
    for source, marks in known.items():
        if name in marks:
            return SOURCES[source]
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(_SMALL_HEAD_BYTES)
            if len(head) < _SMALL_HEAD_BYTES and not head.strip(BLANK):
                notes["an empty file"] += 1
                return None
            source = source_of(beginning(head))
            if source is None and len(head) == _SMALL_HEAD_BYTES:
                source = source_of(beginning(head + file.read(HEAD_BYTES)))
    except OSError as error:
        notes[f"a file cannot be read: {why(error)}"] += 1
        return None
    if isinstance(source, Source):
        return source
    notes[source or "a file that is no log known here: --from or --map says what it is"] += 1
    return None


class Importer:
    """Reads what a plan says, and appends it. With `dry_run` the ledger stays as it is. `books` are opened once other
    processes have begun to read: to load a year of prices takes as long as to read a hundred megabytes."""

    def __init__(
        self,
        shelf: Shelf,
        books: Callable[[], Books],
        *,
        now: datetime,
        dry_run: bool = False,
        processes: int = 0,
        on_progress: Progress | None = None,
    ) -> None:
        self._shelf = shelf
        self._open_books = books
        self._latest = np.datetime64(text_of(now + _FUTURE), "us")
        self._dry_run = dry_run
        self._processes = processes
        self._on_progress = on_progress
        self._summary = ImportSummary()
        self._entries: list[Entry] = []
        self._waiting = 0
        self._most_waiting = MOST_AT_ONCE
        self._marks: list[FileMark] = []
        self._seen: set[str] = set()  # in a dry run the ledger learns nothing
        self._appending: Future[Became] | None = None
        self._anew = Anew.NOT

    def run(self, made: Plan) -> ImportSummary:
        """Do it. What was appended stays, also if it ends early."""
        summary = self._summary
        summary.files_unchanged, summary.notes = made.unchanged, made.notes
        self._anew = made.anew
        with (
            without_collecting(),
            reading(made.tasks, processes=self._processes) as pieces,
            ThreadPoolExecutor(1, thread_name_prefix="taximeter-append") as appender,
        ):
            books = self._open_books()
            for task, piece in pieces:
                # Only now that there is more: what is appended last is durable, and so is all before it then.
                if self._waiting >= (_BATCH if self._is_idle() else self._most_waiting):
                    self._flush(appender, durable=False)
                self._take(books, task, piece)
                if self._on_progress is not None:
                    self._on_progress(summary.read_bytes, made.size_bytes)
            self._flush(appender, durable=True)
            self._settle()
        return summary

    def _take(self, books: Books, task: Task, piece: Piece) -> None:
        summary = self._summary
        summary.read_bytes += piece.read_bytes
        summary.notes += piece.notes
        for alike in piece.alike:
            self._look_at(int((alike.at > self._latest).sum()))
            self._entries += books.entries(alike)
            self._waiting += len(alike)
        for call in piece.others:
            self._look_at(int(np.datetime64(call.at_us, "us") > self._latest))
            self._entries.append(books.entry(call))
            self._waiting += 1
        if piece.is_last:
            summary.files_read += piece.state is not None
            summary.files_resumed += piece.resumed
            if piece.state is not None:
                mark = FileMark(source=task.source, path=str(task.path), document=state_text(piece.state))
                self._marks.append(mark)

    def _look_at(self, late: int) -> None:
        if late:
            self._summary.notes["a call from the future, by its log's clock"] += late

    def _flush(self, appender: Executor, *, durable: bool) -> None:
        """Begin to append what has come together, each call once, when what was begun before is done."""
        entries, marks = self._once(), self._marks
        self._entries, self._marks, self._waiting = [], [], 0
        batch = Batch(entries)  # while the one before is written
        self._settle()
        if entries or marks:
            job = partial(
                append, self._shelf, batch, entries, marks, dry_run=self._dry_run, durable=durable, anew=self._anew
            )
            self._appending = appender.submit(job)

    def _is_idle(self) -> bool:
        return self._appending is None or self._appending.done()

    def _settle(self) -> None:
        """Wait for what was begun, and see what became of it."""
        if self._appending is None:
            return
        became = self._appending.result()
        self._appending = None
        self._most_waiting = became.most_at_once
        summary = self._summary
        summary.present += became.present
        summary.through_gateway += became.through_gateway
        summary.corrected += became.corrected
        summary.smaller += became.smaller
        summary.notes += became.notes
        summary.add(became.new)

    def _once(self) -> list[Entry]:
        """What has come together, and of copies the largest."""
        once, copies = each_once(self._entries)
        self._summary.present += copies
        if self._dry_run:
            ids = set(chain.from_iterable(map(ids_of, once)))
            known = ids & self._seen
            once = without(once, known)
            self._summary.present += len(known)
            self._seen |= ids
        return once
