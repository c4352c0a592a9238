"""Pictures as SVG. Colours are classes (`k0`, `k1`, ...), which the page around them decides.

Owns: geometry. Refuses to know: what is drawn. A picture is wide enough for half a desktop's page, and its letters grow
on a phone's (the page does that), so ticks are set as far apart as the larger letters need.
"""

from __future__ import annotations

import html
import math
from typing import Final

from taximeter.measurement.pictures.axis import Axis, Ruler, quantity_text
from taximeter.measurement.pictures.chart import (
    Band,
    Bars,
    Chart,
    Dots,
    Line,
    Mark,
    Ratios,
    Rule,
    Split,
    known,
    visible,
)

_WIDTH: Final = 640
_PLOT_HEIGHT: Final = 280
_LEFT, _RIGHT, _TOP, _FOOT = 84, 34, 34, 62
_MOST_X, _MOST_Y = 6, 6
_ROW_HEIGHT: Final = 46
_MOST_TITLES: Final = 3000  # more samples than that nobody points at one by one
_LONGEST_LABEL: Final = 60


def chart_svg(chart: Chart) -> str:
    """Marks between two axes, each sample by itself."""
    chart, across, up = chart.framed(most_x=_MOST_X, most_y=_MOST_Y)
    drawn = [_opening(chart.name, _TOP + _PLOT_HEIGHT + _FOOT)]
    for tick, text in up.ticks:
        y = _y(up, tick)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_words(_LEFT - 8, y + 5, text, "end"))
    for tick, text in across.ticks:
        x = _x(across, tick)
        drawn.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + _PLOT_HEIGHT}" y2="{_TOP + _PLOT_HEIGHT + 5}"/>'
        )
        drawn.append(_words(x, _TOP + _PLOT_HEIGHT + 24, text, "middle"))
    drawn.append(_words(4, 18, up.title + (" (log)" if up.is_log else ""), "start"))
    drawn.append(
        _words(
            (_LEFT + _WIDTH - _RIGHT) / 2,
            _TOP + _PLOT_HEIGHT + 52,
            across.title + (" (log)" if across.is_log else ""),
            "middle",
        )
    )
    if not chart.series:
        drawn.append(_words(_WIDTH / 2, _TOP + _PLOT_HEIGHT / 2, "nothing was measured", "middle"))
    drawn += [_mark(mark, across, up, chart) for mark in chart.marks]
    return "".join([*drawn, "</svg>"])


def split_svg(split: Split) -> str:
    """A lying bar for each whole, on one scale. What is unknown is said, not drawn."""
    wholes = [math.fsum(known(amounts)) for _, amounts in split.rows]
    largest = max(wholes, default=0.0) or 1.0
    drawn = [_opening(split.name, _ROW_HEIGHT * len(split.rows) + 4)]
    for number, ((label, amounts), whole) in enumerate(zip(split.rows, wholes, strict=True)):
        y, x = _ROW_HEIGHT * number + 4, 0.0
        unknown = [name for (name, _), amount in zip(split.parts, amounts, strict=True) if amount is None]
        said = f"{label}: {quantity_text(whole, split.unit)}"
        if unknown:
            said += f" and an unknown {', '.join(unknown)}"
        drawn.append(_words(0, y + 14, said, "start"))
        for (name, tone), amount in zip(split.parts, known(amounts), strict=True):
            wide = amount / largest * _WIDTH
            if wide <= 0:
                continue
            share = f", {amount / whole:.0%}" if whole else ""
            title = escaped(f"{label}: {name} {quantity_text(amount, split.unit)}{share}")
            drawn.append(
                f'<rect class="k{tone} fill" x="{x:.2f}" y="{y + 21}" width="{wide:.2f}" height="17">'
                f"<title>{title}</title></rect>"
            )
            x += wide
    return "".join([*drawn, "</svg>"])


def ratios_svg(ratios: Ratios) -> str:
    """Each ratio as a dot on its interval, around the line where there is no difference."""
    rows = [row for row in ratios.rows if row.is_drawable]
    across = ratios.ruler(most_ticks=7)
    height = _ROW_HEIGHT * len(rows) + 58
    drawn = [_opening(ratios.name, height)]
    bottom = height - 50
    for tick, text in across.ticks:
        x = 14 + across.place(tick) * (_WIDTH - 28)
        kind = "one" if tick == 1 else "grid"
        drawn.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        drawn.append(_words(x, bottom + 20, text, "middle"))
    drawn.append(_words(0, height - 6, f"← {ratios.left}", "start"))
    drawn.append(_words(_WIDTH, height - 6, f"{ratios.right} →", "end"))
    for number, row in enumerate(rows):
        y = _ROW_HEIGHT * number + 32
        text = escaped(row.text)
        drawn.append(f'<g class="k{row.tone}"><title>{text}</title>' + _words(0, y - 14, row.label, "start"))
        if row.low is not None and row.high is not None:
            left, right = (14 + across.place(end) * (_WIDTH - 28) for end in (row.low, row.high))
            drawn.append(f'<line class="line" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>')
        x = 14 + across.place(row.value) * (_WIDTH - 28)
        drawn.append(f'<circle class="fill" cx="{x:.1f}" cy="{y}" r="5"/></g>')
    return "".join([*drawn, "</svg>"])


def _mark(mark: Mark, across: Ruler, up: Ruler, chart: Chart) -> str:
    match mark:
        case Dots(points=points):
            return f'<g class="k{mark.tone}">{_dots(mark, across, up, chart, size=3.2)}</g>' if points else ""
        case Line(points=points):
            path = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in points)
            kind = "line dashed" if mark.is_dashed else "line"
            dots = _dots(mark, across, up, chart, size=4) if mark.has_dots else ""
            return f'<g class="k{mark.tone}"><polyline class="{kind}" points="{path}"/>{dots}</g>'
        case Band(edges=edges):
            there = [f"{_x(across, x):.1f},{_y(up, high):.1f}" for x, _, high in edges]
            back = [f"{_x(across, x):.1f},{_y(up, low):.1f}" for x, low, _ in reversed(edges)]
            return f'<polygon class="k{mark.tone} band" points="{" ".join(there + back)}"/>'
        case Bars(bars=bars):
            return f'<g class="k{mark.tone}">{"".join(_bar(bar, mark.name, across, up, chart) for bar in bars)}</g>'
        case Rule(x=None, y=y):
            at = _y(up, y or 0.0)
            line = f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            below = at < _TOP + 24  # where there is no room above it
            words = _words(_LEFT + 6, at + (19 if below else -6), mark.name, "start")
            return f'<g class="k{mark.tone} ruled">{line}{words}</g>'
        case Rule(x=x):
            at = _x(across, x or 0.0)
            line = f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_TOP + _PLOT_HEIGHT}"/>'
            left = at > (_LEFT + _WIDTH) / 2
            words = _words(at + (-6 if left else 6), _TOP + 16, mark.name, "end" if left else "start")
            return f'<g class="k{mark.tone} ruled">{line}{words}</g>'


def _dots(mark: Dots | Line, across: Ruler, up: Ruler, chart: Chart, *, size: float) -> str:
    has_titles = len(mark.points) <= _MOST_TITLES
    made: list[str] = []
    for x, y in mark.points:
        dot = f'<circle class="dot" cx="{_x(across, x):.1f}" cy="{_y(up, y):.1f}" r="{size}"'
        if not has_titles:
            made.append(f"{dot}/>")
            continue
        said = f"{mark.name}: {_said(x, chart.x)}, {_said(y, chart.y)}"
        made.append(f"{dot}><title>{escaped(said)}</title></circle>")
    return "".join(made)


def _bar(bar: tuple[float, float, float], name: str, across: Ruler, up: Ruler, chart: Chart) -> str:
    left, right, top = _x(across, bar[0]), _x(across, bar[1]), _y(up, bar[2])
    said = f"{name}: {quantity_text(bar[0], chart.x.unit)} to {_said(bar[1], chart.x)}: {_said(bar[2], chart.y)}"
    return (
        f'<rect class="bar" x="{left:.2f}" y="{top:.2f}" width="{max(0.5, right - left - 0.8):.2f}"'
        f' height="{max(0.0, _TOP + _PLOT_HEIGHT - top):.2f}"><title>{escaped(said)}</title></rect>'
    )


def _said(value: float, axis: Axis) -> str:
    return f"{quantity_text(value, axis.unit)} {axis.label}"


def _x(across: Ruler, value: float) -> float:
    return _LEFT + across.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(up: Ruler, value: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - up.place(value))


def _words(x: float, y: float, text: str, anchor: str) -> str:
    cut = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(cut)}</text>'


def _opening(name: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escaped(name)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    )


def escaped(text: str) -> str:
    """Text as markup."""
    return html.escape(visible(text))
