"""From ids back to text, as they come.

Owns: what is held back until it is known which character it is. Refuses to know: what the ids are, and who reads.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Text of one growing sequence. What `push` and `flush` return, joined, is the decoded whole."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_space: bool) -> None:
        """`strip_space` drops one space at the very beginning: the one that some models' encoding puts there."""
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that is certain now. Bytes that may begin a character wait; bytes that cannot become U+FFFD."""
        added = self._token_bytes(token_id)
        if self._strip_space and added:
            added, self._strip_space = added.removeprefix(b" "), False
        return self._utf8.decode(added)

    def flush(self) -> str:
        """What was waiting, now that nothing follows: U+FFFD for an unfinished character."""
        return self._utf8.decode(b"", final=True)
