"""Merging by the `tokenizers` library: for Hugging Face's own files, and where native code was not built.

Owns: our rules in the library's words. Refuses to know: which tokens a text may become, which are whole words to us.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from taximeter.errors import ModelFileError

_Merge = Callable[[str], list[int]]

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORD_PATTERNS: Mapping[str, str] = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "tekken": (  # a new word begins where capitals follow small letters
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "number": r"\p{N}",
    "numbers": r"\p{N}+",
    "punctuation": r"[\p{P}\$\+<=>\^~\|]+",
    "three ascii digits": "[0-9][0-9][0-9]",
}
"""What is cut out of a text, by the step's name. The native code does the same by hand (native/tokenizer/words.cpp)."""


def merge_by_rank(
    vocab: dict[str, int],
    merges: Sequence[str],
    steps: Sequence[str],
    *,
    whole_words_first: bool,
) -> _Merge:
    """Byte-level BPE: text cut into words by one step after the other, each merged by the ranks of `merges`."""
    # The space between two sides is never the first character. No call for each: there are tens of thousands.
    pairs = [
        (left, right)
        for merge in merges
        if (cut := merge.find(" ", 1)) > 0
        and (left := merge[:cut]) in vocab
        and (right := merge[cut + 1 :]) in vocab
        and left + right in vocab
    ]
    machine = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=whole_words_first))
    splits = [pre_tokenizers.Split(Regex(WORD_PATTERNS[step]), "isolated") for step in steps]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    machine.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return _merge(machine)


def merge_by_score(
    mergeable: Mapping[str, int],
    scores: npt.NDArray[np.float32],
    of_bytes: Mapping[str, int],
    unknown: Mapping[str, int],
) -> _Merge:
    """SentencePiece's BPE as merges by rank, which the library wants: every way to cut a piece into two others is a
    merge, ranked by the piece's score.

    SentencePiece takes the leftmost of equal scores; two cuts of one piece can only compete where they overlap, as in a
    run of equal characters, and there the leftmost is the one with the longer left part. Of different pieces with one
    score the library takes the lower id instead, wherever it stands, and no piece has a part that is none: real
    vocabularies are not affected. `unknown` is the token for what is none and has no bytes, if there is one.
    """
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(mergeable, key=lambda piece: scores[mergeable[piece]], reverse=True)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in mergeable and piece[cut:] in mergeable
    ]
    vocab = {**mergeable, **of_bytes, **unknown}
    name = next(iter(unknown), None)
    return _merge(Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token=name)))


def composed(text: str) -> str:
    """A letter and the accent after it made one character: Unicode's NFC, as those models' own tokenizers have it."""
    return normalizers.NFC().normalize_str(text)


def merge_as_written(tokenizer_json: str) -> _Merge:
    """As a tokenizer.json says. Raises ValueError for what is none."""
    try:
        with _panics_told():
            machine = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ValueError(str(error)) from error
    return _merge(machine)


@contextmanager
def _panics_told() -> Generator[None]:
    """What the library gives up in the middle of is no `Exception` in Python, and would pass by everybody who handles
    those. Its words may quote the text, so they are not passed on."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelFileError(
            "the rules of this model's tokenizer cannot be followed through this text",
            hint="its tokenizer.json may be damaged, or made to do harm; use a GGUF file of the model",
        ) from error


def _merge(machine: Tokenizer) -> _Merge:
    # A batch of one: unlike `encode` it lets other threads run meanwhile, and it does not work out character offsets.
    def merge(text: str) -> list[int]:
        with _panics_told():
            return machine.encode_batch_fast([text], add_special_tokens=False)[0].ids

    return merge
