"""What a request belongs to, by headers that other tools send."""

from __future__ import annotations

import pytest

from taximeter.gateway.groups import groups_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", f"cc-{TRACE}-{SPAN}-01"),
    ],
)
def test_a_traceparent_names_the_trace_and_the_span_that_asked(header: str, kept: str):
    """Also one of a later version, of which only what is known is kept."""
    groups = groups_of([(b"traceparent", header.encode())])
    assert (groups.trace, groups.traceparent) == (TRACE, kept)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01x",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_a_traceparent_that_is_none_is_left_out(header: str):
    """Its sender does not know us, and is not refused for it."""
    groups = groups_of([(b"traceparent", header.encode())])
    assert (groups.trace, groups.traceparent) == (None, None)
