"""Logs that are damaged, hostile or just being written: what can be read is, the rest is counted and said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import pytest

from taximeter.errors import CapacityError, RequestError
from taximeter.importers import lines, whole_files, workers
from taximeter.importers.sources import SOURCES, Source
from tests.unit.importers.logs import NOW, Desk, transcript_line

WHOLE = transcript_line("m1", out=10)


def test_half_a_line_is_read_when_it_is_whole(desk: Desk) -> None:
    """A file that is being written ends anywhere."""
    text = json.dumps(transcript_line("m2", out=20)).encode()
    path = desk.write("a.jsonl", WHOLE, text[:90])
    assert sum(desk.run(source="claude-code").notes.values()) == 1
    assert desk.tokens() == 10
    desk.append(path, text[90:], b"\n")
    desk.run(source="claude-code")
    assert desk.tokens() == 30


def test_a_last_line_without_its_end_counts(desk: Desk) -> None:
    """Some files just end so."""
    desk.write("a.jsonl", WHOLE, json.dumps(transcript_line("m2", out=20)).encode())
    assert desk.run().notes == {}
    assert desk.tokens() == 30


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b'{"message":{"usage":' + b"\xff\xfe" + b"}}\n", id="no UTF-8"),
        pytest.param(b'{"message":{"usage":' + b"[" * 200_000 + b"\n", id="deep"),
        pytest.param(b'"usage"\n', id="no object"),
        pytest.param(b'{"usage":{},"message":{"usage":{}\n', id="cut"),
        pytest.param(b"\x00" * 1_000 + b'"usage"\n', id="zeros"),
        pytest.param(b'{"message":7,"usage":{}}\n', id="other types"),
    ],
)
def test_a_damaged_line_is_counted_and_the_others_are_read(desk: Desk, damaged: bytes) -> None:
    """One line spoils no other."""
    desk.write("a.jsonl", WHOLE, damaged, transcript_line("m2", out=20))
    summary = desk.run(source="claude-code")
    assert desk.tokens() == 30
    assert sum(summary.notes.values()) <= 1


def test_a_line_beyond_measure_is_skipped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes go by, and never lie in memory together."""
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 10_000)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 4_000)
    long = json.dumps(transcript_line("m3", out=40) | {"text": "x" * 50_000}).encode() + b"\n"
    desk.write("a.jsonl", WHOLE, long, transcript_line("m2", out=20))
    summary = desk.run(source="claude-code")
    assert desk.tokens() == 30
    assert len(summary.notes) == 1


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1_000])
def test_where_blocks_end_does_not_matter(desk: Desk, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Lines lie across them."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    desk.write("a.jsonl", *(transcript_line(f"m{number}", out=10, request=f"r{number}") for number in range(9)))
    desk.run(source="claude-code")
    assert desk.tokens() == 90


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5},
        {"input_tokens": "many"},
        {"input_tokens": None},
        {"output_tokens": 10**30},
        {"output_tokens": 1.5},
        {"cache_creation": {"ephemeral_5m_input_tokens": 900}},
        {"iterations": 3},
    ],
)
def test_a_usage_that_cannot_be_is_unknown_with_its_reason(desk: Desk, usage: dict[str, object]) -> None:
    """The call happened, and what it took is not known: never zero, never fatal."""
    desk.write("a.jsonl", WHOLE, transcript_line("m2", out=20, request="r2", usage=usage))
    desk.run()
    unknown = [each for each in desk.receipts() if each.cost is None]
    assert len(desk.receipts()) == 2
    assert len(unknown) == 1
    assert unknown[0].usage is not None
    assert unknown[0].usage.unknown_reasons


def test_the_same_id_with_other_contents_is_corrected_upwards_and_said(desk: Desk) -> None:
    """In the same run and in later ones; a smaller account changes nothing, and is counted."""
    desk.write("a.jsonl", transcript_line("m1", out=10))
    desk.run()
    desk.write("b.jsonl", transcript_line("m1", out=50))
    grown = desk.run()
    desk.write("c.jsonl", transcript_line("m1", out=30))
    shrunk = desk.run()
    (receipt,) = desk.receipts()
    assert receipt.usage is not None
    assert receipt.usage.output_tokens == 50
    assert receipt.supersedes is not None
    assert (grown.corrected, grown.total.calls, shrunk.smaller) == (1, 0, 1)
    desk.write("d.jsonl", transcript_line("m1", out=90))
    desk.run()
    assert desk.tokens() == 90


def test_what_cannot_be_opened_is_said(desk: Desk) -> None:
    """A link to nowhere, a pipe that would never end, a file that is gone when it is its turn."""
    desk.write("a.jsonl", WHOLE)
    (desk.logs / "nowhere.jsonl").symlink_to("missing")
    os.mkfifo(desk.logs / "pipe.jsonl")
    desk.run()
    assert desk.tokens() == 10


def test_an_empty_file_is_said_to_be_empty(desk: Desk) -> None:
    """Not to be of an unknown kind; one of blanks alone too. What lies beside it is read, and so is what comes into it
    later. A packed file that is damaged is not empty."""
    desk.write("a.jsonl", WHOLE)
    empty = desk.write("b.jsonl", b"")
    desk.write("c.jsonl", b" \n\n")
    desk.write("d.jsonl.gz", b"\x1f\x8b damaged")
    desk.write("e.jsonl", b"hello\n")
    summary = desk.run(desk.logs)
    assert (summary.notes["an empty file"], sum(summary.notes.values()), desk.tokens()) == (2, 4, 10)
    desk.append(empty, transcript_line("m2", out=20))
    assert desk.run(desk.logs).notes["an empty file"] == 1
    assert desk.tokens() == 30


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_said(desk: Desk) -> None:
    """And its neighbours are read."""
    path = desk.write("closed/a.jsonl", WHOLE)
    desk.write("b.jsonl", transcript_line("m2", out=20))
    path.parent.chmod(0)
    try:
        assert sum(desk.run().notes.values()) == 1
    finally:
        path.parent.chmod(0o700)
    assert desk.tokens() == 20


def test_a_file_by_two_names_is_read_once(desk: Desk) -> None:
    """Links, and paths that hold each other."""
    path = desk.write("p/a.jsonl", WHOLE)
    (desk.logs / "link.jsonl").symlink_to(path)
    summary = desk.run(desk.logs, desk.logs / "p", path)
    assert (summary.files_read, desk.tokens()) == (1, 10)


def test_links_to_folders_are_followed_and_end(desk: Desk) -> None:
    """Who keeps a project's logs elsewhere has them counted; a link that leads back to where it lies adds nothing."""
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    path = desk.write("a/s.jsonl", transcript_line(fresh=10, out=5))
    path.rename(elsewhere / "s.jsonl")
    (desk.logs / "linked").symlink_to(elsewhere, target_is_directory=True)
    (elsewhere / "back").symlink_to(desk.logs, target_is_directory=True)
    summary = desk.run()
    assert (summary.total.calls, summary.files_read, summary.present) == (1, 1, 0)


def test_a_path_or_a_source_that_is_not_there_is_a_wrong_call(desk: Desk) -> None:
    """Before anything is read."""
    with pytest.raises(RequestError, match="does not exist"):
        desk.run(Path("/nowhere/at/all"))
    with pytest.raises(RequestError, match="no source"):
        desk.run(source="claud-code")


def test_an_unchanged_file_is_not_opened(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run over unchanged gigabytes reads nothing."""
    desk.write("a.jsonl", WHOLE)
    desk.write("b.jsonl", transcript_line("m2", out=20))
    first = desk.run()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", fail)
    second = desk.run()
    assert (first.files_read, second.files_read, second.files_unchanged, second.read_bytes) == (2, 0, 2, 0)
    assert desk.tokens() == 30


def test_a_file_that_has_grown_is_read_on(desk: Desk) -> None:
    """From its last answer, which may have grown too."""
    path = desk.write("a.jsonl", *(transcript_line(f"m{number}", out=10, request=f"r{number}") for number in range(50)))
    desk.run()
    before = path.stat().st_size
    desk.append(path, transcript_line("m49", out=15, request="r49"), transcript_line("n", out=20))
    summary = desk.run()
    assert summary.files_resumed == 1
    assert summary.read_bytes < (path.stat().st_size - before) + before / 40
    assert (summary.total.calls, summary.corrected) == (1, 1)
    assert desk.tokens() == 49 * 10 + 15 + 20


@pytest.mark.parametrize("how", ["truncated", "rewritten", "longer"])
def test_a_file_that_was_changed_is_read_again(desk: Desk, how: str) -> None:
    """Its size and its beginning, or what stood before its end, tell."""
    written = [transcript_line(f"m{number}", out=10, request=f"r{number}") for number in range(20)]
    path = desk.write("a.jsonl", *written)
    desk.run()
    others = [transcript_line(f"n{number}", out=10, request=f"q{number}") for number in range(25)]
    kept = {"truncated": written[:3], "rewritten": others[:20], "longer": [*written[:5], *others]}[how]
    desk.write("a.jsonl", *kept)
    os.utime(path, (1, 1))
    summary = desk.run()
    assert summary.files_resumed == 0
    assert len(desk.receipts()) == {"truncated": 20, "rewritten": 40, "longer": 45}[how]


def test_a_dry_run_says_the_same_and_leaves_nothing(desk: Desk) -> None:
    """Neither receipts nor what was read."""
    desk.write("a.jsonl", *(transcript_line(f"m{number}", out=10, request=f"r{number}") for number in range(5)))
    desk.write("b.jsonl", *(transcript_line(f"m{number}", out=10, request=f"r{number}") for number in range(7)))
    dry = desk.run(dry_run=True)
    assert desk.receipts() == []
    real = desk.run()
    assert (dry.total, dry.present) == (real.total, real.present)
    assert desk.tokens() == 70


def by_python(patch: pytest.MonkeyPatch) -> None:
    """From now on transcripts are read as where native code was not built: in processes."""
    patch.setitem(cast("dict[str, Source]", SOURCES), "claude-code", replace(SOURCES["claude-code"], whole=None))


@pytest.mark.parametrize("native", [True, False])
def test_readers_beside_this_one_read_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch, *, native: bool) -> None:
    """Calls come in the order of the files, whoever reads them: threads, or processes."""
    if not native:
        by_python(monkeypatch)
    monkeypatch.setattr(whole_files, "_AT_ONCE_FILES", 1)
    monkeypatch.setattr(whole_files, "_AHEAD_BYTES", 3_000)
    monkeypatch.setattr(workers, "_WORTH_BYTES", 0)
    for file in range(6):
        names = range(file * 5, file * 5 + 10)  # half of each is in the next one too
        session = f"s{file}"
        path = desk.write(
            f"{file}.jsonl",
            *(transcript_line(f"m{name}", out=10, request=f"r{name}", session=session) for name in names),
        )
        os.utime(path, (NOW.timestamp() + file, NOW.timestamp() + file))
    summary = desk.run(processes=2)
    assert (summary.total.calls, summary.present) == (35, 25)
    by_session = [each.request.session for each in desk.receipts()]
    assert {session: by_session.count(session) for session in set(by_session)} == {
        "s0": 10,
        **{f"s{file}": 5 for file in range(1, 6)},
    }


def _never(task: object) -> NoReturn:
    raise AssertionError(task)


def test_one_large_export_is_read_beside_and_a_small_one_is_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads in another process knows nothing of what was changed in this one. A table is read by a second one."""
    line = {"request_id": "r", "call_type": "completion", "spend": 0, "startTime": "2026-10-29 12:00:00"}
    desk.write("small.jsonl", line)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "read_pieces", _never)
        with pytest.raises(AssertionError):
            desk.run(processes=1)
        patch.setattr(workers, "_WORTH_BYTES_OF_ONE", 1)
        assert desk.run(processes=1).total.calls == 1
        columns = desk.folder / "map.toml"
        columns.write_text('source = "x"\nmodel = "m"\n[columns]\ntime = "startTime"\n[tokens]\ninput = "spend"\n')
        with pytest.raises(AssertionError):
            desk.run(columns=columns, processes=1)
        assert desk.run(columns=columns, processes=2).total.calls == 1


def _ends_at_once(out: object, their_tasks: object) -> None:
    os._exit(1)


def test_a_reader_that_is_killed_ends_the_import_and_the_next_one_is_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what will not come, however much there was to tell it."""
    for file in range(200):
        desk.write(f"{file}{'x' * 150}.jsonl", transcript_line(f"m{file}", out=10, request=f"r{file}"))
    with monkeypatch.context() as patch:
        by_python(patch)
        patch.setattr(workers, "_WORTH_BYTES_OF_ONE", 0)
        patch.setattr(workers, "_work", _ends_at_once)
        with pytest.raises(CapacityError, match="import again"):
            desk.run(processes=1)
    assert desk.run().total.calls == 200
