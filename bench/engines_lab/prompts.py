"""Prompts to measure with: random common words, as token ids, exactly as long as asked.

Owns: the words, and that no two prompts begin alike (a prefix cache must find nothing it was not meant to find), while
every engine of a round gets the same ones. Refuses to know: what they are for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint

_WORDS: Final = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city community name president team minute idea body information back parent face others
level office door health person art war history party result change morning reason research girl boy age policy process
music market sense nation plan college interest death experience effect use class control care field development role
effort rate heart drug show leader light voice wife police mind price report decision son view town road form site fish
tree farm ship wind fire snow river stone horse garden window kitchen bridge island forest mountain engine paper letter
summer winter spring table chair silver copper yellow green purple orange simple quick heavy bright quiet strong gentle
narrow ancient modern
""".split()  # noqa: SIM905 - a list of words is read more easily as text


class Prompts:
    """A stream of prompts for one model. The same seed gives the same stream."""

    def __init__(self, words: Sequence[int], *, begin: int | None, seed: str) -> None:
        self._words = words
        self._begin = () if begin is None else (begin,)
        self._chance = random.Random(seed)  # noqa: S311 - prompts to measure with

    def prompt(self, tokens: int, *, after: Sequence[int] = ()) -> list[int]:
        """A prompt of `tokens` tokens in all, beginning with `after`."""
        start = list(after or self._begin)
        return [*start, *self._chance.choices(self._words, k=tokens - len(start))]


class Stock:
    """The words that are one token each in one model's vocabulary."""

    def __init__(self, model: Path) -> None:
        tokenizer = Tokenizer.from_vocabulary(open_checkpoint(model).vocabulary())
        encoded = [tokenizer.encode(f" {word}", specials=False) for word in _WORDS]
        self._words = [ids[0] for ids in encoded if len(ids) == 1]
        self._begin = tokenizer.bos_id if tokenizer.add_bos else None

    def prompts(self, seed: str) -> Prompts:
        return Prompts(self._words, begin=self._begin, seed=seed)
