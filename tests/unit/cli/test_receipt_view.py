"""The receipt on a terminal: what stands where, and that what is printed adds up."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from taximeter.cli.receipt_view import ReceiptView, receipt_line, receipt_text
from taximeter.figures import duration_text, money_text, ms_text, rate_text, shared_out
from taximeter.records import (
    NS_PER_HOUR,
    Basis,
    Ceiling,
    Cost,
    CostLine,
    Dialect,
    Outcome,
    PriceList,
    Rate,
    Receipt,
    Request,
    Timing,
    Usage,
    Work,
)

AT = datetime(2026, 10, 29, 16, 42, 10, tzinfo=UTC)
HOURLY = Rate(unit="compute_ns", amount=Decimal("0.50"), per=NS_PER_HOUR)


def cost_line(unit: str, quantity: int, amount: str, rate: Rate = HOURLY) -> CostLine:
    return CostLine(unit=unit, quantity=quantity, rate=rate, amount=Decimal(amount), basis=Basis.DERIVED)


PRICED = Cost(
    lines=(
        cost_line("input_fresh_tokens", 3, "0.0000003"),
        cost_line("input_cache_read_tokens", 32, "0.00000032"),
        cost_line("output_text_tokens", 48, "0.000024"),
    ),
    basis=Basis.DERIVED,
    price_list=PriceList(model="anthropic/claude-haiku-5-5", rates=(), source="a test"),
)
RECEIPT = Receipt(
    id="rcpt_01kbr9w8w8abcdefghjkmn",
    request=Request(
        id="req_01kbr9w8w8abcdefghjkmn",
        received_at=AT,
        received_ns=0,
        dialect=Dialect.COMMAND_LINE,
        model="smollm2-135m-instruct",
    ),
    closed_at=AT,
    outcome=Outcome.COMPLETED,
    timing=Timing(
        gateway_ns=1_200_000,
        queue_ns=20_000,
        prefill_ns=120_280_000,
        decode_ns=1_082_500_000,
        total_ns=1_204_000_000,
        first_token_ns=121_500_000,
    ),
    usage=Usage(input_fresh_tokens=3, input_cache_read_tokens=32, output_text_tokens=48, basis=Basis.MEASURED),
    work=Work(
        prefill_passes=1,
        decode_passes=47,
        computed_tokens=50,
        reused_tokens=32,
        compute_ns=980_000_000,
        kernels="native:avx512",
    ),
    cost=Cost(lines=(cost_line("compute_ns", 980_000_000, "0.000136111111"),), basis=Basis.ASSUMED),
    cost_priced_as=PRICED,
    served_by="embedded",
    model_served="smollm2-135m-instruct",
    finish_reasons=("stop",),
)
MEASURED_WORK = Work(
    prefill_passes=1,
    decode_passes=47,
    computed_tokens=50,
    reused_tokens=32,
    compute_ns=980_000_000,
    kernels="native:amx",
    decode_compute_ns=900_000_000,
    decode_read_bytes=18_000_000_000,
    prefill_operations=164_000_000_000,
    ceiling=Ceiling(read_bytes_per_s=33_000_000_000, operations_per_s=4_100_000_000_000, unit="int8"),
    energy_uj=12_345_600,
)
REFUSED = replace(
    RECEIPT,
    outcome=Outcome.REFUSED,
    timing=Timing(gateway_ns=302_000, total_ns=302_000),
    usage=None,
    work=None,
    cost=None,
    cost_priced_as=None,
    unmeasured_reason="refused before anything was computed",
    uncosted_reason="refused before any work was done",
    served_by=None,
    model_served=None,
    finish_reasons=(),
    error="ModelNotFound: no model 'gpt-5' is served here",
)


def plain(view: RenderableType, *, encoding: str = "utf-8", width: int = 200) -> str:
    """As a file would get it."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    Console(file=stream, width=width, highlight=False).print(view)
    stream.flush()
    return buffer.getvalue().decode(encoding)


def test_a_whole_receipt_is_one_aligned_block() -> None:
    """Model, tokens, time with its first token, money and its comparison, basis and id."""
    assert (
        plain(ReceiptView(RECEIPT))
        == """\
smollm2-135m-instruct                                completed: stop
embedded, native:avx512                      2026-10-29 16:42:10 UTC

tokens        35 in   3 fresh + 32 cached
              48 out

time     ▓▓▓▓▓█████████████████████████████████████████      1.204 s
         └───┴ first token 121.5 ms, then 23.0 ms a token
         ░ gateway      1.2 ms    0.1 %
         ▒ queue       <0.1 ms   <0.1 %
         ▓ prefill    120.3 ms   10.0 %  1 pass
         █ decode   1,082.5 ms   89.9 %  47 passes

money    █████████████████████████████████████░░░░░░░░░   $0.0001361
         81.4 % of the machine for 1.204 s, at $0.50/h
versus   ▓█████████████████████████████████████████████   $0.0000246
         anthropic/claude-haiku-5-5: input 3 %, output 97 %

rcpt_01kbr9w8w8abcdefghjkmn  tokens and time measured, money assumed
"""
    )


def test_a_refused_receipt_says_why_each_figure_is_unknown() -> None:
    """Nothing that is unknown is printed as a number."""
    assert (
        plain(ReceiptView(REFUSED))
        == """\
smollm2-135m-instruct                                        refused
served by nobody                             2026-10-29 16:42:10 UTC
ModelNotFound: no model 'gpt-5' is served here

tokens   unknown: refused before anything was computed

time     ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░       0.3 ms
         ░ gateway  0.3 ms  100.0 %

money    unknown: refused before any work was done

rcpt_01kbr9w8w8abcdefghjkmn                            time measured
"""
    )


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """The same block, in characters that every terminal has."""
    text = plain(ReceiptView(RECEIPT), encoding="ascii")
    assert text.isascii()
    assert "time     =====#####" in text
    assert "         '---^ first token 121.5 ms, then 23.0 ms a token\n" in text
    assert "money    #####################################.........   $0.0001361" in text


def test_colours_only_where_a_terminal_shows_them() -> None:
    """A terminal gets escape sequences; a file, and whoever sets NO_COLOR, gets none."""

    def shown(environ: Mapping[str, str], *, terminal: bool) -> str:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, _environ={"TERM": "xterm-256color", **environ})
        console.print(ReceiptView(RECEIPT))
        return stream.getvalue()

    assert "\x1b[36m" in shown({}, terminal=True)
    assert "\x1b[36m" not in shown({"NO_COLOR": "1"}, terminal=True)
    assert "\x1b" not in shown({}, terminal=False)


@pytest.mark.parametrize("receipt", [RECEIPT, REFUSED])
@pytest.mark.parametrize("width", [50, 60, 68, 120])
def test_no_line_is_wider_than_the_block(receipt: Receipt, width: int) -> None:
    """It fits a narrow terminal with every word it has, and does not sprawl over a wide one."""
    lines = plain(ReceiptView(receipt), width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 68)
    bars = str.maketrans("", "", "░▒▓█└─┴,")
    words = [plain(ReceiptView(receipt), width=one).translate(bars).split() for one in (width, 68)]
    assert sorted(words[0]) == sorted(words[1])


def test_a_word_too_long_for_the_block_is_folded_not_cut() -> None:
    """A model may have any name: all of it is there."""
    name = "owner/" + "very-" * 20 + "long"
    lines = plain(ReceiptView(replace(RECEIPT, model_served=name)), width=50).splitlines()
    assert max(map(len, lines)) <= 50
    assert "".join(lines[:3]).startswith(name)


@pytest.mark.parametrize("first_token_ns", range(0, 1001, 20))
@pytest.mark.parametrize("width", [50, 68])
def test_the_first_token_and_the_pace_are_always_named(first_token_ns: int, width: int) -> None:
    """Wherever the mark stands, the words are whole beside it or below it."""
    timing = Timing(
        prefill_ns=first_token_ns, decode_ns=1000 - first_token_ns, total_ns=1000, first_token_ns=first_token_ns
    )
    text = plain(ReceiptView(replace(RECEIPT, timing=timing)), width=width)
    assert "first token " in text
    assert "ms a token" in text
    assert max(map(len, text.splitlines())) <= width


def test_the_pace_is_not_on_the_row_of_a_phase() -> None:
    """It holds every wait from the first token to the end, so a phase that is only part of that must not claim it."""
    timing = Timing(prefill_ns=100, decode_ns=100, stalled_ns=800, total_ns=1000, first_token_ns=100)
    text = plain(ReceiptView(replace(RECEIPT, timing=timing)))
    [row] = [line for line in text.splitlines() if " decode " in line]
    assert "token" not in row


def test_a_share_of_something_is_never_nothing() -> None:
    """What costs little beside the rest is below one percent, not zero."""
    little = replace(
        PRICED, lines=(cost_line("input_fresh_tokens", 1, "0.000001"), cost_line("output_text_tokens", 1, "1"))
    )
    assert "input <1 %, output 100 %" in plain(ReceiptView(replace(RECEIPT, cost_priced_as=little)))


def test_the_first_token_is_named_on_the_side_that_has_room() -> None:
    """When the prompt took most of the time, its words stand left of the mark."""
    timing = Timing(prefill_ns=900, decode_ns=100, total_ns=1000, first_token_ns=900)
    assert "first token <0.1 ms ┴\n" in plain(ReceiptView(replace(RECEIPT, timing=timing)))


def test_one_token_has_no_latency_between_tokens() -> None:
    """Inter-token latency of one token is unknown, so it is not printed."""
    usage = Usage(input_fresh_tokens=5, input_cache_read_tokens=0, output_text_tokens=1, basis=Basis.MEASURED)
    assert "a token" not in plain(ReceiptView(replace(RECEIPT, usage=usage)))


def test_an_unknown_bucket_is_a_question_mark_with_its_reason() -> None:
    """The total is unknown with it."""
    usage = Usage(
        input_fresh_tokens=5,
        input_cache_read_tokens=None,
        output_text_tokens=7,
        unknown_reasons={"input_cache_read_tokens": "the provider did not say"},
    )
    text = plain(ReceiptView(replace(RECEIPT, usage=usage)))
    assert "      ? in   5 fresh + ? cached\n" in text
    assert "cached unknown: the provider did not say" in text


def test_a_machine_without_a_rate_says_how_to_set_one() -> None:
    """No rate is not a price of zero."""
    receipt = replace(RECEIPT, cost=None, uncosted_reason="no machine rate: set --machine-rate", cost_priced_as=None)
    assert "money    unknown: no machine rate: set --machine-rate\n" in plain(ReceiptView(receipt))


def test_a_correction_and_its_task_are_named() -> None:
    """The receipt that it corrects, and what it was part of."""
    request = replace(RECEIPT.request, task="summaries", run="7")
    text = plain(ReceiptView(replace(RECEIPT, request=request, supersedes="rcpt_old")))
    assert "task summaries, run 7\ncorrects rcpt_old\n" in text


def test_an_imported_receipt_says_whose_log_it_is_from_and_what_that_said() -> None:
    """Its figure stands beside ours, and does not replace it."""
    request = replace(RECEIPT.request, key="ci")
    imported = replace(RECEIPT, request=request, source="claude-code", cost=PRICED, cost_reported=Decimal("0.12"))
    text = plain(ReceiptView(replace(imported, uncosted_reason=None)))
    assert "imported from claude-code" in text
    assert "key ci" in text
    assert "claude-code itself says $0.1200" in text


def test_one_line_for_a_log() -> None:
    """When, what, how long, how much, and enough of the id to find it."""
    assert plain(receipt_line(RECEIPT)) == (
        "16:42:10  smollm2-135m-instruct  35 in (32 cached)  48 out  TTFT 121.5 ms  1.204 s  $0.000136"
        "  rcpt_01kbr9w8w8a\n"
    )
    assert "refused: ModelNotFound: no model 'gpt-5' is served here" in plain(receipt_line(REFUSED))
    for receipt in (RECEIPT, REFUSED):
        assert receipt_text(receipt) + "\n" == plain(receipt_line(receipt))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(1, 1000))
def test_shares_add_up_and_none_is_off_by_a_unit(parts: list[int], whole: int) -> None:
    """Percentages sum to 100 and bars to their width, whatever the parts."""
    shares = shared_out(parts, whole)
    if sum(parts) == 0:
        assert shares == [0] * len(parts)
        return
    assert sum(shares) == whole
    for part, share in zip(parts, shares, strict=True):
        assert abs(share - part * whole / sum(parts)) < 1.000001


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "$0"),
        ("0.01", "$0.0100"),
        ("12.3456", "$12.3456"),
        ("1234.5678", "$1,234.57"),
        ("0.0000231", "$0.0000231"),
        ("0.000000001234", "$0.00000000123"),
        ("0.00099999", "$0.00100"),
        ("-0.0025", "-$0.00250"),
    ],
)
def test_amounts_stay_readable_however_small(amount: str, text: str) -> None:
    """Four decimals at least, three digits that count, cents for large sums; only zero is zero."""
    assert money_text(Decimal(amount)) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0.0 ms"),
        (1, "<0.1 ms"),
        (999_949_999, "999.9 ms"),
        (1_000_000_000, "1.000 s"),
        (3_600 * 10**9, "3,600.000 s"),
    ],
)
def test_durations_for_the_eye(duration_ns: int, text: str) -> None:
    """What took some time is never printed as none."""
    assert duration_text(duration_ns) == text
    assert ms_text(50_000) == "0.1"


def test_a_rate_shows_every_digit_and_at_least_cents() -> None:
    """A rate is an input: it is not rounded."""
    assert [rate_text(Decimal(text)) for text in ("0.5", "2", "1.23456")] == ["$0.50", "$2.00", "$1.23456"]


def test_the_machines_limits_are_beside_the_work() -> None:
    """18 GB read in 0.9 s are 20 GB/s of 33; 164 billion operations in 0.08 s are half of the peak."""
    text = plain(ReceiptView(replace(RECEIPT, work=MEASURED_WORK)))
    block = """
limits   prefill 50.0 % of the int8 peak, 2,050 of 4,100 Gop/s
         decode 60.6 % of the memory bus, 20 of 33 GB/s
energy   12.346 J of the processor's

money  """
    assert block in text


def test_a_machine_that_nobody_measured_says_how_to() -> None:
    """One line with the reason, no shares."""
    reasons = {"ceiling": "the machine's limits have not been measured: taximeter machine", "energy_uj": "no counter"}
    work = replace(MEASURED_WORK, ceiling=None, energy_uj=None, unknown_reasons=reasons)
    text = plain(ReceiptView(replace(RECEIPT, work=work)))
    assert (
        "\nlimits   unknown: the machine's limits have not been measured:\n         taximeter machine\n\nmoney" in text
    )
    assert "energy" not in text


def test_an_answer_of_one_token_has_no_decode_to_speak_of() -> None:
    """What took no time has no rate."""
    work = replace(MEASURED_WORK, decode_compute_ns=0, decode_read_bytes=0, energy_uj=None)
    text = plain(ReceiptView(replace(RECEIPT, work=work)))
    assert "limits   prefill 4.1 % of the int8 peak, 167 of 4,100 Gop/s\n\nmoney" in text
