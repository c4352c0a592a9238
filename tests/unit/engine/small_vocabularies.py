"""Vocabularies small enough to reason about."""

from __future__ import annotations

from taximeter.engine.pieces import BYTE_ALPHABET
from taximeter.engine.weights.vocabulary import Vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_level(
    *,
    merges: tuple[str, ...] = ("h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"),
    control: tuple[str, ...] = ("<|start|>", "<|im_end|>"),
    user_defined: tuple[str, ...] = (),
    mistyped: tuple[str, ...] = (),
    pre: str = "gpt-2",
    **more: object,
) -> Vocabulary:
    """The 256 bytes, the merges' products, and tokens of other types; `mistyped` are written down as normal."""
    products = [merge.replace(" ", "") for merge in merges]
    normal = [*BYTE_ALPHABET, *(product for product in products if product not in control), *mistyped]
    fields: dict[str, object] = {"eos_id": None, **more}
    return Vocabulary(
        kind="bpe",
        tokens=(*normal, *control, *user_defined),
        merges=merges,
        token_types=(NORMAL,) * len(normal) + (CONTROL,) * len(control) + (USER_DEFINED,) * len(user_defined),
        pre=pre,
        **fields,  # type: ignore[arg-type]
    )


def by_score(
    pieces: dict[str, float],
    *,
    control: tuple[str, ...] = ("<bos>", "<end_of_turn>"),
    user_defined: tuple[str, ...] = ("\n", "\n\n"),
    **more: object,
) -> Vocabulary:
    """<unk> as id 0, the pieces with their scores, the 256 bytes, then control and user-defined tokens."""
    by_bytes = tuple(f"<0x{byte:02X}>" for byte in range(256))
    tokens = ("<unk>", *pieces, *by_bytes, *control, *user_defined)
    return Vocabulary(
        kind="spm",
        tokens=tokens,
        scores=(0.0, *pieces.values(), *(0.0,) * (len(tokens) - 1 - len(pieces))),
        token_types=(
            (UNKNOWN,)
            + (NORMAL,) * len(pieces)
            + (BYTE,) * 256
            + (CONTROL,) * len(control)
            + (USER_DEFINED,) * len(user_defined)
        ),
        unk_id=0,
        **more,  # type: ignore[arg-type]
    )
