"""What a Hugging Face folder says about its model, and its tensors under the engine's names."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from taximeter.engine.weights import Checkpoint, open_checkpoint
from taximeter.errors import ModelFileError
from tests.unit.weights.small_gguf import FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB

Arrays = Mapping[str, npt.NDArray[Any]]
Open = Callable[..., Checkpoint]

LLAMA: Mapping[str, object] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
GEMMA3: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
}
TOKENIZER: Mapping[str, object] = {
    "added_tokens": [{"id": 0, "content": "<s>"}, {"id": 1, "content": "</s>"}, {"id": 2, "content": "<end>"}],
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


def llama_arrays() -> dict[str, npt.NDArray[np.float32]]:
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}mlp.gate_proj.weight": (FF, HIDDEN),
        f"{layer}mlp.up_proj.weight": (FF, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, FF),
    }
    generator = np.random.default_rng(5)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gemma_arrays(prefix: str = "model.") -> dict[str, npt.NDArray[np.float32]]:
    arrays = llama_arrays()
    for name in ("q_norm", "k_norm"):
        arrays[f"model.layers.0.self_attn.{name}.weight"] = np.full(HEAD_DIM, 0.5, dtype=np.float32)
    for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        arrays[f"model.layers.0.{name}.weight"] = np.zeros(HIDDEN, dtype=np.float32)
    return {prefix + name.removeprefix("model."): array for name, array in arrays.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Open:
    def opened(config: Mapping[str, object] = LLAMA, arrays: Arrays | None = None) -> Checkpoint:
        (folder / "config.json").write_text(json.dumps(config))
        if arrays is None:
            arrays = llama_arrays() if config["model_type"] == "llama" else gemma_arrays()
        save_file(dict(arrays), folder / "model.safetensors")
        return open_checkpoint(folder)

    return opened


def test_a_llama_gets_what_the_folder_says_and_transformers_assumes(opened: Open) -> None:
    """A config with only what is not a default."""
    config = opened().config
    assert (config.architecture, config.heads, config.kv_heads, config.head_dim) == ("llama", 2, 1, 4)
    assert (config.rope_base, config.rope_scale, config.rope_dim) == (10_000.0, 1.0, 4)
    assert (config.attention_scale, config.embedding_scale, config.logit_softcap) == (0.5, 1.0, None)
    assert (config.sliding_window, config.sliding_layers, config.tied_embeddings) == (None, (False,), True)


def test_an_untied_llama_needs_its_output_matrix(opened: Open) -> None:
    """Tying is off unless config.json says otherwise; a tied model's copy of its embedding is passed over."""
    untied = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    with pytest.raises(ModelFileError, match=r"output\.weight is missing"):
        opened(untied)
    arrays = llama_arrays() | {"lm_head.weight": np.ones((VOCAB, HIDDEN), dtype=np.float32)}
    assert opened(untied, arrays).tensor("output.weight").tolist() == [[1.0] * HIDDEN] * VOCAB
    assert "output.weight" not in opened(LLAMA, arrays).names()


def test_a_gemma3_gets_what_the_folder_says_and_transformers_assumes(opened: Open) -> None:
    """Scale of queries from its own key, sqrt(hidden) for embeddings, both rope bases, the window's size."""
    config = opened(GEMMA3).config
    assert (config.architecture, config.attention_scale, config.tied_embeddings) == ("gemma3", 0.25, True)
    assert (config.rope_base, config.rope_base_sliding, config.rope_scale) == (1e6, 10_000.0, 1.0)
    assert (config.sliding_window, config.sliding_layers) == (16, (True,))
    assert config.embedding_scale == np.float32(math.sqrt(HIDDEN))
    assert (config.rms_eps, config.context_length_tokens) == (np.float32(1e-6), 131_072)


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


@pytest.mark.parametrize(
    ("changes", "base", "sliding_base", "scale"),
    [
        ({"rope_theta": 5e5}, 5e5, 1e4, 1.0),
        ({"rope_local_base_freq": 2e4}, 1e6, 2e4, 1.0),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 1e6, 1e4, 8.0),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e6, 1e4, 2.0),
        ({"rope_scaling": None}, 1e6, 1e4, 1.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}, 3e4, 1e4, 1.0),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 2e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
                }
            },
            2e6,
            7e3,
            8.0,
        ),
    ],
    ids=str,
)
def test_rope_in_the_old_spelling_and_the_new(
    opened: Open, changes: dict[str, object], base: float, sliding_base: float, scale: float
) -> None:
    """Top-level keys before transformers 5, `rope_parameters` since."""
    config = opened(dict(GEMMA3) | changes).config
    assert (config.rope_base, config.rope_base_sliding, config.rope_scale) == (base, sliding_base, scale)


@pytest.mark.parametrize(
    ("changes", "sliding"),
    [
        ({"layer_types": ["full_attention"]}, False),
        ({"layer_types": ["sliding_attention"]}, True),
        ({"sliding_window_pattern": 1}, False),
        ({"_sliding_window_pattern": 1}, False),
        ({"sliding_window_pattern": 2}, True),
    ],
    ids=str,
)
def test_which_layers_slide(opened: Open, changes: dict[str, object], sliding: bool) -> None:
    """A list of kinds, or a period under either of its names."""
    assert opened(dict(GEMMA3) | changes).config.sliding_layers == (sliding,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "kind 'llama3' is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 8}}, "kind 'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scale is 0"),
        ({"partial_rotary_factor": 0.5}, "partly rotated"),
        ({"quantization_config": {"bits": 4}}, "quantized safetensors"),
        ({"num_attention_heads": 0}, "0 attention heads"),
        ({"num_attention_heads": "2"}, "should be a whole number"),
        ({"num_attention_heads": True}, "should be a whole number"),
        ({"num_hidden_layers": 10**9}, "layers is 1000000000"),
        ({"num_hidden_layers": 2}, "blk.1.attn_norm.weight is missing"),
        ({"hidden_size": 10**400}, "should be a whole number"),
        ({"rms_norm_eps": 10**400}, "should be a number"),
        ({"rms_norm_eps": math.inf}, "rms_eps is inf"),
        ({"vocab_size": 5}, "token_embd.weight has shape"),
        ({"attention_bias": True}, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_impossible_or_unsupported_config_is_refused(opened: Open, changes: dict[str, object], message: str) -> None:
    """Each with what is wrong; biases by the tensors they come as."""
    arrays = llama_arrays()
    if "attention_bias" in changes:
        arrays["model.layers.0.self_attn.q_proj.bias"] = np.zeros(HIDDEN, dtype=np.float32)
        message = r"blk\.0\.attn_q\.bias' has no place"
    with pytest.raises(ModelFileError, match=message) as caught:
        opened(dict(LLAMA) | changes, arrays)
    assert caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": 50.0},
        {"use_bidirectional_attention": True},
        {"layer_types": ["linear_attention"]},
        {"layer_types": ["full_attention"] * 2},
        {"sliding_window_pattern": -6},
        {"sliding_window": 0},
        {"query_pre_attn_scalar": 0},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2}}},
    ],
    ids=str,
)
def test_a_gemma3_that_is_computed_otherwise_is_refused(opened: Open, changes: dict[str, object]) -> None:
    """Rather than computed wrongly."""
    with pytest.raises(ModelFileError):
        opened(dict(GEMMA3) | changes)


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


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from([LLAMA, GEMMA3]), data=st.data())
def test_any_config_either_opens_or_is_refused(base: Mapping[str, object], data: st.DataObject, folder: Path) -> None:
    """Whatever stands in a key that is read."""
    weights = folder / "model.safetensors"
    if not weights.exists():
        save_file(llama_arrays(), weights)
    names = [
        *GEMMA3,
        *LLAMA,
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "head_dim",
        "text_config",
        "eos_token_id",
    ]
    changes = data.draw(st.dictionaries(st.sampled_from(names), anything, min_size=1, max_size=2))
    (folder / "config.json").write_text(json.dumps(dict(base) | changes))
    try:
        open_checkpoint(folder).vocabulary()
    except ModelFileError:
        return


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
