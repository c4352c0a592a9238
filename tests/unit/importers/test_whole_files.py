"""Files that native code goes through by itself say what they say when Python reads them, or are left to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taximeter.importers import lines, whole_files
from taximeter.importers.alike import Alike, digests
from taximeter.importers.files import FileState
from taximeter.importers.logged import LoggedCall
from taximeter.importers.pieces import Piece, Task, read_pieces
from taximeter.importers.usual_lines import usage_calls
from taximeter.importers.workers import reading
from tests.unit.importers.test_usual_lines import USAGE, a_line, encoded, transcripts

pytestmark = pytest.mark.skipif(usage_calls is None, reason="the native code was not built here")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transcript") / "a.jsonl"


def native(path: Path, state: FileState | None = None) -> Piece:
    """All that is in the file, as `whole_files` gives it."""
    task = Task("claude-code", path, state, None, path.stat().st_size)
    with whole_files.pieces_of_whole_files([task], threads=0) as pieces:
        return together(piece for _, piece in pieces)


def by_python(path: Path, state: FileState | None = None) -> Piece:
    """The same, read line by line."""
    return together(read_pieces(Task("claude-code", path, state)))


def together(pieces: Iterator[Piece]) -> Piece:
    whole = Piece()
    for piece in pieces:
        whole.alike += piece.alike
        whole.others += piece.others
        whole.read_bytes += piece.read_bytes
        whole.notes += piece.notes
        whole.is_last, whole.resumed, whole.state = piece.is_last, piece.resumed, piece.state
    return whole


def calls(alike: list[Alike]) -> list[tuple[str, LoggedCall]]:
    return [(each.digests[place].decode(), each.call(place)) for each in alike for place in range(len(each))]


def assert_same(one: Piece, other: Piece) -> None:
    assert calls(one.alike) == calls(other.alike)
    assert [len(each.at) for each in one.alike] == [len(each.at) for each in other.alike]
    for name in ("others", "read_bytes", "is_last", "resumed", "state", "notes"):
        assert getattr(one, name) == getattr(other, name)


def is_plain(content: bytes, path: Path, *, block_bytes: int = 1 << 18, most_line_bytes: int = 1 << 20) -> bool:
    """Whether native code goes through a file of that content by itself."""
    path.write_bytes(content)
    return of_file(path, block_bytes=block_bytes, most_line_bytes=most_line_bytes).is_plain


def of_file(path: Path, offset: int = 0, *, block_bytes: int = 1 << 18, most_line_bytes: int = 1 << 20) -> Any:
    return of_files([(os.fsencode(path), offset)], block_bytes=block_bytes, most_line_bytes=most_line_bytes)[0]


def of_files(files: Any, *, block_bytes: int = 100, most_line_bytes: int = 10_000) -> list[Any]:
    assert usage_calls is not None
    return usage_calls("claude-code", files, block_bytes, most_line_bytes, 40, 7)


def numbered(count: int, **fields: object) -> list[dict[str, Any]]:
    return [a_line(message={"id": f"msg_{number}"}, requestId=f"req_{number}", **fields) for number in range(count)]


PLAIN = encoded(
    *numbered(3),
    {"type": "user", "text": "no usage here"},
    *numbered(0),
    a_line(message={"id": "m_a"}),
    a_line(USAGE | {"output_tokens": 159}, message={"id": "m_a"}, timestamp="2026-10-29T11:00:00.000Z"),
    a_line(message={"id": "m_b"}, agentId="a", isSidechain=True, cwd="/elsewhere"),
    a_line(message={"id": "m_c", "model": "haiku-card"}),
    a_line(message={"id": "m_d"}, cwd="/home/me/other"),
)


@settings(deadline=None, max_examples=300)
@given(content=transcripts(), block_bytes=st.integers(1, 3_000))
@example(content=PLAIN, block_bytes=100)
@example(content=PLAIN + b"  \n \n", block_bytes=7)
@example(content=PLAIN[:-1], block_bytes=1_000)
@example(content=b"", block_bytes=1)
@example(content=b"\n", block_bytes=1)
def test_a_file_says_the_same_whoever_reads_it(path: Path, content: bytes, block_bytes: int) -> None:
    """Calls in their order, notes, where to read on and what to remember there; wherever blocks end."""
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block_bytes)
        assert_same(native(path), by_python(path))


def test_a_file_that_has_grown_is_read_on_the_same(path: Path) -> None:
    """From its last call, with what was remembered: the folder in which the session began."""
    path.write_bytes(encoded(*numbered(3)))
    before = native(path)
    with path.open("ab") as file:
        file.write(encoded(a_line(message={"id": "msg_9"}, gitBranch="other", cwd="/elsewhere")))
    assert of_file(path).is_plain
    after = native(path, before.state)
    assert_same(after, by_python(path, before.state))
    assert after.resumed
    assert [call.origin.labels["project"] for _, call in calls(after.alike)] == ["~/project"] * 2


@pytest.mark.parametrize("block_bytes", [1, 64, 1_000, 1 << 18])
def test_what_is_usual_is_gone_through_natively(path: Path, block_bytes: int) -> None:
    """So that Python has nothing to do for each line; also where the lines of one call are in two blocks."""
    assert is_plain(PLAIN, path, block_bytes=block_bytes)
    found = of_file(path, block_bytes=block_bytes)
    assert (found.read_bytes, found.end) == (len(PLAIN), len(PLAIN))
    assert found.last_begin == PLAIN.rindex(b'{"sessionId"')
    assert (found.began, found.before_last) == (PLAIN[:40], PLAIN[found.last_begin - 7 : found.last_begin])
    names, request_ids, at, leaves = found.columns()
    messages = [b"msg_0", b"msg_1", b"msg_2", b"m_a", b"m_b", b"m_c", b"m_d"]
    theirs = [*("req_0", "req_1", "req_2"), *["req_1"] * 4]
    identities = [f"{message.decode()} {request}" for message, request in zip(messages, theirs, strict=True)]
    assert request_ids == theirs
    assert [bytes(name).decode() for name in names] == digests("claude-code", identities)
    assert [end for _, end in found.runs()] == [4, 5, 6, 7]
    assert str(at.view("datetime64[us]")[3]) == "2026-10-29T11:00:00.000000"
    assert leaves[:, 3].tolist() == [3, 20_000, 100, 200, 0, 159, 0]


_LETTERS = st.sampled_from(["msg_", "msg_vrtx_", "msg__", "_", "a", "Z", "7", "-", "é", "x" * 20, "x" * 200])


@settings(deadline=None)
@given(
    message=st.lists(_LETTERS, min_size=1, max_size=6).map("".join),
    request=st.none() | st.just("") | st.lists(_LETTERS, max_size=3).map("".join),
)
@example(message="msg_" + "0" * 19, request="r")
@example(message="msg_" + "0" * 20, request="r")
@example(message="m" * 115, request=None)
@example(message="m" * 116, request=None)
@example(message="m" * 117, request="r")
def test_a_call_has_the_same_name_whoever_read_it(path: Path, message: str, request: str | None) -> None:
    """Also where its message's name is nobody else's, and where it fills blocks of what is hashed."""
    path.write_bytes(encoded(a_line(message={"id": message}, requestId=request)))
    (one,) = native(path).alike
    (other,) = by_python(path).alike
    assert one.digests.tolist() == other.digests.tolist()


_FIRST = datetime(2015, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@settings(deadline=None)
@given(st.integers(0, 3 * 10**9).map(lambda seconds: _FIRST + timedelta(seconds=seconds, microseconds=seconds)))
def test_a_call_was_made_when_its_line_says(path: Path, at: datetime) -> None:
    """To the millisecond, for a hundred years."""
    path.write_bytes(encoded(a_line(timestamp=f"{at.isoformat(timespec='milliseconds')}Z")))
    ((only,), (other,)) = native(path).alike, by_python(path).alike
    assert only.at.tolist() == other.at.tolist() == [at.replace(microsecond=at.microsecond // 1_000 * 1_000)]


@pytest.mark.parametrize(
    "content",
    [
        PLAIN[:-1],
        PLAIN + b'{"half',
        encoded(a_line(costUSD=0.25)),
        encoded(*numbered(2), *numbered(1)),
        encoded(a_line(), a_line(requestId="req_2")),
        encoded(a_line(), a_line(message={"model": "haiku-card"})),
        encoded(a_line(), b'{"usage"'),
        encoded(b"x" * 5_000),
    ],
)
def test_what_needs_a_closer_look_is_left_to_python(path: Path, content: bytes) -> None:
    """The whole file, for what came before may have to be told anew."""
    assert not is_plain(content, path, block_bytes=1_000, most_line_bytes=4_000)


def test_what_is_no_file_is_not_plain(path: Path, tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes into, and what is not there, crash and hold up nobody."""
    path.write_bytes(PLAIN)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)  # or opening it would wait
    where = [tmp_path, tmp_path / "pipe", tmp_path / "gone", path]
    no, pipe, gone, whole = of_files([(os.fsencode(each), 0) for each in where])
    os.close(writer)
    assert [each.is_plain for each in (no, pipe, gone, whole)] == [False, False, False, True]
    status = path.stat()
    assert (whole.device, whole.inode, whole.size) == (status.st_dev, status.st_ino, status.st_size)
    assert whole.modified_ns == status.st_mtime_ns


@pytest.mark.parametrize(
    ("files", "block_bytes", "why"),
    [([(b"/", -1)], 100, "begins at 0"), ([(b"/\0", 0)], 100, "no zero"), ([], 0, "at least a byte")],
)
def test_what_cannot_be_meant_is_refused(files: Any, block_bytes: int, why: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(ValueError, match=why):
        of_files(files, block_bytes=block_bytes)


def test_texts_outlive_what_they_were_read_from(path: Path) -> None:
    """Names of any length, more of them than a piece of memory holds."""
    names = [f"msg_{number}_{'x' * (number * 97 % 20_000)}" for number in range(300)]
    path.write_bytes(encoded(*(a_line(message={"id": name}, cwd=f"/{name}") for name in names)))
    found = of_file(path, block_bytes=50_000)
    path.write_bytes(b"")
    assert found.is_plain
    assert [common[1] for common, _ in found.runs()] == [f"/{name}" for name in names]


def test_a_file_that_is_gone_is_said_and_the_others_are_read(path: Path) -> None:
    """As where Python reads it."""
    path.write_bytes(PLAIN)
    tasks = [Task("claude-code", each, None) for each in (path.with_name("gone"), path)]
    with whole_files.pieces_of_whole_files(tasks, threads=2) as pieces:
        gone, there = (piece for _, piece in pieces)
    assert (gone.state, list(gone.notes)) == (None, ["a file cannot be read: no such file or directory"])
    assert there.state is not None


def test_threads_are_gone_when_nobody_reads_on(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops in the middle waits for what is being read, and for no more."""
    monkeypatch.setattr(whole_files, "_AT_ONCE_FILES", 1)
    monkeypatch.setattr(whole_files, "_AHEAD_BYTES", 2_000)
    asked: list[int] = []
    real = whole_files.usage_calls
    assert real is not None

    def counted(source: str, files: list[tuple[bytes, int]], *sizes: int) -> Any:
        asked.append(len(files))
        return real(source, files, *sizes)

    monkeypatch.setattr(whole_files, "usage_calls", counted)
    tasks: list[Task] = []
    for number in range(50):
        each = tmp_path / f"{number}.jsonl"
        each.write_bytes(json.dumps(a_line(message={"id": f"m{number}"})).encode() + b"\n")
        tasks.append(Task("claude-code", each, None, None, each.stat().st_size))
    with whole_files.pieces_of_whole_files(tasks, threads=2) as pieces:
        task, _ = next(pieces)
    assert task is tasks[0]
    assert len(asked) < 10


def test_files_come_in_their_order_whoever_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a session and its copy the older counts, also where one of them is too large to be kept as one piece."""
    monkeypatch.setattr(whole_files, "_MOST_BYTES", 2_000)
    tasks: list[Task] = []
    for number, count in enumerate([1, 9, 1, 1, 9, 9, 1]):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(encoded(*numbered(count)))
        tasks.append(Task("claude-code", path, None, None, path.stat().st_size))
    with reading(tasks, processes=2) as pieces:
        assert [task.path for task, piece in pieces if piece.is_last] == [task.path for task in tasks]
