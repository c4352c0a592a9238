"""`taximeter prices`: what is shown is what is billed, with its source, its dates and its age."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from taximeter.cli.main import app
from taximeter.cli.prices import EXIT_STALE
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.overview import freshness

OVERLAY = """
[[price]]
model = "home/ours"
input_fresh_per_million_usd = "2"
output_per_million_usd = "8"
checked_on = 2026-11-01

[[price]]
model = "home/older"
input_fresh_per_million_usd = "1"
output_per_million_usd = "4"
"""


@pytest.fixture
def run(
    taximeter_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """The command, to its end: exit code, and what it printed."""
    (taximeter_home / "prices.toml").write_text(OVERLAY)
    monkeypatch.setenv("TAXIMETER_PRICES", str(taximeter_home / "prices.toml"))

    def called(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            app(["prices", *arguments])
        told = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), told.out + told.err

    return called


def read(run: Callable[..., tuple[int, str]], *arguments: str) -> dict[str, Any]:
    code, text = run(*arguments, "--json")
    assert code == 0, text
    return json.loads(text)


def test_who_sells_what(run: Callable[..., tuple[int, str]]) -> None:
    """Everybody by name, one's own among them."""
    models = read(run)["models"]
    assert models["home"] == 2
    assert models["anthropic"] > 10
    assert "anthropic" in run()[1]


def test_one_providers_models(run: Callable[..., tuple[int, str]]) -> None:
    """A line each, and who is not there is told who is."""
    listed = read(run, "list", "--provider", "home")["models"]
    assert list(listed) == ["home/older", "home/ours"]
    [step] = listed["home/ours"]
    assert [(rate["unit"], rate["amount"]) for rate in step["prices"]["rates"]][:2] == [
        ("output_text_tokens", "8"),
        ("output_reasoning_tokens", "8"),
    ]
    code, text = run("list", "--provider", "nobody")
    assert code == 2
    assert "there are: " in text
    assert "home" in text


def test_a_search_wants_all_words(run: Callable[..., tuple[int, str]]) -> None:
    """In the name, in any order; an alias that is in no list is found as well."""
    found = read(run, "search", "5-5", "anthropic/claude")["models"]
    assert {"anthropic/claude-sonnet-5-5", "anthropic/claude-opus-5-5"} <= found.keys()
    assert all("5-5" in name for name in found)
    assert list(read(run, "search", "gpt-5-2025-08-07", "--at", "2026-11-30")["models"]) == ["openai/gpt-5"]
    code, text = run("search", "no-such-model-at-all")
    assert code != 0
    assert "has a price" in text


def test_a_model_is_explained(run: Callable[..., tuple[int, str]]) -> None:
    """Its tiers, its cliff on the whole prompt, its source and dates: the figures that a charge takes."""
    told = read(run, "explain", "gpt-5.4", "--at", "2026-11-30")
    assert (told["asked"], told["model"]) == ("gpt-5.4", "openai/gpt-5.4")
    assert list(told["tiers"]) == ["standard", "batch", "flex", "priority", "fast"]
    base, long = told["tiers"]["standard"]
    assert (base["above_tokens"], long["above_tokens"]) == (0, 272_000)
    rates = [{rate["unit"]: rate["amount"] for rate in step["prices"]["rates"]} for step in (base, long)]
    assert [each["input_fresh_tokens"] for each in rates] == ["2.5", "5"]
    text = run("explain", "gpt-5.4", "--at", "2026-11-30")[1]
    assert "prompt above 272,000" in text
    assert "genai-prices" in text
    assert "web searches, per 1,000" in text


def test_a_change_is_in_the_history(run: Callable[..., tuple[int, str]]) -> None:
    """Both prices with their dates, whichever day is asked for; and the cliff that one of them had."""
    for day in ("2026-08-01", "2026-11-30"):
        history = read(run, "explain", "gpt-5.6-sol", "--at", day)["history"]
        firsts = [steps[0]["prices"] for steps in history]
        fresh = [{rate["unit"]: rate["amount"] for rate in each["rates"]}["input_fresh_tokens"] for each in firsts]
        assert fresh == ["5", "4"]
        assert [each["valid_from"] for each in firsts] == [None, "2026-08-21T00:00:00+00:00"]
    opus = read(run, "explain", "claude-opus-4-6", "--at", "2026-11-30")["history"]
    assert [len(steps) for steps in opus] == [2, 1]
    assert "through time" in run("explain", "claude-opus-4-6")[1]


def test_hours_are_told_of_a_few_days_and_what_came_of_them(run: Callable[..., tuple[int, str]]) -> None:
    """A price that changes twice a day fills no screen, and the day on which that ended is there."""
    history = read(run, "explain", "deepseek/deepseek-chat", "--at", "2025-10-15")["history"]
    assert [steps[0]["prices"]["valid_from"][:16] for steps in history] == [
        "2025-09-03T16:30",
        "2025-09-04T00:30",
        "2025-09-04T16:30",
        "2025-09-05T00:30",
        "2025-09-05T16:00",
        "2025-09-29T00:00",
        "2026-04-24T00:00",
    ]
    assert len(read(run, "explain", "deepseek/deepseek-v4-pro", "--at", "2026-11-25")["history"]) == 7


def test_a_price_of_ones_own_says_so(run: Callable[..., tuple[int, str]]) -> None:
    """With the file, and the day it was checked."""
    text = run("explain", "home/ours")[1]
    assert "prices.toml (checked 2026-11-01)" in text
    assert run("explain", "home/none")[0] != 0


def test_an_assumed_price_is_marked(run: Callable[..., tuple[int, str]]) -> None:
    """What nobody wrote down for that day."""
    assert "; assumed)" in run("explain", "gpt-5", "--at", "2026-09-01")[1]


def test_stale_prices_are_an_exit_code(run: Callable[..., tuple[int, str]]) -> None:
    """Published ones by the newest change in them, one's own by the day they were checked."""
    code, text = run("check", "--most-days", "36500")
    assert code == EXIT_STALE, "one of ours was never checked"
    assert "home/older has no checked_on" in text
    assert "home/ours" not in text
    code, text = run("check", "--most-days", "1", "--json")
    assert code == EXIT_STALE
    assert json.loads(text)["is_stale"] is True


def test_the_age_is_of_what_has_happened() -> None:
    """A price that is announced for next year says nothing of how well the data is kept."""
    catalog = Catalog.load()
    found = freshness(catalog, date(2026, 11, 30), 60)
    assert found.newest_change_on <= date(2026, 11, 30)
    assert found.age_days == (date(2026, 11, 30) - found.newest_change_on).days
    assert not found.is_stale(60)
    assert freshness(catalog, date(2027, 11, 30), 60).is_stale(60)
