"""The native forward pass: a checkpoint's own quantized values packed once, then one call for each step.

Owns: which tensor goes where, and weights quantized at load when that is asked for. Refuses to know: what a pass
computes (`native/decoder`), and the reference it must agree with (`decoder`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from taximeter import _native
from taximeter.engine.models.decoder import F32, I64, Batch, inverse_frequencies
from taximeter.engine.models.formats import Arithmetic, WeightFormat
from taximeter.engine.models.kv_memory import KVMemory
from taximeter.engine.weights import Checkpoint, ModelConfig, RawTensor
from taximeter.errors import ModelFileError

_Bytes = npt.NDArray[np.uint8]

_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_KINDS: Mapping[WeightFormat, str] = {"int4": "Q4_0", "int8": "Q8_0", "bf16": "BF16", "f32": "F32"}
_GROUP = 32  # weights that share a scale
_ROWS_AT_A_TIME = 4096  # float32 rows in memory while weights are quantized


class NativeDecoder:
    """See `Model`. Packs everything at construction, on all threads of the kernels."""

    def __init__(self, checkpoint: Checkpoint, weights: WeightFormat | None, *, profile: bool = False) -> None:
        self.config = config = checkpoint.config
        # Who asks for bf16 weights gets bf16 units, which round activations; a file's own are computed exactly.
        self._bf16_units = weights == "bf16"
        self._decoder = _empty(config, bf16_units=self._bf16_units)
        names = frozenset(checkpoint.names())
        weights_by_kind: Counter[str] = Counter()

        def matrix(name: str) -> tuple[str, _Bytes, int]:
            raw = checkpoint.raw(name)
            kind, rows = (raw.kind, raw.data) if weights is None else _quantized(raw, weights, name)
            weights_by_kind[kind] += raw.shape[0] * raw.shape[1]
            return kind, rows, raw.shape[1]

        self._decoder.set_embedding(*matrix("token_embd.weight"))
        if not config.tied_embeddings:
            self._decoder.set_head(*matrix("output.weight"))
        self._decoder.set_output_norm(checkpoint.tensor("output_norm.weight"))
        for layer in range(config.layers):
            prefix = f"blk.{layer}."
            for part in _MATRICES:
                self._decoder.set_matrix(layer, part, *matrix(f"{prefix}{part}.weight"))
            in_layer = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
            for part in in_layer:
                if part.removesuffix(".weight") not in _MATRICES:
                    self._decoder.set_vector(layer, part, checkpoint.tensor(f"{prefix}{part}"))
        self._decoder.finish()
        self._decoder.profile(profile)
        self._kinds = [kind for kind, _ in weights_by_kind.most_common()]

    @property
    def read_bytes(self) -> int:
        """See `Model.read_bytes`."""
        return self._decoder.read_bytes

    def arithmetic(self, level: str) -> Arithmetic:
        """See `Model.arithmetic`."""
        most = self._kinds[0]
        if not most.startswith("Q"):
            return "bf16" if self._bf16_units else "f32"
        return "bf16" if _native.multiplies_bf16(level, most) else "int8"

    def tells_prompts_apart(self, level: str) -> bool:
        """See `Model.tells_prompts_apart`: where tile units read prompts, and only those."""
        return any(kind.startswith("Q") and _native.multiplies_bf16(level, kind) for kind in self._kinds)

    def profile_ns(self) -> Mapping[str, int]:
        """See `Model.profile_ns`."""
        return self._decoder.phases

    def forward(self, batch: Batch, kv: KVMemory, level: str, out: F32 | I64) -> None:
        """One step at one native level, for example `avx2`. `out` gets what its type says: logits as of
        `Model.forward`, or tokens as of `Model.best`."""
        self._decoder.forward(
            level,
            kv.native,
            batch.token_ids,
            batch.positions,
            batch.row_seq,
            list(batch.slots),
            list(batch.block_tables),
            batch.logit_rows,
            out,
            batch.generated_rows,
        )


def _empty(config: ModelConfig, *, bf16_units: bool) -> _native.Decoder:
    return _native.Decoder(
        hidden=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ff=config.ff_size,
        vocab=config.vocab_size,
        sliding=list(config.sliding_layers),
        window=config.sliding_window or 0,
        rms_eps=config.rms_eps,
        attention_scale=config.attention_scale,
        embedding_scale=config.embedding_scale,
        logit_softcap=config.logit_softcap or 0.0,
        bf16_units=bf16_units,
        gelu=config.gated_activation == "gelu_tanh",
        turns_everywhere=inverse_frequencies(config, sliding=False).tolist(),
        turns_sliding=inverse_frequencies(config, sliding=True).tolist(),
    )


def _quantized(raw: RawTensor, weights: WeightFormat, name: str) -> tuple[str, _Bytes]:
    """The matrix in another format: the kind, and rows as that kind stores them."""
    kind = _KINDS[weights]
    if kind == raw.kind:
        return kind, raw.data
    n, k = raw.shape
    if kind.startswith("Q") and k % _GROUP:
        raise ModelFileError(
            f"{name} has rows of {k} weights, which {weights} cannot hold: it takes them {_GROUP} at a time",
            hint="load this model without --weights, or as bf16",
        )
    parts: list[_Bytes] = []
    for start in range(0, n, _ROWS_AT_A_TIME):
        some = raw.data[start : start + _ROWS_AT_A_TIME]
        floats = RawTensor(raw.kind, (len(some), k), some).dequantized()
        parts.append(_native.quantize_rows(kind, floats))
    return kind, np.concatenate(parts)
