"""The logs that can be read, by name, and which of them a file is.

Owns: the list of sources. Refuses to know: their formats, which each has a module for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from taximeter.importers import batches, claude_code, codex, columns, langfuse, litellm, otlp
from taximeter.importers.column_map import load_map
from taximeter.importers.decoding import BLANK, UNREADABLE, decoded
from taximeter.importers.dumps import is_a_dump, tables_in
from taximeter.importers.lines import first_lines
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.tables import names_of_columns
from taximeter.importers.usual_lines import usage_calls

if TYPE_CHECKING:
    from taximeter._native import FoundFile
    from taximeter.importers.alike import Alike

HEAD_BYTES = 1 << 18
"""As much of a file is looked at to tell what it is."""

_MOST_LINES = 50

Environ = Mapping[str, str]


def _nowhere(environ: Environ, home: Path) -> list[Path]:  # noqa: ARG001 - as the others
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One kind of log. `read` gives a log's calls from where it stands; `edition` changes when it reads more or other
    things than before, so that what was read is read again. `places` are where such logs usually lie.

    `is_mine` tells by one object in it, a line or a row for most, whether a file is of this kind. `in_pieces` says that
    a log only grows, and can be read on where it was left. `whole` is for files that native code goes through by
    itself, where it was built: what `read` would give, of a file at a path with a memory, and what to remember then.
    """

    name: str
    words: str
    suffixes: tuple[str, ...]
    edition: str
    read: Callable[[LogFile], Iterator[Alike | LoggedCall]]
    is_mine: Callable[[Mapping[str, Any]], bool]
    places: Callable[[Environ, Path], list[Path]] = _nowhere
    in_pieces: bool = False
    whole: Callable[[Path, str, FoundFile], tuple[list[Alike], str]] | None = None


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name=claude_code.NAME,
            words="Claude Code's transcripts",
            suffixes=claude_code.SUFFIXES,
            edition=claude_code.EDITION,
            read=claude_code.read,
            is_mine=claude_code.is_mine,
            places=claude_code.places,
            in_pieces=True,
            whole=None if usage_calls is None else claude_code.read_whole,
        ),
        Source(
            name=codex.NAME,
            words="Codex's rollouts",
            suffixes=codex.SUFFIXES,
            edition=codex.EDITION,
            read=codex.read,
            is_mine=codex.is_mine,
            places=codex.places,
            in_pieces=True,
        ),
        Source(
            name=batches.ANTHROPIC,
            words="results of Anthropic's batches",
            suffixes=batches.SUFFIXES,
            edition=batches.EDITION,
            read=batches.read_anthropics,
            is_mine=batches.is_anthropics,
        ),
        Source(
            name=batches.OPENAI,
            words="results of OpenAI's batches",
            suffixes=batches.SUFFIXES,
            edition=batches.EDITION,
            read=batches.read_openais,
            is_mine=batches.is_openais,
        ),
        Source(
            name=litellm.NAME,
            words="LiteLLM's spend logs",
            suffixes=litellm.SUFFIXES,
            edition=litellm.EDITION,
            read=litellm.read,
            is_mine=litellm.is_mine,
        ),
        Source(
            name=langfuse.NAME,
            words="Langfuse's observations",
            suffixes=langfuse.SUFFIXES,
            edition=langfuse.EDITION,
            read=langfuse.read,
            is_mine=langfuse.is_mine,
        ),
        Source(
            name=otlp.NAME,
            words="OpenTelemetry's traces and logs",
            suffixes=otlp.SUFFIXES,
            edition=otlp.EDITION,
            read=otlp.read,
            is_mine=otlp.is_mine,
        ),
    )
}

REPORT = "a provider's usage or cost report holds sums, not calls: `taximeter reconcile` compares it with the ledger"

BATCH = (
    "a batch itself holds no answers: its results are another file, to be fetched from the provider once it has ended"
)


def source_named(name: str, map_path: Path | None) -> Source:
    """The source of that name; with a map, the table that it describes. Raises ConfigError for a map that is not
    understood, KeyError for a name that is not known."""
    if map_path is None:
        return SOURCES[name]
    by, digest = load_map(map_path)
    return Source(
        name=columns.NAME,
        words=f"a table of {by.source}",
        suffixes=columns.SUFFIXES,
        edition=f"{columns.EDITION} {digest}",
        read=partial(columns.read, columns=by),
        is_mine=columns.is_mine,
    )


def source_of(head: bytes) -> Source | str | None:
    """Which log the first bytes of a file are of. A text says why a file that is known is read elsewhere; None is one
    that could be anything."""
    for entry in _objects(head):
        for source in SOURCES.values():
            if source.is_mine(entry):
                return source
        if _is_report(entry):
            return REPORT
        if _is_batch(entry):
            return BATCH
    return None


def _is_report(entry: Mapping[str, Any]) -> bool:
    """Whether a file has the sums of a provider, by buckets of time."""
    if entry.get("object") == "page" or ("has_more" in entry and "next_page" in entry):
        return True
    return "results" in entry and ("starting_at" in entry or "start_time" in entry)


def _is_batch(entry: Mapping[str, Any]) -> bool:
    """Whether a file says how a batch goes on."""
    return "request_counts" in entry and ("results_url" in entry or "output_file_id" in entry)


def _objects(head: bytes) -> Iterator[Mapping[str, Any]]:
    """Objects that a file begins with: lines, entries of a list, or the row of a table."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip(BLANK)
    is_json = head.startswith((b"{", b"["))
    for line in list(first_lines(head))[:_MOST_LINES]:
        if not line.lstrip(BLANK).startswith((b"{", b"[")):
            continue
        try:
            entries = list(_dicts(decoded(line)))
        except UNREADABLE:
            continue
        yield from entries
        is_json = is_json or bool(entries)  # behind a line that is damaged
    if is_json:
        yield _keys(head)
        return
    if is_a_dump(head):
        yield from tables_in(head)
        return
    yield dict.fromkeys(names_of_columns(head.decode("utf-8", "replace")))


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    for each in cast("list[object]", value)[:_MOST_LINES] if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield cast("Mapping[str, Any]", each)


def _keys(head: bytes) -> Mapping[str, Any]:
    """The names in a document that goes on behind `head`: enough to tell most of them apart."""
    names = re.findall(rb'"([A-Za-z_]{2,40})"\s*:', head)
    return {name.decode(): None for name in names}


def suffixes(sources: Sequence[Source]) -> tuple[str, ...]:
    """How the names of their files end."""
    return tuple(dict.fromkeys(suffix for source in sources for suffix in source.suffixes))
