"""A coarser copy of the head says which tokens cannot be the best: what is found is the same, and less is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32
from taximeter.engine.models import Batch, KVMemory, Model, load_model
from taximeter.engine.weights import Checkpoint, RawTensor, open_checkpoint
from tests.engine_harness import TINY_LLAMA

NATIVE = [name for name in kernels.levels() if name.startswith("native:")]
BLOCK_TOKENS, BLOCKS, GROUP = 16, 8, 32
STEPS_TO_COPY = 64  # after which there is a copy
pytestmark = pytest.mark.skipif(not NATIVE, reason="the native code was not built (no compiler)")

Codes = npt.NDArray[np.int8]
Scales = npt.NDArray[np.float16]


@pytest.fixture(params=NATIVE)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.use_level(request.param):
        yield request.param


class EightBits:
    """A checkpoint with a head of its own, in q8_0: `codes` (vocabulary, hidden), `scales` (vocabulary, hidden / 32),
    and `norm`, where it is given, in front of it."""

    def __init__(self, codes: Codes, scales: Scales, norm: F32 | None = None) -> None:
        self._checkpoint: Checkpoint = open_checkpoint(TINY_LLAMA)
        self.config = replace(self._checkpoint.config, tied_embeddings=False)
        self._norm = norm
        groups = codes.reshape(*scales.shape, GROUP).view(np.uint8)
        self._head = np.concatenate([scales[..., None].view(np.uint8), groups], axis=2).reshape(len(codes), -1)

    def __getattr__(self, name: str) -> object:
        return getattr(self._checkpoint, name)

    def names(self) -> list[str]:
        return [*self._checkpoint.names(), "output.weight"]

    def tensor(self, name: str) -> F32:
        return self._norm if name == "output_norm.weight" and self._norm is not None else self._checkpoint.tensor(name)

    def raw(self, name: str) -> RawTensor:
        if name != "output.weight":
            return self._checkpoint.raw(name)
        return RawTensor("Q8_0", (self.config.vocab_size, self.config.hidden_size), self._head)


CONFIG = open_checkpoint(TINY_LLAMA).config
VOCABULARY, GROUPS = CONFIG.vocab_size, CONFIG.hidden_size // GROUP


def model_of(codes: Codes, scales: Scales, norm: F32 | None = None) -> Model:
    return load_model(EightBits(codes, scales, norm), weights=None)  # type: ignore[arg-type]


def step(tokens: list[int], at: int) -> Batch:
    """A next token, generated, of as many sequences as there are `tokens`."""
    rows = len(tokens)
    tables = np.arange(rows, dtype=np.int32)[:, None] * BLOCKS + np.arange(BLOCKS, dtype=np.int32)
    positions = np.full(rows, at, np.int32)
    return Batch(
        token_ids=np.array(tokens, np.int64),
        positions=positions,
        row_seq=np.arange(rows, dtype=np.int32),
        slots=(tables[:, at // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + at % BLOCK_TOKENS,),
        block_tables=(tables,),
        logit_rows=np.arange(rows, dtype=np.int64),
        generated_rows=rows,
    )


def memory_of(model: Model, rows: int) -> KVMemory:
    return KVMemory(model.config, blocks=(BLOCKS * rows,), block_tokens=BLOCK_TOKENS, kv_format="bf16")


def follow(model: Model, rows: int, steps: int) -> list[int]:
    """Greedily from fixed tokens, each step twice: its best tokens must be those of its logits. What each pass for best
    tokens read of the weights."""
    memory = memory_of(model, rows)
    tokens, read = [7 + row for row in range(rows)], list[int]()
    for at in range(steps):
        batch = step(tokens, at)
        best = model.best(batch, memory)
        read.append(model.read_bytes)
        logits = model.forward(batch, memory)
        expected = logits.argmax(axis=1)
        whole = np.isfinite(logits[np.arange(rows), expected])
        np.testing.assert_array_equal(best, np.where(whole, expected, -1), err_msg=f"step {at}")
        # Chance, but the same each time: a tiny model would repeat one token for ever.
        tokens = [(int(token) * 31 + 17 * at + row) % VOCABULARY for row, token in enumerate(best)]
    return read


def noisy(seed: int) -> tuple[Codes, Scales]:
    noise = np.random.default_rng(seed)
    codes = noise.normal(0, 40, (VOCABULARY, GROUPS * GROUP)).clip(-127, 127).astype(np.int8)
    return codes, noise.uniform(1e-4, 2e-3, (VOCABULARY, GROUPS)).astype(np.float16)


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_the_best_token_is_the_same_and_less_is_read(level: str, rows: int) -> None:
    """Before there is a copy, while it is made and behind it; of more than three rows there never is one."""
    codes, scales = noisy(1)
    scales[5::7] *= 20  # tokens that stand out
    model = model_of(codes, scales)
    read = follow(model, rows, STEPS_TO_COPY + 40)
    whole = model.read_bytes  # by logits
    assert read[-1] == read[-2] == whole if rows > 3 else max(read[-40:]) <= whole + whole // 2
    if rows == 1:
        assert float(np.median(read[-40:])) < whole
    assert all(count >= whole for count in read[:4]), "nothing is left out while there is no copy"


def test_tokens_that_a_copy_cannot_tell_apart_are_all_looked_at(level: str) -> None:
    """Rows that differ by less than the copy keeps: what it makes of them is one and the same, or in another order."""
    noise = np.random.default_rng(2)
    one = noise.normal(0, 40, GROUPS * GROUP).clip(-120, 120)
    codes = (one + noise.integers(-3, 4, (VOCABULARY, GROUPS * GROUP))).astype(np.int8)
    follow(model_of(codes, np.full((VOCABULARY, GROUPS), 0.01, np.float16)), 2, STEPS_TO_COPY + 20)


def test_what_a_copy_cannot_hold_is_looked_at(level: str) -> None:
    """Scales with no float16 eight times as large, negative and zero ones, and the code that has no opposite."""
    codes, scales = noisy(3)
    scales[::9] = 60000
    scales[1::9] = -60000
    scales[2::9, 0] = 0
    scales[3::9] = 0
    scales[4::9] = np.float16(6e-8)  # the least there is
    codes[5::9] = -128
    codes[6::9] = 127
    follow(model_of(codes, scales), 1, STEPS_TO_COPY + 20)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e20, 1e37], ids=str)
def test_rows_of_any_length(level: str, size: float) -> None:
    """Activations that are nothing, next to nothing, or so large that sums with them are infinite."""
    codes, scales = noisy(4)
    follow(model_of(codes, scales, np.full(CONFIG.hidden_size, size, np.float32)), 1, STEPS_TO_COPY + 8)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.5, 60), alike=st.integers(0, 6), outliers=st.floats(1, 100))
def test_any_head_has_the_same_best_tokens(seed: int, spread: float, alike: int, outliers: float) -> None:
    """At the fastest level: codes of any spread, every so many rows nearly alike, and features that stand out."""
    noise = np.random.default_rng(seed)
    codes = noise.normal(0, spread, (VOCABULARY, GROUPS * GROUP))
    if alike:
        codes[::alike] = codes[0] + noise.normal(0, 1, codes[::alike].shape)
    scales = noise.uniform(1e-4, 1e-2, (VOCABULARY, GROUPS)).astype(np.float16)
    norm = np.ones(CONFIG.hidden_size, np.float32)
    norm[noise.integers(0, len(norm), 3)] = outliers
    with kernels.use_level(NATIVE[-1]):
        follow(model_of(codes.clip(-127, 127).astype(np.int8), scales, norm), 2, STEPS_TO_COPY + 10)
