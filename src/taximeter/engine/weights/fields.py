"""Named values out of an untrusted file, each asked for by the type it must have.

Owns: the checks and their errors, and reading such values from JSON. Refuses to know: what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from taximeter.engine.weights.texts import Texts
from taximeter.errors import ModelFileError

_T = TypeVar("_T")

_LARGEST_JSON_BYTES = 1 << 28


class Fields:
    """A mapping that answers by type. `source` names the file part in errors. A null counts as absent.

    Every getter raises `ModelFileError` for a value of the wrong type; whole numbers have at most 64 bits. Without a
    default an absent value is an error too; the `optional_` forms give None instead.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self._source = source

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> Sequence[str]:
        return tuple(self._values)

    def under(self, prefix: str) -> Fields:
        """The values whose names begin with `prefix` and a dot, without it."""
        start = f"{prefix}."
        inner = {name.removeprefix(start): value for name, value in self._values.items() if name.startswith(start)}
        return Fields(inner, f"{self._source}: {prefix}")

    def over(self, defaults: Mapping[str, object]) -> Fields:
        """These values, and of `defaults` those that are not named here at all: a null hides its default."""
        return Fields({**defaults, **self._values}, self._source)

    def value(self, name: str) -> object:
        """The value as it stands, None when absent."""
        return self._values.get(name)

    def whole(self, name: str, default: int | None = None) -> int:
        return self._required(name, self.optional_whole(name), default)

    def optional_whole(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64):
            return value
        raise self._wrong(name, "a whole number")

    def number(self, name: str, default: float | None = None) -> float:
        return self._required(name, self.optional_number(name), default)

    def optional_number(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                pass
        raise self._wrong(name, "a number")

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false")

    def text(self, name: str) -> str:
        return self._required(name, self.optional_text(name), None)

    def optional_text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "text")

    def optional_texts(self, name: str) -> Sequence[str] | None:
        value = self._values.get(name)
        return value if isinstance(value, Texts) else self._optional_list(name, str, "a list of texts")

    def optional_wholes(self, name: str) -> tuple[int, ...] | None:
        return self._optional_list(name, int, "a list of whole numbers")

    def optional_array(self, name: str, kinds: str, what: str) -> npt.NDArray[Any] | None:
        """A list of numbers as the file has them, which is not copied; of a dtype whose kind is one of `kinds`."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            array = cast("npt.NDArray[Any]", value)
            if array.dtype.kind in kinds or not len(array):
                return array
        raise self._wrong(name, what)

    def is_list(self, name: str) -> bool:
        return isinstance(self._values.get(name), list | np.ndarray | Texts)

    def optional_section(self, name: str) -> Fields | None:
        """The object called `name`, as fields of its own."""
        value = self._values.get(name)
        return None if value is None else self._section(name, value)

    def sections(self, name: str) -> tuple[Fields, ...]:
        """The list of objects called `name`; empty when absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        if isinstance(value, list):
            items = cast("list[object]", value)
            return tuple(self._section(name, item) for item in items)
        raise self._wrong(name, "a list of objects")

    def _section(self, name: str, value: object) -> Fields:
        if isinstance(value, Mapping):
            return Fields(cast("Mapping[str, object]", value), f"{self._source}: {name}")
        raise self._wrong(name, "an object")

    def _optional_list(self, name: str, kind: type[_T], what: str) -> tuple[_T, ...] | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            value = cast("npt.NDArray[Any]", value).tolist()
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = cast("Sequence[object]", value)
            checked = tuple(item for item in items if isinstance(item, kind))
            if len(checked) == len(items):
                return checked
        raise self._wrong(name, what)

    def _required(self, name: str, value: _T | None, default: _T | None) -> _T:
        found = default if value is None else value
        if found is None:
            raise ModelFileError(
                f"{self._source}: {name} is missing", hint="the file is incomplete; fetch the model again"
            )
        return found

    def _wrong(self, name: str, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._source}: {name} should be {what}", hint="the file is damaged or not what it claims to be"
        )


def shown(untrusted: str) -> str:
    """A text from a file, fit for an error message: quoted, short, nothing in it that a terminal would obey."""
    return ascii(untrusted if len(untrusted) <= 64 else untrusted[:61] + "...")


def read_json(path: Path) -> Fields:
    """The JSON object in a file. `ModelFileError` when there is none."""
    try:
        if path.stat().st_size > _LARGEST_JSON_BYTES:
            raise ModelFileError(f"{path.name} is too large to be what it should be", hint="fetch the model again")
        content: object = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path.name} cannot be read: {error}", hint="fetch the model again") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name} is not sound JSON", hint="fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path.name} is not a JSON object", hint="fetch the model again")
    return Fields(cast("dict[str, object]", content), path.name)


def read_optional_json(path: Path) -> Fields:
    """As `read_json`; without the file, no fields."""
    return read_json(path) if path.exists() else Fields({}, path.name)
