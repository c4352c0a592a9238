"""`taximeter price`: its arguments, its refusals and its page. Its figures are in the behaviour tests."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from taximeter.cli.main import app
from taximeter.cli.price import answer_time, dollars_text, parse_instant, parse_ms, prompt_usage, seconds_text
from taximeter.errors import RequestError
from taximeter.pricing.published import SOURCE

SONNET = ("--model", "anthropic/claude-sonnet-5-5")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAXIMETER_HOME", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["price", *arguments])


def as_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--input", "3000", "--output", "400"), "--model"),
        ((*SONNET, "--output", "400"), "--input"),
        ((*SONNET, "--input", "-1", "--output", "400"), "--input"),
        ((*SONNET, "--input", "3000", "--output", "many"), "--output"),
        (
            (*SONNET, "--input", "3000", "--output", "4", "--cache-read", "2000", "--cache-write", "1001"),
            "3,001 cached",
        ),
        ((*SONNET, "--input", "3000", "--output", "4", "--at", "yesterday"), "neither a day nor an instant"),
        ((*SONNET, "--input", "1", "--output", "4", "--at", "9999-12-31T23:59:59-12:00"), "outside the years"),
        ((*SONNET, "--input", "1", "--output", "4", "--at", "0001-01-01T00:00+12:00"), "outside the years"),
        (("--model", "", "--input", "1", "--output", "4"), "--model is empty"),
        ((*SONNET, "--input", "3000", "--output", "4", "--ttft-ms", "fast"), "not a number of milliseconds"),
        ((*SONNET, "--input", "3000", "--output", "4", "--ttft-ms", "5", "--itl-ms", "-1"), "no time to wait"),
        ((*SONNET, "--input", "3000", "--output", "4", "--itl-ms", "20"), "--ttft-ms is missing"),
        ((*SONNET, "--input", "3000", "--output", "4", "--ttft-ms", "20"), "--itl-ms is missing"),
        ((*SONNET, "--input", "3000", "--output", "4", "--batch", "--tier", "flex"), "contradict"),
        ((*SONNET, "--input", "3000", "--output", "4", "--prices", "missing.toml"), "missing.toml"),
    ],
)
def test_a_wrong_call_is_exit_2(arguments: tuple[str, ...], complaint: str):
    """What the caller must change is said on stderr; stdout stays empty."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--model", "anthropic/claude-sonet-5-5"), "did you mean anthropic/claude-sonnet-5-5"),
        ((*SONNET, "--tier", "flex"), "no known price for the tier 'flex'"),
        (("--model", "groq/llama-3.3-70b-versatile", "--cache-read", "1"), "no price for input_cache_read_tokens"),
    ],
)
def test_a_price_that_does_not_exist_is_exit_1(arguments: tuple[str, ...], complaint: str):
    """No amount is printed where there is no price."""
    result = run(*arguments, "--input", "10", "--output", "10", "--at", "2026-10-29")
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stdout == ""


def test_the_json_has_every_bucket_and_total():
    """Keys are the records' own; what was not given is zero, what is unknown is null with its reason."""
    answer = as_json(
        *SONNET, "--input", "3000", "--output", "400", "--cache-read", "1000", "--cache-write", "500",
        "--cache-write-1h", "250", "--at", "2026-10-29",
    )  # fmt: skip
    assert list(answer) == ["model", "at", "usage", "cost", "timing", "timing_reason", "shares"]
    counted = {key: value for key, value in answer["usage"].items() if key.endswith("_tokens")}
    assert {key: count for key, count in counted.items() if count or key == "output_reasoning_tokens"} == {
        "input_fresh_tokens": 1_250,
        "input_cache_read_tokens": 1_000,
        "input_cache_write_5m_tokens": 500,
        "input_cache_write_1h_tokens": 250,
        "output_text_tokens": 400,
        "output_reasoning_tokens": 0,
        "input_tokens": 3_000,
        "output_tokens": 400,
        "total_tokens": 3_400,
    }
    total = 1_250 * Decimal(2) + 1_000 * Decimal("0.1") + 500 * Decimal("2.5") + 250 * Decimal(4) + 400 * Decimal(10)
    assert Decimal(answer["cost"]["total"]) == total / 1_000_000
    assert answer["timing"] is None
    assert answer["timing_reason"] == "no timings given: --ttft-ms and --itl-ms"
    assert answer["shares"]["time"] is None
    assert answer["at"] == "2026-10-29T00:00:00+00:00"


def test_nothing_has_no_shares():
    """A request of no tokens costs nothing, and nothing has no parts."""
    answer = as_json(*SONNET, "--input", "0", "--output", "0", "--at", "2026-10-29", "--ttft-ms", "1", "--itl-ms", "1")
    assert answer["cost"]["total"] == "0"
    assert answer["shares"] == {"tokens": None, "cost": None, "time": None}
    assert answer["timing_reason"] == "an answer without tokens has no first one"


def test_huge_quantities_keep_every_digit():
    """Beyond 64 bits, in the JSON too: money is text."""
    tokens = 2**64 + 1
    answer = as_json(*SONNET, "--input", str(tokens), "--output", "0", "--at", "2026-10-29")
    assert answer["cost"]["total"] == f"{tokens * 2 // 10**6}.{tokens * 2 % 10**6:06}"
    assert answer["usage"]["input_tokens"] == tokens


def test_prices_of_ones_own(tmp_path: Path):
    """An overlay named on the command line wins, and so does one in its usual place."""
    text = '[[price]]\nmodel = "home/mine"\nsource = "my list"\ninput_fresh_per_million_usd = 1\n'
    (tmp_path / "named.toml").write_text(text, encoding="utf-8")
    arguments = ("--model", "home/mine", "--input", "1000000", "--output", "0")
    assert run(*arguments).exit_code == 1
    named = as_json(*arguments, "--prices", str(tmp_path / "named.toml"))
    assert (named["cost"]["total"], named["cost"]["price_list"]["source"]) == ("1", "my list")
    (tmp_path / "prices.toml").write_text(text, encoding="utf-8")
    assert as_json(*arguments)["cost"]["total"] == "1"


def test_the_page():
    """One aligned block: the bill, the bars, the time, and where the price is from."""
    result = run(
        *SONNET, "--input", "3000", "--output", "400", "--cache-read", "2500", "--batch", "--at", "2026-10-29",
        "--ttft-ms", "500", "--itl-ms", "20",
    )  # fmt: skip
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "anthropic/claude-sonnet-5-5  batch  2026-10-29 00:00 UTC",
        "",
        "             tokens   $ per million        cost",
        "input           500            1.00   $0.000500",
        "cache read    2,500            0.05   $0.000125",
        "output          400            5.00   $0.002000",
        "total         3,400                   $0.002625",
        "",
        "tokens  ████████████████████████████░░░░   88 % input         12 % output",
        "cost    ████████░░░░░░░░░░░░░░░░░░░░░░░░   24 % input         76 % output",
        "time    ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    6 % first token   94 % decode",
        "",
        "first token after 500 ms, then 399 x 20 ms = 7.98 s; 8.48 s in all",
        f"price from {SOURCE} (from 2026-10-14); the cost is assumed",
    ]


def test_a_small_share_is_not_printed_as_none():
    """One token beside a thousand is below one percent; none at all is zero."""
    assert " <1 % input " in run(*SONNET, "--input", "1", "--output", "1000").stdout
    assert "  0 % input " in run(*SONNET, "--input", "0", "--output", "1000").stdout


def test_the_documented_page_is_printed():
    """The console block in docs/prices.md is what the command prints."""
    docs = (Path(__file__).parents[3] / "docs" / "prices.md").read_text(encoding="utf-8")
    command, _, page = docs.partition("```console\n$ taximeter price ")[2].partition("...\n```")[0].partition("\n")
    printed = [line.rstrip() for line in run(*command.split()).stdout.splitlines()]
    assert printed[: len(page.splitlines())] == page.splitlines()


def test_a_page_without_a_date_says_that_it_is_for_now():
    """The default is told, not hidden."""
    page = run(*SONNET, "--input", "1", "--output", "1").stdout
    assert " UTC (now)" in page
    assert "time unknown: no timings given" in page


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-10-29", "2026-10-29T00:00:00+00:00"),
        ("2026-10-29T12:30", "2026-10-29T12:30:00+00:00"),
        ("2026-10-29T12:30:00Z", "2026-10-29T12:30:00+00:00"),
        ("2026-10-29T01:00+02:00", "2026-10-28T23:00:00+00:00"),
    ],
)
def test_instants_are_utc(text: str, instant: str):
    """A day is its start, a time without an offset is UTC, and any other is turned into it."""
    assert parse_instant(text).isoformat() == instant


@given(st.integers(0, 10**15))
def test_milliseconds_are_exact(duration_ns: int):
    """Every whole nanosecond can be written, and comes back."""
    assert parse_ms(f"{duration_ns // 10**6}.{duration_ns % 10**6:06}", "ttft-ms") == duration_ns


@pytest.mark.parametrize("text", ["0.0000001", "nan", "inf", "-1", "1e99", "", "1e-99"])
def test_what_is_no_whole_nanosecond_is_refused(text: str):
    """Nothing is rounded on its way in."""
    with pytest.raises(RequestError):
        parse_ms(text, "itl-ms")


def test_an_answer_of_one_token_is_all_first_token():
    """It has no gap, so none is needed, and none is claimed."""
    timing, reason = answer_time(1, 500, None)
    assert timing is not None
    assert (timing.total_ns, timing.decode_ns, timing.inter_token_ns, reason) == (500, 0, None, None)


def test_the_prompt_is_the_sum_of_its_parts():
    """All of it may be cached, no more."""
    assert prompt_usage(input_tokens=5, output_tokens=1, cache_read_tokens=5).input_fresh_tokens == 0
    with pytest.raises(RequestError):
        prompt_usage(input_tokens=5, output_tokens=1, cache_read_tokens=3, cache_write_1h_tokens=3)


def test_amounts_as_text():
    """Every digit is shown, and at least a hundredth of a cent."""
    amounts = ["0", "0.006", "0.00525", "12345.6", "0.000000000001"]
    assert [dollars_text(Decimal(amount)) for amount in amounts] == [
        "$0.0000",
        "$0.0060",
        "$0.00525",
        "$12,345.6000",
        "$0.000000000001",
    ]
    assert [seconds_text(ns) for ns in (0, 20_000_000, 1_500, 8_480_000_000, 40_000_000_000)] == [
        "0 ms",
        "20 ms",
        "0.0015 ms",
        "8.48 s",
        "40 s",
    ]
