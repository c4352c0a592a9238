"""A Hugging Face folder to be filled and opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from taximeter.engine.weights import Checkpoint, open_checkpoint
from tests.unit.weights.small_hf import ARRAYS, LLAMA, TOKENIZER, Arrays, Open, gemma_arrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Open:
    def opened(config: Mapping[str, object] = LLAMA, arrays: Arrays | None = None) -> Checkpoint:
        (folder / "config.json").write_text(json.dumps(config))
        if arrays is None:
            arrays = ARRAYS.get(str(config["model_type"]), gemma_arrays)()
        save_file(dict(arrays), folder / "model.safetensors")
        return open_checkpoint(folder)

    return opened
