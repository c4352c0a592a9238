"""Charts as SVG: bars over time, a bar for each row, and one bar for a whole.

Owns: geometry. Colours are classes (`c0`, `c1`, ...), which the page around them decides. Refuses to know: what the
parts are.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

_WIDTH: Final = 960
_PLOT_HEIGHT: Final = 180
_LEFT: Final = 72
_TOP: Final = 12
_FOOT: Final = 26
_GAP_SHARE: Final = 0.18  # of a bar's place
_LEAST_TEXT_WIDTH: Final = 64  # between two labels of the time axis
_ROW_HEIGHT: Final = 22
_NAME_WIDTH: Final = 285
_LONGEST_NAME: Final = 36  # a UUID's, whose digits are as wide as any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`parts` are amounts by series, in the order of the series; `title` is what the bar says when it is pointed at."""

    label: str
    parts: Sequence[Decimal]
    title: str

    @property
    def whole(self) -> Decimal:
        return sum(self.parts, Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Where the axis ends and how it is divided: by 1, 2 or 5 times a power of ten."""

    step: Decimal
    steps: int

    @classmethod
    def up_to(cls, largest: Decimal) -> Scale:
        if largest <= 0:
            return cls(step=Decimal(1), steps=1)
        exponent = largest.adjusted() - 1
        for digits in (2, 5, 10, 20, 50):
            step = Decimal(digits).scaleb(exponent)
            steps = math.ceil(largest / step)
            if steps <= 5:
                return cls(step=step, steps=steps)
        return cls(step=Decimal(10).scaleb(exponent + 1), steps=1)

    @property
    def end(self) -> Decimal:
        return self.step * self.steps


def over_time(bars: Sequence[Bar], *, name: str, ticks: Scale, tick_texts: Sequence[str]) -> str:
    """Standing bars, one for each period, also those in which nothing happened."""
    place = (_WIDTH - _LEFT) / len(bars)
    width = max(1.0, place * (1 - _GAP_SHARE))
    height = _TOP + _PLOT_HEIGHT + _FOOT
    drawn = [_opening(name, height)]
    for number, text in enumerate(tick_texts):
        y = _TOP + _PLOT_HEIGHT * (1 - number / ticks.steps)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(text)}</text>')
    every = max(1, -int(-_LEAST_TEXT_WIDTH // place))
    for number, bar in enumerate(bars):
        x = _LEFT + place * number + (place - width) / 2
        y = float(_TOP + _PLOT_HEIGHT)
        drawn.append(f"<g><title>{html.escape(bar.title)}</title>")
        for series, part in enumerate(bar.parts):
            tall = float(part / ticks.end) * _PLOT_HEIGHT
            y -= tall
            drawn.append(_rect(x, y, width, tall, series))
        # As tall as the plot, so that a small bar can be pointed at too.
        drawn.append(_rect(x, _TOP, width, _PLOT_HEIGHT, None) + "</g>")
        if number % every == 0:
            middle = x + width / 2
            at, side = (middle, "middle") if middle + _LEAST_TEXT_WIDTH / 2 <= _WIDTH else (_WIDTH, "end")
            drawn.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="{side}">{html.escape(bar.label)}</text>')
    return "".join([*drawn, "</svg>"])


def by_row(bars: Sequence[Bar], *, name: str, amounts: Sequence[str]) -> str:
    """Lying bars with a name before and an amount behind each."""
    largest = max((bar.whole for bar in bars), default=Decimal(0)) or Decimal(1)
    room = _WIDTH - _NAME_WIDTH - 110
    drawn = [_opening(name, _ROW_HEIGHT * len(bars) + 4)]
    for number, (bar, amount) in enumerate(zip(bars, amounts, strict=True)):
        y, x = _ROW_HEIGHT * number + 3, float(_NAME_WIDTH)
        label = bar.label if len(bar.label) <= _LONGEST_NAME else bar.label[: _LONGEST_NAME - 1] + "…"
        drawn.append(f"<g><title>{html.escape(bar.title)}</title>")
        drawn.append(f'<text x="{_NAME_WIDTH - 8}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>')
        for series, part in enumerate(bar.parts):
            wide = float(part / largest) * room
            drawn.append(_rect(x, y, wide, _ROW_HEIGHT - 6, series))
            x += wide
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{html.escape(amount)}</text></g>')
    return "".join([*drawn, "</svg>"])


def whole(bar: Bar, *, name: str) -> str:
    """One bar over the full width: what something consists of."""
    drawn = [_opening(name, 20)]
    x, all_ = 0.0, bar.whole or Decimal(1)
    for series, part in enumerate(bar.parts):
        wide = float(part / all_) * _WIDTH
        drawn.append(_rect(x, 0, wide, 18, series))
        x += wide
    return "".join([*drawn, f"<title>{html.escape(bar.title)}</title></svg>"])


def _opening(name: str, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(name)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    )


def _rect(x: float, y: float, width: float, height: float, series: int | None) -> str:
    if width <= 0 or height <= 0:
        return ""
    kind = "hit" if series is None else f"c{series}"
    return f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'
