"""The embedded engine: real models on this machine's own processor, behind the `Backend` protocol.

The door is `taximeter.engine.backend.EmbeddedBackend`. Behind it, one request at a time through the rooms: `tokenizer`
and `chat_template` make tokens; `scheduler` decides what a step computes and `kv_cache` where its memory is;
`model_runner` computes it with a model of `models` on the arithmetic of `kernels`; `sampler` picks the next token;
`output` turns it back into text; `core` goes round.
"""
