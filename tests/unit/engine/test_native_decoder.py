"""The native pass as one call: what it refuses, and that a step's rows know nothing of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.models import KV_FORMATS, Batch, KVFormat, KVMemory, Model, WeightFormat, load_model
from taximeter.engine.models.decoder import F32
from taximeter.engine.models.layer_groups import layer_groups
from taximeter.engine.weights import Checkpoint, RawTensor, open_checkpoint
from taximeter.engine.weights.dequantize import TYPES
from taximeter.engine.weights.gguf import GGUFFile
from taximeter.errors import ModelFileError
from tests.engine_harness import GOLDEN, TINY_LLAMA, all_logits, loaded
from tests.unit.kernels.weight_blocks import KINDS, block_weights

if TYPE_CHECKING:
    from taximeter import _native

NATIVE = [name for name in kernels.levels() if name.startswith("native:")]
BLOCK_TOKENS = 16
pytestmark = pytest.mark.skipif(not NATIVE, reason="the native code was not built (no compiler)")


@pytest.fixture(params=NATIVE)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.use_level(request.param):
        yield request.param


@dataclass(frozen=True)
class Piece:
    """Tokens of one sequence for one step."""

    tokens: list[int]
    start: int
    blocks: list[int]


def batch_of(model: Model, pieces: list[Piece], generated: int = 0) -> Batch:
    """All pieces as one step; the tokens of the first `generated` of them are generated."""
    groups = len(layer_groups(model.config))
    tables = np.full((len(pieces), max(len(piece.blocks) for piece in pieces)), -1, np.int32)
    for row, piece in enumerate(pieces):
        tables[row, : len(piece.blocks)] = piece.blocks
    positions = np.concatenate(
        [np.arange(piece.start, piece.start + len(piece.tokens), dtype=np.int32) for piece in pieces]
    )
    row_seq = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece.tokens) for piece in pieces])
    slots = tables[row_seq, positions // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return Batch(
        token_ids=np.concatenate([np.array(piece.tokens, np.int64) for piece in pieces]),
        positions=positions,
        row_seq=row_seq,
        slots=(slots,) * groups,
        block_tables=(tables,) * groups,
        logit_rows=np.cumsum([len(piece.tokens) for piece in pieces], dtype=np.int64) - 1,
        generated_rows=sum(len(piece.tokens) for piece in pieces[:generated]),
    )


def memory_of(model: Model, blocks: int = 32, kv_format: KVFormat = "bf16") -> KVMemory:
    groups = len(layer_groups(model.config))
    return KVMemory(model.config, blocks=(blocks,) * groups, block_tokens=BLOCK_TOKENS, kv_format=kv_format)


@pytest.mark.parametrize(
    "form", [TINY_LLAMA, GOLDEN / "tiny_gemma3", GOLDEN / "tiny_qwen2"], ids=lambda form: form.name
)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_a_mixed_step_equals_its_parts_bit_for_bit(form: Path, level: str, kv_format: KVFormat) -> None:
    """Two prompts at different places and a decode, together and alone, in other blocks: the same bits."""
    model = loaded(form)[0]
    vocabulary = model.config.vocab_size
    long, short = ([int(token) % vocabulary for token in range(7, 7 + count)] for count in (45, 18))
    alone: list[F32] = []
    for tokens, blocks in ((long, [0, 1, 2]), (short, [3, 4])):
        memory = memory_of(model, kv_format=kv_format)
        for start in range(0, len(tokens), 16):
            one = Piece(tokens[start : start + 16], start, blocks)
            logits = model.forward(batch_of(model, [one]), memory)
        alone.append(logits[0].copy())
    memory = memory_of(model, kv_format=kv_format)
    elsewhere, there = [9, 5, 30], [17, 2]
    model.forward(batch_of(model, [Piece(long[:33], 0, elsewhere)]), memory)
    model.forward(batch_of(model, [Piece(long[33:44], 33, elsewhere), Piece(short[:3], 0, there)]), memory)
    together = model.forward(batch_of(model, [Piece(long[44:], 44, elsewhere), Piece(short[3:], 3, there)]), memory)
    np.testing.assert_array_equal(together, np.stack(alone), err_msg=level)


@pytest.mark.parametrize(
    ("name", "weights"), [("tiny_llama", "int8"), ("tiny_llama", "bf16"), ("tiny_gemma3", None)], ids=str
)
def test_generated_rows_beside_prompts_equal_themselves_alone(
    name: str, weights: WeightFormat | None, level: str
) -> None:
    """Three sequences go on, one with several tokens, while two prompts are read: the bits of each alone."""
    model = load_model(open_checkpoint(GOLDEN / name), weights=weights)
    written = [Piece([11], 3, [0]), Piece([12, 13, 14, 15], 6, [1]), Piece([16], 17, [2, 3])]
    read = [Piece(list(range(20, 40)), 0, [4, 5]), Piece([41], 0, [6])]
    before = [Piece(list(range(30, 30 + piece.start)), 0, piece.blocks) for piece in written]
    memory = memory_of(model)
    model.forward(batch_of(model, before), memory)
    together = model.forward(batch_of(model, [*written, *read], generated=3), memory)
    for index, piece in enumerate([*written, *read]):
        memory = memory_of(model)
        if index < 3:
            model.forward(batch_of(model, [before[index]]), memory)
            for i, token in enumerate(piece.tokens):
                one = Piece([token], piece.start + i, piece.blocks)
                logits = model.forward(batch_of(model, [one], generated=1), memory)
        else:
            logits = model.forward(batch_of(model, [piece]), memory)
        np.testing.assert_array_equal(together[index], logits[0], err_msg=f"{level}, piece {index}")


@pytest.mark.parametrize("weights", ["int8", "bf16", "f32"])
def test_only_models_that_say_so_tell_prompts_apart(weights: WeightFormat, level: str) -> None:
    """A generated token has the logits of the same token in a prompt; or nearly so, where tile units read prompts."""
    model = load_model(open_checkpoint(TINY_LLAMA), weights=weights)
    one, memory = Piece([5, 6, 7, 8], 0, [0]), memory_of(model)
    as_prompt = model.forward(batch_of(model, [one]), memory).copy()
    as_answer = model.forward(batch_of(model, [one], generated=1), memory)
    assert np.array_equal(as_prompt, as_answer) != model.tells_prompts_apart
    np.testing.assert_allclose(as_answer, as_prompt, atol=0.1 * float(np.abs(as_prompt).max()))
    assert model.tells_prompts_apart == (level == "native:amx" and weights == "int8")


@pytest.mark.parametrize("form", [TINY_LLAMA, GOLDEN / "tiny_gemma3"], ids=lambda form: form.name)
@pytest.mark.parametrize("rows", [1, 30, 700])
def test_the_best_tokens_are_those_of_the_logits(form: Path, rows: int, level: str) -> None:
    """Of generated rows and prompts, few and many, without a logit that anybody sees."""
    model = loaded(form)[0]
    prompt = Piece([token % model.config.vocab_size for token in range(3, 3 + rows)], 0, list(range(-(-rows // 16))))
    batch = batch_of(model, [Piece([11], 0, [60]), Piece([12], 0, [61]), prompt], generated=2)
    batch = replace(batch, logit_rows=np.arange(len(batch.token_ids)))
    best = model.best(batch, memory_of(model, blocks=64))
    np.testing.assert_array_equal(best, model.forward(batch, memory_of(model, blocks=64)).argmax(axis=1))


class OtherHead:
    """A checkpoint whose head is `head` (vocabulary, hidden)."""

    def __init__(self, checkpoint: Checkpoint, head: F32) -> None:
        self._checkpoint, self._head = checkpoint, head
        self.config = replace(checkpoint.config, tied_embeddings=False)

    def __getattr__(self, name: str) -> object:
        return getattr(self._checkpoint, name)

    def names(self) -> list[str]:
        return [*self._checkpoint.names(), "output.weight"]

    def raw(self, name: str) -> RawTensor:
        if name != "output.weight":
            return self._checkpoint.raw(name)
        return RawTensor("F32", self._head.shape, self._head.view(np.uint8))


@pytest.mark.parametrize("greatest", [np.float32(3), np.float32(-0.0)], ids=str)
def test_the_first_of_equals_is_the_best(greatest: float, level: str) -> None:
    """As numpy's argmax has it, also of zeros of both signs."""
    checkpoint = open_checkpoint(TINY_LLAMA)
    head = np.zeros((checkpoint.config.vocab_size, checkpoint.config.hidden_size), np.float32)
    head[[17, 18, 200]] = greatest
    model = load_model(OtherHead(checkpoint, head), weights=None)  # type: ignore[arg-type]
    batch = batch_of(model, [Piece([5, 6, 7], 0, [0])])
    batch = replace(batch, logit_rows=np.arange(3))
    best = model.best(batch, memory_of(model))
    np.testing.assert_array_equal(best, model.forward(batch, memory_of(model)).argmax(axis=1))


@pytest.mark.parametrize("wrong", [1e38, -1e38], ids=["overflow", "overflow everywhere"])
def test_a_best_logit_that_is_no_finite_number_is_no_token(wrong: float, level: str) -> None:
    """Finite weights may still give sums that are not: infinite ones of either sign, or none at all."""
    checkpoint = open_checkpoint(TINY_LLAMA)
    head = np.zeros((checkpoint.config.vocab_size, checkpoint.config.hidden_size), np.float32)
    head[17 if wrong > 0 else slice(None)] = np.float32(wrong)
    model = load_model(OtherHead(checkpoint, head), weights=None)  # type: ignore[arg-type]
    batch = batch_of(model, [Piece([5, 6, 7], 0, [0])])
    batch = replace(batch, logit_rows=np.arange(3))
    logits = model.forward(batch, memory_of(model))
    places = logits.argmax(axis=1)
    finite = np.isfinite(logits[np.arange(3), places])
    assert not finite.all()
    np.testing.assert_array_equal(model.best(batch, memory_of(model)), np.where(finite, places, -1))


def scale_places(kind: str) -> list[tuple[int, str]]:
    """Where in its first block a kind of weights has numbers that could be infinite, and of which type."""
    match kind:
        case "F32":
            return [(0, "<f4")]
        case "F16" | "BF16":
            return [(2, "<f2")]
        case "Q6_K":
            return [(208, "<f2")]
        case "Q4_0" | "Q5_0" | "Q8_0":
            return [(0, "<f2")]
        case _:
            return [(0, "<f2"), (2, "<f2")]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_finite_numbers_are_refused(kind: str, wrong: float) -> None:
    """By the name of what holds them, wherever in the matrix they are: no answer could come of them."""
    rows, k = 40, 512
    row_bytes = k // block_weights(kind) * TYPES[kind].block_bytes
    sound = np.zeros((rows, row_bytes), np.uint8)
    for row in (0, 17, rows - 1):
        for at, dtype in scale_places(kind):
            for start in (at, row_bytes - TYPES[kind].block_bytes * (1 if block_weights(kind) > 1 else 2) + at):
                damaged = sound.copy()
                number = np.array([wrong], np.float32)
                data = (number.view(np.uint32) >> 16).astype("<u2") if kind == "BF16" else number.astype(dtype)
                damaged[row, start : start + data.nbytes] = data.view(np.uint8)
                with pytest.raises(ValueError, match="the embedding holds numbers that are infinite or none at all"):
                    empty_decoder(rows, k).set_embedding(kind, damaged, k)
    empty_decoder(rows, k).set_embedding(kind, sound, k)


def empty_decoder(vocab: int, hidden: int) -> _native.Decoder:
    from taximeter import _native  # noqa: PLC0415  # it may be missing

    return _native.Decoder(
        hidden=hidden, heads=2, kv_heads=1, head_dim=8, ff=32, vocab=vocab, sliding=[False], window=0, rms_eps=1e-6,
        attention_scale=1.0, embedding_scale=1.0, logit_softcap=0.0, bf16_units=False, gelu=False,
        turns_everywhere=[1.0] * 4, turns_sliding=[1.0] * 4,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.attn_norm.weight", "blk.0.ffn_down.weight"])
@pytest.mark.parametrize("level", kernels.levels())
def test_a_model_with_such_weights_is_refused_by_its_path(name: str, level: str, tmp_path: Path) -> None:
    """Its norms too, by the reference as by the native code."""
    file = GGUFFile(GOLDEN / "tiny_qwen2" / "model.gguf")
    content = bytearray(file.path.read_bytes())
    start = file.tensors[name].start
    content[start : start + 4] = np.array([np.inf], "<f4").tobytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with kernels.use_level(level), pytest.raises(ModelFileError, match=r"damaged\.gguf.* infinite or none"):
        load_model(open_checkpoint(path))


def test_a_finished_decoder_takes_nothing_more() -> None:
    """Its weights may be in use."""
    model = load_model(open_checkpoint(TINY_LLAMA))
    decoder = model._native._decoder  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has been finished"):
        decoder.set_output_norm(np.ones(model.config.hidden_size, np.float32))
    with pytest.raises(ValueError, match="has been finished"):
        decoder.set_embedding("F32", np.zeros((model.config.vocab_size, model.config.hidden_size * 4), np.uint8), 64)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_number_of_threads_changes_no_bit(level: str, threads: int) -> None:
    """More threads than processors included."""
    model = loaded(GOLDEN / "tiny_gemma3")[0]
    tokens = list(range(5, 75))
    before = kernels.threads()
    expected = all_logits(model, tokens)
    try:
        kernels.set_threads(threads)
        np.testing.assert_array_equal(all_logits(model, tokens, chunk=9), expected, err_msg=level)
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("chunk", [1, 200], ids=["few rows", "many rows"])
def test_threads_that_come_late_change_no_bit(chunk: int) -> None:
    """With far more threads than processors most of them wake when a step is half over, or not at all: they join the
    phase that they find, with rows as it has them."""
    model = loaded(GOLDEN / "tiny_gemma3")[0]
    tokens = [5 + token % 90 for token in range(200)]
    before = kernels.threads()
    try:
        with kernels.use_level(NATIVE[-1]):
            kernels.set_threads(1)
            expected = all_logits(model, tokens, chunk=chunk)
            kernels.set_threads(24)
            for _ in range(3):
                np.testing.assert_array_equal(all_logits(model, tokens, chunk=chunk), expected)
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("weights", ["int8", "bf16", "f32"])
def test_weights_made_at_load_stay_close(weights: str, level: str) -> None:
    """Quantizing a float checkpoint at load is a choice; its logits move by what the format costs and no more."""
    tokens = list(range(5, 60))
    exact = all_logits(loaded(TINY_LLAMA)[0], tokens)
    made = all_logits(load_model(open_checkpoint(TINY_LLAMA), weights=weights), tokens)  # type: ignore[arg-type]
    moved = float(np.sqrt(np.mean((made - exact) ** 2) / np.mean(exact**2)))
    assert moved < {"int8": 0.08, "bf16": 0.03, "f32": 1e-5}[weights], level
    if weights == "int8":
        assert np.abs(made - exact).max() > 0, "nothing was quantized"


NONSENSE: dict[str, tuple[Callable[[Batch], Batch], str]] = {
    "a token beyond the vocabulary": (lambda b: replace(b, token_ids=b.token_ids + 1_000_000), "vocabulary"),
    "a token below zero": (lambda b: replace(b, token_ids=b.token_ids - 1_000_000), "vocabulary"),
    "a block that is not there": (lambda b: replace(b, block_tables=(b.block_tables[0] + 32,)), "block"),
    "a block below zero": (lambda b: replace(b, block_tables=(b.block_tables[0] - 32,)), "block"),
    "a slot that is not there": (lambda b: replace(b, slots=(b.slots[0] + 32 * BLOCK_TOKENS,)), "slot"),
    "a slot below zero": (lambda b: replace(b, slots=(b.slots[0] - 32 * BLOCK_TOKENS,)), "slot"),
    "a position past the table": (lambda b: replace(b, positions=b.positions + np.int32(64)), "position"),
    "a position below zero": (lambda b: replace(b, positions=b.positions - np.int32(8)), "position"),
    "positions that fall": (lambda b: replace(b, positions=b.positions[::-1].copy()), "sorted"),
    "a sequence without a table": (lambda b: replace(b, row_seq=b.row_seq + np.int32(1)), "sequence"),
    "a logit row that is not there": (lambda b: replace(b, logit_rows=b.logit_rows + 99), "logit_rows"),
    "the same logit row twice": (lambda b: replace(b, logit_rows=np.repeat(b.logit_rows, 2)), "logit_rows"),
    "positions of another type": (lambda b: replace(b, positions=b.positions.astype(np.int64)), "dtype"),
    "too few slots": (lambda b: replace(b, slots=(b.slots[0][:-1],)), "slots"),
    "no table": (lambda b: replace(b, block_tables=()), "group"),
    "more generated rows than rows": (lambda b: replace(b, generated_rows=21), "generated_rows"),
    "fewer generated rows than none": (lambda b: replace(b, generated_rows=-1), "generated_rows"),
}


@pytest.mark.parametrize("case", NONSENSE, ids=str)
def test_nonsense_is_refused_before_memory_is_touched(case: str) -> None:
    """Every index that the pass would follow is checked, and the next good step is none the worse."""
    change, said = NONSENSE[case]
    model = loaded(TINY_LLAMA)[0]
    with kernels.use_level(NATIVE[-1]):
        memory = memory_of(model)
        good = batch_of(model, [Piece(list(range(5, 25)), 0, [3, 1])])
        expected = model.forward(good, memory).copy()
        with pytest.raises(ValueError, match=said):
            model.forward(change(good), memory)
        np.testing.assert_array_equal(model.forward(good, memory), expected)


def test_a_cache_of_another_model_is_refused() -> None:
    """Its layout would be read wrongly."""
    with kernels.use_level(NATIVE[-1]):
        model, other = loaded(TINY_LLAMA)[0], loaded(GOLDEN / "tiny_gemma3")[0]
        batch = batch_of(model, [Piece([5, 6, 7], 0, [0])])
        with pytest.raises(ValueError, match="another model"):
            model.forward(batch, memory_of(other))


@pytest.mark.parametrize("block_tokens", [0, 8, 17, -16])
def test_blocks_the_layout_cannot_have_are_refused(block_tokens: int) -> None:
    """Sixteen keys are one vector."""
    with kernels.use_level(NATIVE[-1]), pytest.raises((ValueError, MemoryError)):
        KVMemory(loaded(TINY_LLAMA)[0].config, blocks=(4,), block_tokens=block_tokens)


@pytest.mark.parametrize("heads", [2**62, 2**40])
@pytest.mark.parametrize("layers", [[1], [2**40]])
def test_a_cache_of_absurd_size_is_refused(heads: int, layers: list[int]) -> None:
    """Sizes are multiplied without going round the end of the integers, to one that might be had."""
    from taximeter import _native  # noqa: PLC0415  # it may be missing

    with pytest.raises(MemoryError):
        _native.KVCache("bf16", heads, 2, 16, layers, [2**40])


def test_an_empty_step_gives_no_logits() -> None:
    """Nothing to do is done."""
    model = loaded(TINY_LLAMA)[0]
    with kernels.use_level(NATIVE[-1]):
        good = batch_of(model, [Piece([5], 0, [0])])
        empty = replace(
            good,
            token_ids=good.token_ids[:0],
            positions=good.positions[:0],
            row_seq=good.row_seq[:0],
            slots=(good.slots[0][:0],),
            logit_rows=good.logit_rows[:0],
        )
        assert model.forward(empty, memory_of(model)).shape == (0, model.config.vocab_size)
