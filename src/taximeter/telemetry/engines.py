"""What engines call the same things: their Prometheus pages, read into one vocabulary.

Owns: one table, from each engine's metrics to ours, and the reading of a page by it. Refuses to know: where pages come
from.

Figures that several series make up (one for each rank or replica) are added, and shares are averaged. A share of hits
is one since the engine's start, where it counts; where it only gives a share of its own, it is that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Series:
    """Those of one metric with certain labels, for example `name{kind=used}`. Series with `without` set to anything are
    parts of others."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    without: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """An engine's names. Of each tuple the first that is there counts. KV memory is a share, or `kv_used` of `kv_all`.
    Hits are a share, or `hits` of `asked`; where `asked` leaves out what was hit, they are added."""

    engine: str
    prefix: str
    running: tuple[Series, ...] = ()
    queue: tuple[Series, ...] = ()
    kv_usage: tuple[Series, ...] = ()
    kv_used: tuple[Series, ...] = ()
    kv_all: tuple[Series, ...] = ()
    hit_ratio: tuple[Series, ...] = ()
    hits: tuple[Series, ...] = ()
    asked: tuple[Series, ...] = ()
    asked_without_hits: bool = False


_TRITON: Final = "nv_trt_llm_"
_OWN: Final = "taximeter_engine_"  # a gateway with no engine of its own has none of these
_OWN_TOKENS: Final = "taximeter_tokens_total"

TABLE: Final = (
    _Words(
        engine="vllm",
        prefix="vllm:",
        running=(Series("vllm:num_requests_running"),),
        queue=(Series("vllm:num_requests_waiting"),),
        kv_usage=(Series("vllm:kv_cache_usage_perc"), Series("vllm:gpu_cache_usage_perc")),  # shares, in spite of perc
        hits=(Series("vllm:prefix_cache_hits_total"), Series("vllm:gpu_prefix_cache_hits_total")),
        asked=(Series("vllm:prefix_cache_queries_total"), Series("vllm:gpu_prefix_cache_queries_total")),
    ),
    _Words(
        engine="sglang",
        prefix="sglang:",
        running=(Series("sglang:num_running_reqs", without="priority"),),
        queue=(Series("sglang:num_queue_reqs", without="priority"),),
        kv_usage=(Series("sglang:token_usage"),),
        hit_ratio=(Series("sglang:cache_hit_rate"),),  # of its last batch
        hits=(Series("sglang:cached_tokens_total"),),
        asked=(Series("sglang:prompt_tokens_total"),),
    ),
    _Words(
        engine="tensorrt-llm",
        prefix="trtllm_",
        running=(Series("trtllm_num_requests_running"),),
        queue=(Series("trtllm_num_requests_waiting"),),
        kv_usage=(Series("trtllm_kv_cache_utilization"),),
        hit_ratio=(Series("trtllm_kv_cache_hit_rate"),),
    ),
    _Words(  # the same behind Triton
        engine="tensorrt-llm",
        prefix=_TRITON,
        running=(Series(f"{_TRITON}request_metrics", (("request_type", "scheduled"),)),),
        queue=(Series(f"{_TRITON}request_metrics", (("request_type", "waiting"),)),),
        kv_usage=(Series(f"{_TRITON}kv_cache_block_metrics", (("kv_cache_block_type", "fraction"),)),),
    ),
    _Words(
        engine="llama.cpp",
        prefix="llamacpp:",
        running=(Series("llamacpp:requests_processing"),),
        queue=(Series("llamacpp:requests_deferred"),),
        kv_usage=(Series("llamacpp:kv_cache_usage_ratio"),),  # of older versions
        hits=(Series("llamacpp:prompt_tokens_cached_total"),),
        asked=(Series("llamacpp:prompt_tokens_total"),),  # those that were computed
        asked_without_hits=True,
    ),
    _Words(
        engine="taximeter",
        prefix=_OWN,
        running=(Series(f"{_OWN}running_sequences"),),
        queue=(Series(f"{_OWN}queue"),),
        kv_used=(Series(f"{_OWN}kv_blocks", (("state", "used"),)),),
        kv_all=(Series(f"{_OWN}kv_blocks"),),
        hits=(Series(_OWN_TOKENS, (("upstream", "embedded"), ("bucket", "input_cache_read"))),),
        asked=(Series(_OWN_TOKENS, (("upstream", "embedded"), ("bucket", "input_fresh"))),),
        asked_without_hits=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What an engine says of itself: requests it is working on and requests that wait, the share of its KV memory in
    use, and of prompt tokens found there. What its page does not have is None, with a reason in `unknown_reasons`.

    `prefix_hit_tokens` of `prefix_asked_tokens` were found since its start, where it counts them: two readings say what
    happened between them.
    """

    engine: str | None
    running: float | None = None
    queue: float | None = None
    kv_usage_ratio: float | None = None
    prefix_hit_ratio: float | None = None
    prefix_hit_tokens: float | None = None
    prefix_asked_tokens: float | None = None
    unknown_reasons: Mapping[str, str] = field(default_factory=dict[str, str])


FIGURES: Final = ("running", "queue", "kv_usage_ratio", "prefix_hit_ratio")


def nothing_known(reason: str, engine: str | None = None) -> EngineState:
    """An engine of which nothing is known, for one reason."""
    return EngineState(engine=engine, unknown_reasons=dict.fromkeys(FIGURES, reason))


def read_page(text: str) -> EngineState:
    """What a page in Prometheus' text format says. Raises ValueError for one that is not.

    Only lines that are wanted are parsed, so that an engine's other hundreds of series cost nothing.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = next((words for words in TABLE if any(line.startswith(words.prefix) for line in lines)), None)
    if words is None:
        return nothing_known("the page is of no engine that is known here")
    wanted = {series.name for kind in _kinds(words) for series in kind}
    page = _Page(line for line in lines if line.partition("{")[0].partition(" ")[0] in wanted)
    hits, asked = _hits(page, words)
    found = {
        "running": page.total(words.running),
        "queue": page.total(words.queue),
        "kv_usage_ratio": _one_of(page.mean(words.kv_usage), page.total(words.kv_used), page.total(words.kv_all)),
        "prefix_hit_ratio": _one_of(page.mean(words.hit_ratio), hits, asked),
    }
    missing = {name: f"{words.engine} does not say" for name, value in found.items() if value is None}
    return EngineState(
        engine=words.engine, **found, prefix_hit_tokens=hits, prefix_asked_tokens=asked, unknown_reasons=missing
    )


def _kinds(words: _Words) -> Iterable[tuple[Series, ...]]:
    kv_memory = words.kv_usage, words.kv_used, words.kv_all
    return words.running, words.queue, *kv_memory, words.hit_ratio, words.hits, words.asked


def _hits(page: _Page, words: _Words) -> tuple[float, float] | tuple[None, None]:
    """Tokens that were found, of how many; both or none."""
    hits, asked = page.total(words.hits), page.total(words.asked)
    if hits is None or asked is None:
        return None, None
    return hits, asked + hits if words.asked_without_hits else asked


def _one_of(share: float | None, part: float | None, whole: float | None) -> float | None:
    """A share: by its parts where they are counted, else as it is given."""
    if part is None or whole is None:
        return _share(share)
    return _share(part / whole) if whole > 0 else None


def _share(value: float | None) -> float | None:
    """A share that cannot be one is not known: some engines have had percentages there, and NaN before the first."""
    return value if value is not None and 0 <= value <= 1 else None


class _Page:
    def __init__(self, lines: Iterable[str]) -> None:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  # a quarter of a second

        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families("\n".join((*lines, ""))):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, names: Iterable[Series]) -> float | None:
        values = self._values(names)
        return sum(values) if values else None

    def mean(self, names: Iterable[Series]) -> float | None:
        values = self._values(names)
        return sum(values) / len(values) if values else None

    def _values(self, names: Iterable[Series]) -> list[float]:
        for series in names:
            values = [
                value
                for labels, value in self._samples[series.name]
                if labels.items() >= dict(series.labels).items() and not labels.get(series.without or "")
            ]
            if values:
                return values
        return []
