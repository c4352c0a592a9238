"""The page of a load: latencies against load, its table, and what it warns of."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET

from taximeter.measurement.load.page import load_charts, load_page, load_table
from taximeter.measurement.pictures.chart import Chart, Line, Rule
from taximeter.measurement.pictures.page import page_html
from tests.measurement_samples import a_load


def test_latencies_stand_against_load_with_the_knee_and_the_target() -> None:
    load = a_load()
    ttft, itl, end_to_end, throughput, gaps = load_charts(load)
    assert isinstance(ttft, Chart)
    lines = [mark for mark in ttft.marks if isinstance(mark, Line)]
    assert [line.name for line in lines] == ["p50", "p90", "p99"]
    assert [x for x, _ in lines[0].points] == [point.level for point in load.points]
    assert [y for _, y in lines[0].points] == [point.ttft.at("p50").value for point in load.points if point.ttft]
    rules = [mark for mark in ttft.marks if isinstance(mark, Rule)]
    assert [(rule.x, rule.y) for rule in rules if rule.y is not None] == [(None, 500e6)]
    assert load.knee is not None
    assert [rule.x for rule in rules if rule.x is not None] == ([load.knee.level] if load.knee.is_within else [])
    assert all(isinstance(chart, Chart) for chart in (itl, end_to_end, throughput, gaps))
    assert [mark.name for mark in throughput.marks if isinstance(mark, Line)][1].endswith("(goodput)")


def test_the_page_has_every_level_and_every_warning() -> None:
    load = a_load()
    page = page_html(
        load_page(
            load,
            target={"url": "http://127.0.0.1:8000", "model": "m", "engine": None, "setup": {"max_num_seqs": "8"}},
            plan={"loop": "open", "levels": [1.0, 2.0]},
            environment={"client_cpu": "Xeon"},
        )
    )
    assert load.warnings
    for warning in load.warnings:
        assert page.count(html.escape(warning)) == 1
    rows = re.findall(r"<tr><td>([^<]*)</td>", page)
    assert rows == ["1", "2", "4", "8", "16"]
    assert "<dt>engine</dt><dd>unknown</dd>" in page
    assert "<dt>max num seqs</dt><dd>8</dd>" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


def test_too_few_requests_for_a_percentile_say_so() -> None:
    table = load_table(a_load(rates=(1,), slo=None))
    (row,) = table.rows
    assert "(n too small)" in row[table.headings.index("TTFT p99")]
    assert len(row) == len(table.headings)
    assert "goodput/s" not in table.headings


def test_nothing_measured_is_a_page_too() -> None:
    load = a_load(rates=())
    assert load_charts(load) == ()
    assert "Nothing was measured" in page_html(load_page(load, target={}, plan={}, environment={}))
