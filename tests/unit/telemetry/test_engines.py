"""Engines' pages, each in its own words, say the same things."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.telemetry.engines import FIGURES, EngineState, read_page

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="m"} nonsense
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0",priority=""} 5.0
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="3"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.28
sglang:cache_hit_rate{model_name="m"} 0.9
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 200.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{model_name="m",cache_source="device"} 40.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 10.0
"""

TENSORRT = """\
trtllm_num_requests_running{model_name="m"} 1
trtllm_num_requests_waiting{model_name="m"} 0
trtllm_kv_cache_utilization{model_name="m"} 0.75
trtllm_kv_cache_hit_rate{model_name="m"} 0.2
"""

TRITON = """\
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.125
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 4000
"""

LLAMA_CPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 124
llamacpp:prompt_tokens_cached_total 900
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 46
"""

OWN = """\
taximeter_engine_kv_blocks{model="m",state="cached"} 45.0
taximeter_engine_kv_blocks{model="m",state="free"} 435.0
taximeter_engine_kv_blocks{model="m",state="used"} 32.0
taximeter_engine_running_sequences{model="m"} 3.0
taximeter_engine_queue 2.0
taximeter_tokens_total{bucket="input_fresh",dialect="openai",model="m",upstream="embedded"} 600.0
taximeter_tokens_total{bucket="input_cache_read",dialect="openai",model="m",upstream="embedded"} 200.0
taximeter_tokens_total{bucket="input_fresh",dialect="openai",model="n",upstream="elsewhere"} 9000.0
"""


@pytest.mark.parametrize(
    ("page", "state"),
    [
        (OWN, ("taximeter", 3, 2, 32 / (45 + 435 + 32), 200 / (600 + 200))),
        (VLLM, ("vllm", 3 + 2, 7, (0.5 + 0.25) / 2, 400 / 1000)),
        (SGLANG, ("sglang", 5, 1, 0.28, (40 + 10) / 200)),
        (TENSORRT, ("tensorrt-llm", 1, 0, 0.75, 0.2)),
        (TRITON, ("tensorrt-llm", 2, 4, 0.125, None)),
        (LLAMA_CPP, ("llama.cpp", 1, 46, None, 900 / (124 + 900))),
    ],
)
def test_each_engine_is_known_by_its_words(page: str, state: tuple[str | None, ...]):
    """Series of several ranks are one figure; what a page lacks is not known, and says so."""
    read = read_page(page)
    assert (read.engine, read.running, read.queue, read.kv_usage_ratio, read.prefix_hit_ratio) == state
    unknown = [figure for figure in FIGURES if getattr(read, figure) is None]
    assert sorted(read.unknown_reasons) == sorted(unknown)


def test_older_names_are_read_too():
    """vLLM had others for the same."""
    read = read_page("vllm:gpu_cache_usage_perc 0.5\nvllm:num_requests_running 1\n")
    assert (read.kv_usage_ratio, read.running) == (0.5, 1)


@pytest.mark.parametrize("page", ["", "# nothing\n", "node_cpu_seconds_total 5\n", "<html>not found</html>"])
def test_a_page_of_something_else_says_nothing(page: str):
    """And is no error: it is somebody's page."""
    read = read_page(page)
    assert read.engine is None
    assert set(read.unknown_reasons) == set(FIGURES)


@pytest.mark.parametrize("value", ["NaN", "-1", "1.5", "+Inf", "61"])
def test_a_share_that_cannot_be_one_is_not_known(value: str):
    """Some engines had percentages there."""
    assert read_page(f"vllm:kv_cache_usage_perc {value}\n").kv_usage_ratio is None


def test_no_prompt_yet_is_no_share_of_hits():
    """0 of 0 is not 0."""
    assert read_page("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n").prefix_hit_ratio is None


@settings(deadline=None)
@given(st.text() | st.text().map(lambda text: f"vllm:num_requests_running{text}\n"))
def test_no_page_does_any_harm(page: str):
    """It is read, or refused with a ValueError."""
    with contextlib.suppress(ValueError):
        assert isinstance(read_page(page), EngineState)


def test_hits_are_counted_with_what_they_are_of() -> None:
    """Two readings of a page say what happened between them, whichever way an engine counts."""
    vllm = read_page("vllm:prefix_cache_hits_total 32\nvllm:prefix_cache_queries_total 100\n")
    assert (vllm.prefix_hit_tokens, vllm.prefix_asked_tokens) == (32, 100)
    llama = read_page("llamacpp:prompt_tokens_cached_total 30\nllamacpp:prompt_tokens_total 70\n")  # the computed ones
    assert (llama.prefix_hit_tokens, llama.prefix_asked_tokens) == (30, 100)
    silent = read_page("sglang:cache_hit_rate 0.5\nsglang:cached_tokens_total 3\n")
    assert (silent.prefix_hit_tokens, silent.prefix_asked_tokens, silent.prefix_hit_ratio) == (None, None, 0.5)
