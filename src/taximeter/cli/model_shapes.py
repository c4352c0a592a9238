"""A model's dimensions from its file, where it lies on this machine, and what this machine can do. Owns: both look-ups.
Refuses to know: what is made of them."""

from __future__ import annotations

from taximeter.engine.limits import remembered
from taximeter.engine.model_store import ModelStore
from taximeter.engine.weights.checkpoint import open_checkpoint
from taximeter.errors import TaximeterError
from taximeter.measurement.sweep.model_work import MachineLimit, ModelShape
from taximeter.settings import Settings

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


def model_shape(settings: Settings, reference: str) -> ModelShape | None:
    """The dimensions of the model that `reference` names here, with its weights as the file has them; None where there
    is no such model here."""
    try:
        checkpoint = open_checkpoint(ModelStore(settings.models_dir).resolve(reference))
    except TaximeterError:
        return None
    try:
        config = checkpoint.config
        names = checkpoint.names()
        # Of an embedding a step reads a row; where it is the output matrix too, all of it.
        read = [name for name in names if name != _EMBEDDING or _OUTPUT not in names]
        sliding = sum(config.sliding_layers)
        return ModelShape(
            layers=config.layers,
            hidden=config.hidden_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            feed_forward=config.ff_size,
            vocabulary=config.vocab_size,
            sliding_layers=sliding,
            window=config.sliding_window if sliding else None,
            step_weight_bytes=sum(checkpoint.raw(name).data.nbytes for name in read),
        )
    finally:
        checkpoint.close()


def machine_limit(settings: Settings, threads: int | None) -> MachineLimit | None:
    """What this machine can do, as `taximeter machine` measured it, by its fastest arithmetic; None where it was not
    measured."""
    limits = remembered(settings.limits_path).limits
    if limits is None:
        return None
    rates = limits.rates[-1] if threads is None else limits.at(threads)
    peaks = {"int8": rates.int8_gop_per_s, "bf16": rates.bf16_gop_per_s, "f32": rates.f32_gop_per_s}
    unit, peak = max(((unit, peak) for unit, peak in peaks.items() if peak is not None), key=lambda each: each[1])
    return MachineLimit(
        operations_per_s=peak * 1e9,
        read_bytes_per_s=rates.read_gb_per_s * 1e9,
        says=f"{peak:,.0f} G{unit} op/s and {rates.read_gb_per_s:,.1f} GB/s with {rates.threads} threads",
    )
