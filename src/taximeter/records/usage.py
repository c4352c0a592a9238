"""What is charged (`Usage`) and what our own engine did for it (`Work`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, Self, cast

from taximeter.records.basis import Basis


def _sum(leaves: tuple[int | None, ...]) -> int | None:
    return None if None in leaves else sum(cast("tuple[int, ...]", leaves))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a provider says it served under, in its own words: each may change the price. None is unsaid."""

    tier: str | None = None  # `service_tier`: standard, batch, flex, priority, ...
    speed: str | None = None
    geography: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens by the bucket they are charged in. The leaves are exclusive: every token is in exactly one.

    Where a name says nothing else its tokens are text; a cache write is named after how long it lasts, and `unknown` if
    nobody said. A leaf that is not known is None and has its reason in `unknown_reasons` under the leaf's name.
    `reported` keeps the provider's own words. Totals are properties, and None as soon as one of their leaves is.

    `by_model` is the part of the leaves that other models than the served one read and wrote within the call (an
    advisor, a fallback): model, leaf, tokens. `prompts_tokens` is how long each prompt was where the served model was
    asked more than once within the call: a price that depends on the length of the prompt depends on each one's.

    Raises ValueError for a negative leaf, for an unknown one without a reason, and for more tokens of other models in a
    leaf than it has.
    """

    input_fresh_tokens: int | None
    input_cache_read_tokens: int | None
    input_cache_write_5m_tokens: int | None = 0
    input_cache_write_30m_tokens: int | None = 0
    input_cache_write_1h_tokens: int | None = 0
    input_cache_write_12h_tokens: int | None = 0
    input_cache_write_unknown_tokens: int | None = 0
    input_image_tokens: int | None = 0
    input_audio_tokens: int | None = 0
    input_audio_cache_read_tokens: int | None = 0
    output_text_tokens: int | None
    output_reasoning_tokens: int | None = 0
    output_image_tokens: int | None = 0
    output_audio_tokens: int | None = 0
    other_units: Mapping[str, int] = field(default_factory=dict[str, int])
    by_model: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    prompts_tokens: tuple[int, ...] = ()
    basis: Basis = Basis.REPORTED
    unknown_reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    reported: Mapping[str, object] | None = None

    INPUT_LEAVES: ClassVar[tuple[str, ...]] = (
        "input_fresh_tokens",
        "input_cache_read_tokens",
        "input_cache_write_5m_tokens",
        "input_cache_write_30m_tokens",
        "input_cache_write_1h_tokens",
        "input_cache_write_12h_tokens",
        "input_cache_write_unknown_tokens",
        "input_image_tokens",
        "input_audio_tokens",
        "input_audio_cache_read_tokens",
    )
    OUTPUT_LEAVES: ClassVar[tuple[str, ...]] = (
        "output_text_tokens",
        "output_reasoning_tokens",
        "output_image_tokens",
        "output_audio_tokens",
    )
    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("input_tokens", "output_tokens", "total_tokens")

    def __post_init__(self) -> None:
        leaves = self.leaves()
        for name, count in leaves.items():
            if count is None:
                if name not in self.unknown_reasons:
                    raise ValueError(f"{name} is unknown: unknown_reasons must say why")
            elif count < 0:
                raise ValueError(f"{name} is {count}: a bucket of tokens cannot be negative")
        if not self.by_model:
            return
        elsewhere = Counter[str]()
        for tokens in self.by_model.values():
            elsewhere.update(tokens)
        for name, count in elsewhere.items():
            if (leaves.get(name) or 0) < count or any(tokens.get(name, 0) < 0 for tokens in self.by_model.values()):
                raise ValueError(f"other models cannot have {count} of {leaves.get(name)} {name}")

    @classmethod
    def unknown(cls, reason: str, *, reported: Mapping[str, object] | None = None) -> Self:
        """A usage of which no bucket is known, all for one `reason`."""
        leaves = cls.INPUT_LEAVES + cls.OUTPUT_LEAVES
        reasons = dict.fromkeys(leaves, reason)
        return cls(**dict.fromkeys(leaves), unknown_reasons=reasons, reported=reported)  # pyright: ignore[reportArgumentType]  # names of leaves only

    def leaves(self) -> dict[str, int | None]:
        """Every token bucket by name, in the order they are printed."""
        return dict(zip(_LEAVES, _leaves(self), strict=True))

    def of_prompt(self) -> Self:
        """The part of it that is the prompt's, with nothing for the answer, and without the provider's own words."""
        reasons = {name: why for name, why in self.unknown_reasons.items() if name in self.INPUT_LEAVES}
        leaves = dict(zip(self.INPUT_LEAVES, _inputs(self), strict=True)) | dict.fromkeys(self.OUTPUT_LEAVES, 0)
        return type(self)(**leaves, basis=self.basis, unknown_reasons=reasons)  # pyright: ignore[reportArgumentType]  # names of leaves only

    @property
    def input_tokens(self) -> int | None:
        """The whole prompt, cached or not."""
        return _sum(_inputs(self))

    @property
    def output_tokens(self) -> int | None:
        """The whole answer, reasoning included, over all choices."""
        return _sum(_outputs(self))

    @property
    def total_tokens(self) -> int | None:
        return _sum(_leaves(self))


_Counts = Callable[[Usage], tuple[int | None, ...]]
# A usage is asked for all of its buckets a dozen times on the way to its receipt.
_LEAVES = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
_leaves = cast("_Counts", attrgetter(*_LEAVES))
_inputs = cast("_Counts", attrgetter(*Usage.INPUT_LEAVES))
_outputs = cast("_Counts", attrgetter(*Usage.OUTPUT_LEAVES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What the machine can do at most on the threads that computed: how fast it reads memory, and how many operations a
    second its units for `unit` numbers do (a multiplication and an addition are two). Raises ValueError for nothing."""

    read_bytes_per_s: int
    operations_per_s: int
    unit: str

    def __post_init__(self) -> None:
        if self.read_bytes_per_s < 1 or self.operations_per_s < 1:
            raise ValueError("a machine that computes can read something and do something")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What our engine did for a request, not what is charged for it.

    A *pass* is one step of the engine in which the request took part: a prefill pass computes prompt tokens, a decode
    pass computes a generated one. `computed_tokens` counts every token that went through the model for this request,
    `reused_tokens` the prompt tokens found in the KV cache instead, `recomputed_tokens` the computed ones that had
    been in the KV cache for it before and were lost to preemption. `compute_ns` is this request's exact share of the
    machine time of its steps. `peak_kv_blocks` is the most blocks of the KV cache that it held in a step, in all groups
    of layers together. `kernels` says which arithmetic ran, for example `native:avx512`.

    `decode_compute_ns` is the part of `compute_ns` that went to generated tokens, the rest went to the prompt.
    `decode_read_bytes` is what those tokens had to read: each its own keys and values, and its share of the weights,
    which a step reads once for all its rows. `prefill_operations` is what the prompt took in multiplications and
    additions. Both are of the algorithm, whatever a cache may have saved. `ceiling` is the machine's own limit, and
    `energy_uj` this request's share of what the processor package used meanwhile, other programs included. What is
    not known is None and has its reason in `unknown_reasons`; receipts from before this was counted have none.
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
    decode_compute_ns: int | None = None
    decode_read_bytes: int | None = None
    prefill_operations: int | None = None
    ceiling: Ceiling | None = None
    energy_uj: int | None = None
    unknown_reasons: Mapping[str, str] = field(default_factory=dict[str, str])

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("decode_bus_ratio", "prefill_peak_ratio")

    @property
    def prefill_compute_ns(self) -> int | None:
        """The part of `compute_ns` that went to the prompt."""
        return None if self.decode_compute_ns is None else self.compute_ns - self.decode_compute_ns

    @property
    def decode_bus_ratio(self) -> float | None:
        """Which share of the memory bus the decode used: bytes per second by what the bus can do. It can be above 1
        where the weights stay in a cache."""
        if self.ceiling is None or self.decode_read_bytes is None or not self.decode_compute_ns:
            return None
        return self.decode_read_bytes * 1e9 / self.decode_compute_ns / self.ceiling.read_bytes_per_s

    @property
    def prefill_peak_ratio(self) -> float | None:
        """Which share of the arithmetic peak the prefill used: operations per second by what the units can do."""
        if self.ceiling is None or self.prefill_operations is None or not self.prefill_compute_ns:
            return None
        return self.prefill_operations * 1e9 / self.prefill_compute_ns / self.ceiling.operations_per_s
