"""Charts as SVG in HTML: bars over time, a bar for each row, and one bar for a whole.

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

_WIDTH: Final = 1000  # of a lying bar, in units of its own
_PLOT_HEIGHT: Final = 180  # these are points of the page
_TOP: Final = 12
_FOOT: Final = 26
_BESIDE: Final = 8
_DIGIT_WIDTH: Final = 7.5
_HALF_LABEL: Final = 20
_GAP_SHARE: Final = 0.18  # of a bar's place
_MOST_LABELS, _MOST_LABELS_NARROW = 13, 5  # of the time axis

STYLE: Final = """
.chart { container-type: inline-size; }
svg.plot { overflow: visible; } svg.lying { height: 1.1rem; }
.bars { display: grid; grid-template-columns: minmax(0, max-content) minmax(8rem, 1fr) max-content; gap: .3rem .7rem;
  align-items: center; font-size: .8rem; color: var(--dim); font-variant-numeric: tabular-nums; }
.bars .name { max-width: 19rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: right; }
.bars span { text-align: right; }
@container (max-width: 45rem) { .wide { display: none; } .bars { grid-template-columns: 1fr max-content; }
  .bars .name { grid-column: 1 / -1; max-width: none; text-align: left; margin: .2rem 0 -.25rem; } }
"""
"""Bars are as wide as their page, and letters as large as everywhere: nothing is scaled, nor has to be moved."""


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
    place = 100 / len(bars)  # per cent of the plot
    width = place * (1 - _GAP_SHARE)
    height = _TOP + _PLOT_HEIGHT + _FOOT
    left = round(max(map(len, tick_texts)) * _DIGIT_WIDTH) + 2 * _BESIDE
    place_of_all = f"height:{height}px;margin-left:{left}px;width:calc(100% - {left + _HALF_LABEL}px)"
    drawn = [
        f'<div class="chart"><svg class="plot" role="img" aria-label="{html.escape(name)}" style="{place_of_all}">'
    ]
    for number, text in enumerate(tick_texts):
        y = _TOP + _PLOT_HEIGHT * (1 - number / ticks.steps)
        drawn.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{-_BESIDE}" y="{y + 4:.1f}" text-anchor="end">{html.escape(text)}</text>')
    every = -(-len(bars) // _MOST_LABELS)
    every_narrow = every * -(-len(bars) // (every * _MOST_LABELS_NARROW))
    for number, bar in enumerate(bars):
        x = place * number + (place - width) / 2
        y = float(_TOP + _PLOT_HEIGHT)
        drawn.append(f"<g><title>{html.escape(bar.title)}</title>")
        for series, part in enumerate(bar.parts):
            tall = float(part / ticks.end) * _PLOT_HEIGHT
            y -= tall
            drawn.append(_rect(x, y, width, tall, series, unit="%"))
        # As tall as the plot, so that a small bar can be pointed at too.
        drawn.append(_rect(x, _TOP, width, _PLOT_HEIGHT, None, unit="%") + "</g>")
        if number % every == 0:
            kind = "" if number % every_narrow == 0 else ' class="wide"'
            at = f'x="{x + width / 2:.2f}%" y="{height - 8}" text-anchor="middle"'
            drawn.append(f"<text{kind} {at}>{html.escape(bar.label)}</text>")
    return "".join([*drawn, "</svg></div>"])


def by_row(bars: Sequence[Bar], *, name: str, amounts: Sequence[str]) -> str:
    """Lying bars with a name before, or above, and an amount behind each."""
    largest = max((bar.whole for bar in bars), default=Decimal(0)) or Decimal(1)
    drawn = [f'<div class="chart"><div class="bars" role="group" aria-label="{html.escape(name)}">']
    for bar, amount in zip(bars, amounts, strict=True):
        title = html.escape(bar.title)
        drawn.append(f'<bdi class="name" title="{title}">{html.escape(bar.label)}</bdi>{_lying(bar, largest)}')
        drawn.append(f"<span>{html.escape(amount)}</span>\n")
    return "".join([*drawn, "</div></div>"])


def whole(bar: Bar, *, name: str) -> str:
    """One bar over the full width: what something consists of."""
    return _lying(bar, bar.whole or Decimal(1), f' role="img" aria-label="{html.escape(name)}"')


def _lying(bar: Bar, all_: Decimal, more: str = ' aria-hidden="true"') -> str:
    """As wide as there is room for `all_`."""
    drawn = [f'<svg class="lying" viewBox="0 0 {_WIDTH} 1" preserveAspectRatio="none"{more}>']
    drawn.append(f"<title>{html.escape(bar.title)}</title>")
    x = 0.0
    for series, part in enumerate(bar.parts):
        wide = float(part / all_) * _WIDTH
        drawn.append(_rect(x, 0, wide, 1, series))
        x += wide
    return "".join([*drawn, "</svg>"])


def _rect(x: float, y: float, width: float, height: float, series: int | None, *, unit: str = "") -> str:
    if width <= 0 or height <= 0:
        return ""
    kind = "hit" if series is None else f"c{series}"
    return f'<rect class="{kind}" x="{x:.2f}{unit}" y="{y:.2f}" width="{width:.2f}{unit}" height="{height:.2f}"/>'
