"""Text to token ids and back, as the model's own files say.

Owns: which tokens are recognised in which text. A control token (the end of a turn, say) is recognised only where the
caller vouches for the text; typed by a user it is ordinary characters. Refuses to know: conversations and templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from taximeter.engine.detokenizer import Detokenizer
from taximeter.engine.pieces import END_OF_TURN_NAMES, SPACE_MARK, Pieces, pieces_of
from taximeter.engine.weights import Checkpoint, Vocabulary, naming
from taximeter.errors import RequestError


class Tokenizer:
    """One model's tokenizer. Immutable once built; safe to use from several threads."""

    def __init__(
        self, pieces: Pieces, *, bos_id: int | None, eos_id: int | None, add_bos: bool, stop_ids: frozenset[int]
    ) -> None:
        self._pieces = pieces
        self._control = TokenMatcher(pieces.control)
        self._user_defined = TokenMatcher(pieces.user_defined)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.add_bos = add_bos and bos_id is not None
        self.stop_ids = stop_ids

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Tokenizer:
        """From the vocabulary that a model comes with. Raises ModelFileError, which names the model's path."""
        with naming(checkpoint.path):
            return cls.from_vocabulary(checkpoint.vocabulary())

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> Tokenizer:
        """Build it, which takes up to seconds for a large vocabulary. Raises ModelFileError.

        An answer ends at what the files name (end of text, end of turn) and at every token that is known by its name
        to end a turn: files often name only one of them.
        """
        pieces = pieces_of(vocabulary)
        named = {pieces.control[name] for name in END_OF_TURN_NAMES & pieces.control.keys()}
        listed = {*vocabulary.stop_ids, vocabulary.eos_id, vocabulary.eot_id} - {None}
        return cls(
            pieces,
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            add_bos=vocabulary.add_bos,
            stop_ids=frozenset(token_id for token_id in named | listed if token_id is not None),
        )

    @property
    def vocab_size(self) -> int:
        return len(self._pieces.names)

    @cached_property
    def longest_token_characters(self) -> int:
        """No token stands for more characters of a text: what files call one is at least as long as its text."""
        return self._pieces.names.longest_characters

    @property
    def control(self) -> TokenMatcher:
        """Finds control tokens in text."""
        return self._control

    def encode(self, text: str, *, specials: bool, stand_ins: Mapping[str, str] | None = None) -> list[int]:
        """Ids of a text, without a beginning or an end added. Raises RequestError when it is not valid Unicode.

        With `specials`, control tokens written out in the text are recognised; else none can come of it. `stand_ins`
        are characters that are to be read as others, once control tokens have been recognised: what holds one is
        never part of a control token.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: it has a lone surrogate at character {error.start}", param="prompt"
            ) from error
        ids: list[int] = []
        for stretch, control_id in self._control.split(text) if specials else [(text, None)]:
            if control_id is not None:
                ids.append(control_id)
            else:
                self._encode_plain(undisguised(stretch, stand_ins or {}), ids)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text to be continued: the model's beginning, where it wants one, and the text as plain text."""
        ids = self.encode(text, specials=False)
        return [self.bos_id, *ids] if self.add_bos and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Control tokens have none; bytes that are no character become U+FFFD."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def detokenizer(self, *, continuing: bool = False, visible: Collection[int] = ()) -> Detokenizer:
        """Decodes token by token. `continuing` a text, a space that begins the first token belongs to the text; at a
        beginning it is the one that some models' encoding puts there. Of control tokens only the `visible` ones have
        a text: their name."""
        strip_space = not continuing and self._pieces.space_prefix != "never"
        if not visible:
            return Detokenizer(self.token_bytes, strip_space=strip_space)
        names = {token_id: self.token_name(token_id).encode("utf-8", "replace") for token_id in visible}
        return Detokenizer(lambda token_id: names.get(token_id) or self.token_bytes(token_id), strip_space=strip_space)

    def token_bytes(self, token_id: int) -> bytes:
        """What an id adds to a text, often a part of a character only. Nothing for control tokens, and for ids past
        the vocabulary that a padded model has rows for."""
        return self._pieces.utf8(token_id) if 0 <= token_id < self.vocab_size else b""

    def token_name(self, token_id: int | None) -> str:
        """What the model's files call an id, for control tokens the text that stands for them in templates."""
        names = self._pieces.names
        return names[token_id] if token_id is not None and 0 <= token_id < len(names) else ""

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        rule = self._pieces.space_prefix
        for stretch, token_id in self._user_defined.split(text):
            if token_id is not None:
                ids.append(token_id)
            elif rule == "each" or (rule == "first" and not ids and stretch[0] not in (" ", SPACE_MARK)):
                ids.extend(self._pieces.merge(" " + stretch))
            else:
                ids.extend(self._pieces.merge(stretch))


def undisguised(text: str, stand_ins: Mapping[str, str]) -> str:
    """The text with each stand-in read as what it stands for. No original may be a stand-in."""
    for stand_in, original in stand_ins.items():  # a handful: `translate` would look up every single character
        text = text.replace(stand_in, original)
    return text


class TokenMatcher:
    """Finds a set of tokens written out in text: the leftmost first, of several at one place the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        # By the first two characters (one, for tokens that short): the lengths worth trying, longest first.
        lengths: dict[str, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {
            start: sorted(found | ({1} if start[0] in ids else set()), reverse=True) for start, found in lengths.items()
        }
        firsts = "".join(re.escape(first) for first in sorted({token[0] for token in ids}))
        self._firsts = re.compile(f"[{firsts}]") if firsts else None

    def possible_starts(self, text: str) -> Iterator[int]:
        """Every place of a character that some token begins with."""
        return (found.start() for found in self._firsts.finditer(text)) if self._firsts else iter(())

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        """Every place where a token begins, overlapping ones too, with the longest token there."""
        for at in self.possible_starts(text):
            for length in self._lengths.get(text[at : at + 2]) or self._lengths.get(text[at]) or ():
                if text[at : at + length] in self._ids:
                    yield at, text[at : at + length]
                    break

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in order: stretches (never empty) that hold no token, and (token, its id) between them."""
        done = 0
        for at, token in self.starts(text):
            if at < done:
                continue
            if at > done:
                yield text[done:at], None
            yield token, self._ids[token]
            done = at + len(token)
        if done < len(text):
            yield text[done:], None
