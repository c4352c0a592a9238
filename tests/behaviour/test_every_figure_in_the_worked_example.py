"""Every figure of the worked example, and every other one in the explanation it is from that can be computed.

The example: one request to Claude Sonnet 5.5 with a prompt of 3,000 tokens and an answer of 400, at list prices of 29
October 2026, with its first token after 0.5 s and 20 ms from token to token. The source is "LLM inference explained:
where the time and money go" (https://arclyx.ai/blog/llm-inference-explained). Each figure is asked of the command line
where it can answer, and is written as the arithmetic that makes it.
"""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from taximeter.cli.main import app
from taximeter.pricing.catalog import Catalog
from taximeter.records import Timing, inter_token_ns
from tests.price_card import CHECKED_AT, cost, usage

CATALOG = Catalog.load()
MILLION = 1_000_000
MS = 1_000_000  # nanoseconds

# Anthropic's price list of that day, by the names the catalog has for the models on it.
CURRENT_CLAUDE_MODELS = [
    "claude-fable-5-1",
    "claude-opus-5-5",
    "claude-opus-5",
    "claude-sonnet-5-5",
    "claude-sonnet-5",
    "claude-haiku-5-5",
    "claude-haiku-4-5",
]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAXIMETER_HOME", str(tmp_path))


def taximeter_price(
    *flags: str, model: str = "anthropic/claude-sonnet-5-5", prompt: int = 3_000, answer: int = 400
) -> Any:
    """What `taximeter price` prints as JSON for the example, with `flags` added."""
    arguments = ["price", "--model", model, "--input", str(prompt), "--output", str(answer), "--at", "2026-10-29"]
    result = CliRunner().invoke(app, [*arguments, *flags, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def money(answer: Any) -> tuple[Decimal, Decimal, Decimal]:
    """Input, output and total, from the strings in the JSON."""
    bill = answer["cost"]
    assert all(isinstance(bill[key], str) for key in ("input", "output", "total"))
    return Decimal(bill["input"]), Decimal(bill["output"]), Decimal(bill["total"])


def test_the_request_costs_a_cent():
    """$0.0060 of input and $0.0040 of output make $0.0100."""
    answer = taximeter_price()
    assert money(answer) == (
        3_000 * Decimal(2) / MILLION,
        400 * Decimal(10) / MILLION,
        Decimal("0.0060") + Decimal("0.0040"),
    )
    assert (answer["cost"]["input"], answer["cost"]["output"], answer["cost"]["total"]) == ("0.006", "0.004", "0.01")


def test_ten_thousand_of_them_cost_a_hundred_dollars():
    """$0.01 x 10,000 = $100, also when all of their tokens are priced at once."""
    _, _, one = money(taximeter_price())
    _, _, all_of_them = money(taximeter_price(prompt=3_000 * 10_000, answer=400 * 10_000))
    assert one * 10_000 == all_of_them == 100


def test_the_answer_is_most_of_the_wait():
    """0.5 s + 399 x 20 ms = 8.48 s: 6 % until the first token, 94 % from there."""
    answer = taximeter_price("--ttft-ms", "500", "--itl-ms", "20")
    assert answer["timing"] == {
        "first_token_ns": 500 * MS,
        "inter_token_ns": 20 * MS,
        "decode_ns": 399 * 20 * MS,
        "total_ns": 500 * MS + 399 * 20 * MS,
    }
    assert answer["timing"]["total_ns"] == 8_480 * MS
    share = answer["shares"]["time"]
    assert (share["first_token_percent"], share["decode_percent"]) == (6, 94)
    assert (share["first_token_ratio"], share["decode_ratio"]) == (500 / 8_480, 7_980 / 8_480)


def test_the_answer_is_little_of_the_tokens_and_much_of_the_cost():
    """400 of 3,400 tokens are 12 %, $0.004 of $0.01 are 40 %."""
    shares = taximeter_price()["shares"]
    assert (shares["tokens"]["input_percent"], shares["tokens"]["output_percent"]) == (88, 12)
    assert shares["tokens"]["output_ratio"] == 400 / 3_400
    assert (shares["cost"]["input_percent"], shares["cost"]["output_percent"]) == (60, 40)
    assert shares["cost"]["output_ratio"] == 40 / 100


def test_a_cached_prompt_halves_the_request():
    """2,500 tokens from the cache: input falls from $0.0060 to $0.00125, the request costs $0.00525, about half."""
    expected_input = 500 * Decimal(2) / MILLION + 2_500 * Decimal("0.10") / MILLION
    bill = money(taximeter_price("--cache-read", "2500"))
    assert bill == (expected_input, Decimal("0.0040"), expected_input + Decimal("0.0040"))
    assert bill[0] == Decimal("0.00125")
    assert bill[2] == Decimal("0.00525")
    assert Decimal("0.5") < bill[2] / money(taximeter_price())[2] < Decimal("0.55")


def test_the_request_that_writes_the_cache_pays_a_little_more():
    """2,500 tokens at $2.50 and 500 at $2: input is $0.00725, where it was $0.0060."""
    expected_input = 500 * Decimal(2) / MILLION + 2_500 * Decimal("2.50") / MILLION
    answer = taximeter_price("--cache-write", "2500")
    assert money(answer) == (expected_input, Decimal("0.0040"), expected_input + Decimal("0.0040"))
    assert expected_input == Decimal("0.00725")
    assert answer["usage"]["input_cache_write_5m_tokens"] == 2_500  # five minutes is the default


def test_half_the_answer_takes_half_the_time():
    """200 tokens: 199 x 20 ms = 3.98 s of decode, about 4 s instead of 8, and $0.002 less: $0.0080."""
    long, short = (taximeter_price("--ttft-ms", "500", "--itl-ms", "20", answer=tokens) for tokens in (400, 200))
    assert short["timing"]["decode_ns"] == 199 * 20 * MS == 3_980 * MS
    assert money(short)[2] == Decimal("0.0060") + 200 * Decimal(10) / MILLION == Decimal("0.0080")
    assert money(long)[2] - money(short)[2] == Decimal("0.002")


def test_a_batch_is_half():
    """At $1 and $5 the request costs $0.0030 + $0.0020 = $0.0050."""
    answer = taximeter_price("--batch")
    assert money(answer) == (3_000 * Decimal(1) / MILLION, 400 * Decimal(5) / MILLION, Decimal("0.0050"))
    assert answer["cost"]["price_list"]["tier"] == "batch"


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-5-5", "openai/gpt-5"])
def test_both_providers_take_half_off_a_batch(model: str):
    """OpenAI and Anthropic both take 50 % off."""
    assert money(taximeter_price("--batch", model=model))[2] * 2 == money(taximeter_price(model=model))[2]


def test_five_hundred_tokens_at_80_ms_take_about_40_seconds():
    """499 gaps of 80 ms are 39.92 s."""
    timing = taximeter_price("--ttft-ms", "500", "--itl-ms", "80", answer=500)["timing"]
    assert timing["decode_ns"] == 499 * 80 * MS == 39_920 * MS


def test_an_answer_twice_as_long_takes_about_twice_as_long():
    """Decode grows with every token written: 399 gaps for 400 tokens, 799 for 800."""
    short, long = (
        taximeter_price("--ttft-ms", "500", "--itl-ms", "20", answer=tokens)["timing"]["decode_ns"]
        for tokens in (400, 800)
    )
    assert (short, long) == (399 * 20 * MS, 799 * 20 * MS)


def test_the_gap_between_tokens_is_found_again():
    """Inter-token latency = (total - time to first token) / (output tokens - 1): (8.48 s - 0.5 s) / 399 = 20 ms."""
    measured = Timing(prefill_ns=500 * MS, decode_ns=7_980 * MS, total_ns=8_480 * MS, first_token_ns=500 * MS)
    assert inter_token_ns(measured, 400) == 20 * MS
    assert inter_token_ns(measured, 1) is None


@pytest.mark.parametrize("model", CURRENT_CLAUDE_MODELS)
def test_output_costs_five_times_input(model: str):
    """On every current Claude model a written token costs what five read ones do."""
    one_read, _, _ = money(taximeter_price(model=f"anthropic/{model}", prompt=1, answer=0))
    _, one_written, _ = money(taximeter_price(model=f"anthropic/{model}", prompt=0, answer=1))
    assert one_written == 5 * one_read > 0


@pytest.mark.parametrize("model", CURRENT_CLAUDE_MODELS)
def test_a_cache_hit_costs_a_tenth_or_less(model: str):
    """On every current Claude model."""
    fresh, _, _ = money(taximeter_price(model=f"anthropic/{model}", prompt=1, answer=0))
    cached, _, _ = money(taximeter_price("--cache-read", "1", model=f"anthropic/{model}", prompt=1, answer=0))
    assert 0 < cached <= fresh / 10


def test_the_smallest_model_costs_a_hundredth_of_the_largest():
    """From $0.10 and $0.50 per million on Haiku 5.5 to $10 and $50 on Fable 5.1: a factor of 100."""
    per_million = {
        model: [
            rate.amount
            for unit in ("input_fresh_tokens", "output_text_tokens")
            if (rate := CATALOG.price_list(f"anthropic/{model}", at=CHECKED_AT, input_tokens=1).rate(unit)) is not None
        ]
        for model in CURRENT_CLAUDE_MODELS
    }
    assert per_million["claude-haiku-5-5"] == [Decimal("0.10"), Decimal("0.50")]
    assert per_million["claude-fable-5-1"] == [10, 50]
    inputs = [prices[0] for prices in per_million.values()]
    assert (min(inputs), max(inputs), max(inputs) / min(inputs)) == (Decimal("0.10"), 10, 100)


def test_the_smallest_models_price_is_for_prompts_up_to_a_hundred_thousand_tokens():
    """At 100,000 tokens Haiku 5.5 costs $0.10 per million, one token later all of them cost more."""
    short, long = (
        money(taximeter_price(model="anthropic/claude-haiku-5-5", prompt=prompt))[0] for prompt in (100_000, 100_001)
    )
    assert short == 100_000 * Decimal("0.10") / MILLION
    assert long == 100_001 * Decimal("0.50") / MILLION


def test_the_input_of_ten_rounds_grows_far_faster_than_the_answers():
    """An agent that sends its context back each round: ten times the answers, but 24.4 times the first prompt.

    2,000 tokens of system prompt, 500 new ones and 300 answered in each round: prompts of 2,500, 3,300 ... 9,700.
    """
    prompts = [2_000 + 500 + rounds * (500 + 300) for rounds in range(10)]
    answers = [300] * 10
    assert (prompts[0], prompts[-1], sum(prompts), sum(answers)) == (2_500, 9_700, 61_000, 3_000)
    assert sum(prompts) / prompts[0] == 24.4

    def run(model: str, reads: list[int], writes: list[int], outputs: list[int]) -> Decimal:
        bills = [
            cost(CATALOG, model, usage(fresh=prompt - read - write, read=read, write_5m=write, text=output)).total
            for prompt, read, write, output in zip(prompts, reads, writes, outputs, strict=True)
        ]
        return sum(bills, Decimal(0))

    nothing = [0] * 10
    plain = run("anthropic/claude-sonnet-5", nothing, nothing, answers)
    assert plain == 61_000 * Decimal(2) / MILLION + 3_000 * Decimal(10) / MILLION == Decimal("0.152")

    reads = [0, *prompts[:-1]]  # each round reads the last one's prompt from the cache, and writes what is new
    writes = [prompt - read for prompt, read in zip(prompts, reads, strict=True)]
    cached = run("anthropic/claude-sonnet-5", reads, writes, answers)
    assert (sum(reads), sum(writes)) == (51_300, 9_700)
    assert cached == (51_300 * Decimal("0.20") + 9_700 * Decimal("2.50") + 3_000 * Decimal(10)) / MILLION
    assert cached == Decimal("0.06451")
    assert round(100 * (plain - cached) / plain, 1) == Decimal("57.6")

    smaller = run("anthropic/claude-haiku-4-5", nothing, nothing, answers)
    assert smaller == (61_000 * Decimal(1) + 3_000 * Decimal(5)) / MILLION == Decimal("0.076")


def test_doubling_a_long_prompt_quadruples_its_attention():
    """From 16K to 32K tokens: each token looks at all before it, 4 x layers x heads x head size x n(n + 1)/2 in all."""

    def attention_flops(tokens: int, layers: int = 30, heads: int = 9, head_size: int = 64) -> int:
        looks = sum(range(1, tokens + 1))  # the first token looks at itself, the n-th at n
        assert looks == tokens * (tokens + 1) // 2
        return 4 * layers * heads * head_size * looks

    assert 3.999 < attention_flops(32 * 1024) / attention_flops(16 * 1024) < 4


def test_the_price_names_its_list():
    """The bill says which list it is from, and that the list has the example's prices on that day."""
    prices = taximeter_price()["cost"]["price_list"]
    assert prices["model"] == "anthropic/claude-sonnet-5-5"
    assert prices["source"].startswith("genai-prices ")
    per_million = {rate["unit"]: rate["amount"] for rate in prices["rates"]}
    assert (per_million["input_fresh_tokens"], per_million["output_text_tokens"]) == ("2", "10")
    assert (per_million["input_cache_read_tokens"], per_million["input_cache_write_5m_tokens"]) == ("0.1", "2.5")
    assert datetime.fromisoformat(taximeter_price()["at"]) == CHECKED_AT == datetime(2026, 10, 29, tzinfo=UTC)
