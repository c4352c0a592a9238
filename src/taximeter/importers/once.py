"""A call counts once, whatever files it is in: of several accounts of it, the one with the most tokens.

Owns: which entries are of one call, by their ids. Refuses to know: what the ledger has already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from taximeter.importers.logged import known_tokens
from taximeter.ledger import Calls
from taximeter.records import Receipt

Entry = Calls | Receipt


def ids_of(entry: Entry) -> Sequence[str]:
    """The ids of its receipts."""
    return (entry.id,) if isinstance(entry, Receipt) else entry.ids


def each_once(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """The entries without smaller accounts of the same calls, of equals without the later; and how many these are."""
    ids = list(chain.from_iterable(map(ids_of, entries)))
    if len(set(ids)) == len(ids):
        return list(entries), 0
    twice = {id_ for id_, count in Counter(ids).items() if count > 1}
    largest: dict[str, tuple[int, int, int]] = {}
    left_out: defaultdict[int, set[int]] = defaultdict(set)
    for number, entry in enumerate(entries):
        theirs = ids_of(entry)
        if twice.isdisjoint(theirs):
            continue
        for place, id_ in enumerate(theirs):
            if id_ not in twice:
                continue
            tokens = _tokens(entry, place)
            other = largest.get(id_)
            if other is not None and tokens <= other[0]:
                left_out[number].add(place)
                continue
            if other is not None:
                left_out[other[1]].add(other[2])
            largest[id_] = tokens, number, place
    kept = chain.from_iterable(_less(entry, left_out.get(number, ())) for number, entry in enumerate(entries))
    return list(kept), sum(map(len, left_out.values()))


def without(entries: Iterable[Entry], ids: Collection[str]) -> list[Entry]:
    """The entries without those whose ids these are."""
    if not ids:
        return list(entries)
    return [
        kept
        for entry in entries
        for kept in _less(entry, {place for place, id_ in enumerate(ids_of(entry)) if id_ in ids})
    ]


def _less(entry: Entry, places: Collection[int]) -> Sequence[Entry]:
    """The entry without what is at these places: nothing where all of it is."""
    if not places:
        return (entry,)
    kept = [place for place in range(len(ids_of(entry))) if place not in places]
    return (entry.part(kept),) if kept and not isinstance(entry, Receipt) else ()


def _tokens(entry: Entry, place: int) -> int:
    if isinstance(entry, Receipt):
        return known_tokens(entry.usage)
    return sum([column[place] for column in entry.tokens])
