"""Tables on terminals of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import taximeter.cli.receipts as receipts_module
from taximeter.cli.tables import fitting as any_fitting
from taximeter.figures import SHORT_ID


def fitting(columns: Mapping[str, Sequence[str]], width: int) -> Mapping[str, Sequence[str]]:
    """As `taximeter receipts` has them."""
    least_telling = receipts_module._LEAST_TELLING
    return any_fitting(columns, width, least_telling=least_telling, shorten={"receipt": SHORT_ID})


def test_a_narrow_terminal_gets_fewer_columns_not_cut_ones() -> None:
    """The least telling columns go, ids become short, what stays is whole; what became of a request goes last."""
    columns = {
        "when, UTC": ["10-29 16:42:10"],
        "model": ["smollm2-135m-instruct"],
        "in": ["35"],
        "cached": ["32"],
        "out": ["48"],
        "TTFT": ["121.5 ms"],
        "total": ["1.204 s"],
        "cost": ["$0.000136"],
        "outcome": ["completed"],
        "receipt": ["rcpt_01kbr9w8w8abcdefghjkmn"],
    }
    assert fitting(columns, 200) == columns
    assert list(fitting(columns, 117)) == [heading for heading in columns if heading != "cached"]
    assert fitting(columns, 100)["receipt"] == ["rcpt_01kbr9w8w8a"]
    for width in range(28, 121):
        shown = fitting(columns, width)
        assert {"outcome", "receipt"} <= shown.keys() or width < 40
        assert sum(max(len(heading), len(texts[0])) + 2 for heading, texts in shown.items()) - 2 <= width
        assert all(shown[heading] == columns[heading] for heading in shown if heading != "receipt")
