"""Logs as disks, crashes, shells and other people's programs leave them: what they say is read all the same."""

from __future__ import annotations

import codecs
import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from taximeter.importers.packed import beginning
from tests.unit.importers.logs import Desk, content, transcript_line

LITELLM_ROW: dict[str, Any] = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "spend": 0.001,
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "startTime": "2026-10-29 12:00:00",
    "endTime": "2026-10-29 12:00:02",
    "model": "g5-card",
    "custom_llm_provider": "openai",
    "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 20}}},
    "cache_hit": "False",
}
LITELLM_COST = (80 * Decimal("1.25") + 20 * Decimal("0.125") + 10 * Decimal(10)) / 10**6
SPAN: dict[str, Any] = {
    "traceId": "t",
    "spanId": "s",
    "startTimeUnixNano": "1793275200000000000",
    "endTimeUnixNano": "1793275201000000000",
    "attributes": [
        {"key": "gen_ai.system", "value": {"stringValue": "openai"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "g5-card"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "100"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "10"}},
    ],
}
TRACE = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}


def two_lines() -> bytes:
    """Two calls of 15 tokens each."""
    return content([transcript_line(fresh=10, out=5), transcript_line("msg_2", fresh=10, out=5, request="req_2")])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda lines: codecs.BOM_UTF8 + lines,
    "NULs before a line": lambda lines: b"\0" * 4096 + lines,
    "a line of NULs": lambda lines: lines.replace(b"\n", b"\n" + b"\0" * 512 + b"\n", 1),
    "no UTF-8 where it matters": lambda lines: lines.replace(b'"main"', b'"\xff\xfe"', 1),
    "half a character": lambda lines: lines.replace(b'"main"', b'"cut \\ud83d"', 1),
    "a control character": lambda lines: lines.replace(b'"main"', b'"a\tb"', 1),
    "no line's end but CRLF": lambda lines: lines.replace(b"\n", b"\r\n"),
    "UTF-16": lambda lines: lines.decode().encode("utf-16"),
    "UTF-16, the other way round": lambda lines: codecs.BOM_UTF16_BE + lines.decode().encode("utf-16-be"),
    "garbage before the first line": lambda lines: b"is cut off here}\n" + lines,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_transcripts_are_read_through_what_is_beside_the_point(desk: Desk, damage: str) -> None:
    """Nothing of this is in what a call took, so no call is lost by it; a second import adds nothing."""
    desk.write("s.jsonl", DAMAGES[damage](two_lines()))
    assert desk.run().total.calls == 2
    assert desk.tokens() == 30
    assert desk.run().total.calls == 0


def test_packed_logs_are_read(desk: Desk) -> None:
    """By what is in them, whatever their name; with the same calls unpacked, each counts once."""
    desk.write("old/s.jsonl.gz", gzip.compress(two_lines()))
    desk.write("traces.json.gz", gzip.compress(json.dumps(TRACE).encode()))
    desk.write("s.jsonl", two_lines())
    assert desk.run().total.calls == 3
    assert desk.tokens() == 140
    again = desk.run()
    assert (again.total.calls, again.files_unchanged) == (0, 3)


def test_a_packed_log_is_known_by_what_it_holds_however_small_it_is(desk: Desk) -> None:
    """A file of some hundred bytes may begin with a line that is much longer."""
    long_first = '{"type":"user","message":{"content":"' + "z" * 60_000 + '"}}\n'
    packed = gzip.compress(long_first.encode() + two_lines())
    assert len(packed) < 1_000
    path = desk.write("s.jsonl.gz", packed)
    assert desk.run(path).total.calls == 2


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not installed")
def test_logs_that_zstd_has_packed_are_read(desk: Desk) -> None:
    """Codex packs old rollouts so. What breaks off is read as far as it goes, and that is said."""
    packed = zstd(two_lines())
    desk.write("old/s.jsonl.zst", packed)
    assert desk.run().total.calls == 2
    assert desk.run().files_unchanged == 1
    more = content([transcript_line(f"msg_{n}", fresh=10, out=5, request=f"req_{n}") for n in range(3, 3_000)])
    desk.write("cut.jsonl.zst", zstd(two_lines() + more)[:-40])
    summary = desk.run()
    assert 0 < summary.total.calls < 2_997
    assert any("breaks off" in note for note in summary.notes)


def test_what_only_zstd_could_unpack_is_said_where_there_is_none(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is left out in silence would be money that nobody knows of."""
    monkeypatch.setattr("taximeter.importers.packed.shutil.which", lambda _: None)
    path = desk.write("s.jsonl.zst", b"\x28\xb5\x2f\xfd anything")
    for summary in (desk.run(), desk.run(path), desk.run(path, source="codex")):
        assert [note for note in summary.notes if "zstd has packed it" in note and "install it" in note]


def zstd(text: bytes) -> bytes:
    """The text, packed."""
    return subprocess.run(["zstd", "-cq"], input=text, capture_output=True, check=True).stdout


def test_a_packed_log_that_breaks_off_is_read_as_far_as_it_goes(desk: Desk) -> None:
    """And that is said."""
    packed = gzip.compress(two_lines(), compresslevel=0)
    desk.write("s.jsonl.gz", packed[:-40])
    summary = desk.run()
    assert summary.total.calls == 1
    assert any("breaks off" in note for note in summary.notes)
    assert beginning(b"\x1f\x8bnothing") == b""


def test_a_packed_log_that_grows_is_read_on(desk: Desk) -> None:
    """A file of several packed parts is one text."""
    path = desk.write("s.jsonl.gz", gzip.compress(two_lines()))
    desk.run()
    desk.append(path, gzip.compress(content([transcript_line("msg_3", fresh=10, out=5, request="req_3")])))
    assert desk.run().total.calls == 1
    assert desk.tokens() == 45


EXPORTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a table made in Python": ("rows.csv", lambda: _table(",", str)),
    "a table with tabs": ("rows.tsv", lambda: _table("\t", json.dumps)),
    "a table in UTF-16": ("rows.csv", lambda: _table(",", json.dumps).decode().encode("utf-16")),
    "a table in UTF-16 without a mark": ("rows.csv", lambda: _table(",", json.dumps).decode().encode("utf-16-le")),
    "lines in UTF-16 the other way around": (
        "rows.jsonl",
        lambda: (json.dumps(LITELLM_ROW) + "\n").encode("utf-16-be"),
    ),
    "a spreadsheet's table": ("rows.csv", lambda: codecs.BOM_UTF8 + b"sep=;\r\n" + _table(";", json.dumps)),
    "a document with a byte order mark": (
        "rows.json",
        lambda: codecs.BOM_UTF8 + json.dumps([LITELLM_ROW], indent=1).encode(),
    ),
    "NaN": ("rows.json", lambda: json.dumps([{**LITELLM_ROW, "end_user": float("nan")}]).encode()),
    "an entry that is no UTF-8": (
        "rows.json",
        lambda: json.dumps([{**LITELLM_ROW, "end_user": "x"}]).encode().replace(b'"x"', b'"\xff"'),
    ),
    "half a character in an entry": ("rows.json", lambda: json.dumps([{**LITELLM_ROW, "end_user": "\ud83d"}]).encode()),
    "a list that breaks off": ("rows.json", lambda: json.dumps([LITELLM_ROW, LITELLM_ROW]).encode()[:-30]),
    "a list in an object that breaks off": (
        "rows.json",
        lambda: json.dumps({"total": 2, "data": [LITELLM_ROW, LITELLM_ROW]}, indent=1).encode()[:-60],
    ),
}


def _table(delimiter: str, write: Callable[[object], str]) -> bytes:
    cells = [write(value) if isinstance(value, dict) else str(value) for value in LITELLM_ROW.values()]
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    return "\r\n".join([delimiter.join(LITELLM_ROW), delimiter.join(quoted), ""]).encode()


def test_a_dump_of_the_database_is_read(desk: Desk) -> None:
    """Only the rows of the table, whatever else is in there, with what its cells write in their own way."""
    said = json.dumps({**LITELLM_ROW["metadata"], "user_api_key_alias": "a\tb\\n"})
    cells = {**LITELLM_ROW, "metadata": said.replace("\\", "\\\\"), "end_user": "\\N", "session_id": "one\\ttwo"}
    names = ", ".join(f'"{name}"' for name in cells)
    lines = [
        "--",
        "-- PostgreSQL database dump",
        "--",
        'CREATE TABLE public."LiteLLM_SpendLogs" (',
        ",\n".join(f'    "{name}" text' for name in cells),
        ");",
        'COPY public."LiteLLM_ErrorLogs" (request_id, "startTime") FROM stdin;',
        "chatcmpl-9\t2026-10-29 12:00:00",
        "\\.",
        f'COPY public."LiteLLM_SpendLogs" ({names}) FROM stdin;',
        "\t".join(str(value) for value in cells.values()),
        "\\.",
        "COPY public.other (a) FROM stdin;",
        "",
    ]
    desk.write("dump.sql", *lines)
    assert desk.run().total.calls == 1
    assert desk.total() == LITELLM_COST
    (receipt,) = desk.receipts()
    assert receipt.request.session == "one two"
    assert receipt.request.key == "a b\\n"


@pytest.mark.parametrize("export", EXPORTS)
def test_exports_are_read_as_programs_write_them(desk: Desk, export: str) -> None:
    """With what stands within their cells: else cached tokens would be billed as fresh ones."""
    name, made = EXPORTS[export]
    desk.write(name, made())
    assert desk.run().total.calls == 1
    assert desk.total() == LITELLM_COST


@pytest.mark.parametrize("table", [b'a,"b\r\nc', b"\xff\xfe\xff", b"\0" * 64, b'"' * 9, b"[" * 100_000])
def test_what_is_no_log_at_all_ends_no_import(desk: Desk, table: bytes) -> None:
    """It is noted, or has nothing in it."""
    desk.write("x.csv", table)
    desk.write("s.jsonl", two_lines())
    assert desk.run().total.calls == 2
