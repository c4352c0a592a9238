"""What a config.json says about its model, in each architecture, old spelling and new."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from taximeter.engine.weights import open_checkpoint
from taximeter.errors import ModelFileError
from tests.unit.weights.small_gguf import HEAD_DIM, HIDDEN
from tests.unit.weights.small_hf import (
    GEMMA3,
    LLAMA,
    Open,
    as_architecture,
    bias_arrays,
    llama_arrays,
)


def test_a_llama_gets_what_the_folder_says_and_transformers_assumes(opened: Open) -> None:
    """A config with only what is not a default."""
    config = opened().config
    assert (config.architecture, config.heads, config.kv_heads, config.head_dim) == ("llama", 2, 1, 4)
    assert (config.rope_base, config.rope_scale, config.rope_dim) == (10_000.0, 1.0, 4)
    assert (config.attention_scale, config.embedding_scale, config.logit_softcap) == (0.5, 1.0, None)
    assert (config.sliding_window, config.sliding_layers, config.tied_embeddings) == (None, (False,), True)


def test_a_gemma3_gets_what_the_folder_says_and_transformers_assumes(opened: Open) -> None:
    """Scale of queries from its own key, sqrt(hidden) for embeddings, both rope bases, the window's size."""
    config = opened(GEMMA3).config
    assert (config.architecture, config.attention_scale, config.tied_embeddings) == ("gemma3", 0.25, True)
    assert (config.rope_base, config.rope_base_sliding, config.rope_scale) == (1e6, 10_000.0, 1.0)
    assert (config.sliding_window, config.sliding_layers) == (16, (True,))
    assert config.embedding_scale == np.float32(math.sqrt(HIDDEN))
    assert (config.rms_eps, config.context_length_tokens) == (np.float32(1e-6), 131_072)


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
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8}}, "kind 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8}}, "kind 'longrope' is not supported"),
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
        arrays |= bias_arrays()
        message = r"blk\.0\.attn_[qkv]\.bias' has no place"
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


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, 4096),
        ({"sliding_window": 16}, 16),
        ({"sliding_window": None}, None),
        ({"sliding_window": 16, "layer_types": ["sliding_attention"]}, 16),
    ],
    ids=str,
)
def test_a_mistral_slides_everywhere_unless_its_window_is_null(
    opened: Open, changes: dict[str, object], window: int | None
) -> None:
    """Left out, the key has transformers' default; null is how later mistrals say that they have none."""
    config = opened(as_architecture("mistral", rope_theta=5e4, **changes)).config
    assert (config.sliding_window, config.sliding_layers) == (window, (window is not None,))
    assert (config.rope_base, config.rope_base_sliding) == (5e4, 5e4)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, None),
        ({"sliding_window": 16, "max_window_layers": 0}, None),
        ({"use_sliding_window": True, "sliding_window": 16}, None),
        ({"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, None),
        ({"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, 16),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None),
        ({"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention"]}, 16),
        ({"use_sliding_window": True, "max_window_layers": 0, "layer_types": ["full_attention"]}, None),
    ],
    ids=str,
)
def test_a_qwen_slides_from_a_layer_on_if_at_all(
    opened: Open, model_type: str, changes: dict[str, object], window: int | None
) -> None:
    """A window counts only when it is switched on, and then from max_window_layers on or as layer_types say."""
    config = opened(as_architecture(model_type, head_dim=HEAD_DIM, **changes)).config
    assert (config.sliding_window, config.sliding_layers) == (window, (window is not None,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (as_architecture("mistral", layer_types=["full_attention"]), "a mistral whose layers differ"),
        (as_architecture("mistral", sliding_window=0), "sliding_window is 0"),
        (as_architecture("mistral", sliding_window="4096"), "should be a whole number"),
        (as_architecture("mistral", num_key_value_heads=None, num_attention_heads=3), "calls for"),
        (as_architecture("qwen2", layer_types=["sliding_attention"]), "the window has no size"),
        (as_architecture("qwen2", layer_types=["linear_attention"]), "one known kind"),
        (as_architecture("qwen2", use_sliding_window=1), "should be true or false"),
        (as_architecture("qwen2", hidden_act="gelu"), "activation 'gelu'"),
        (as_architecture("qwen2", rope_scaling={"type": "yarn", "factor": 4.0}), "kind 'yarn' is not supported"),
        (
            as_architecture("mistral", sliding_window=16, rope_scaling={"type": "linear", "factor": 2.0}),
            "scaled positions in sliding layers",
        ),
    ],
    ids=str,
)
def test_a_contradictory_or_unsupported_config_is_refused(
    opened: Open, config: dict[str, object], message: str
) -> None:
    """In each of the younger architectures."""
    with pytest.raises(ModelFileError, match=message) as caught:
        opened(config)
    assert caught.value.hint


def test_an_unknown_architecture_is_refused_with_the_known_ones(opened: Open) -> None:
    """The hint is the list."""
    with pytest.raises(ModelFileError, match="'qwen3_moe' is not supported") as caught:
        opened(as_architecture("qwen3_moe"))
    assert caught.value.hint == "supported architectures: llama, gemma3, gemma3_text, mistral, qwen2, qwen3"


LLAMA3_ROPE: Mapping[str, object] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama_3_scaling_keeps_fast_frequencies_and_divides_slow_ones(opened: Open) -> None:
    """Base 10,000 and four dimensions turn by 1 and by 0.01 a position: over 8,192 tokens 1,304 times and 13 times."""
    assert opened(dict(LLAMA) | {"rope_scaling": LLAMA3_ROPE}).config.rope_divisors == (1.0, 1.0)
    short = dict(LLAMA3_ROPE) | {"original_max_position_embeddings": 64}  # 10.2 times, and 0.1 times
    for key in ("rope_scaling", "rope_parameters"):
        assert opened(dict(LLAMA) | {key: short}).config.rope_divisors == (1.0, 8.0)
    # 1,571 tokens: the slow pair turns 2.5 times, halfway between 1 and 4: the mean of itself and an eighth of itself.
    middle = dict(LLAMA3_ROPE) | {"original_max_position_embeddings": 500 * math.pi}
    divisors = opened(dict(LLAMA) | {"rope_scaling": middle}).config.rope_divisors
    assert divisors == (1.0, pytest.approx(2 / (1 + 1 / 8)))


def test_the_original_context_of_llama_3_scaling_may_stand_elsewhere(opened: Open) -> None:
    """Above the scaling's own, which transformers lets win; without either, the context is the original one."""
    without = {name: value for name, value in LLAMA3_ROPE.items() if not name.startswith("original")}
    config = dict(LLAMA) | {"max_position_embeddings": 64}
    assert opened(config | {"rope_scaling": without}).config.rope_divisors == (1.0, 8.0)
    above = {"original_max_position_embeddings": 8192}
    assert opened(config | above | {"rope_scaling": without}).config.rope_divisors == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": None}, "factor is missing"),
        ({"low_freq_factor": None}, "low_freq_factor is missing"),
        ({"high_freq_factor": None}, "high_freq_factor is missing"),
        ({"factor": 0}, "rope scaling by 0"),
        ({"factor": -8.0}, "rope scaling by -8"),
        ({"factor": math.inf}, "rope scaling by inf"),
        ({"factor": math.nan}, "rope scaling by nan"),
        ({"low_freq_factor": 4.0}, "between the frequency factors 4.0 and 4.0"),
        ({"low_freq_factor": 5.0}, "between the frequency factors 5.0 and 4.0"),
        ({"low_freq_factor": 0}, "between the frequency factors 0"),
        ({"high_freq_factor": math.inf}, "between the frequency factors 1.0 and inf"),
        ({"high_freq_factor": "4"}, "should be a number"),
        ({"original_max_position_embeddings": 0}, "from 0.0 original tokens"),
        ({"original_max_position_embeddings": -1}, "from -1.0 original tokens"),
        ({"rope_theta": -1.0}, "at the base -1"),
    ],
    ids=str,
)
def test_llama_3_scaling_without_a_meaning_is_refused(opened: Open, changes: dict[str, object], message: str) -> None:
    """A parameter that is missing, impossible, or at odds with another."""
    with pytest.raises(ModelFileError, match=message):
        opened(dict(LLAMA) | {"rope_scaling": dict(LLAMA3_ROPE) | changes})


def test_a_head_of_absurd_width_is_refused_before_its_rope_is_computed(opened: Open) -> None:
    """The factors of such a head would not fit into memory."""
    with pytest.raises(ModelFileError, match="rope_dim is 4611686018427387904"):
        opened(dict(LLAMA) | {"rope_scaling": LLAMA3_ROPE, "head_dim": 2**62})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from([LLAMA, GEMMA3, *map(as_architecture, ("mistral", "qwen2", "qwen3"))]), data=st.data())
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
        "use_sliding_window",
        "max_window_layers",
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
