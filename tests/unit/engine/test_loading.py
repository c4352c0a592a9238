"""Models on their way into memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from taximeter.engine.loading import Loadings
from taximeter.errors import ModelFileError
from tests.engine_harness import TINY_LLAMA
from tests.unit.weights.small_gguf import METADATA, small_model


def test_models_load_by_themselves_and_each_is_handed_out() -> None:
    """Whoever asks for a model waits for it; both of two arrive, each from its own file."""
    loadings = Loadings.begin({"a": TINY_LLAMA, "b": TINY_LLAMA})
    try:
        models = [loading.model() for loading in loadings.by_name.values()]
        assert list(loadings.by_name) == ["a", "b"]
        assert models[0] is not models[1]
        assert models[0].config == loadings.by_name["a"].checkpoint.config
        tokenizers = [loading.tokenizer() for loading in loadings.by_name.values()]
        assert tokenizers[0] is not tokenizers[1]
        assert tokenizers[0].vocab_size <= models[0].config.vocab_size
    finally:
        loadings.close()


def test_what_is_wrong_with_a_file_is_told_at_once_and_what_is_wrong_with_weights_by_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the thread that loads come to who asks for the model, not to nobody."""
    (tmp_path / "model.gguf").write_bytes(b"no model")
    with pytest.raises(ModelFileError):
        Loadings.begin({"good": TINY_LLAMA, "bad": tmp_path / "model.gguf"})
    (tmp_path / "model.gguf").write_bytes(small_model({**METADATA, "tokenizer.ggml.pre": "exaone"}))
    loadings = Loadings.begin({"a": tmp_path / "model.gguf"})
    with pytest.raises(ModelFileError, match=r"model\.gguf: .*exaone"):  # somebody may be serving several
        loadings.by_name["a"].tokenizer()
    loadings.close()

    def broken(*_: object, **__: object) -> None:
        raise ModelFileError("a weight is missing")

    monkeypatch.setattr("taximeter.engine.loading.load_model", broken)
    loadings = Loadings.begin({"a": TINY_LLAMA})
    with pytest.raises(ModelFileError, match="a weight is missing"):
        loadings.by_name["a"].model()
    assert loadings.by_name["a"].tokenizer().vocab_size
    loadings.close()


def test_threads_take_turns_as_before_once_all_is_loaded() -> None:
    """Turns are short while something is loading, for the loader's sake, and only then."""
    before = sys.getswitchinterval()
    loadings = Loadings.begin({"a": TINY_LLAMA})
    assert sys.getswitchinterval() < before
    loadings.close()
    loadings.close()
    assert sys.getswitchinterval() == pytest.approx(before)
