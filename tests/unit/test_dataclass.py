"""Our dataclasses behave as the library's own do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import pytest

from taximeter.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """As most records are."""

    name: str
    count: int = 3
    parts: list[int] = field(default_factory=list[int])
    secret: str = field(default="s", repr=False)
    aside: int = field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """The same, by the library."""

    name: str
    count: int = 3
    parts: list[int] = field(default_factory=list[int])
    secret: str = field(default="s", repr=False)
    aside: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class More(Ours):
    """A subclass, which gives a field another default and has one more."""

    count: int = 4
    more: float = math.nan


@dataclass(frozen=True, slots=True)
class Point:
    """Two by position, which may be keys."""

    x: int
    y: int = 0


@dataclass(slots=True)
class Tally:
    """It changes, and works something out when it is made."""

    step: int
    _total: int = field(default=0, init=False)
    seen: list[int] = field(default_factory=list[int], init=False)

    def __post_init__(self) -> None:
        self._total += self.step

    @property
    def total(self) -> int:
        """What it worked out."""
        return self._total


@dataclass(slots=True, eq=False)
class Itself:
    """Equal to nothing but itself."""

    x: int


@dataclass(frozen=True)
class Spoken:
    """It has methods of its own."""

    x: int

    def __repr__(self) -> str:
        return "spoken"

    def __hash__(self) -> int:
        return 7


@dataclass(frozen=True, slots=True)
class One:
    """One field."""

    x: object


@dataclass(frozen=True, slots=True, order=True)
class Ranked:
    """It comes before or after another."""

    rank: int
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No field."""


def test_a_class_is_made_with_the_arguments_and_defaults_that_the_library_would_take() -> None:
    """Names, kinds, defaults and annotations of the signature are the same, before and after the first use."""

    def shape(cls: Any) -> list[tuple[str, object, str]]:
        return [(p.name, p.kind, str(p.default)) for p in inspect.signature(cls).parameters.values()]

    assert shape(Ours) == shape(Theirs)
    Ours(name="a")
    assert shape(Ours) == shape(Theirs)
    assert typing.get_type_hints(Ours.__init__) == typing.get_type_hints(Theirs.__init__)
    assert Ours.__match_args__ == ()
    assert Point.__match_args__ == ("x", "y")


_REFUSED: Mapping[str, Callable[[Any], object]] = {
    "missing": lambda cls: cls(),
    "positional": lambda cls: cls("a"),
    "unknown": lambda cls: cls(name="a", other=1),
    "set": lambda cls: setattr(cls(name="a"), "name", "b"),
    "deleted": lambda cls: delattr(cls(name="a"), "name"),
    "hash of a list": lambda cls: hash(cls(name="a", parts=[1])),
    "order": lambda cls: cls(name="a") < cls(name="b"),
}


@pytest.mark.parametrize("what", _REFUSED)
def test_what_the_library_refuses_is_refused_with_the_same_error(what: str) -> None:
    """Missing, positional and unknown arguments; changes of what is frozen; hashes of lists; order."""
    with pytest.raises(Exception) as theirs:
        _REFUSED[what](Theirs)
    with pytest.raises(theirs.type) as ours:
        _REFUSED[what](Ours)
    assert str(ours.value).replace("Ours", "Theirs") == str(theirs.value)


def test_records_are_shown_compared_copied_and_pickled_as_the_librarys() -> None:
    """All that records do with each other, by fields that take part in it."""
    ours, theirs = Ours(name="a", parts=[1]), Theirs(name="a", parts=[1])
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours == Ours(name="a", parts=[1], aside=9)
    assert ours != Ours(name="a", parts=[2])
    assert ours != theirs
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert dataclasses.replace(ours, count=9) == Ours(name="a", count=9, parts=[1])
    for twin in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin == ours
        assert twin is not ours
    assert Ours(name="a").parts is not Ours(name="a").parts
    assert not hasattr(ours, "__dict__")


def test_a_subclass_has_its_own_fields_and_is_no_equal_of_its_base() -> None:
    """Fields come after those of the base, defaults take their place, whichever class is made first."""
    more = More(name="a")
    assert (more.count, Ours(name="a").count) == (4, 3)
    assert [f.name for f in dataclasses.fields(More)] == ["name", "count", "parts", "secret", "aside", "more"]
    assert more != Ours(name="a", count=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        more.count = 5  # type: ignore[misc]  # it is frozen: that is what is tried


def test_frozen_records_are_keys_and_others_are_not() -> None:
    """Equal ones find each other in a dictionary; what changes has no hash, unless it is equal to nothing else."""
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    assert hash(Point(1, 2)) == hash((1, 2))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Tally(1))
    first, second = Itself(1), Itself(1)
    assert len({first, second}) == 2
    assert Point(1) == Point(1)
    assert Nothing() == Nothing()
    assert One(math.nan) == One(math.nan)  # as in a tuple: the same object is equal to itself


def test_what_has_an_order_is_sorted_by_the_fields_that_are_compared() -> None:
    """All four ways; nothing else is before or after it."""
    low, high = Ranked(1, "b"), Ranked(2, "a")
    assert sorted([high, low]) == [low, high]
    assert (low < high, low <= Ranked(1), high > low, high >= Ranked(2)) == (True, True, True, True)
    assert (high < low, high <= low, low > high, low >= high) == (False, False, False, False)
    with pytest.raises(TypeError, match="not supported between instances of 'Ranked' and 'Point'"):
        _ = low < Point(2)  # type: ignore[operator]  # that is what is tried


def test_what_changes_may_be_set_and_works_itself_out() -> None:
    """`__post_init__` runs last, after fields that are no arguments have their defaults."""
    tally = Tally(2)
    tally.step = 5
    assert (tally.total, tally.step, tally.seen) == (2, 5, [])
    assert tally.seen is not Tally(2).seen
    assert list(inspect.signature(Tally).parameters) == ["step"]


def test_methods_of_its_own_stay() -> None:
    """What a class says about itself is not written over."""
    assert repr(Spoken(1)) == "spoken"
    assert hash(Spoken(1)) == 7
    assert Spoken(1) == Spoken(1)


def test_a_record_in_itself_can_be_shown() -> None:
    """No recursion without end."""
    holder: list[object] = []
    record = One(holder)
    holder.append(record)
    assert repr(record) == "One(x=[...])"
