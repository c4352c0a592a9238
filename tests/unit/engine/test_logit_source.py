"""Models of the engine as sources of logits: what may be written of them, and that the logits are the engine's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.evaluate import Passage, divergences, perplexity
from taximeter.engine.logit_source import ModelLogits, Variant, load_subjects
from taximeter.engine.models import load_model
from taximeter.engine.weights import open_checkpoint
from taximeter.errors import RequestError
from tests.engine_harness import GOLDEN, TINY_LLAMA, all_logits, loaded

TEXT = "Every nanosecond of a step is on somebody's account, and whoever brought nothing pays nothing."


def test_a_model_alone_is_computed_as_it_would_be_served() -> None:
    """Nothing is set."""
    assert Variant.parse("smollm2") == Variant(text="smollm2", model="smollm2")


def test_settings_stand_behind_the_model() -> None:
    """In any order; a path keeps its own commas."""
    variant = Variant.parse("a,b/c=d.gguf,kv=f32,weights=int8")
    assert (variant.model, variant.weights, variant.kv, variant.level) == ("a,b/c=d.gguf", "int8", "f32", None)
    assert Variant.parse("m,level=reference").level == "reference"


def test_a_native_level_may_be_named_shortly() -> None:
    """As in TAXIMETER_CPU_LEVEL, or in full as on receipts."""
    native = [level for level in kernels.levels() if level != "reference"]
    for level in native:
        assert Variant.parse(f"m,level={level}").level == level
        assert Variant.parse(f"m,level={level.removeprefix('native:')}").level == level


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,colour=red", "sets 'colour', which there is not"),
        ("m,level=fast", "level cannot be 'native:fast' here"),
        ("m,weights=int3", "weights cannot be 'int3' here"),
        ("m,kv=", "kv cannot be '' here"),
        ("m,kv=f32,kv=bf16", "sets kv twice"),
        ("m,level=reference,weights=int8", "the reference keeps the weights"),
    ],
)
def test_what_cannot_be_set_is_refused(text: str, said: str) -> None:
    """With the list of what can be."""
    with pytest.raises(RequestError, match=said):
        Variant.parse(text)


def test_the_list_of_settings_is_in_the_hint() -> None:
    """So that the next call is right."""
    with pytest.raises(RequestError) as refused:
        Variant.parse("m,colour=red")
    assert refused.value.hint == "there are level, weights, kv and tokens, as in MODEL,level=reference"


def test_logits_are_those_of_the_engine() -> None:
    """Bit for bit those of one pass over the whole text, however they are cut here, from wherever they are wanted."""
    model, tokenizer, _ = loaded(TINY_LLAMA)
    ids = tokenizer.encode(TEXT * 8, specials=False)[:400]
    assert len(ids) == 400  # more than one pass
    source = ModelLogits(model, level=kernels.level(), kv_format="f32", context_tokens=400)
    whole = np.concatenate(list(source.logits(ids, 0)))
    assert whole.shape == (400, model.config.vocab_size)
    np.testing.assert_array_equal(np.concatenate(list(source.logits(ids, 300))), whole[300:])
    np.testing.assert_array_equal(whole[:40], all_logits(model, ids[:40]))


def test_a_model_does_not_diverge_from_itself() -> None:
    """Loaded once, read twice, and exactly equal: the figure for no difference is 0."""
    a, b = load_subjects([Variant.parse("m"), Variant.parse("m")], lambda _: TINY_LLAMA, TEXT)
    [found] = divergences(a.source, [b.source], a.passage)
    assert (found.kl_max_nats, found.same_top, found.rms_probability_change) == (0, 1, 0)
    assert found.a == found.b


def test_every_level_stays_close_to_the_reference() -> None:
    """Whatever arithmetic runs, the distribution is the reference's but for rounding."""
    variants = [Variant.parse(f"m,level={level}") for level in kernels.levels()]
    reference, *natives = load_subjects(variants, lambda _: TINY_LLAMA, TEXT)
    assert reference.level == "reference"
    for found in divergences(reference.source, [native.source for native in natives], reference.passage):
        assert found.kl_nats.value < 1e-3


@pytest.mark.skipif(len(kernels.levels()) == 1, reason="the reference keeps float32")
def test_keys_and_values_in_fewer_bits_move_the_distribution_little() -> None:
    """They do move it, or the setting would not reach the cache."""
    variants = [Variant.parse(f"m,kv={kv_format}") for kv_format in ("f32", "bf16", "int8")]
    exact, *rounded = load_subjects(variants, lambda _: TINY_LLAMA, TEXT)
    for found in divergences(exact.source, [subject.source for subject in rounded], exact.passage):
        assert 0 < found.kl_nats.value < 1e-3


def test_models_of_other_tokens_cannot_be_compared(tmp_path: Path, smollm2_path: Path) -> None:
    """Distributions over different things have no divergence: said before any weights are read."""
    paths = {"tiny": TINY_LLAMA, "smollm2": smollm2_path, "swapped": tmp_path / "swapped"}
    variants = {name: Variant.parse(name) for name in paths}
    with pytest.raises(RequestError, match=r"different vocabularies, of 265 and 49,152 tokens"):
        load_subjects([variants["tiny"], variants["smollm2"]], paths.__getitem__, TEXT)

    shutil.copytree(TINY_LLAMA, paths["swapped"])
    document = json.loads((TINY_LLAMA / "tokenizer.json").read_text())
    ids = document["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (paths["swapped"] / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(RequestError, match=r"different vocabularies: token \d+ is b'a' in one, b'b' in the other"):
        load_subjects([variants["tiny"], variants["swapped"]], paths.__getitem__, TEXT)


def test_the_text_is_read_in_the_models_own_way() -> None:
    """A context longer than the model's is refused; without one, it is what all of them can read."""
    limit = open_checkpoint(TINY_LLAMA).config.context_length_tokens
    [subject] = load_subjects([Variant.parse("m")], lambda _: TINY_LLAMA, TEXT)
    assert subject.passage.context_tokens == min(limit, 2048)
    with pytest.raises(RequestError, match=f"reads at most {limit:,} tokens, not {limit + 1:,}"):
        load_subjects([Variant.parse("m")], lambda _: TINY_LLAMA, TEXT, context_tokens=limit + 1)


def test_a_real_model_is_as_perplexed_as_llama_cpp_says(smollm2_path: Path) -> None:
    """On the text of the golden file, whose likelihoods llama.cpp computed from float32 weights. Rounding activations
    to 8 bits and keys and values to bf16 moves the mean by some thousandths, as llama.cpp's own rounding does."""
    golden = json.loads((GOLDEN / "llama_cpp" / "likelihoods.json").read_text())["smollm2"]
    model = load_model(open_checkpoint(smollm2_path))
    source = ModelLogits(model, level=kernels.level(), kv_format="bf16", context_tokens=1024)
    passage = Passage(token_ids=tuple(golden["ids"]), context_tokens=1024, stride_tokens=768)
    found = perplexity(source, passage)
    assert found.tokens == golden["tokens"] - 1
    assert found.nll_nats.value == pytest.approx(golden["mean_nll_float32"], abs=0.01)
