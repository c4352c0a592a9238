"""The page around what is told as HTML: one file that needs nothing else, no script, no font, no picture from anywhere.

Owns: its frame, its colours by day and by night, and legends. Refuses to know: what is on it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --page: #fcfcfd; --line: #e0e1e6; --soft: #f4f4f6;
  --c0: #3e63dd; --c1: #12a594; --c2: #ffb224; --c3: #e5484d; --c4: #8e4ec6; --c5: #78716c; --c6: #b0b4ba; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #a1a5ab; --page: #111113; --line: #2e3135;
  --soft: #1a1b1e; --c0: #5b7bff; --c1: #2dd4bf; --c2: #ffc53d; --c3: #ff6369;
  --c4: #b182ff; --c5: #a8a29e; --c6: #6b7075; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
.span, .note, caption { color: var(--dim); }
.big { font-size: 2.4rem; font-weight: 650; letter-spacing: -.02em; margin: .8rem 0 0;
  font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 1rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--dim); }
.grid { stroke: var(--line); stroke-width: 1; } .hit { fill: transparent; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .3rem 0 .8rem; color: var(--dim);
  font-size: .85rem; }
.legend svg { width: .75rem; height: .75rem; display: inline-block; margin-right: .35rem; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 40rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.n, td.n { text-align: right; } thead th { color: var(--dim); font-weight: 500; position: sticky; top: 0;
  background: var(--page); }
tbody tr:hover { background: var(--soft); } tfoot td { font-weight: 650; border-bottom: 0; }
td:first-child { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
@media print { body { max-width: none; padding: 0; } .scroll { overflow: visible; } }
"""


def page(title: str, body: Iterable[str], *, style: str = "") -> str:
    """A whole document. `body` is markup, `title` is not; `style` comes after the common one."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Names come from strangers. Should one ever get through as markup, it may load and run nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def legend(names: Iterable[str]) -> str:
    """A mark and a name for each series, in their order; a series without a name is left out."""
    marks = "".join(
        '<span><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="c{number}" width="10" height="10"/></svg>{html.escape(name)}</span>'
        for number, name in enumerate(names)
        if name
    )
    return f'<div class="legend">{marks}</div>'
