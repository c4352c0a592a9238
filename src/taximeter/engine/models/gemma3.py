"""The `gemma3` architecture: sandwich norms, scaled embeddings, normed queries and keys, GELU gate, and layers that
see a sliding window with a rotary base of their own between layers that see everything."""

from __future__ import annotations

import numpy as np

from taximeter.engine import kernels
from taximeter.engine.models.decoder import F32, Attention, Batch, GatedFeedForward, Head, KVMemory, Rotary, RowContext
from taximeter.engine.weights import Checkpoint


class Gemma3:
    """x + norm(attention(norm(x))), then x + norm(feed_forward(norm(x))), layer by layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = config = checkpoint.config
        layers = range(config.layers)
        self._embedding = checkpoint.tensor("token_embd.weight")
        # The embedding is scaled on its way in only; the tied head uses it as it is.
        self._embedding_scale = np.float32(config.embedding_scale)
        self._attention_norm = [checkpoint.tensor(f"blk.{i}.attn_norm.weight") for i in layers]
        self._attention = [Attention(checkpoint, i) for i in layers]
        self._post_attention_norm = [checkpoint.tensor(f"blk.{i}.post_attention_norm.weight") for i in layers]
        self._feed_forward_norm = [checkpoint.tensor(f"blk.{i}.ffn_norm.weight") for i in layers]
        self._feed_forward = [GatedFeedForward(checkpoint, i, kernels.gelu_tanh_mul) for i in layers]
        self._post_feed_forward_norm = [checkpoint.tensor(f"blk.{i}.post_ffw_norm.weight") for i in layers]
        self._head = Head(checkpoint, self._embedding)
        # Linear rope scaling is for the layers that see everything; sliding ones never look far enough to need it.
        self._rotary_global = Rotary(base=config.rope_base, dim=config.rope_dim, scale=config.rope_scale)
        self._rotary_sliding = Rotary(base=config.rope_base_sliding, dim=config.rope_dim)

    def forward(self, batch: Batch, kv: KVMemory) -> F32:
        """See `Model.forward`."""
        config, eps = self.config, self.config.rms_eps
        everywhere, nearby = (self._rotary_global.at(batch.positions), self._rotary_sliding.at(batch.positions))
        x = self._embedding[batch.token_ids] * self._embedding_scale
        for i in range(config.layers):
            sliding = config.sliding_layers[i]
            cos, sin = nearby if sliding else everywhere
            window = config.sliding_window if sliding else None
            rows = RowContext(batch=batch, keys=kv.keys[i], values=kv.values[i], cos=cos, sin=sin, window=window)
            mixed = self._attention[i](kernels.rms_norm(x, self._attention_norm[i], eps), rows)
            x = x + kernels.rms_norm(mixed, self._post_attention_norm[i], eps)
            thought = self._feed_forward[i](kernels.rms_norm(x, self._feed_forward_norm[i], eps))
            x = x + kernels.rms_norm(thought, self._post_feed_forward_norm[i], eps)
        return self._head(x, batch.logit_rows)
