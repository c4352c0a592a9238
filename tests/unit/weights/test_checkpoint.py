"""One model in both forms is one model to the engine."""

from __future__ import annotations

import dataclasses
import mmap
import weakref
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine.weights import RawTensor, open_checkpoint
from taximeter.engine.weights.config import tensor_shapes
from taximeter.errors import ModelFileError
from tests.engine_harness import GOLDEN, TINY_MODELS

tiny_models = pytest.mark.parametrize("name", [folder.name for folder in TINY_MODELS])


@tiny_models
def test_both_forms_of_a_model_have_one_config(name: str) -> None:
    """Written by transformers and by the gguf package from the same model: equal to the last bit of every float. Only
    llama 3's rope factors are merely close, since one form computes them and the other was given them."""
    folder, file = open_checkpoint(GOLDEN / name), open_checkpoint(GOLDEN / name / "model.gguf")
    assert folder.config == dataclasses.replace(file.config, rope_divisors=folder.config.rope_divisors)
    if folder.config.rope_divisors is None:
        assert file.config.rope_divisors is None
    else:
        np.testing.assert_allclose(file.config.rope_divisors, folder.config.rope_divisors, rtol=3e-7)
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
    stretched = open_checkpoint(GOLDEN / "tiny_llama3_rope").config.rope_divisors
    assert stretched is not None
    assert (stretched[0], stretched[3:]) == (1.0, (8.0,) * 5)
    assert 1.0 < stretched[1] < stretched[2] < 8.0
    mistral = open_checkpoint(GOLDEN / "tiny_mistral").config
    assert (mistral.architecture, mistral.sliding_window, mistral.sliding_layers) == ("mistral", 16, (True,) * 3)
    assert mistral.rope_base_sliding == mistral.rope_base == 1e4
    qwen2 = open_checkpoint(GOLDEN / "tiny_qwen2").config
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.sandwich_norms, qwen2.gated_activation) == (True, False, False, "silu")
    qwen3 = open_checkpoint(GOLDEN / "tiny_qwen3").config
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.tied_embeddings) == (False, True, False)
    assert qwen3.heads * qwen3.head_dim == 2 * qwen3.hidden_size
    assert (GOLDEN / "tiny_qwen3" / "model-00004-of-00004.safetensors").exists()


@tiny_models
def test_raw_tensors_are_the_stored_numbers(name: str) -> None:
    """In either form, whatever the type: widened, they are `tensor`'s bits; only what had to be changed was copied."""
    for path in (GOLDEN / name, GOLDEN / name / "model.gguf"):
        checkpoint = open_checkpoint(path)
        for tensor_name, shape in tensor_shapes(checkpoint.config).items():
            raw = checkpoint.raw(tensor_name)
            rows, row_weights = shape if len(shape) == 2 else (1, *shape)
            assert raw.shape == shape
            assert raw.data.shape == (rows, row_weights * {"F32": 4, "BF16": 2}[raw.kind])
            assert (raw.data.dtype, raw.data.flags.c_contiguous) == (np.uint8, True)
            wide = raw.dequantized()
            np.testing.assert_array_equal(wide.view(np.uint32), checkpoint.tensor(tensor_name).view(np.uint32))
            if path.is_dir():
                changed = "gemma" in name and "norm" in tensor_name
            else:
                changed = ("llama" in name or "mistral" in name) and tensor_name.split(".")[-2] in ("attn_q", "attn_k")
            assert raw.data.flags.writeable is changed, (path, tensor_name)


@pytest.mark.parametrize("form", ["", "model.gguf"])
def test_a_closed_checkpoint_lets_go_of_its_files(form: str) -> None:
    """Views taken before, and lists of a vocabulary, stay good and keep the file mapped; the mapping ends with the
    last of them."""
    checkpoint = open_checkpoint(GOLDEN / "tiny_qwen3" / form)
    raw, vocabulary = checkpoint.raw("output_norm.weight"), checkpoint.vocabulary()
    mapping = mapping_of(raw)
    before = raw.dequantized()
    checkpoint.close()
    checkpoint.close()
    np.testing.assert_array_equal(raw.dequantized(), before)
    assert vocabulary.tokens[1:2] == (["<s>"] if form else ())
    assert mapping() is not None
    del raw, vocabulary
    assert mapping() is None
    for read in (checkpoint.tensor, checkpoint.raw):
        with pytest.raises(ValueError, match="has been closed"):
            read("output_norm.weight")
    if form:
        with pytest.raises(ValueError, match="has been closed"):
            checkpoint.vocabulary()
    assert checkpoint.config.architecture == "qwen3"


def mapping_of(raw: RawTensor) -> weakref.ref[mmap.mmap]:
    """The mapped file that a tensor's bytes lie in."""
    owner: object = raw.data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else owner
    assert isinstance(mapping, mmap.mmap)
    return weakref.ref(mapping)


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
