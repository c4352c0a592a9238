"""What is charged (`Usage`) and what our own engine did for it (`Work`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from taximeter.records.basis import Basis


def _sum(leaves: tuple[int | None, ...]) -> int | None:
    return None if any(leaf is None for leaf in leaves) else sum(leaf for leaf in leaves if leaf is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens by the bucket they are charged in. The leaves are exclusive: every token is in exactly one.

    A leaf that is not known is None and has its reason in `unknown_reasons` under the leaf's name. `reported` keeps
    the provider's own words. Totals are properties, and None as soon as one of their leaves is.

    Raises ValueError for a negative leaf or an unknown one without a reason.
    """

    input_fresh_tokens: int | None
    input_cache_read_tokens: int | None
    input_cache_write_5m_tokens: int | None = 0
    input_cache_write_1h_tokens: int | None = 0
    output_text_tokens: int | None
    output_reasoning_tokens: int | None = 0
    other_units: Mapping[str, int] = field(default_factory=dict[str, int])
    basis: Basis = Basis.REPORTED
    unknown_reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    reported: Mapping[str, object] | None = None

    INPUT_LEAVES: ClassVar[tuple[str, ...]] = (
        "input_fresh_tokens",
        "input_cache_read_tokens",
        "input_cache_write_5m_tokens",
        "input_cache_write_1h_tokens",
    )
    OUTPUT_LEAVES: ClassVar[tuple[str, ...]] = ("output_text_tokens", "output_reasoning_tokens")
    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("input_tokens", "output_tokens", "total_tokens")

    def __post_init__(self) -> None:
        for name, count in self.leaves().items():
            if count is None and name not in self.unknown_reasons:
                raise ValueError(f"{name} is unknown: unknown_reasons must say why")
            if count is not None and count < 0:
                raise ValueError(f"{name} is {count}: a bucket of tokens cannot be negative")

    def leaves(self) -> dict[str, int | None]:
        """Every token bucket by name, in the order they are printed."""
        return {name: getattr(self, name) for name in self.INPUT_LEAVES + self.OUTPUT_LEAVES}

    @property
    def input_tokens(self) -> int | None:
        """The whole prompt, cached or not."""
        return _sum(tuple(getattr(self, name) for name in self.INPUT_LEAVES))

    @property
    def output_tokens(self) -> int | None:
        """The whole answer, reasoning included, over all choices."""
        return _sum(tuple(getattr(self, name) for name in self.OUTPUT_LEAVES))

    @property
    def total_tokens(self) -> int | None:
        return _sum((self.input_tokens, self.output_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What our engine did for a request, not what is charged for it.

    A *pass* is one step of the engine in which the request took part: a prefill pass computes prompt tokens, a decode
    pass computes a generated one. `computed_tokens` counts every token that went through the model for this request,
    `reused_tokens` the prompt tokens found in the KV cache instead, `recomputed_tokens` the computed ones that had
    been in the KV cache for it before and were lost to preemption. `compute_ns` is this request's exact share of the
    machine time of its steps. `kernels` says which arithmetic ran, for example `native:avx512`.
    """

    prefill_passes: int
    decode_passes: int
    computed_tokens: int
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    compute_ns: int = 0
    peak_kv_blocks: int = 0
    kernels: str | None = None
