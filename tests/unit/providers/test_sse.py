"""Event streams: nothing is added or lost, and no cut makes a difference."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.providers.sse import Frame, Framer, event

ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
lines = st.sampled_from(
    [
        b"",
        b"data: {}",
        b"data:x",
        b"data",
        b"data: ",
        b"event: ping",
        b"event:",
        b"id: 7",
        b": hi",
        b"\xff\x00",
        b"data: \xe2",
    ]
)
streams = st.lists(st.tuples(lines, ends), max_size=30).map(lambda parts: b"".join(line + end for line, end in parts))
hostile = st.lists(st.sampled_from([b"\r", b"\n", b"a", b":", b"data:", b"\xef\xbb\xbf"]), max_size=60).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """`stream` in pieces, cut at `places`."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


def framed(pieces: list[bytes], max_bytes: int = 1_000) -> list[Frame]:
    framer = Framer(max_bytes=max_bytes)
    frames = [frame for piece in pieces for frame in framer.feed(piece)]
    rest = framer.rest()
    return frames if rest is None else [*frames, rest]


@given(
    st.one_of(streams, hostile, st.binary(max_size=80)), st.lists(st.integers(0, 10_000), max_size=12), st.booleans()
)
def test_cuts_make_no_difference(stream: bytes, places: list[int], tight: bool):
    """However the bytes were cut, the same frames come out, and joined they are what went in."""
    max_bytes = 8 if tight else 1_000
    frames = framed([stream], max_bytes)
    assert framed(cut(stream, places), max_bytes) == frames
    assert framed([bytes([byte]) for byte in stream], max_bytes) == frames
    assert b"".join(frame.raw for frame in frames) == stream
    assert all(len(frame.raw) <= max_bytes for frame in frames)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_is_one(end: bytes):
    """All three of the format, with a comment, a name and data over several lines."""
    stream = (
        b"\xef\xbb\xbf: hello"
        + end * 2
        + b"event: a"
        + end
        + b"data: 1"
        + end
        + b"data:2"
        + end * 2
        + b"data: 3"
        + end * 2
    )
    found = [(frame.name, frame.data) for frame in framed([stream])]
    assert found == [(b"", b""), (b"a", b"1\n2"), (b"", b"3")]


def test_the_byte_order_mark_hides_no_data():
    """It may come before the first event, and belongs to it."""
    (frame,) = framed([b"\xef\xbb\xbf" + event(b"x")])
    assert (frame.raw, frame.data) == (b"\xef\xbb\xbfdata: x\n\n", b"x")


def test_an_event_is_given_out_with_its_last_byte():
    """Nothing waits for the next event."""
    framer = Framer()
    assert framer.feed(b"data: 1\n") == []
    assert [frame.data for frame in framer.feed(b"\ndata: 2")] == [b"1"]
    assert [frame.data for frame in framer.feed(b"\r\n\r\n")] == [b"2"]
    assert framer.rest() is None


def test_the_last_event_may_lack_its_empty_line():
    """Not every server writes it."""
    framer = Framer()
    assert framer.feed(b"data: [DONE]") == []
    assert framer.rest() == Frame(raw=b"data: [DONE]", name=b"", data=b"[DONE]")
    assert framer.rest() is None


def test_an_event_that_never_ends_fills_no_memory():
    """What is too long is given through unseen, and the next event is seen again."""
    framer = Framer(max_bytes=100)
    frames = [frame for _ in range(100) for frame in framer.feed(b"data: " + b"x" * 44)]
    assert sum(len(frame.raw) for frame in frames) >= 5_000 - 100
    assert {frame.data for frame in frames} == {b""}
    *ending, after = framer.feed(b"\n\ndata: 2\n\n")
    assert {frame.data for frame in ending} == {b""}
    assert after == Frame(raw=b"data: 2\n\n", name=b"", data=b"2")


def test_a_bound_must_leave_room_for_an_end():
    """Four bytes may be the end of an event."""
    with pytest.raises(ValueError, match="may need more"):
        Framer(max_bytes=4)
