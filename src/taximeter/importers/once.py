"""A call counts once, whatever files it is in: of several accounts of it, the one with the most tokens.

Owns: which entries are of one call, by their ids. Refuses to know: what the ledger has already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, chain
from typing import cast

import numpy as np

from taximeter.importers.logged import known_tokens
from taximeter.ledger.calls import Calls, Counts, Names, Places, names_of, texts_of
from taximeter.records import Receipt

Entry = Calls | Receipt


def ids_of(entry: Entry) -> Sequence[str]:
    """The ids of its receipts."""
    return (entry.id,) if isinstance(entry, Receipt) else texts_of(entry.ids)


def each_once(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """The entries without smaller accounts of the same calls, of equals without the later; and how many these are."""
    names = list(map(_names, entries))
    if not names:
        return [], 0
    ids = np.concatenate(names)
    in_order = np.sort(ids)
    is_again = in_order[1:] == in_order[:-1]
    if not is_again.any():
        return list(entries), 0
    lengths = [len(each) for each in names]
    begins = [0, *accumulate(lengths)]
    numbers = np.repeat(np.arange(len(entries)), lengths)
    several = np.flatnonzero(np.isin(ids, in_order[1:][is_again]))
    _, calls = np.unique(ids[several], return_inverse=True)
    order = np.lexsort((several, -np.concatenate(list(map(_tokens, entries)))[several], calls))
    is_first = np.diff(calls[order], prepend=-1) != 0
    left_out: defaultdict[int, set[int]] = defaultdict(set)
    for place in several[order][~is_first].tolist():
        number = int(numbers[place])
        left_out[number].add(place - begins[number])
    kept = chain.from_iterable(_less(entry, left_out.get(number, ())) for number, entry in enumerate(entries))
    return list(kept), sum(map(len, left_out.values()))


def without(entries: Iterable[Entry], ids: Collection[str]) -> list[Entry]:
    """The entries without those whose ids these are."""
    if not ids:
        return list(entries)
    names = names_of(list(ids))
    return list(chain.from_iterable(_less(entry, np.flatnonzero(np.isin(_names(entry), names))) for entry in entries))


def _names(entry: Entry) -> Names:
    return names_of([entry.id]) if isinstance(entry, Receipt) else entry.ids


def _tokens(entry: Entry) -> Counts:
    """All of each of its calls."""
    if isinstance(entry, Receipt):
        return np.array([known_tokens(entry.usage)])
    return cast("Counts", entry.tokens.sum(axis=0))


def _less(entry: Entry, places: Places | set[int]) -> Sequence[Entry]:
    """The entry without what is at these places: nothing where all of it is."""
    if not len(places):
        return (entry,)
    if isinstance(entry, Receipt) or len(places) == len(entry):
        return ()
    return (entry.part(np.delete(np.arange(len(entry)), list(places))),)
