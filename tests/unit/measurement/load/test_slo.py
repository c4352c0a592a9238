"""Targets as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.measurement.load.slo import Slo


def test_a_target_is_read() -> None:
    assert Slo.parse("ttft=500ms, itl=50ms,share=0.95") == Slo(ttft_ns=500_000_000, itl_ns=50_000_000, share=0.95)
    assert Slo.parse("E2E=1.5s,share=99%") == Slo(e2e_ns=1_500_000_000, share=0.99)
    assert str(Slo.parse("ttft=500ms,itl=50ms")) == "TTFT 500.0 ms, ITL 50.0 ms for 0.95 of all"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "share=0.9",
        "ttft",
        "ttft=",
        "ttft=5",
        "ttft=-5ms",
        "ttft=0ms",
        "ttft=1s,ttft=2s",
        "tpot=5ms",
        "ttft=1s,share=2",
    ],
)
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        Slo.parse(text)
    assert "--slo" in (caught.value.hint or "")


@given(st.text(alphabet="tfilse2=,.0123456789mshar% -nax", max_size=40))
def test_nothing_else_comes_out_of_any_text(text: str) -> None:
    with contextlib.suppress(RequestError):
        assert Slo.parse(text).share <= 1
