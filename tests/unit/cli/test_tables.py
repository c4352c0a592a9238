"""Tables on terminals of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len

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


def test_names_are_cut_before_what_they_are_about_is_left_out() -> None:
    """However long or wide they are: a name has what room is left, in cells and not in characters."""
    columns = {
        "task": ["修复登录重定向并且迁移计费服务", "a" * 200],
        "requests": ["1,204", "3"],
        "cost": ["$12.8835 + 5 unpriced", "$0.0100"],
        "ended": ["succeeded", "open"],
    }
    for width in range(40, 260):
        shown = any_fitting(columns, width, least_telling=("requests", "cost"), shorten={}, names="task")
        widest = {heading: max(map(cell_len, [heading, *texts])) for heading, texts in shown.items()}
        assert sum(widest.values()) + 2 * (len(widest) - 1) <= width
        assert shown["ended"] == columns["ended"]
        assert width < 42 or shown["cost"] == columns["cost"]
        assert width < 62 or shown["requests"] == columns["requests"]
        assert all(text in columns["task"] or text.endswith("…") for text in shown["task"])
    assert shown == columns


def test_whole_names_are_cut_for_the_two_columns_that_tell_most_only() -> None:
    """A list of prices has no use for names alone; and long names, alike at their beginning, are what one looks for."""
    columns = {
        "model": ["openrouter/openai/gpt-4o-mini-search-preview", "openai/gpt-4o"],
        "fresh": ["0.15", "2.50"],
        "read": ["0.075", "1.25"],
        "out": ["0.60", "10.00"],
        "since": ["2026-11-30", ""],
    }
    for width in range(24, 80):
        least_telling = ("since", "read", "fresh", "out")
        shown = any_fitting(columns, width, least_telling=least_telling, shorten={}, names="model", whole_names=True)
        assert {"model", "fresh", "out"} <= shown.keys()
        assert shown["model"] == columns["model"] or shown.keys() == {"model", "fresh", "out"}
        assert sum(max(len(heading), *map(len, texts)) + 2 for heading, texts in shown.items()) - 2 <= width
    assert shown == columns
