"""What was measured as one HTML file, which needs nothing else.

Owns: the order of a page, what a picture has around it, and its colours on top of the common ones. Refuses to know:
what was measured; findings, tables and definitions come as words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from taximeter.measurement.pictures.chart import Band, Chart, Dots, Line, Mark, Picture, Ratios, Split, visible
from taximeter.measurement.pictures.svg import chart_svg, escaped, ratios_svg, split_svg
from taximeter.reports.page import page

_STYLE: Final = """
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem 2rem; }
figure { margin: 1.2rem 0 0; min-width: 0; } figcaption { margin-bottom: .5rem; }
figcaption b { display: block; font-size: 1.02rem; font-weight: 600; line-height: 1.35; }
figcaption span, figure p { color: var(--dim); font-size: .85rem; } figure p { margin: .4rem 0 0; }
figure svg text { font-size: 14px; } figure svg .one { stroke: var(--dim); }
.says { font-size: 1.25rem; line-height: 1.4; font-weight: 600; margin: .8rem 0 0; max-width: 46rem; }
.k0 { --k: var(--c0); } .k1 { --k: var(--c1); } .k2 { --k: var(--c2); } .k3 { --k: var(--c3); } .k4 { --k: var(--c4); }
.k5 { --k: var(--c5); } .k6 { --k: var(--c6); }
.dot { fill: var(--k); fill-opacity: .75; } .fill { fill: var(--k); } .bar { fill: var(--k); fill-opacity: .6; }
.line { fill: none; stroke: var(--k); stroke-width: 2.2; stroke-linejoin: round; } .dashed { stroke-dasharray: 6 5; }
.band { fill: var(--k); fill-opacity: .18; } .rule { stroke: var(--k); stroke-width: 1.4; stroke-dasharray: 4 4; }
.ruled text { fill: var(--ink); }
.warn { border-left: 3px solid var(--c2); padding-left: .7rem; margin: .7rem 0; max-width: 46rem; }
.legend i { display: inline-block; width: .95rem; height: .7rem; margin-right: .35rem; }
.legend .of-line { height: 0; border-top: 3px solid var(--k); vertical-align: .2rem; }
.legend .of-fill { background: var(--k); } .legend .of-band { background: var(--k); opacity: .35; }
.legend .of-dot { width: .6rem; height: .6rem; border-radius: 50%; background: var(--k); }
figure .legend { margin: .1rem 0 .4rem; }
@media (max-width: 40rem) { figure svg text { font-size: 20px; } .says { font-size: 1.1rem; } dl { display: block; }
  dd { margin-bottom: .4rem; } }
@media print { figure { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of words under headings. The first column is a name, the others are figures."""

    name: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that stands on a page: `says` is the verdict, `warnings` what keeps it from being certain, `facts` how it was
    measured, `definitions` what the words mean."""

    title: str
    subject: str
    says: str
    pictures: tuple[Picture, ...]
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: Mapping[str, str]
    definitions: Mapping[str, str]
    made: str = ""


def page_html(shown: Page) -> str:
    """The whole document."""
    body = [f"<h1>{escaped(shown.title)}</h1>", f'<p class="span">{escaped(shown.subject)}</p>']
    body.append(f'<p class="says">{escaped(shown.says)}</p>')
    body += [f"<p>{escaped(advice)}</p>" for advice in shown.advice]
    body += [f'<p class="warn">{escaped(warning)}</p>' for warning in shown.warnings]
    body.append('<div class="pictures">')
    body += [_figure(picture) for picture in shown.pictures]
    body.append("</div>")
    body += [_table(table) for table in shown.tables]
    body += ["<h2>How it was measured</h2>", _pairs(shown.facts), "<h2>What the words mean</h2>"]
    body.append(_pairs(shown.definitions))
    if shown.made:
        body.append(f'<p class="note">{escaped(shown.made)}</p>')
    return page(visible(f"Taximeter: {shown.title}, {shown.subject}"), body, style=_STYLE)


def _figure(picture: Picture) -> str:
    caption = f"<figcaption><b>{escaped(picture.says)}</b><span>{escaped(picture.name)}</span></figcaption>"
    match picture:
        case Chart():
            drawn = picture.drawable()
            series = drawn.series
            legend = _legend([(mark.name, mark.tone, _kind(mark)) for mark in series]) if len(series) > 1 else ""
            svg, notes = chart_svg(picture), picture.framed(most_x=1, most_y=1)[0].notes
        case Split():
            legend = _legend([(part, tone, "fill") for part, tone in picture.parts])
            svg, notes = split_svg(picture), picture.notes
        case Ratios():
            legend, svg, notes = "", ratios_svg(picture), picture.notes
    told = "".join(f"<p>{escaped(note)}</p>" for note in notes)
    return f"<figure>{caption}{legend}{svg}{told}</figure>"


def _kind(mark: Mark) -> str:
    match mark:
        case Line():
            return "line"
        case Band():
            return "band"
        case Dots():
            return "dot"
        case _:
            return "fill"


def _legend(entries: Sequence[tuple[str, int, str]]) -> str:
    marks = "".join(
        f'<span class="k{tone}"><i class="of-{kind}"></i>{escaped(name)}</span>' for name, tone, kind in entries
    )
    return f'<div class="legend">{marks}</div>'


def _table(table: Table) -> str:
    side = ' class="n"'
    head = "".join(
        f'<th scope="col"{side if number else ""}>{escaped(heading)}</th>'
        for number, heading in enumerate(table.headings)
    )
    rows = [
        "".join(f"<td{side if number else ''}>{escaped(cell)}</td>" for number, cell in enumerate(row))
        for row in table.rows
    ]
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return (
        f'<h2>{escaped(table.name)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _pairs(pairs: Mapping[str, str]) -> str:
    told = "".join(f"<dt>{escaped(about)}</dt><dd>{escaped(said)}</dd>" for about, said in pairs.items())
    return f"<dl>{told}</dl>"
