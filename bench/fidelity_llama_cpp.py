"""llama.cpp as a source of logits. `bench/fidelity.py` starts this in an interpreter that has llama-cpp-python.

    python bench/fidelity_llama_cpp.py MODEL.gguf --context-tokens 2048 --threads 2 --rows 64

Reads lines of JSON from stdin, {"token_ids": [...], "wanted_from": n}, and answers each with the logits after every
token from there on: float32, one row after the other, on stdout. Its first line there says which version it is.

As llama.cpp runs by default: flash attention, keys and values in f16. Weights are not repacked, which changes their
order in memory and the order of sums, not their values, and needs instructions that a build may take for granted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def opened(path: Path, *, context_tokens: int, threads: int) -> llama_cpp.Llama:
    """The model, with room for one sequence."""
    defaults = llama_cpp.llama_model_default_params

    def plain_parameters() -> llama_cpp.llama_model_params:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_cpp.llama_model_default_params = plain_parameters
    return llama_cpp.Llama(
        model_path=str(path),
        n_ctx=context_tokens,
        n_batch=512,
        n_ubatch=512,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        verbose=False,
    )


def write_logits(model: llama_cpp.Llama, token_ids: list[int], wanted_from: int, rows: int) -> None:
    """Decode one sequence in batches of at most `rows`, and write the rows that are wanted."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
    batch = llama_cpp.llama_batch_init(rows, 0, 1)
    for start in range(0, len(token_ids), rows):
        end = min(start + rows, len(token_ids))
        batch.n_tokens = end - start
        for row, position in enumerate(range(start, end)):
            batch.token[row] = token_ids[position]
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = position >= wanted_from
        if llama_cpp.llama_decode(model.ctx, batch):
            sys.exit("llama.cpp could not decode")
        wanted = end - max(start, wanted_from)
        if wanted > 0:
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(model.ctx), (wanted, model.n_vocab()))
            sys.stdout.buffer.write(logits.tobytes())
    sys.stdout.buffer.flush()
    llama_cpp.llama_batch_free(batch)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    model = opened(options.model, context_tokens=options.context_tokens, threads=options.threads)
    sys.stdout.write(f"llama-cpp-python {llama_cpp.__version__}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        write_logits(model, asked["token_ids"], asked["wanted_from"], options.rows)


if __name__ == "__main__":
    main()
