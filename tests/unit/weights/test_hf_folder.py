"""A Hugging Face folder's tensors under the engine's names, and what its small files say of its tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from taximeter.engine.weights import open_checkpoint
from taximeter.errors import ModelFileError
from tests.unit.weights.small_gguf import HEAD_DIM, HIDDEN, VOCAB
from tests.unit.weights.small_hf import (
    GEMMA3,
    LLAMA,
    TOKENIZER,
    Arrays,
    Open,
    as_architecture,
    bias_arrays,
    gemma_arrays,
    head_norm_arrays,
    llama_arrays,
)


def test_an_untied_llama_needs_its_output_matrix(opened: Open) -> None:
    """Tying is off unless config.json says otherwise; a tied model's copy of its embedding is passed over."""
    untied = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    with pytest.raises(ModelFileError, match=r"output\.weight is missing"):
        opened(untied)
    arrays = llama_arrays() | {"lm_head.weight": np.ones((VOCAB, HIDDEN), dtype=np.float32)}
    assert opened(untied, arrays).tensor("output.weight").tolist() == [[1.0] * HIDDEN] * VOCAB
    assert "output.weight" not in opened(LLAMA, arrays).names()


def test_gemma3_norm_weights_come_with_their_one_added(opened: Open) -> None:
    """Stored as the distance from one, in every norm and nowhere else."""
    arrays = gemma_arrays()
    checkpoint = opened(GEMMA3, arrays)
    norms = {name for name in checkpoint.names() if "norm" in name}
    assert len(norms) == 7
    assert checkpoint.tensor("blk.0.attn_q_norm.weight").tolist() == [1.5] * HEAD_DIM
    assert checkpoint.tensor("blk.0.post_ffw_norm.weight").tolist() == [1.0] * HIDDEN
    before, after = arrays["model.norm.weight"], checkpoint.tensor("output_norm.weight")
    np.testing.assert_array_equal(after, before + np.float32(1))
    embedding = checkpoint.tensor("token_embd.weight")
    np.testing.assert_array_equal(embedding, arrays["model.embed_tokens.weight"])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_gemma3_that_also_sees_is_read_for_its_text(opened: Open, prefix: str) -> None:
    """Its text model lies inside, under either name; its eyes are passed over."""
    eyes = {"vision_tower.embeddings.weight": np.zeros(3, dtype=np.float32)}
    outer = {"model_type": "gemma3", "text_config": GEMMA3}
    checkpoint = opened(outer, gemma_arrays(prefix) | eyes)
    assert checkpoint.config.sliding_window == 16
    assert "blk.0.ffn_norm.weight" in checkpoint.names()


def test_a_qwen2_has_biases(opened: Open) -> None:
    """Always, without a key that says so; each is named when it is missing or of another length."""
    config = as_architecture("qwen2")
    checkpoint = opened(config)
    assert (checkpoint.config.architecture, checkpoint.config.qkv_bias) == ("qwen2", True)
    assert checkpoint.tensor("blk.0.attn_q.bias").tolist() == [*range(8)]
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.bias is missing"):
        opened(config, llama_arrays())
    name = "model.layers.0.self_attn.v_proj.bias"
    for wrong in ((3,), (5,), (1, 4), (4, 1)):
        with pytest.raises(ModelFileError, match=r"blk\.0\.attn_v\.bias has shape"):
            opened(config, llama_arrays() | bias_arrays() | {name: np.zeros(wrong, np.float32)})
    extra = {"model.layers.0.self_attn.o_proj.bias": np.zeros(HIDDEN, np.float32)}
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_output\.bias' has no place"):
        opened(config, llama_arrays() | bias_arrays() | extra)


def test_a_qwen3_norms_queries_and_keys_of_heads_as_wide_as_it_says(opened: Open) -> None:
    """128 dimensions unless the config says otherwise, whatever its hidden size; no biases."""
    config = opened(as_architecture("qwen3", head_dim=HEAD_DIM)).config
    assert (config.architecture, config.head_dim, config.attention_scale) == ("qwen3", 4, 0.5)
    assert (config.qkv_bias, config.qk_norm, config.sandwich_norms, config.gated_activation) == (
        False, True, False, "silu",
    )  # fmt: skip
    with pytest.raises(ModelFileError, match=r"attn_q\.weight has shape \(8, 8\), .* calls for \(256, 8\)"):
        opened(as_architecture("qwen3"))
    with pytest.raises(ModelFileError, match=r"attn_q_norm\.weight is missing"):
        opened(as_architecture("qwen3", head_dim=HEAD_DIM), llama_arrays())
    with pytest.raises(ModelFileError, match=r"attn_[qk]_norm\.weight' has no place in a llama"):
        opened(LLAMA, llama_arrays() | head_norm_arrays())
    biased = llama_arrays() | head_norm_arrays() | bias_arrays()
    with pytest.raises(ModelFileError, match=r"attn_[qkv]\.bias' has no place in a qwen3"):
        opened(as_architecture("qwen3", head_dim=HEAD_DIM, attention_bias=True), biased)


def test_float16_and_bfloat16_widen_exactly(folder: Path) -> None:
    """Every finite value of both, through a file whose header is as the format describes it."""
    every = np.arange(2**16, dtype="<u2")
    bfloat = (every.astype(np.uint32) << 16).view(np.float32)
    half = every.view("<f2").astype(np.float32)
    arrays = llama_arrays()
    layer = "model.layers.0."
    contents: dict[str, tuple[str, tuple[int, ...], bytes]] = {
        name: ("F32", array.shape, array.tobytes()) for name, array in arrays.items()
    }
    contents["model.embed_tokens.weight"] = ("BF16", (2**13, HIDDEN), every.tobytes())
    contents[f"{layer}mlp.up_proj.weight"] = ("F16", (2**13, HIDDEN), every.tobytes())
    contents[f"{layer}mlp.gate_proj.weight"] = ("F32", (2**13, HIDDEN), bytes(2**18))
    contents[f"{layer}mlp.down_proj.weight"] = ("F32", (HIDDEN, 2**13), bytes(2**18))
    header: dict[str, object] = {}
    data = b""
    for name, (dtype, shape, raw) in contents.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    config = dict(LLAMA) | {"vocab_size": 2**13, "intermediate_size": 2**13}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(checkpoint.tensor("token_embd.weight").reshape(-1), bfloat)
    np.testing.assert_array_equal(checkpoint.tensor("blk.0.ffn_up.weight").reshape(-1), half)


def test_other_stored_types_are_refused(opened: Open) -> None:
    """By the tensor's name, when the folder is opened."""
    arrays: dict[str, npt.NDArray[Any]] = dict(llama_arrays())
    arrays["model.norm.weight"] = arrays["model.norm.weight"].astype(np.float64)
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight' is stored as F64"):
        opened(LLAMA, arrays)


def sharded(folder: Path, arrays: Arrays, shards: Mapping[str, str]) -> Path:
    """`shards` gives a tensor's file; the others lie in a.safetensors."""
    weight_map = {name: shards.get(name, "a.safetensors") for name in arrays}
    for shard in set(weight_map.values()):
        if "/" not in shard:
            save_file({name: arrays[name] for name in arrays if weight_map[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_tensors_are_found_in_their_shards(folder: Path) -> None:
    """The index says where each lies."""
    arrays = llama_arrays()
    checkpoint = open_checkpoint(sharded(folder, arrays, {"model.norm.weight": "b-1_of_2.safetensors"}))
    np.testing.assert_array_equal(checkpoint.tensor("output_norm.weight"), arrays["model.norm.weight"])
    np.testing.assert_array_equal(checkpoint.tensor("token_embd.weight"), arrays["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    "shard",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "b/a.safetensors",
        "..\\a.safetensors",
        "a.bin",
        "",
        "a.safetensors\n",
        "C:a.safetensors",
    ],
)
def test_a_shard_outside_the_folder_is_refused(folder: Path, shard: str) -> None:
    """Even if there is such a file."""
    sharded(folder, llama_arrays(), {})
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"a.safetensors"', json.dumps(shard)))
    with pytest.raises(ModelFileError, match="outside the folder or of another kind"):
        open_checkpoint(folder)


def test_an_index_that_does_not_fit_its_shards_is_refused(folder: Path) -> None:
    """A shard that is not there, and a tensor that is not in its shard."""
    sharded(folder, llama_arrays(), {"model.norm.weight": "b.safetensors"})
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"b\.safetensors is missing"):
        open_checkpoint(folder)
    save_file({"other": np.zeros(1, dtype=np.float32)}, folder / "b.safetensors")
    with pytest.raises(ModelFileError, match=r"b.safetensors does not hold 'model\.norm\.weight'"):
        open_checkpoint(folder)


def test_an_incomplete_folder_is_refused(folder: Path) -> None:
    """No config, no weights, no sound JSON: each says which file."""
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read"):
        open_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_checkpoint(folder)
    for nonsense in (b"", b"{", b"[]", b"[" * 100_000, b'{"\xff": 1}', b"\xff"):
        (folder / "config.json").write_bytes(nonsense)
        with pytest.raises(ModelFileError, match=r"config\.json is not"):
            open_checkpoint(folder)


def test_a_safetensors_file_cut_anywhere_is_refused(opened: Open, folder: Path) -> None:
    """At every length of its header, and at some of its data."""
    opened()
    path = folder / "model.safetensors"
    size = path.stat().st_size
    for length in [size - 1, size // 2, *reversed(range(1_000))]:
        os.truncate(path, length)
        with pytest.raises(ModelFileError):
            open_checkpoint(folder)


FIELDS = {
    "dtype": [None, 3, "", "X", "I4", "F8_E4M3", "F16", "BF16", "F64"],
    "shape": [None, [], [0], [-1], [2**62, 4], [2**32, 2**32], [1.5], ["a"], [2**64]],
    "data_offsets": [None, [], [0], [5, 1], [-1, 4], [0, 2**63], [2**62, 2**62], [0, 2**64], "x"],
}


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A sound file's length and header with a few changes: what a field says, entries gone, doubled or renamed, or any
    bytes at all."""
    whole = save(dict(llama_arrays()))
    length = int.from_bytes(whole[:8], "little")
    if draw(st.booleans()):
        header = bytearray(whole[8 : 8 + length])
        for _ in range(draw(st.integers(1, 4))):
            header[draw(st.integers(0, length - 1))] = draw(st.integers(0, 255))
        return draw(st.sampled_from([whole[:8], b"\0" * 8, b"\xff" * 8])), bytes(header)
    entries: dict[str, Any] = json.loads(whole[8 : 8 + length])
    name = draw(st.sampled_from(sorted(entries)))
    match draw(st.sampled_from(["field", "gone", "twice", "renamed", "replaced", "metadata"])):
        case "field":
            field = draw(st.sampled_from(sorted(FIELDS)))
            entries[name] = entries[name] | {field: draw(st.sampled_from(FIELDS[field]))}
        case "gone":
            del entries[name]
        case "twice":
            entries[name + "x"] = entries[name]
        case "renamed":
            new = draw(st.sampled_from(["", "\x1b[31m", "a" * 5000, "model.layers.99999999.mlp.up_proj.weight"]))
            entries[new] = entries.pop(name)
        case "replaced":
            entries[name] = draw(st.sampled_from([None, [], 3, "a", {}]))
        case _:
            entries["__metadata__"] = draw(st.sampled_from([None, [], {"a": 1}, {"x": "y" * 100_000}]))
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little"), header


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged=headers())
def test_a_damaged_safetensors_header_opens_whole_or_is_refused(
    damaged: tuple[bytes, bytes], opened: Open, folder: Path
) -> None:
    """Whatever it says: a `ModelFileError` that names the folder, or a model all of whose tensors can be read."""
    opened()
    path = folder / "model.safetensors"
    content = path.read_bytes()
    data = content[8 + int.from_bytes(content[:8], "little") :]
    path.write_bytes(b"".join(damaged) + data)
    refusal: ModelFileError | None = None
    try:
        checkpoint = open_checkpoint(folder)
        tensors = [checkpoint.tensor(name) for name in checkpoint.names()]
        assert all(tensor.dtype == np.float32 for tensor in tensors)
    except ModelFileError as error:
        refusal = error
    assert refusal is None or str(folder) in refusal.message


def test_ids_come_by_name_from_the_tokenizer_and_by_number_from_the_model(opened: Open, folder: Path) -> None:
    """A name wins over a number; every id named as an end stops the answer."""
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "unk_token_id": -1}))
    vocabulary = opened(dict(LLAMA) | {"bos_token_id": 3, "eos_token_id": 2, "unk_token_id": 3}).vocabulary()
    assert (vocabulary.kind, vocabulary.tokenizer_json) == ("json", folder / "tokenizer.json")
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 3)
    assert (vocabulary.stop_ids, vocabulary.add_bos) == ((1, 2), True)


def test_without_the_small_files_the_model_config_decides(opened: Open) -> None:
    """Only tokenizer.json is needed."""
    vocabulary = opened(dict(LLAMA) | {"bos_token_id": 0, "eos_token_id": [1, 2]}).vocabulary()
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.stop_ids) == (0, 1, (1, 2))
    assert (vocabulary.add_bos, vocabulary.chat_template) == (False, None)


@pytest.mark.parametrize("nested", [False, True])
def test_bos_is_added_when_the_tokenizer_would_add_it(opened: Open, folder: Path, nested: bool) -> None:
    """Its post-processor says so, alone or as one of a sequence; a flag beside it overrules it."""
    piece = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}]}
    processor = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]} if nested else template
    (folder / "tokenizer.json").write_text(json.dumps(dict(TOKENIZER) | {"post_processor": processor}))
    config = dict(LLAMA) | {"bos_token_id": 0}
    assert opened(config).vocabulary().add_bos is True
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    assert opened(config).vocabulary().add_bos is False


def test_the_chat_template_in_its_three_places(opened: Open, folder: Path) -> None:
    """A text, the one called default of a list, and before both a file of its own."""
    about = folder / "tokenizer_config.json"
    about.write_text(json.dumps({"chat_template": "one"}))
    assert opened().vocabulary().chat_template == "one"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]
    about.write_text(json.dumps({"chat_template": named}))
    assert opened().vocabulary().chat_template == "two"
    (folder / "chat_template.jinja").write_text("größer", encoding="utf-8")
    assert opened().vocabulary().chat_template == "größer"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja cannot be read"):
        opened().vocabulary()


def test_a_special_token_beyond_the_vocabulary_is_refused(opened: Open, folder: Path) -> None:
    """It would index past the embedding."""
    with pytest.raises(ModelFileError, match="special token 4 lies beyond the vocabulary of 4"):
        opened(dict(LLAMA) | {"eos_token_id": 4}).vocabulary()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json cannot be read"):
        opened().vocabulary()
