"""The `llama` architecture: pre-norm blocks, SiLU gate, one rotary base. SmolLM2 is one of these."""

from __future__ import annotations

from taximeter.engine import kernels
from taximeter.engine.models.decoder import F32, Attention, Batch, GatedFeedForward, Head, KVMemory, Rotary, RowContext
from taximeter.engine.weights import Checkpoint


class Llama:
    """x + attention(norm(x)), then x + feed_forward(norm(x)), layer by layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = config = checkpoint.config
        layers = range(config.layers)
        self._embedding = checkpoint.tensor("token_embd.weight")
        self._attention_norm = [checkpoint.tensor(f"blk.{i}.attn_norm.weight") for i in layers]
        self._attention = [Attention(checkpoint, i) for i in layers]
        self._feed_forward_norm = [checkpoint.tensor(f"blk.{i}.ffn_norm.weight") for i in layers]
        self._feed_forward = [GatedFeedForward(checkpoint, i, kernels.silu_mul) for i in layers]
        self._head = Head(checkpoint, self._embedding)
        self._rotary = Rotary(base=config.rope_base, dim=config.rope_dim, scale=config.rope_scale)

    def forward(self, batch: Batch, kv: KVMemory) -> F32:
        """See `Model.forward`."""
        eps = self.config.rms_eps
        cos, sin = self._rotary.at(batch.positions)
        x = self._embedding[batch.token_ids]
        for i in range(self.config.layers):
            rows = RowContext(batch=batch, keys=kv.keys[i], values=kv.values[i], cos=cos, sin=sin, window=None)
            x = x + self._attention[i](kernels.rms_norm(x, self._attention_norm[i], eps), rows)
            x = x + self._feed_forward[i](kernels.rms_norm(x, self._feed_forward_norm[i], eps))
        return self._head(x, batch.logit_rows)
