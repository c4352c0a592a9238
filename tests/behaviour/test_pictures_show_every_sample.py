"""A picture leaves nothing out silently: every sample is in it, or a note says that it is not; and it needs nothing but
itself, whoever named what is in it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from taximeter.measurement.pictures import plots
from taximeter.measurement.pictures.axis import Axis, Unit, quantity_text, ruler
from taximeter.measurement.pictures.chart import Band, Bars, Chart, Dots, Line, Picture, Ratio, Ratios, Rule, Split
from taximeter.measurement.pictures.illustrations import (
    Level,
    gap_histogram,
    latency_by_load,
    ratios_of,
    split_by_length,
    ttft_by_length,
)
from taximeter.measurement.pictures.page import Page, Table, page_html
from taximeter.measurement.pictures.svg import chart_svg, ratios_svg, split_svg
from tests.measurement_harness import MS
from tests.measurement_samples import LENGTHS, Known, an_observation, noisy_ttfts, ttft_ns

SVG = "{http://www.w3.org/2000/svg}"


def ttft() -> Chart:
    curve = [(n, Known(value=ttft_ns(n), low=0.9 * ttft_ns(n), high=1.1 * ttft_ns(n))) for n in range(64, 4097, 64)]
    return ttft_by_length(noisy_ttfts(), says="0.5 ms for each token", curve=curve, target_ns=500 * MS)


def load() -> Chart:
    levels = [
        Level(
            at=rate,
            latencies={
                share: Known(value=worse * (50 + 200 / (20 - rate)) * MS, low=worse * 40 * MS, high=worse * 700 * MS)
                for share, worse in ((0.5, 1), (0.9, 2), (0.99, 4))
            },
        )
        for rate in (1, 2, 4, 8, 16)
    ]
    return latency_by_load(
        levels, latency="time to first token", load="requests/s", says="it bends", knee=13, target_ns=500 * MS
    )


def split() -> Split:
    rows = {n: {"queue": 0.0, "prefill": ttft_ns(n), "decode": 640.0 * MS, "network": None} for n in LENGTHS}
    return split_by_length(rows, says="prefill is 80 % at 4,096")


def ratios() -> Ratios:
    rows = [
        ("TTFT at 64", Known(value=0.6, low=0.5, high=0.7), 0),
        ("ITL", Known(value=1.01, low=0.97, high=1.06), 0),
        ("whole", Known(value=1.3), 1),
    ]
    return ratios_of(rows, figure="latency", says="B is quicker to begin", base="A")


def all_pictures() -> list[Picture]:
    return [ttft(), load(), split(), ratios(), gap_histogram([an_observation(bundle=5)])]


def drawn(picture: Picture) -> ET.Element:
    match picture:
        case Chart():
            return ET.fromstring(chart_svg(picture))
        case Split():
            return ET.fromstring(split_svg(picture))
        case Ratios():
            return ET.fromstring(ratios_svg(picture))


def words(picture: Picture, width: int, letters: plots.Letters = plots.UNICODE) -> list[str]:
    return [line.plain for line in plots.plot(picture, width, letters=letters)]


def test_each_sample_is_a_dot_and_says_what_it_is() -> None:
    circles = drawn(ttft()).findall(f".//{SVG}circle")
    assert len(circles) == 5 * len(LENGTHS)
    titles = [title.text or "" for circle in circles for title in circle.findall(f"{SVG}title")]
    assert sum("4,096 prompt length, tokens" in title for title in titles) == 5
    assert all(re.search(r"[\d.]+ m?s time to first token", title) for title in titles)


def test_more_tokens_are_further_right_and_more_time_is_further_up() -> None:
    circles = drawn(ttft()).findall(f".//{SVG}circle")
    places = [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in circles]
    means = [[sum(axis) / 5 for axis in zip(*places[i : i + 5], strict=True)] for i in range(0, len(places), 5)]
    assert [x for x, _ in means] == sorted(x for x, _ in means)
    assert [y for _, y in means] == sorted((y for _, y in means), reverse=True)
    doublings = [later[0] - earlier[0] for earlier, later in pairwise(means)]
    assert max(doublings) - min(doublings) < 0.5  # a logarithmic axis: each doubling is as wide


def test_what_cannot_be_drawn_is_counted() -> None:
    chart = ttft_by_length({64: [ttft_ns(64), math.inf, math.nan, -1.0, 1e300]}, says="")
    assert len(drawn(chart).findall(f".//{SVG}circle")) == 1
    assert any("4 values are left out" in note for note in chart.drawable().notes)
    assert "4 values are left out" in " ".join(words(chart, 80))


def test_a_target_far_away_is_said_and_not_drawn() -> None:
    """It would leave no room for the samples."""
    chart = ttft_by_length({64: [50.0 * MS]}, says="", target_ns=60_000 * MS)
    assert any("target 60 s, 60 s, is far outside" in line or "far outside" in line for line in words(chart, 90))
    assert "ruled" not in chart_svg(chart)


def test_gaps_between_events_and_for_each_token_are_apart() -> None:
    """Bundles of five every 50 ms: gaps of 50 ms between events, of 10 ms for each token."""
    chart = gap_histogram([an_observation(output_tokens=16, bundle=5)])
    bars, line = chart.marks
    assert isinstance(bars, Bars)
    assert isinstance(line, Line)
    assert (bars.name, line.name) == ("between events, n = 3", "for each token, n = 15")
    ((left, right, share),) = bars.bars
    assert left <= 50 * MS < right
    assert share == 1
    assert line.points[0][0] <= 10 * MS < line.points[-1][0]


def test_unknown_bundles_are_no_gaps_of_tokens() -> None:
    chart = gap_histogram([an_observation(bundle=5, counts_each=False), an_observation()])
    assert [type(mark) for mark in chart.marks] == [Bars, Line]
    assert "1 of 2 answers do not say how many tokens each event brought" in chart.notes[0]
    assert chart.marks[1].name == "for each token, n = 15"


def test_an_unknown_part_is_said() -> None:
    texts = [text.text or "" for text in drawn(split()).iter(f"{SVG}text")]
    assert texts[0].endswith("and an unknown network")
    assert "64 tokens" in texts[0]


def test_bars_of_a_split_are_as_long_as_their_amounts() -> None:
    rects = [float(rect.attrib["width"]) for rect in drawn(split()).iter(f"{SVG}rect")]
    assert rects[-2] / rects[-1] == pytest.approx(ttft_ns(4096) / (640 * MS), rel=1e-3)


def test_one_is_always_on_the_axis_of_ratios() -> None:
    texts = [text.text for text in drawn(ratios()).iter(f"{SVG}text")]
    assert "1×" in texts
    assert "no interval: too few samples" in " ".join(words(ratios(), 100))


@pytest.mark.parametrize("letters", [plots.UNICODE, plots.ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_plots_fit_the_terminal(width: int, letters: plots.Letters) -> None:
    for picture in all_pictures():
        lines = words(picture, width, letters)
        assert max(map(cell_len, lines)) <= min(width, 100)
        if letters is plots.ASCII and isinstance(picture, Chart):
            assert all(line.isascii() for line in lines)


def test_a_file_gets_no_colours_and_the_same_words() -> None:
    for forced in (False, True):
        console = Console(width=80, force_terminal=forced, color_system="standard" if forced else None)
        with console.capture() as captured:
            for line in plots.plot(load(), 80):
                console.print(line, soft_wrap=True)
        text = captured.get()
        assert ("\x1b[" in text) is forced
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert [line.rstrip() for line in plain.splitlines()] == [line.rstrip() for line in words(load(), 80)]


def test_series_can_be_told_apart_without_colours() -> None:
    lines = words(load(), 80)
    legend = " ".join(lines)
    assert all(f"{mark} {name}" in legend for mark, name in (("o", "p50"), ("x", "p90"), ("+", "p99")))
    drawn_marks = "".join(line.split("│", 1)[1] for line in lines if "│" in line)
    assert all(drawn_marks.count(mark) >= 3 for mark in "ox+")


def a_page(name: str = "m", *, pictures: tuple[Picture, ...] = ()) -> str:
    table = Table(name=name, headings=(name, "n"), rows=((name, "1"),))
    return page_html(
        Page(
            title="Sweep",
            subject=name,
            says=name,
            pictures=pictures,
            warnings=(name,),
            advice=(name,),
            tables=(table,),
            facts={name: name},
            definitions={"TTFT": "from the scheduled arrival to the first token"},
            made=name,
        )
    )


def test_a_page_needs_nothing_else() -> None:
    page = a_page(pictures=tuple(all_pictures()))
    assert page.count("<svg") == len(all_pictures())
    assert not re.search(r"""(?:src|href|url|@import|<script|<link|on\w+=)\s*[=(]""", page)
    assert set(re.findall(r"https?://[^\"' <]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert "from the scheduled arrival to the first token" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


_NAMES = st.text(max_size=30) | st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=y>', "\x1b[31mred", "a\nb", "漢字" * 9, "=1+1", "&amp;", "]]>"]
)
_NUMBERS = st.floats() | st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e9, 1e24, 1e300, -1.0])


@given(name=_NAMES)
@settings(max_examples=60, deadline=None)
def test_names_are_only_names(name: str) -> None:
    """On the page, in its pictures, and in a terminal, which would obey some letters."""
    pictures: tuple[Picture, ...] = (
        Chart(
            name=name,
            says=name,
            x=Axis(label=name),
            y=Axis(label=name, unit=Unit.TIME),
            marks=(Dots(name=name, points=((1, 1), (2, 3))), Rule(name=name, x=2), Rule(name=name, y=2)),
            notes=(name,),
        ),
        Split(name=name, says=name, unit=Unit.TIME, parts=((name, 0),), rows=((name, (1.0,)),)),
        Ratios(name=name, says=name, left=name, right=name, rows=(Ratio(label=name, value=1.0, low=0.9, high=1.1),)),
    )
    page = a_page(name, pictures=pictures)
    assert "<script" not in page
    assert "<img" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
    for picture in pictures:
        for line in words(picture, 60):
            assert line.isprintable()
            assert cell_len(line) <= 60


@given(
    points=st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=20),
    bars=st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=5),
    rule=_NUMBERS,
    is_geometric=st.booleans(),
    width=st.integers(32, 120),
)
@settings(max_examples=100, deadline=None)
def test_any_numbers_are_drawn_or_counted(
    points: list[tuple[float, float]],
    bars: list[tuple[float, float, float]],
    rule: float,
    is_geometric: bool,
    width: int,
) -> None:
    chart = Chart(
        name="n",
        says="s",
        x=Axis(label="x", is_geometric=is_geometric, at=tuple(x for x, _ in points if x == x)),  # noqa: PLR0124 - not NaN
        y=Axis(label="y", unit=Unit.TIME, is_geometric=is_geometric),
        marks=(
            Dots(name="d", points=tuple(points)),
            Line(name="l", points=tuple(points), has_dots=True),
            Band(name="b", edges=tuple(bars)),
            Bars(name="h", bars=tuple(bars)),
            Rule(name="r", y=rule),
        ),
    )
    svg = chart_svg(chart)
    assert "nan" not in svg
    assert "inf" not in svg
    kept = len(next((mark.points for mark in chart.drawable().marks if isinstance(mark, Dots)), ()))
    assert len(ET.fromstring(svg).findall(f".//{SVG}circle")) == 2 * kept
    for element in ET.fromstring(svg).iter(f"{SVG}circle"):
        assert 0 <= float(element.attrib["cx"]) <= 640
    assert max(map(cell_len, words(chart, width))) <= width


@given(
    rows=st.lists(st.tuples(_NUMBERS, st.none() | _NUMBERS, st.none() | _NUMBERS), max_size=6),
    amounts=st.lists(st.tuples(st.none() | _NUMBERS, st.none() | _NUMBERS), max_size=6),
    width=st.integers(32, 120),
)
@settings(max_examples=60, deadline=None)
def test_any_ratios_and_parts_are_drawn(
    rows: list[tuple[float, float | None, float | None]],
    amounts: list[tuple[float | None, float | None]],
    width: int,
) -> None:
    shown: list[Picture] = [
        Ratios(
            name="n",
            says="",
            left="l",
            right="r",
            rows=tuple(Ratio(label="a", value=value, low=low, high=high) for value, low, high in rows),
        ),
        Split(
            name="n", says="", unit=Unit.TIME, parts=(("a", 0), ("b", 1)), rows=tuple(("row", pair) for pair in amounts)
        ),
    ]
    for picture in shown:
        drawn(picture)
        assert max(map(cell_len, words(picture, width)), default=0) <= width


def test_quantities_have_three_digits_and_a_unit() -> None:
    told = [quantity_text(value, Unit.TIME) for value in (0, 1, 1.5e3, 2.25e6, 123.4e6, 1.5e9, 2e12)]
    assert told == ["0 ns", "1 ns", "1.5 µs", "2.25 ms", "123 ms", "1.5 s", "2,000 s"]
    assert quantity_text(0.25, Unit.SHARE) == "25%"


def test_ticks_are_the_lengths_that_were_measured() -> None:
    made = ruler(Axis(label="x", is_geometric=True, at=(64, 128, 256, 4096)), [64, 4096], most_ticks=6)
    assert [text for _, text in made.ticks] == ["64", "256", "4,096"]
    halves = ruler(Axis(label="x", is_geometric=True, at=(1, 2**0.5, 2, 16)), [1, 16], most_ticks=20)
    assert [text for _, text in halves.ticks] == ["1", "1.414", "2", "16"]


@given(values=st.lists(st.floats(1e-9, 1e24), min_size=1, max_size=20), is_geometric=st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_value_is_on_its_axis(values: list[float], is_geometric: bool) -> None:
    """None of them is only shown at the edge, whatever the axis."""
    made = ruler(Axis(label="x", is_geometric=is_geometric), values, most_ticks=6)
    assert made.low <= min(values)
    assert made.high >= max(values) * (1 - 1e-12)
    assert 0 <= made.place(min(values)) <= made.place(max(values)) <= 1
