"""A model of this engine as a source of logits at every position of a text, under the settings that are to be compared.

Owns: how a model and its settings are written in one word, the loading, and the passes. Refuses to know: what is made
of the logits (`evaluate`), and scheduling: one sequence, from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar, get_args

import numpy as np

from taximeter.engine import kernels
from taximeter.engine.evaluate import F32, I64, Passage
from taximeter.engine.kv_cache import BLOCK_TOKENS
from taximeter.engine.models import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    Batch,
    KVFormat,
    KVMemory,
    Model,
    WeightFormat,
    layer_groups,
    load_model,
)
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import Checkpoint, open_checkpoint
from taximeter.errors import RequestError

_MOST_ROWS = 256
_MOST_LOGITS = 1 << 24  # 64 MB in float32: what a pass may give at a time
_CONTEXT_TOKENS = 2048
_REFERENCE = "reference"

Origin = Literal["prompt", "generated"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)

_Value = TypeVar("_Value", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model and how it is to be computed. `level` None is the level in use (`kernels.level`), `weights` None keeps
    them as their file has them, `kv` None is what serving takes. `tokens` says as what the text is read: as a prompt,
    or as if the model had written it, which some levels compute in another way."""

    text: str
    model: str
    level: str | None = None
    weights: WeightFormat | None = None
    kv: KVFormat | None = None
    tokens: Origin = "prompt"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `MODEL`, or `MODEL,level=reference`, or `MODEL,weights=int8,kv=f32`: settings in any order, behind the
        model. Raises RequestError for what cannot be set."""
        model, settings = _split(text)
        level = settings.pop("level", None)
        variant = cls(
            text=text,
            model=model,
            level=None if level is None else _one_of("level", _long_name(level), kernels.levels()),
            weights=_optional("weights", settings, WEIGHT_FORMATS),
            kv=_optional("kv", settings, KV_FORMATS),
            tokens=_optional("tokens", settings, ORIGINS) or "prompt",
        )
        if settings:
            raise RequestError(
                f"{text!r} sets {next(iter(settings))!r}, which there is not",
                hint="there are level, weights, kv and tokens, as in MODEL,level=reference",
            )
        if variant.level == _REFERENCE and (variant.weights or variant.kv):
            raise RequestError(
                f"{text!r}: the reference keeps the weights as their file has them, and keys and values in f32",
                hint="set weights and kv at a native level",
            )
        return variant


class ModelLogits:
    """An `evaluate.LogitSource`. `context_tokens` is the longest it will be asked to read."""

    def __init__(
        self, model: Model, *, level: str, kv_format: KVFormat, context_tokens: int, tokens: Origin = "prompt"
    ) -> None:
        self._generated = tokens == "generated"
        self.vocab_size = model.config.vocab_size
        self._model = model
        self._level = level
        blocks = -(-context_tokens // BLOCK_TOKENS)
        self._groups = len(layer_groups(model.config))
        with kernels.use_level(level):
            self._kv = KVMemory(
                model.config, blocks=[blocks] * self._groups, block_tokens=BLOCK_TOKENS, kv_format=kv_format
            )
        self._table = np.arange(blocks, dtype=np.int32)[None, :]

    def logits(self, token_ids: Sequence[int], wanted_from: int) -> Iterator[F32]:
        """See `evaluate.LogitSource`."""
        ids = np.array(token_ids, np.int64)
        for start in range(0, wanted_from, _MOST_ROWS):
            self._forward(ids, start, min(start + _MOST_ROWS, wanted_from), wanted=False)
        rows = rows_at_once(self.vocab_size)
        for start in range(wanted_from, len(ids), rows):
            yield self._forward(ids, start, min(start + rows, len(ids)), wanted=True)

    def _forward(self, ids: I64, start: int, end: int, *, wanted: bool) -> F32:
        positions = np.arange(start, end, dtype=np.int32)
        batch = Batch(
            token_ids=ids[start:end],
            positions=positions,
            row_seq=np.zeros(end - start, np.int32),
            slots=(positions.astype(np.int64),) * self._groups,  # the table names blocks in order
            block_tables=(self._table,) * self._groups,
            logit_rows=np.arange(end - start if wanted else 0, dtype=np.int64),
            generated_rows=end - start if self._generated else 0,
        )
        with kernels.use_level(self._level):
            return self._model.forward(batch, self._kv)


def rows_at_once(vocab_size: int) -> int:
    """How many rows of logits every source gives at a time."""
    return max(1, min(_MOST_ROWS, _MOST_LOGITS // vocab_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A variant that is loaded, and the text in its tokens. `level` is the one that computes, `kv` what keys and values
    are kept in."""

    variant: Variant
    level: str
    kv: KVFormat
    source: ModelLogits
    passage: Passage


def load_subjects(
    variants: Sequence[Variant],
    resolve: Callable[[str], Path],
    text: str,
    *,
    context_tokens: int | None = None,
    stride_tokens: int | None = None,
    threads: int | None = None,
) -> list[Subject]:
    """Load variants to read one text; `resolve` finds a model's file or folder. What several have in common is loaded
    once. `context_tokens` None is 2,048, or what all of the models can read; `stride_tokens` None is three quarters of
    it. Raises ConfigError for what cannot be loaded, and RequestError for what cannot be evaluated, together or at all.
    """
    if threads is not None:
        kernels.set_threads(threads)
    opened = {path: _Opened.of(path) for path in dict.fromkeys(resolve(variant.model) for variant in variants)}
    first, *others = opened.values()
    for other in others:
        _refuse_another_vocabulary(first, other)
    limit = min(one.checkpoint.config.context_length_tokens for one in opened.values())
    context_tokens = context_tokens or min(limit, _CONTEXT_TOKENS)
    if context_tokens > limit:
        raise RequestError(
            f"{'the model' if len(opened) == 1 else 'one of the models'} reads at most {limit:,} tokens, not "
            f"{context_tokens:,}",
            param="context_tokens",
            hint=f"give --context-tokens {limit} or less",
        )
    passage = passage_of(
        first.tokenizer,
        text,
        context_tokens=context_tokens,
        stride_tokens=stride_tokens or max(1, context_tokens * 3 // 4),
    )
    models: dict[tuple[Path, WeightFormat | None], Model] = {}
    subjects: list[Subject] = []
    for variant in variants:
        path, level = resolve(variant.model), variant.level or kernels.level()
        kv: KVFormat = "f32" if level == _REFERENCE else variant.kv or "bf16"
        with kernels.use_level(level):
            model = models.get((path, variant.weights)) or load_model(opened[path].checkpoint, weights=variant.weights)
        models[path, variant.weights] = model
        source = ModelLogits(
            model,
            level=level,
            kv_format=kv,
            context_tokens=context_tokens,
            tokens=variant.tokens,
        )
        subjects.append(Subject(variant=variant, level=level, kv=kv, source=source, passage=passage))
    return subjects


@dataclass(frozen=True, slots=True)
class _Opened:
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @classmethod
    def of(cls, path: Path) -> Self:
        checkpoint = open_checkpoint(path)
        return cls(checkpoint, Tokenizer.of(checkpoint))


def passage_of(tokenizer: Tokenizer, text: str, *, context_tokens: int, stride_tokens: int) -> Passage:
    """A text as one model's tokens, nothing in it taken for a control token. Raises RequestError."""
    return Passage(
        token_ids=tuple(tokenizer.encode(text, specials=False)),
        prefix=tuple(tokenizer.encode_prompt("")),
        context_tokens=context_tokens,
        stride_tokens=stride_tokens,
    )


def _split(text: str) -> tuple[str, dict[str, str]]:
    """The model, and what is set behind it. A path may have commas: a setting is what has an equals sign."""
    settings: dict[str, str] = {}
    model = text
    while True:
        rest, comma, last = model.rpartition(",")
        key, equals, value = last.partition("=")
        if not (comma and equals and key.isidentifier()):
            return model, settings
        if key in settings:
            raise RequestError(f"{text!r} sets {key} twice")
        settings[key] = value
        model = rest


def _long_name(level: str) -> str:
    return level if level == _REFERENCE or ":" in level else f"native:{level}"


def _optional(key: str, settings: dict[str, str], known: Sequence[_Value]) -> _Value | None:
    value = settings.pop(key, None)
    return None if value is None else _one_of(key, value, known)


def _one_of(key: str, value: str, known: Sequence[_Value]) -> _Value:
    for one in known:
        if one == value:
            return one
    raise RequestError(f"{key} cannot be {value!r} here", hint=f"it can be {', '.join(known)}")


def _refuse_another_vocabulary(a: _Opened, b: _Opened) -> None:
    """Distributions over different tokens have no divergence."""
    hint = "compare versions of one model"
    names = f"{a.checkpoint.path.name} and {b.checkpoint.path.name} have different vocabularies"
    size, other_size = a.checkpoint.config.vocab_size, b.checkpoint.config.vocab_size
    if size != other_size:
        raise RequestError(f"{names}, of {size:,} and {other_size:,} tokens", hint=hint)
    for token_id in range(size):
        token, other = a.tokenizer.token_bytes(token_id), b.tokenizer.token_bytes(token_id)
        if token != other:
            raise RequestError(f"{names}: token {token_id} is {token!r} in one, {other!r} in the other", hint=hint)
    if a.tokenizer.encode_prompt("") != b.tokenizer.encode_prompt(""):
        raise RequestError(f"{names}: they begin a text differently", hint=hint)
