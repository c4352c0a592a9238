"""One model in both forms is one model to the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.config import tensor_shapes
from taximeter.errors import ModelFileError

GOLDEN = Path(__file__).parents[2] / "golden"
tiny_models = pytest.mark.parametrize("name", ["tiny_llama", "tiny_llama_untied", "tiny_gemma3"])


@tiny_models
def test_both_forms_of_a_model_have_one_config(name: str) -> None:
    """Written by transformers and by the gguf package from the same model: equal to the last bit of every float."""
    folder, file = open_checkpoint(GOLDEN / name), open_checkpoint(GOLDEN / name / "model.gguf")
    assert folder.config == file.config
    assert (folder.path, file.path) == (GOLDEN / name, GOLDEN / name / "model.gguf")


@tiny_models
def test_both_forms_of_a_model_have_the_same_tensors(name: str) -> None:
    """Same names, same shapes, same bits: bfloat16 or float32, permuted or not, with gemma's one added or not."""
    folder, file = open_checkpoint(GOLDEN / name), open_checkpoint(GOLDEN / name / "model.gguf")
    assert set(folder.names()) == set(file.names()) == set(tensor_shapes(folder.config))
    for tensor_name, shape in tensor_shapes(folder.config).items():
        ours, theirs = folder.tensor(tensor_name), file.tensor(tensor_name)
        assert ours.shape == shape
        assert ours.dtype == theirs.dtype == np.float32
        assert ours.flags.c_contiguous
        assert theirs.flags.c_contiguous
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@tiny_models
def test_both_forms_of_a_model_name_the_same_special_tokens(name: str) -> None:
    """Ids, stops and template agree; only the way text is split is written down differently."""
    folder = open_checkpoint(GOLDEN / name).vocabulary()
    file = open_checkpoint(GOLDEN / name / "model.gguf").vocabulary()
    assert (folder.kind, file.kind) == ("json", "bpe")
    assert folder.tokenizer_json == GOLDEN / name / "tokenizer.json"
    assert (folder.bos_id, folder.eos_id, folder.unk_id) == (1, 2, 3)
    assert (file.bos_id, file.eos_id, file.unk_id) == (1, 2, 3)
    assert folder.stop_ids == file.stop_ids == (2, 5)
    assert folder.add_bos is file.add_bos is False
    assert folder.chat_template == file.chat_template
    assert folder.chat_template is not None


def test_the_tiny_models_cover_what_can_go_wrong() -> None:
    """Shared heads, heads of their own width, both kinds of layers, both scales, tied and not, one shard and more."""
    llama = open_checkpoint(GOLDEN / "tiny_llama").config
    untied = open_checkpoint(GOLDEN / "tiny_llama_untied").config
    gemma = open_checkpoint(GOLDEN / "tiny_gemma3").config
    assert (llama.heads, llama.kv_heads, llama.rope_base, llama.tied_embeddings) == (4, 2, 100_000.0, True)
    assert (untied.kv_heads, untied.rope_scale, untied.tied_embeddings) == (1, 4.0, False)
    assert gemma.sliding_layers == (True, True, True, True, True, False, True)
    assert (gemma.sliding_window, gemma.rope_base, gemma.rope_base_sliding) == (16, 1e6, 1e4)
    assert gemma.head_dim != gemma.hidden_size // gemma.heads
    assert gemma.attention_scale == np.float32(24**-0.5) != np.float32(gemma.head_dim**-0.5)
    assert (GOLDEN / "tiny_llama_untied" / "model-00003-of-00003.safetensors").exists()


def test_errors_name_the_path(tmp_path: Path) -> None:
    """Nothing there, or nothing that can be a model."""
    missing = tmp_path / "missing.gguf"
    with pytest.raises(ModelFileError, match=r"missing\.gguf is neither a file nor a folder"):
        open_checkpoint(missing)
    missing.write_text("not a model")
    with pytest.raises(ModelFileError, match=r"missing\.gguf: this is not a GGUF file"):
        open_checkpoint(missing)
    with pytest.raises(ModelFileError, match="cannot be read"):
        open_checkpoint(tmp_path / ("x" * 5_000))


def test_a_config_is_a_value() -> None:
    """Frozen, comparable, and checked again when copied with a change."""
    config = open_checkpoint(GOLDEN / "tiny_llama").config
    assert dataclasses.replace(config) == config
    with pytest.raises(ModelFileError, match="cannot share"):
        dataclasses.replace(config, kv_heads=3)
