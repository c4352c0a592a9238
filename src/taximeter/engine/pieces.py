"""What every kind of vocabulary comes down to: how plain text is merged into ids, and what each id stands for.

Byte-level BPE (`bpe`), SentencePiece's merging by score (`spm`) and Hugging Face's own file (`json`) become one record,
`Pieces`. Owns: the rules of each kind. Refuses to know: when a control token may be recognised, and how ids become
text again piece by piece.

What merges is native code, or the `tokenizers` library where that was not built, and for Hugging Face's files. It is
built without the control tokens, so that no text whatsoever can be merged into one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from taximeter.engine import kernels
from taximeter.engine.names import ListedNames, Names
from taximeter.engine.remembered_merges import WORD_ENDS, remembering
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError

SPACE_MARK = "\u2581"  # SentencePiece writes a space like this
END_OF_TURN_NAMES = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "<eos>",
    }
)
# Some exports mark these as ordinary words; they are control tokens wherever they appear.
_CONTROL_NAMES = END_OF_TURN_NAMES | {
    "<|im_start|>",
    "<start_of_turn>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<bos>",
}

# `tokenizer.ggml.pre` -> how text is cut into words, by names of `library_merges.WORD_PATTERNS`. Each step cuts what
# the ones before it left, as llama.cpp does it.
_WORD_STEPS: dict[str, tuple[str, ...]] = {
    "default": ("punctuation", "gpt2", "numbers", "three ascii digits"),
    "gpt-2": ("gpt2",),
    "llama-bpe": ("llama3",),
    "llama-v3": ("llama3",),
    "llama3": ("llama3",),
    "qwen2": ("qwen2",),
    "deepseek-r1-qwen": ("qwen2",),
    "tekken": ("tekken",),
    "smollm": ("number", "gpt2"),
}
# A word that is a token is not merged at all.
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama-v3", "llama3", "tekken"})
_COMPOSED_FIRST = frozenset({"qwen2"})  # a letter and the accent after it become one character (Unicode's NFC)
_LONGEST_TOKEN_CHARACTERS = 1 << 12  # trying every cut of a token takes the square of its length
_Types = npt.NDArray[np.uint8]  # the TokenType of each id
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """One model's tokens, whatever files they came from.

    `merge` turns plain text into ids, none of them a control token's. `names` has what the files call each id, `utf8`
    gives the bytes that one adds to an answer: none for a control token. `user_defined` are matched in any text before
    merging, `control` only where the caller says so. `space_prefix` says where merging expects an extra space in front
    of plain text: at the very beginning, or after every matched token as well.
    """

    merge: Callable[[str], list[int]]
    names: Names
    utf8: Callable[[int], bytes]
    control: Mapping[str, int]
    user_defined: Mapping[str, int]
    space_prefix: Literal["never", "first", "each"]


def pieces_of(vocabulary: Vocabulary) -> Pieces:
    """Build what a tokenizer needs. `ModelFileError` for a vocabulary that is inconsistent or of an unknown kind."""
    match vocabulary.kind:
        case "bpe":
            return _byte_level(vocabulary)
        case "spm":
            return _by_score(vocabulary)
        case "json":
            return _from_file(vocabulary)


def _byte_level(vocabulary: Vocabulary) -> Pieces:
    names = _names(vocabulary.tokens)
    types = _types(vocabulary, names)
    pre = vocabulary.pre or "default"
    steps = _WORD_STEPS.get(pre)
    if steps is None:
        raise ModelFileError(
            f"this model splits text by the rule '{pre}', which is not one of ours",
            hint=f"known rules: {', '.join(sorted(_WORD_STEPS))}",
        )
    merge = _rank_machine(names, types, vocabulary.merges, steps, whole_words_first=pre in _WHOLE_WORDS_FIRST)
    if pre in _COMPOSED_FIRST:
        merge = _composing(merge)
    return Pieces(
        merge=remembering(merge),
        names=names,
        utf8=_utf8(names, types, _byte_level_utf8),
        control=_of_types(names, types, TokenType.CONTROL, TokenType.UNKNOWN),
        user_defined=_of_types(names, types, TokenType.USER_DEFINED),
        space_prefix="never",
    )


def _rank_machine(
    names: Names, types: _Types, merges: Sequence[str], steps: Sequence[str], *, whole_words_first: bool
) -> Callable[[str], list[int]]:
    if not kernels.is_built():
        from taximeter.engine import library_merges  # noqa: PLC0415  # a large library

        vocab = _of_types(names, types, TokenType.NORMAL, TokenType.USER_DEFINED)
        return library_merges.merge_by_rank(vocab, merges, steps, whole_words_first=whole_words_first)
    from taximeter.engine import native_merges  # noqa: PLC0415  # it may be missing

    mergeable = (types == TokenType.NORMAL) | (types == TokenType.USER_DEFINED)
    return native_merges.merge_by_rank(
        names,
        mergeable=mergeable,
        merges=merges,
        alphabet=[name for name, _ in sorted(BYTE_ALPHABET.items(), key=lambda item: item[1])],
        steps=steps,
        whole_words_first=whole_words_first,
    )


def _composing(merge: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    def merge_composed(text: str) -> list[int]:
        if text.isascii():
            return merge(text)
        from taximeter.engine.library_merges import composed  # noqa: PLC0415  # a large library

        return merge(composed(text))

    return merge_composed


def _by_score(vocabulary: Vocabulary) -> Pieces:
    """SentencePiece's BPE: of all adjacent pairs that make a piece, merge the one whose piece has the best score, the
    leftmost of equals."""
    names = _names(vocabulary.tokens)
    types = _types(vocabulary, names)
    scores = np.asarray(vocabulary.scores, np.float32)
    if len(scores) != len(names):
        raise ModelFileError(f"the vocabulary has {len(names)} tokens and {len(scores)} scores")
    merge_marked, reaches_over = _score_machine(names, types, scores, vocabulary.unk_id)

    def merge(text: str) -> list[int]:
        return merge_marked(text.replace(" ", SPACE_MARK))

    # A text is one long word here: whether merges reach from one word into the next is up to the pieces there are.
    return Pieces(
        merge=merge if reaches_over else remembering(merge),
        names=names,
        utf8=_utf8(names, types, _space_mark_utf8),
        control=_of_types(names, types, TokenType.CONTROL, TokenType.UNKNOWN),
        user_defined=_of_types(names, types, TokenType.USER_DEFINED),
        space_prefix="each" if vocabulary.add_space_prefix else "never",
    )


def _score_machine(
    names: Names, types: _Types, scores: npt.NDArray[np.float32], unknown: int | None
) -> tuple[Callable[[str], list[int]], bool]:
    """What merges text whose spaces are marked, and whether it may merge over the end of a word."""
    if not kernels.is_built():
        from taximeter.engine import library_merges  # noqa: PLC0415  # a large library

        mergeable = _of_types(names, types, TokenType.NORMAL)
        of_bytes = _of_types(names, types, TokenType.BYTE)
        special = {} if unknown is None else {names[unknown]: unknown}
        merge = library_merges.merge_by_score(mergeable, scores, of_bytes, special)
        return merge, re.search(WORD_ENDS + SPACE_MARK, "\n".join(mergeable)) is not None
    from taximeter.engine import native_merges  # noqa: PLC0415  # it may be missing

    return native_merges.merge_by_score(
        names,
        mergeable=types == TokenType.NORMAL,
        scores=scores,
        of_bytes=_ids_of_bytes(names, types),
        unknown=unknown,
        space_mark=SPACE_MARK,
        word_end=WORD_ENDS,
    )


def _ids_of_bytes(names: Names, types: _Types) -> npt.NDArray[np.int32]:
    """The token of each byte, or -1."""
    ids = np.full(256, -1, np.int32)
    for token_id in names.ids_of({f"<0x{byte:02X}>" for byte in range(256)}):
        if types[token_id] == TokenType.BYTE:
            ids[int(names[token_id][3:5], 16)] = token_id
    return ids


def _from_file(vocabulary: Vocabulary) -> Pieces:
    """Hugging Face's tokenizer.json, its added tokens taken out: who matches those is our decision, text by text."""
    path = vocabulary.tokenizer_json
    if path is None:
        raise ModelFileError("the model comes without a tokenizer.json")
    try:
        return _of_document(json.loads(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path.name} is not a BPE tokenizer that we can read: {type(error).__name__}: {str(error)[:200]}",
            hint="fetch the model again, or use a GGUF file of it",
        ) from error


def _of_document(data: dict[str, Any]) -> Pieces:
    """A parsed tokenizer.json, which is changed. Raises whatever comes of a document in another form."""
    model = cast(dict[str, Any], data["model"])
    vocab, merges = cast(dict[str, int], model["vocab"]), cast(list[str | list[str]], model["merges"])
    added = cast(list[dict[str, Any]], data.get("added_tokens") or [])
    ids = vocab | {str(token["content"]): int(token["id"]) for token in added}
    special = {str(token["content"]) for token in added if token.get("special")} | (_CONTROL_NAMES & ids.keys())
    names, types = _listed(ids)
    for token in added:
        types[ids[token["content"]]] = TokenType.USER_DEFINED
    for name in special:
        types[ids[name]] = TokenType.CONTROL
    if model.get("byte_fallback"):
        for token_id, name in enumerate(names):
            if types[token_id] == TokenType.NORMAL and _BYTE_NAME.fullmatch(name):
                types[token_id] = TokenType.BYTE
    byte_level = '"ByteLevel"' in json.dumps([data.get("pre_tokenizer"), data.get("decoder")])

    unknown = model.get("unk_token")
    model["vocab"] = {name: token_id for name, token_id in vocab.items() if name not in special or name == unknown}
    pairs = [_pair(merge) if isinstance(merge, str) else (merge[0], merge[1]) for merge in merges]
    model["merges"] = [pair for pair in pairs if special.isdisjoint((*pair, "".join(pair)))]
    prefix = _take_space_prefix(data)
    data |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    from taximeter.engine.library_merges import merge_as_written  # noqa: PLC0415  # not every vocabulary needs it

    return Pieces(
        merge=merge_as_written(json.dumps(data)),
        names=ListedNames(names),
        utf8=_utf8(names, types, _byte_level_utf8 if byte_level else _space_mark_utf8),
        control=_of_types(names, types, TokenType.CONTROL),
        user_defined=_of_types(names, types, TokenType.USER_DEFINED),
        space_prefix=prefix,
    )


def _listed(ids: Mapping[str, int]) -> tuple[list[str], _Types]:
    """Names and types by id. Ids that nothing is called by count as unused."""
    last = max(ids.values())
    if min(ids.values()) < 0 or last >= _MOST_TOKENS:
        raise ValueError("token ids out of range")
    names, types = [""] * (last + 1), np.full(last + 1, TokenType.UNUSED, np.uint8)
    for name, token_id in ids.items():
        names[token_id] = name
    types[list(ids.values())] = TokenType.NORMAL
    return names, types


_MOST_TOKENS = 1 << 24  # a damaged id must not make us allocate without bound


def _take_space_prefix(data: dict[str, Any]) -> Literal["never", "first", "each"]:
    """Switch off the file's own extra space in front of text, and say which rule it was."""
    rule: Literal["never", "first", "each"] = "never"
    normalizer = cast(dict[str, Any] | None, data.get("normalizer"))
    steps = cast(list[dict[str, Any]], (normalizer or {}).get("normalizers") or ([normalizer] if normalizer else []))
    if any(step["type"] == "Prepend" for step in steps):
        rule = "each"
        data["normalizer"] = {"type": "Sequence", "normalizers": [step for step in steps if step["type"] != "Prepend"]}
    splitter = cast(dict[str, Any] | None, data.get("pre_tokenizer"))
    parts = cast(list[dict[str, Any]], (splitter or {}).get("pretokenizers") or ([splitter] if splitter else []))
    for part in parts:
        if part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            rule = "first" if part.get("prepend_scheme") == "first" else "each"
            part["prepend_scheme"] = "never"
    return rule


def _names(tokens: Sequence[str]) -> Names:
    if not kernels.is_built():
        return ListedNames(tokens)
    from taximeter.engine.native_merges import NativeNames  # noqa: PLC0415  # it may be missing

    return NativeNames(tokens)


def _types(vocabulary: Vocabulary, names: Names) -> _Types:
    """One type per token: the file's word, except for names that are control tokens whatever the file says."""
    given = np.asarray(vocabulary.token_types)
    kinds = given if len(given) else np.full(len(names), TokenType.NORMAL)
    if len(kinds) != len(names):
        raise ModelFileError(f"the vocabulary has {len(names)} tokens and {len(kinds)} token types")
    longest = names.longest_characters
    if longest > _LONGEST_TOKEN_CHARACTERS:
        raise ModelFileError(
            f"the vocabulary has a token of {longest:,} characters; {_LONGEST_TOKEN_CHARACTERS:,} is the most we take",
            hint="the file is damaged; fetch the model again",
        )
    types = np.where(np.isin(kinds, list(TokenType)), kinds, TokenType.UNUSED).astype(np.uint8)
    types[names.ids_of(_CONTROL_NAMES)] = TokenType.CONTROL
    return types


def _of_types(names: Sequence[str], types: _Types, *wanted: TokenType) -> dict[str, int]:
    """The ids of some types by their names, but for those that are called nothing."""
    return {name: token_id for token_id in np.flatnonzero(np.isin(types, wanted)).tolist() if (name := names[token_id])}


def _pair(merge: str) -> tuple[str, str]:
    """The two sides of a merge written in one string. The space between is never its first character."""
    cut = merge.find(" ", 1)
    return (merge[:cut], merge[cut + 1 :]) if cut > 0 else (merge, "")


def _utf8(names: Sequence[str], types: _Types, of_normal: Callable[[str], bytes]) -> Callable[[int], bytes]:
    """The bytes an id adds to an answer, worked out when asked for: of a vocabulary few tokens are ever said."""
    kinds = types.tobytes()

    def of(token_id: int) -> bytes:
        name, kind = names[token_id], kinds[token_id]
        if kind == TokenType.NORMAL:
            return of_normal(name)
        if kind == TokenType.USER_DEFINED:
            return name.encode("utf-8", "replace")
        value = _BYTE_NAME.fullmatch(name) if kind == TokenType.BYTE else None
        return bytes([int(value[1], 16)]) if value else b""

    return of


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each of the 256 bytes: itself where it can be seen, else from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + at): byte for at, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


def _byte_level_utf8(name: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in name])
    except KeyError:  # a word that some export put among the others as it is
        return name.encode("utf-8", "replace")


def _space_mark_utf8(name: str) -> bytes:
    return name.replace(SPACE_MARK, " ").encode("utf-8", "replace")
