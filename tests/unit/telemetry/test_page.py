"""The page says what receipts say, and can be read by who reads such pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from taximeter.records import Outcome, Receipt
from taximeter.telemetry.page import render
from taximeter.telemetry.tally import MOST_MODELS, OTHER, Tally
from taximeter.telemetry.watch import Watch
from tests.unit.ledger.records import any_receipts
from tests.unit.telemetry.receipts import MS, NETWORK, a_receipt, refused, sources

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page_of(receipts: Iterable[Receipt], accept: str = "") -> str:
    watch = Watch(sources(), NETWORK)
    for receipt in receipts:
        watch.add(receipt)
    return render(watch.moment(), accept)[0].decode()


def samples_of(page: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_text(page)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series of `name` that have `labels`."""
    return sum(sample for (of, whose), sample in samples.items() if of == name and set(labels.items()) <= set(whose))


WHOSE = {"upstream": "claude", "model": "claude-x", "dialect": "anthropic.messages"}


def test_a_receipt_is_found_in_every_figure_that_it_has():
    """Tokens by bucket, dollars, times in seconds, tries by status."""
    samples = samples_of(page_of([a_receipt(), a_receipt(dollars=None), refused()]))
    assert value(samples, "taximeter_receipts_total", **WHOSE, outcome="completed") == 2
    assert total(samples, "taximeter_receipts_total", upstream="nobody", model=OTHER, outcome="refused") == 1
    buckets = {"input_fresh": 120, "input_cache_read": 80, "input_cache_write_1h": 14, "input_image": 400}
    for bucket, tokens in {**buckets, "output_text": 16, "output_reasoning": 6}.items():
        assert value(samples, "taximeter_tokens_total", **WHOSE, bucket=bucket) == tokens
    assert total(samples, "taximeter_tokens_total") == 2 * (60 + 40 + 7 + 200 + 8 + 3)
    assert value(samples, "taximeter_cost_dollars_total", **WHOSE) == 0.25
    assert value(samples, "taximeter_receipts_unpriced_total", **WHOSE) == 1
    assert total(samples, "taximeter_receipts_unpriced_total") == 2
    assert total(samples, "taximeter_receipts_without_usage_total") == 1
    assert value(samples, "taximeter_time_to_first_token_seconds_sum", **WHOSE) == 0.4
    assert value(samples, "taximeter_inter_token_latency_seconds_sum", **WHOSE) == 2 * 0.1  # (1.2 s - 0.2 s) / 10
    assert value(samples, "taximeter_phase_seconds_sum", **WHOSE, phase="upstream") == 2 * 1.198
    assert value(samples, "taximeter_overhead_seconds_bucket", upstream="claude", le="0.002") == 2
    assert value(samples, "taximeter_overhead_seconds_bucket", upstream="claude", le="0.0015") == 0
    assert value(samples, "taximeter_upstream_tries_total", upstream="farm", status="503") == 2
    assert total(samples, "taximeter_phase_seconds_sum") == total(samples, "taximeter_request_duration_seconds_sum")


def test_what_is_not_known_is_counted_apart_and_is_no_zero():
    """A bucket that nobody knows; an answer of one token has no time between tokens."""
    usage = a_receipt().usage
    assert usage is not None
    unknown = type(usage)(
        input_fresh_tokens=None,
        input_cache_read_tokens=4,
        output_text_tokens=1,
        unknown_reasons={"input_fresh_tokens": "not reported"},
    )
    samples = samples_of(page_of([a_receipt(usage=unknown)]))
    assert value(samples, "taximeter_tokens_unknown_receipts_total", **WHOSE, bucket="input_fresh") == 1
    assert total(samples, "taximeter_tokens_total", bucket="input_fresh") == 0
    assert ("taximeter_tokens_total", tuple(sorted({**WHOSE, "bucket": "input_fresh"}.items()))) not in samples
    assert not any(name.startswith("taximeter_inter_token_latency_seconds_") for name, _ in samples)
    assert total(samples, "taximeter_receipts_without_usage_total") == 1


def test_the_house_is_on_the_page():
    """Ledger, machines, breakers, our own engine: accepted = written + spooled + waiting + lost; the parts of a
    machine's hour are all of it."""
    samples = samples_of(page_of([]))
    assert value(samples, "taximeter_requests_in_flight") == 4
    parts = [value(samples, f"taximeter_ledger_{part}_receipts_total") for part in ("written", "lost")]
    parts += [value(samples, f"taximeter_ledger_{part}_receipts") for part in ("spooled", "waiting")]
    assert value(samples, "taximeter_ledger_accepted_receipts_total") == 10 == sum(parts)
    assert value(samples, "taximeter_ledger_lost_before_receipts") == 7
    assert value(samples, "taximeter_machine_seconds", machine="farm", use="charged") == 1
    assert total(samples, "taximeter_machine_seconds", machine="farm") == 10
    assert total(samples, "taximeter_machine_dollars", machine="farm") == 0.01
    assert value(samples, "taximeter_upstream_breaker_state", upstream="farm", state="open") == 1
    assert value(samples, "taximeter_upstream_breaker_state", upstream="farm", state="closed") == 0
    assert value(samples, "taximeter_engine_kv_blocks", model="llama", state="cached") == 3
    assert value(samples, "taximeter_engine_queue") == 6


def test_callers_cannot_make_the_page_grow():
    """Names that nothing was served under share a label from the start, and all others beyond a hundred do too."""
    tally = Tally(["mine"])
    for number in range(3 * MOST_MODELS):
        tally.add(a_receipt(model=f"nonsense-{number}", outcome=Outcome.REFUSED))
        tally.add(a_receipt(model=f"served-{number}"))
        tally.add(a_receipt(model="mine", outcome=Outcome.REFUSED))
    figures = tally.sums().figures
    models = Counter(labels.model for labels in figures)
    assert len(models) == MOST_MODELS + 1
    assert "mine" in models
    assert not any(model.startswith("nonsense") for model in models)
    others = sum(figures.receipts for labels, figures in figures.items() if labels.model == OTHER)
    assert others == 3 * MOST_MODELS + (2 * MOST_MODELS + 1)


def test_sums_that_were_taken_stay_as_they_were():
    """Whoever writes them out does so on another thread, while more receipts come."""
    tally = Tally()
    tally.add(a_receipt())
    sums = tally.sums()
    [before] = [(figures.receipts, dict(figures.tokens), figures.total.count) for figures in sums.figures.values()]
    tally.add(a_receipt())
    [after] = [(figures.receipts, dict(figures.tokens), figures.total.count) for figures in sums.figures.values()]
    assert before == after


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_receipts().filter(lambda each: each.cost is None or each.cost.total >= 0), max_size=3))
def test_whatever_is_on_receipts_the_page_adds_up(receipts: Sequence[Receipt]):
    """Any text as a name, any number; in both formats."""
    page = page_of(receipts)
    samples = samples_of(page)
    assert total(samples, "taximeter_receipts_total") == len(receipts)
    known = [tokens for each in receipts if each.usage for tokens in each.usage.leaves().values() if tokens]
    assert close(total(samples, "taximeter_tokens_total"), sum(known))
    cost = sum((each.cost.total for each in receipts if each.cost), Decimal(0))
    assert close(total(samples, "taximeter_cost_dollars_total"), float(cost), of=receipts)
    times = [each.timing for each in receipts if each.timing]
    assert close(
        total(samples, "taximeter_request_duration_seconds_sum"), sum(timing.total_ns for timing in times) / (1000 * MS)
    )
    assert total(samples, "taximeter_overhead_seconds_count") == len(times)
    openmetrics: list[Metric] = list(read_openmetrics(page_of(receipts, "application/openmetrics-text")))
    assert len(openmetrics) == len(list(read_text(page)))


def close(one: float, other: float, *, of: Iterable[Receipt] = ()) -> bool:
    """As close as floats of this size are."""
    size = max([abs(one), abs(other), *(abs(float(each.cost.total)) for each in of if each.cost)])
    return abs(one - other) <= 1e-9 * size
