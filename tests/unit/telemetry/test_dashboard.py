"""The dashboard in docs/grafana asks for what is on the page, and is of a form that Grafana imports."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from taximeter.records import Ceiling, Work
from taximeter.telemetry.engines import read_page
from taximeter.telemetry.page import Moment, render
from taximeter.telemetry.watch import Watch
from tests.unit.telemetry.receipts import NETWORK, a_receipt, refused, sources
from tests.unit.telemetry.test_engines import VLLM

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "docs" / "grafana" / "taximeter.json").read_text("utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
OF_PROMQL = {"le"}


def labels_on_the_page() -> dict[str, set[str]]:
    """Every series of a page that has everything, with its labels."""
    ceiling = Ceiling(read_bytes_per_s=10, operations_per_s=10, unit="int8")
    work = Work(
        prefill_passes=1, decode_passes=1, computed_tokens=2, decode_read_bytes=5, decode_compute_ns=7, ceiling=ceiling
    )
    watch = Watch(sources(), NETWORK)
    for receipt in (a_receipt(), a_receipt(dollars=None), refused(), a_receipt(served_by="embedded", work=work)):
        watch.add(receipt)
    plain = watch.moment()
    fields = {name: getattr(plain, name) for name in plain.__slots__}
    page, _ = render(Moment(**{**fields, "engines": {"farm": read_page(VLLM)}, "scrapes": {("farm", "ok"): 1}}), "")
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", [])]


def test_every_query_names_series_and_labels_that_exist():
    """Nothing that was renamed lives on there."""
    known = labels_on_the_page()
    assert len(expressions()) > 30
    for expression in expressions():
        asked = re.findall(r"\btaximeter_\w+", expression)
        assert asked, expression
        assert set(asked) <= set(known), expression
        labels = set(re.findall(r'(\w+)\s*(?:=~|!=|=)\s*"', expression))
        for listed in re.findall(r"\bby \(([^)]*)\)", expression):
            labels |= {label.strip() for label in listed.split(",")}
        assert labels <= set().union(*(known[name] for name in asked)) | OF_PROMQL, expression


def test_every_query_is_balanced():
    """As much of PromQL's grammar as can be told without Prometheus."""
    for expression in expressions():
        bare = re.sub(r'"[^"]*"', "", expression)
        for opening, closing in ("()", "{}", "[]"):
            assert bare.count(opening) == bare.count(closing), expression


def test_it_is_of_the_form_that_grafana_imports():
    """Ids are each panel's own, panels lie side by side, and every one asks the chosen data source."""
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 36
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "upstream", "model"}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(PANELS)))
    assert used <= variables
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"]
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
        assert one["x"] + one["w"] <= 24
