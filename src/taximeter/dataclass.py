"""Dataclasses that cost a start little: as of the standard library, with methods made when they are first used.

The library writes and compiles source text for up to six methods of each class, which was a quarter of the time that
all imports take; most records of a process are never made, compared or shown. Owns: `dataclass`. Refuses to know: what
is in the classes. Fields, `replace`, `asdict` and slots are the library's own.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True, order: bool = False
) -> Callable[[type[T]], type[T]]:
    """`dataclasses.dataclass`, as far as it goes: no `unsafe_hash`, no `InitVar`."""

    def decorate(cls: type[T]) -> type[T]:
        own = set(cls.__dict__)
        has_hash = "__hash__" in own and not (cls.__dict__["__hash__"] is None and "__eq__" in own)
        cls.__doc__ = cls.__doc__ or cls.__name__  # the library would write the signature there, which takes a while
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        methods: dict[str, object] = {"__init__": _Later(lambda: _init(made, fields, frozen=frozen)), "__repr__": _repr}
        if eq:
            compared = _values([field.name for field in fields if field.compare])
            methods["__eq__"] = _eq(compared)
            if order:
                methods.update(_order(compared))
            if not has_hash:
                hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
                setattr(made, "__hash__", _hash(_values(hashed)) if frozen else None)  # noqa: B010 - see below
        if frozen:
            methods.update(_frozen(made, frozenset(field.name for field in fields)))
            if slots:
                methods.update(__getstate__=_getstate, __setstate__=_setstate)
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made

    return decorate


class _Later:
    """A method that is made when somebody asks the class for it, and takes this one's place."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = self._make()  # two threads may both make it: it is the same
        return made if instance is None else made.__get__(instance, owner)


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], *, frozen: bool) -> Callable[..., None]:
    """Write and compile `__init__`, and put it where it belongs. Names that the text needs begin with two underscores
    and a digit, which no field does."""
    known: dict[str, object] = {"__0set": object.__setattr__}
    parameters: dict[bool, list[str]] = {False: [], True: []}  # by whether they have to be named
    lines: list[str] = []
    for number, field in enumerate(fields):
        name, value = field.name, field.name
        has_default = field.default is not dataclasses.MISSING
        has_factory = field.default_factory is not dataclasses.MISSING
        if has_default or has_factory:
            known[f"__{number}default"] = field.default if has_default else _FROM_FACTORY
        if has_factory:
            known[f"__{number}factory"] = field.default_factory
            value = f"__{number}factory()"
        elif has_default and not field.init:
            value = f"__{number}default"
        if field.init:
            if has_factory:
                value += f" if {name} is __{number}default else {name}"
            default = f"=__{number}default" if has_default or has_factory else ""
            parameters[bool(field.kw_only)].append(name + default)
        elif not (has_default or has_factory):
            continue  # somebody else sets it
        lines.append(f"__0set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__(self, {', '.join([*parameters[False], *named])}):"
    body = "\n  ".join(lines or ["pass"])
    text = f"def make({', '.join(known)}):\n {head}\n  {body}\n return __init__"
    namespace: dict[str, Any] = {}
    exec(text, sys.modules[cls.__module__].__dict__, namespace)  # noqa: S102 - of our own classes' names alone
    init = namespace["make"](**known)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    setattr(cls, "__init__", init)  # noqa: B010 - a type checker knows better than to have methods assigned
    return init


class _FromFactory:
    """Stands in a signature for what a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FROM_FACTORY = _FromFactory()
_ORDERS = (operator.lt, operator.le, operator.gt, operator.ge)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _values(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    """What gives those attributes of an object as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _eq(values: Callable[[object], tuple[object, ...]]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _order(values: Callable[[object], tuple[object, ...]]) -> dict[str, object]:
    def method(compares: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
        return lambda self, other: (
            compares(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented
        )

    return {f"__{compares.__name__}__": method(compares) for compares in _ORDERS}


def _hash(values: Callable[[object], tuple[object, ...]]) -> Callable[[object], int]:
    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _frozen(cls: type, names: frozenset[str]) -> dict[str, object]:
    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


# A copy or a pickle of a frozen class with slots would be set attribute by attribute, which it refuses.
def _getstate(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
