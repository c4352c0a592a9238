"""What a GGUF file's metadata says about its model, and its tensors in the engine's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from taximeter.engine.weights import Checkpoint, open_checkpoint
from taximeter.errors import ModelFileError
from tests.unit.weights.small_gguf import (
    HEAD_DIM,
    HIDDEN,
    METADATA,
    container,
    gemma_metadata,
    key,
    small_gemma_weights,
    small_model,
    small_weights,
    tensor,
    typed,
)

Weights = Mapping[str, npt.NDArray[np.float32]]
Open = Callable[..., Checkpoint]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def opened(metadata: Mapping[str, object] = METADATA, weights: Weights | None = None) -> Checkpoint:
        path = tmp_path / "small.gguf"
        path.write_bytes(small_model(metadata, weights))
        return open_checkpoint(path)

    return opened


def llama(**changes: object) -> dict[str, object]:
    """`METADATA` with changes to keys below `llama.`, with __ for a dot. None takes a key out."""
    metadata = dict(METADATA) | {f"llama.{name.replace('__', '.')}": value for name, value in changes.items()}
    return {name: value for name, value in metadata.items() if value is not None}


def test_a_llama_gets_what_the_file_says_and_the_format_assumes(opened: Open) -> None:
    """Head size from hidden size, base 10,000 when the file names none, no window, tied without an output matrix."""
    config = opened().config
    assert (config.architecture, config.name, config.layers, config.vocab_size) == ("llama", "small", 1, 4)
    assert (config.heads, config.kv_heads, config.head_dim, config.rope_dim) == (2, 1, 4, 4)
    assert (config.rope_base, config.rope_scale, config.attention_scale) == (10_000.0, 1.0, 0.5)
    assert (config.sliding_window, config.sliding_layers) == (None, (False,))
    assert (config.embedding_scale, config.logit_softcap, config.tied_embeddings) == (1.0, None, True)
    assert config.rms_eps == np.float32(1e-5)


def test_the_rope_base_comes_from_the_file(opened: Open) -> None:
    """SmolLM2 rotates by 100,000, and so does whatever the file says."""
    assert opened(llama(rope__freq_base=100_000.0)).config.rope_base == 100_000.0


def test_the_vocabulary_size_comes_from_its_key_or_from_the_embedding(opened: Open) -> None:
    """When both are there they must agree."""
    assert opened(llama(vocab_size=4)).config.vocab_size == 4
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has shape"):
        opened(llama(vocab_size=5))


def test_per_layer_numbers_are_taken_when_all_are_the_same(opened: Open) -> None:
    """Some writers give a list; layers that differ are refused."""
    assert opened(llama(attention__head_count=[2])).config.heads == 2
    with pytest.raises(ModelFileError, match="differs between layers"):
        opened(llama(attention__head_count=[2, 1]))


def test_linear_rope_scaling_is_read_in_each_spelling(opened: Open) -> None:
    """The kind may be left out, an older key may hold the factor, and none means none."""
    assert opened(llama(rope__scaling__type="linear", rope__scaling__factor=8.0)).config.rope_scale == 8.0
    assert opened(llama(rope__scaling__factor=4.0)).config.rope_scale == 4.0
    assert opened(llama(rope__scale_linear=2.0)).config.rope_scale == 2.0
    assert opened(llama(rope__scaling__type="none", rope__scaling__factor=8.0)).config.rope_scale == 1.0


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3"])
def test_other_rope_scaling_is_refused_by_name(opened: Open, kind: str) -> None:
    """Positions turned the wrong way would give fluent nonsense."""
    with pytest.raises(ModelFileError, match=f"kind '{kind}' is not supported"):
        opened(llama(rope__scaling__type=kind))


def test_llama_3_rope_factors_are_part_of_the_config(opened: Open) -> None:
    """Llama 3.1 files name no kind of scaling, but hold a tensor of factors, which is no weight."""
    factors = np.array([1.0, 2.7], dtype=np.float32)
    checkpoint = opened(METADATA, small_weights() | {"rope_freqs.weight": factors})
    assert checkpoint.config.rope_divisors == tuple(factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.names()
    assert opened().config.rope_divisors is None


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0], "1 rope factors for 4 dimensions"),
        ([1.0] * 4, "4 rope factors for 4 dimensions"),
        ([1.0, 0.0], "a rope factor is 0"),
        ([1.0, -8.0], "a rope factor is -8"),
        ([1.0, math.nan], "a rope factor is nan"),
        ([math.inf, 1.0], "a rope factor is inf"),
        ([[1.0], [1.0]], r"rope_freqs\.weight has shape \(2, 1\)"),
        ([1.0] * 40_000, r"rope_freqs\.weight has shape \(40000,\)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_rope_factors_are_refused(opened: Open, factors: list[float], message: str) -> None:
    """One positive number for each pair of dimensions that turns."""
    weights = small_weights() | {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    with pytest.raises(ModelFileError, match=message):
        opened(METADATA, weights)


def test_an_unknown_architecture_is_refused_with_the_known_ones(opened: Open) -> None:
    """The hint is the list."""
    with pytest.raises(ModelFileError, match="'mamba' is not supported") as caught:
        opened(dict(METADATA) | {"general.architecture": "mamba"})
    assert caught.value.hint == "supported architectures: llama, gemma3, mistral3, qwen2, qwen3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention__head_count": 0}, "0 attention heads"),
        ({"attention__head_count": 3, "attention__head_count_kv": 2, "attention__key_length": 4}, "cannot share"),
        ({"attention__key_length": 3, "attention__value_length": 3}, "rotated in pairs"),
        ({"attention__value_length": 8}, "different sizes"),
        ({"rope__dimension_count": 6}, "do not fit a head of 4"),
        ({"rope__dimension_count": 3}, "do not fit a head of 4"),
        ({"embedding_length": 0}, "hidden_size is 0"),
        ({"block_count": 0}, "layers is 0"),
        ({"block_count": 2**32 - 1}, "layers is 4294967295"),
        ({"block_count": None}, "block_count is missing"),
        ({"context_length": "long"}, "context_length should be a whole number"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, "rms_eps is 0"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "rms_eps is nan"),
        ({"rope__freq_base": math.inf}, "rope_base is inf"),
        ({"rope__freq_base": -1.0}, "rope_base is -1"),
        ({"expert_count": 8}, "mixtures of experts"),
        ({"attn_logit_softcapping": 50.0}, "soft-capped attention"),
        ({"attention__temperature_scale": 0.1}, "scaled by position"),
        ({"rope__scaling__attn_factor": 1.2}, "also stretch"),
    ],
    ids=str,
)
def test_an_impossible_or_unsupported_shape_is_refused(opened: Open, changes: dict[str, object], message: str) -> None:
    """Each with the number that is wrong."""
    with pytest.raises(ModelFileError, match=message):
        opened(llama(**changes))


def test_one_part_of_a_split_model_is_refused(opened: Open) -> None:
    """The hint says how to join the parts."""
    with pytest.raises(ModelFileError, match="one part of a split model"):
        opened(dict(METADATA) | {"split.count": 3})


def test_a_missing_a_misshapen_and_a_needless_tensor_are_named(opened: Open) -> None:
    """The message holds the tensor's name; a bias that nobody would add is as bad as a weight that is not there."""
    name = "blk.0.ffn_up.weight"
    weights = small_weights()
    with pytest.raises(ModelFileError, match=f"{name} is missing"):
        opened(METADATA, {other: weights[other] for other in weights if other != name})
    with pytest.raises(ModelFileError, match=rf"{name} has shape \(8, 4\), .* calls for \(8, 8\)"):
        opened(METADATA, weights | {name: weights[name][:, :4]})
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_output\.bias' has no place"):
        opened(METADATA, weights | {"blk.0.attn_output.bias": np.zeros(HIDDEN, dtype=np.float32)})


def test_query_and_key_rows_come_in_half_split_order(opened: Open) -> None:
    """In the file rows 2i and 2i + 1 of a head turn together; for the engine i and i + head_dim / 2 do."""
    weights = small_weights()
    checkpoint = opened(METADATA, weights)
    query, key = weights["blk.0.attn_q.weight"], weights["blk.0.attn_k.weight"]
    np.testing.assert_array_equal(checkpoint.tensor("blk.0.attn_q.weight"), query[[0, 2, 1, 3, 4, 6, 5, 7]])
    np.testing.assert_array_equal(checkpoint.tensor("blk.0.attn_k.weight"), key[[0, 2, 1, 3]])
    np.testing.assert_array_equal(checkpoint.tensor("blk.0.attn_v.weight"), weights["blk.0.attn_v.weight"])


def as_architecture(architecture: str, **changes: object) -> dict[str, object]:
    """`llama(**changes)` of another architecture."""
    metadata = {name.replace("llama.", f"{architecture}."): value for name, value in llama(**changes).items()}
    return metadata | {"general.architecture": architecture}


def small_biases() -> dict[str, npt.NDArray[np.float32]]:
    return {
        "blk.0.attn_q.bias": np.arange(8, dtype=np.float32),
        "blk.0.attn_k.bias": np.arange(4, dtype=np.float32),
        "blk.0.attn_v.bias": np.arange(4, dtype=np.float32),
    }


def test_biases_of_a_llama_are_reordered_with_their_rows(opened: Open) -> None:
    """Only some llamas have them; where they are, they turn as the rows do."""
    checkpoint = opened(METADATA, small_weights() | small_biases())
    assert checkpoint.config.qkv_bias
    assert checkpoint.tensor("blk.0.attn_q.bias").tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert checkpoint.tensor("blk.0.attn_k.bias").tolist() == [0, 2, 1, 3]
    assert checkpoint.tensor("blk.0.attn_v.bias").tolist() == [0, 1, 2, 3]
    assert checkpoint.raw("blk.0.attn_q.bias").data.shape == (1, 32)


def test_a_bias_in_blocks_is_refused(tmp_path: Path) -> None:
    """Its weights could not be put in order one by one."""
    metadata = llama(attention__key_length=32, attention__value_length=32)
    biases = ("q", 64), ("k", 32), ("v", 32)
    shapes = {name: array.shape for name, array in small_weights().items()}
    shapes |= {f"blk.0.attn_{part}.weight": (size, HIDDEN) for part, size in biases}
    shapes |= {"blk.0.attn_output.weight": (HIDDEN, 64)}
    shapes |= {f"blk.0.attn_{part}.bias": (size,) for part, size in biases}
    tensors, data = list[bytes](), b""
    for name, shape in shapes.items():
        blocks = name == "blk.0.attn_k.bias"
        tensors.append(tensor(name, shape[::-1], 8 if blocks else 0, len(data)))
        size_bytes = 34 if blocks else 4 * math.prod(shape)
        data += bytes(size_bytes + -size_bytes % 32)
    path = tmp_path / "blocks.gguf"
    path.write_bytes(container([key(name, typed(value)) for name, value in metadata.items()], tensors, data))
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_k\.bias is stored as Q8_0"):
        open_checkpoint(path)


def test_a_qwen2_has_biases_and_its_rows_as_they_are(opened: Open) -> None:
    """Its files are made for half-split rotation."""
    weights = small_weights() | small_biases()
    checkpoint = opened(as_architecture("qwen2"), weights)
    assert (checkpoint.config.architecture, checkpoint.config.qkv_bias) == ("qwen2", True)
    for name in ("blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        np.testing.assert_array_equal(checkpoint.tensor(name), weights[name])


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_biases_come_together_and_in_the_shape_of_their_rows(opened: Open, architecture: str, name: str) -> None:
    """One too few, one of another length, and one that is a matrix are named."""
    metadata, weights = as_architecture(architecture), small_weights() | small_biases()
    if (architecture, name) != ("llama", "blk.0.attn_q.bias"):  # whose absence means that there are none
        with pytest.raises(ModelFileError, match=f"{name} is missing"):
            opened(metadata, {other: array for other, array in weights.items() if other != name})
    for wrong in (weights[name][:-1], weights[name][None, :], weights[name][:, None]):
        with pytest.raises(ModelFileError, match=f"{name} has shape"):
            opened(metadata, weights | {name: np.ascontiguousarray(wrong)})


def test_a_qwen3_norms_its_queries_and_keys(opened: Open) -> None:
    """Each head by one weight vector; heads as wide as the file says; no biases."""
    weights = small_weights() | {f"blk.0.attn_{part}_norm.weight": np.ones(4, np.float32) for part in "qk"}
    config = opened(as_architecture("qwen3", attention__key_length=4, attention__value_length=4), weights).config
    assert (config.architecture, config.qk_norm, config.qkv_bias, config.sandwich_norms) == (
        "qwen3",
        True,
        False,
        False,
    )
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q_norm\.weight is missing"):
        opened(as_architecture("qwen3"), small_weights())
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q_norm\.weight' has no place in a llama"):
        opened(METADATA, weights)
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.bias' has no place|attn_k\.bias is missing"):
        opened(as_architecture("qwen3"), weights | {"blk.0.attn_q.bias": np.zeros(8, np.float32)})


@pytest.mark.parametrize("architecture", ["llama", "mistral3"])
def test_a_mistral_slides_in_every_layer_where_the_file_says_so(opened: Open, architecture: str) -> None:
    """Under either name its rows are permuted; sliding layers turn by the model's one base, and are never scaled."""
    changes: dict[str, object] = {"attention__sliding_window": 16, "rope__freq_base": 5e4}
    weights = small_weights()
    checkpoint = opened(as_architecture(architecture, **changes), weights)
    config = checkpoint.config
    assert config.architecture == ("mistral" if architecture == "mistral3" else "llama")
    assert (config.sliding_window, config.sliding_layers) == (16, (True,))
    assert (config.rope_base, config.rope_base_sliding) == (5e4, 5e4)
    np.testing.assert_array_equal(
        checkpoint.tensor("blk.0.attn_k.weight"), weights["blk.0.attn_k.weight"][[0, 2, 1, 3]]
    )
    assert opened(as_architecture(architecture), weights).config.sliding_window is None
    with pytest.raises(ModelFileError, match="scaled positions in sliding layers"):
        opened(as_architecture(architecture, **changes, rope__scaling__factor=4.0), weights)
    with pytest.raises(ModelFileError, match="scaled positions in sliding layers"):
        opened(as_architecture(architecture, **changes), weights | {"rope_freqs.weight": np.ones(2, np.float32)})


def test_a_qwen_with_a_window_must_say_which_layers_slide(opened: Open) -> None:
    """There is no pattern that all of them share."""
    weights = small_weights() | small_biases()
    with pytest.raises(ModelFileError, match="sliding_window_pattern is missing"):
        opened(as_architecture("qwen2", attention__sliding_window=16), weights)
    flags = {"attention__sliding_window": 16, "attention__sliding_window_pattern": [True]}
    assert opened(as_architecture("qwen2", **flags), weights).config.sliding_layers == (True,)


def test_only_the_turned_dimensions_of_a_head_are_reordered(opened: Open) -> None:
    """Dimensions beyond rope_dim stay where they are."""
    weights = small_weights()
    checkpoint = opened(llama(rope__dimension_count=2), weights)
    np.testing.assert_array_equal(checkpoint.tensor("blk.0.attn_k.weight"), weights["blk.0.attn_k.weight"])


def test_a_tensor_is_the_callers_own(opened: Open) -> None:
    """Writing into it changes neither the file nor the next one."""
    checkpoint = opened()
    first = checkpoint.tensor("output_norm.weight")
    first[:] = 0
    assert checkpoint.tensor("output_norm.weight").any()
    with pytest.raises(KeyError):
        checkpoint.tensor("output.weight")


def test_gemma3_defaults_where_the_file_is_silent(opened: Open) -> None:
    """Every sixth layer global, base 10,000 for the others, embeddings times sqrt(hidden), rows as they are."""
    weights = small_gemma_weights()
    parts = {name.removeprefix("blk.0."): array for name, array in weights.items() if name.startswith("blk.0.")}
    deep = weights | {f"blk.{layer}.{part}": array for layer in range(1, 7) for part, array in parts.items()}
    checkpoint = opened(gemma_metadata(block_count=7, rope__freq_base=1e6), deep)
    config = checkpoint.config
    assert config.sliding_layers == (True, True, True, True, True, False, True)
    assert (config.sliding_window, config.rope_base, config.rope_base_sliding) == (16, 1e6, 10_000.0)
    assert config.embedding_scale == np.float32(math.sqrt(HIDDEN))
    assert config.attention_scale == 1 / math.sqrt(HEAD_DIM)
    np.testing.assert_array_equal(checkpoint.tensor("blk.3.attn_q.weight"), weights["blk.0.attn_q.weight"])


@pytest.mark.parametrize(
    ("changes", "window", "sliding"),
    [
        ({"attention__sliding_window_pattern": 1}, None, False),
        ({"attention__sliding_window_pattern": 2}, 16, True),
        ({"attention__sliding_window_pattern": 0}, 16, True),
        ({"attention__sliding_window_pattern": [True]}, 16, True),
        ({"attention__sliding_window_pattern": [0]}, None, False),
        ({"attention__sliding_window": 0}, None, False),
    ],
    ids=str,
)
def test_gemma3_pattern_as_a_period_or_as_flags(
    opened: Open, changes: dict[str, object], window: int | None, sliding: bool
) -> None:
    """And no window at all where no layer slides."""
    config = opened(gemma_metadata(**changes), small_gemma_weights()).config
    assert (config.sliding_window, config.sliding_layers) == (window, (sliding,))


def test_gemma3_says_more_when_the_file_does(opened: Open) -> None:
    """A base for sliding layers, a query scale, a soft cap, a scale for global layers; a short pattern is refused."""
    changes = {"rope__freq_base_swa": 5e3, "attention__scale": 0.25, "final_logit_softcapping": 30.0}
    config = opened(gemma_metadata(**changes, rope__scaling__factor=8.0), small_gemma_weights()).config
    assert (config.rope_base_sliding, config.attention_scale, config.logit_softcap) == (5e3, 0.25, 30.0)
    assert config.rope_scale == 8.0
    with pytest.raises(ModelFileError, match="names 2 layers, the model has 1"):
        opened(gemma_metadata(attention__sliding_window_pattern=[True, False]), small_gemma_weights())


def test_the_27b_gemma_scales_queries_by_its_own_measure(opened: Open) -> None:
    """62 layers: 1/sqrt(hidden / heads), for which the format has no key. Here heads are wider than that."""
    wide = 2 * HEAD_DIM
    weights = small_gemma_weights()
    layer: dict[str, npt.NDArray[np.float32]] = {}
    for name, array in weights.items():
        part = name.removeprefix("blk.0.")
        if part in ("attn_q.weight", "attn_k.weight", "attn_v.weight"):
            layer[part] = np.repeat(array, 2, axis=0)
        elif part == "attn_output.weight":
            layer[part] = np.repeat(array, 2, axis=1)
        elif part in ("attn_q_norm.weight", "attn_k_norm.weight"):
            layer[part] = np.ones(wide, dtype=np.float32)
        elif part != name:
            layer[part] = array
    outer = {name: array for name, array in weights.items() if not name.startswith("blk.")}
    deep = outer | {f"blk.{number}.{part}": array for number in range(62) for part, array in layer.items()}
    metadata = gemma_metadata(block_count=62, attention__key_length=wide, attention__value_length=wide)
    assert opened(metadata, deep).config.attention_scale == np.float32(1 / math.sqrt(HIDDEN / 2))


def test_a_byte_level_vocabulary(opened: Open) -> None:
    """Lists as they stand; flags off unless the file sets them; the end-of-turn token ends an answer too."""
    metadata = dict(METADATA) | {
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.chat_template": "{{ messages }}",
    }
    vocabulary = opened(metadata).vocabulary()
    assert (vocabulary.kind, vocabulary.pre) == ("bpe", "gpt-2")
    assert [*vocabulary.tokens] == ["<s>", "</s>", "a", "b"]
    assert ([*vocabulary.merges], [*vocabulary.token_types]) == (["a b"], [3, 3, 1, 1])
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.eot_id) == (0, 1, 2)
    assert (vocabulary.unk_id, vocabulary.stop_ids) == (3, (1, 2))
    assert (vocabulary.add_bos, vocabulary.add_space_prefix) == (False, False)
    assert vocabulary.chat_template == "{{ messages }}"


def test_a_sentencepiece_vocabulary(opened: Open) -> None:
    """Scores per token; BOS and a leading space unless the file says no."""
    metadata = dict(METADATA) | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.5]}
    vocabulary = opened(metadata).vocabulary()
    assert (vocabulary.kind, [*vocabulary.scores]) == ("spm", [0.0, 0.0, -1.0, -2.5])
    assert (vocabulary.add_bos, vocabulary.add_space_prefix) == (True, True)
    without = opened(metadata | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    assert (without.vocabulary().add_bos, without.vocabulary().add_space_prefix) == (False, False)


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_some_splitting_rules_imply_a_beginning(opened: Open, pre: str, begins: bool) -> None:
    """Early Llama 3 files have no key for it, but begin every text with BOS; a key overrules the rule."""
    metadata = dict(METADATA) | {"tokenizer.ggml.pre": pre}
    assert opened(metadata).vocabulary().add_bos is begins
    assert opened(metadata | {"tokenizer.ggml.add_bos_token": not begins}).vocabulary().add_bos is not begins


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no tokenizer"),
        ({"model": "t5"}, "'t5' is not supported"),
        ({"model": "llama"}, "without scores"),
        ({"tokens": None}, "0 tokens"),
        ({"tokens": ["a"] * 5}, "5 tokens for an embedding of 4 rows"),
        ({"tokens": [1, 2]}, "list of texts"),
        ({"token_type": [1]}, "1 token types for 4 tokens"),
        ({"scores": [1.0]}, "1 scores for 4 tokens"),
        ({"bos_token_id": 4}, "bos token is 4"),
        ({"eos_token_id": "2"}, "should be a whole number"),
        ({"add_bos_token": 1}, "should be true or false"),
    ],
    ids=str,
)
def test_an_unsound_vocabulary_is_refused(opened: Open, changes: dict[str, object], message: str) -> None:
    """Before a tokenizer is built from it."""
    metadata = dict(METADATA) | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    checkpoint = opened({name: value for name, value in metadata.items() if value is not None})
    with pytest.raises(ModelFileError, match=message):
        checkpoint.vocabulary()
