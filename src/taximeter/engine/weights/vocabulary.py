"""What a tokenizer is built from, as a model's files say it.

Owns: the record. Refuses to know: how text becomes tokens, and what a template does with messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

VocabularyKind = Literal["bpe", "spm", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The pieces of one model's tokenizer.

    `kind` says which fields speak: `bpe` (byte-level: `tokens`, `merges`, `pre`), `spm` (SentencePiece: `tokens`,
    `scores`), or `json`, where everything about splitting text is inside the file `tokenizer_json` and the lists here
    are empty. `merges` are pairs in one string with a space between, best first. `token_types` has one entry per
    token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.

    An id is None when the files do not name it. `stop_ids` are all the ids the files name as ending an answer,
    `eos_id` and `eot_id` among them. `pre` names the rule that splits text before merging.
    """

    kind: VocabularyKind
    tokens: Sequence[str] = ()
    merges: Sequence[str] = ()
    scores: Sequence[float] | npt.NDArray[np.floating[Any]] = ()
    token_types: Sequence[int] | npt.NDArray[np.integer[Any]] = ()
    pre: str | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    unk_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    add_bos: bool = False
    add_space_prefix: bool = False
    chat_template: str | None = None
    tokenizer_json: Path | None = None
