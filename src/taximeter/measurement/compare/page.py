"""A comparison as a page, a table and lines of CSV. Owns: what stands where. Refuses to know: how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from taximeter.measurement.compare.compare import Comparison, Metric, Row, Side
from taximeter.measurement.pictures.axis import Unit, quantity_text
from taximeter.measurement.pictures.chart import Chart, Picture
from taximeter.measurement.pictures.illustrations import ratios_of
from taximeter.measurement.pictures.page import Page, Table
from taximeter.measurement.requests_csv import requests_csv
from taximeter.measurement.results import DEFINITIONS


def comparison_pictures(comparison: Comparison, curves: Chart | None = None) -> tuple[Picture, ...]:
    """A picture of ratios for each metric, and the curves per dollar where there are rates. What may not be ranked has
    none of both."""
    if not comparison.comparability.may_be_ranked:
        return ()
    drawn: list[Picture] = []
    others = [label for label in comparison.names if label != comparison.base]
    for metric in Metric:
        rows = [row for row in comparison.rows if row.metric is metric and row.ratios]
        if not rows:
            continue
        shown = [
            (f"{label} at {row.condition}" if len(others) > 1 else row.condition, row.ratios[label], tone)
            for row in rows
            for tone, label in enumerate(others)
            if label in row.ratios
        ]
        said = [sentence for sentence in comparison.says if sentence.startswith(f"{metric}: ")]
        drawn.append(ratios_of(shown, figure=metric, says=". ".join(said), base=comparison.base))
    return (*drawn, *(() if curves is None else (curves,)))


def comparison_table(comparison: Comparison) -> Table:
    """Medians of each side with their n, and ratios with their intervals."""
    labels = list(comparison.names)
    others = labels[1:] if comparison.comparability.may_be_ranked else []
    return Table(
        name="Medians and ratios" if others else "Medians, not ranked",
        headings=("condition", "figure", *labels, *(f"{label} / {labels[0]}" for label in others), "n"),
        rows=tuple(tuple(_cells(row, labels, others)) for row in comparison.rows),
    )


def _cells(row: Row, labels: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    yield row.condition
    yield row.metric.value
    for label in labels:
        figure = row.figures.get(label)
        yield "" if figure is None else quantity_text(figure.value, Unit.TIME)
    for label in others:
        ratio = row.ratios.get(label)
        if ratio is None:
            yield ""
        elif ratio.low is None or ratio.high is None:
            yield f"{ratio.value:.2f} (n too small)"
        else:
            yield f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    yield "/".join(str(row.figures[label].n) if label in row.figures else "0" for label in labels)


def comparison_page(
    comparison: Comparison, *, curves: Chart | None, facts: Mapping[str, str], made: str, heading: str | None = None
) -> Page:
    """`heading` goes before what the comparison says."""
    agreement = comparison.comparability
    agreed = {name.replace("_", " "): f"{value}, on all sides" for name, value in agreement.agreed.items()}
    first, *rest = comparison.says or ("There is nothing that was measured on all sides",)
    return Page(
        title="Comparison",
        subject=" against ".join(f"{label} ({name})" for label, name in comparison.names.items()),
        says=first if heading is None else f"{heading}. {first}",
        advice=tuple(rest),
        warnings=comparison.warnings,
        pictures=comparison_pictures(comparison, curves),
        tables=(comparison_table(comparison),),
        facts={**comparison.names, **facts, **agreed},
        definitions=DEFINITIONS,
        made=made,
    )


def comparison_csv(sides: Sequence[Side]) -> str:
    """Each request of each side as a line."""
    return requests_csv(
        (
            {"side": side.label, "target": side.name, "condition": condition}
            for side in sides
            for condition, many in side.conditions.items()
            for _ in many
        ),
        (seen for side in sides for many in side.conditions.values() for seen in many),
        headings=("side", "target", "condition"),
    )
