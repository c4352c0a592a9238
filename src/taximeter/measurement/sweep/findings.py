"""What a sweep's figures come to: speeds, what each part of the work costs at each length, and, where the model is
known, how near that is to what the machine can do.

Owns: the figures that follow from a sweep, and the sweep as plain data for a result file. Refuses to know: how they are
shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from taximeter.measurement.estimates import Estimate
from taximeter.measurement.sweep.fit import Fit
from taximeter.measurement.sweep.model_work import MachineLimit, ModelShape, Work, prefill_work, step_work
from taximeter.measurement.sweep.sweep import Sweep
from taximeter.records import to_json

NS_PER_S: Final = 1e9
_BAND_POINTS: Final = 33

SWEEP_DEFINITIONS: Final[Mapping[str, str]] = {
    "ttft_fit": "TTFT = a + b n + c n² of n prompt tokens, through medians, by relative error, nothing below 0",
    "itl_fit": "time per token = d + e · depth; depth is the prompt and half of the answer",
    "prefill_tokens_per_s": "1 / b: how fast prompt tokens are read where attention among them costs nothing yet",
    "attention": "c n² of b n + c n²: the share of looking back on each other in reading a prompt",
    "kv_cache": "e · depth of d + e · depth: the share of reading keys and values in a step; the rest is weights",
    "queue": "waiting to be taken up: the server's own time, or what equal short requests took longer than the fastest",
    "network": "one round trip: the time to open a connection",
    "prefill": "reading the prompt, by the server's own time, or what grows with the prompt in the fit",
    "decode": "from the first token to the last, as long as the answer was asked to be",
    "unexplained": "the rest of the time to the first token",
    "void": "not exactly as many prompt tokens as asked for, not whole, or in one piece: in no figure",
    "cold": "less than 1 % of prompt tokens came from a cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What the work at one length consists of. `attention` is a share of reading the prompt, `kv_cache` one of each
    step; `prefill` is operations and `step` bytes, where the model is known. None is unknown."""

    prompt_tokens: int
    depth_tokens: float
    attention: Estimate | None
    kv_cache: Estimate | None
    prefill: Work | None = None
    step: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What follows from a sweep. Speeds and lengths may be infinite where a coefficient is 0."""

    fixed_ns: Estimate | None
    prefill_tokens_per_s: Estimate | None
    attention_overtakes_at_tokens: Estimate | None
    step_ns: Estimate | None
    lengths: tuple[Length, ...]
    limit: MachineLimit | None


def findings(sweep: Sweep, *, shape: ModelShape | None = None, limit: MachineLimit | None = None) -> Findings:
    """What `sweep` comes to. `shape` is the model's, `limit` what its machine can do, where they are known."""
    ttft, itl = sweep.ttft_fit, sweep.itl_fit
    is_curved = ttft is not None and "c" in ttft.names
    return Findings(
        fixed_ns=None if ttft is None else ttft["a"],
        prefill_tokens_per_s=None if ttft is None else ttft.per_second("b", unit_s=1 / NS_PER_S),
        attention_overtakes_at_tokens=ttft.overtakes("c", "b") if ttft is not None and is_curved else None,
        step_ns=None if itl is None else itl["d"],
        lengths=tuple(_length(sweep, tokens, shape, limit) for tokens in _lengths(sweep)),
        limit=limit,
    )


def conclusions(sweep: Sweep, found: Findings) -> dict[str, Any]:
    """Both as plain data: no observations, which a result has apart, and what is infinite is null."""
    plain = {
        "points": [
            {
                "prompt_tokens": point.prompt_tokens,
                "n": len(point.observations),
                "void": point.void,
                "ttft_ns": point.ttft_ns,
                "itl_ns": point.itl_ns,
                "total_ns": point.total_ns,
            }
            for point in sweep.points
        ],
        "ttft_fit": _fit(sweep.ttft_fit),
        "itl_fit": _fit(sweep.itl_fit),
        "splits": sweep.splits,
        "verdict": sweep.verdict,
        "is_certain": sweep.verdict is not None and sweep.verdict.is_certain,
        "is_valid": sweep.is_valid,
        "cold": sweep.cold,
        "network_ns": sweep.network_ns,
        "findings": found,
        "stopped": sweep.stopped,
    }
    return cast("dict[str, Any]", _finite(to_json(plain)))


def _lengths(sweep: Sweep) -> list[int]:
    return [point.prompt_tokens for point in sweep.points if point.observations]


def _length(sweep: Sweep, tokens: int, shape: ModelShape | None, limit: MachineLimit | None) -> Length:
    ttft, itl = sweep.ttft_fit, sweep.itl_fit
    depth = tokens + sweep.plan.output_tokens / 2
    prefill_s = next(
        (
            split.parts_ns["prefill"].value / NS_PER_S
            for split in sweep.splits
            if split.prompt_tokens == tokens and "prefill" in split.parts_ns
        ),
        0.0,
    )
    step_s = itl.at(depth).value / NS_PER_S if itl is not None else 0.0
    return Length(
        prompt_tokens=tokens,
        depth_tokens=depth,
        attention=ttft.share("c", ("b", "c"), tokens) if ttft is not None and "c" in ttft.names else None,
        kv_cache=itl.share("e", ("d", "e"), depth) if itl is not None else None,
        prefill=prefill_work(shape, tokens, prefill_s, limit) if shape is not None and prefill_s > 0 else None,
        step=step_work(shape, round(depth), step_s, limit) if shape is not None and step_s > 0 else None,
    )


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    low, high = fit.points[0].tokens, fit.points[-1].tokens
    return {
        "names": fit.names,
        "coefficients": fit.coefficients,
        "points": fit.points,
        "residual_ratio": fit.residual_ratio,
        "band": [{"tokens": tokens, "at": fit.at(tokens)} for tokens in between(low, high)],
    }


def between(low: float, high: float) -> list[float]:
    """Lengths to draw a curve at: evenly, where lengths double."""
    return [low * (high / low) ** (step / (_BAND_POINTS - 1)) for step in range(_BAND_POINTS)]


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {name: _finite(item) for name, item in cast("dict[str, object]", value).items()}
        case list():
            return [_finite(item) for item in cast("list[object]", value)]
        case _:
            return value
