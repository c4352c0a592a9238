"""Which code runs the kernels.

Owns: the choice of level, made at the first call, and why it is what it is. Refuses to know: what the kernels compute.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from taximeter.errors import ConfigError


def _import_native() -> ModuleType | ImportError:
    try:
        return importlib.import_module("taximeter._native")
    except ImportError as error:
        return error


_native = _import_native()

VARIABLE = "TAXIMETER_CPU_LEVEL"
_REFERENCE, _PREFIX = "reference", "native:"
_MOST_THREADS = 4096
_NATIVE_LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")  # slow to fast


@dataclass(frozen=True, slots=True)
class _Choice:
    """What runs, and for the reference path why nothing faster does."""

    name: str
    reason: str | None = None


_forced: _Choice | None = None


def level() -> str:
    """The level in use, for example `native:amx`. ConfigError when the environment names no known level."""
    return _active().name


def levels() -> tuple[str, ...]:
    """Every level that this installation has and this processor runs, slow to fast."""
    return (_REFERENCE, *(f"{_PREFIX}{name}" for name in _runnable()))


def reason() -> str | None:
    """Why the slow reference path is in use, as a sentence for people; None when native code runs."""
    return _active().reason


def native_level() -> str | None:
    """The native level in use, for example `avx512`; None on the reference path."""
    name = _active().name
    return None if name == _REFERENCE else name.removeprefix(_PREFIX)


def is_built() -> bool:
    """Whether native code can be imported, whatever the level in use: not all of it is kernels."""
    return isinstance(_native, ModuleType)


def threads() -> int:
    """How many threads a native kernel uses, the caller's among them. The reference path leaves that to BLAS."""
    return _native.threads() if isinstance(_native, ModuleType) else 1


def set_threads(count: int) -> None:
    """Use `count` threads from the next native call on, fewer where the system gives no more of them: `threads` says. A
    result never depends on this number. Raises ConfigError for more than any machine has use for."""
    if count < 1:
        raise ValueError(f"kernels need at least one thread, not {count}")
    if count > _MOST_THREADS:
        raise ConfigError(
            f"{count:,} threads are more than the {_MOST_THREADS:,} that kernels can use",
            hint="leave --threads out to use all processors",
        )
    if isinstance(_native, ModuleType):
        _native.set_threads(count)


@contextmanager
def use_level(name: str) -> Generator[None]:
    """Run the block at another of `levels()`, for the whole process. For tests and benchmarks."""
    global _forced
    if name not in levels():
        raise ConfigError(f"this machine has no kernel level {name!r}", hint="it has " + ", ".join(levels()))
    before = _forced
    _forced = _Choice(name, "it was asked for by name" if name == _REFERENCE else None)
    try:
        yield
    finally:
        _forced = before


def _active() -> _Choice:
    return _forced or _chosen()


@cache
def _chosen() -> _Choice:
    """The fastest level that both the machine and the environment allow."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked not in ("", _REFERENCE, *_NATIVE_LEVELS):
        raise ConfigError(
            f"{VARIABLE} is {asked!r}, which is no kernel level",
            hint=f"use one of {', '.join((_REFERENCE, *_NATIVE_LEVELS))}, or unset it",
        )
    if asked == _REFERENCE:
        return _Choice(_REFERENCE, f"{VARIABLE} asks for it")
    if isinstance(_native, ImportError):
        return _Choice(_REFERENCE, _why_not(_native))
    ceiling = _NATIVE_LEVELS.index(asked) if asked else len(_NATIVE_LEVELS) - 1
    allowed = [name for name in _runnable() if _NATIVE_LEVELS.index(name) <= ceiling]
    return _Choice(f"{_PREFIX}{allowed[-1]}")


@cache
def _runnable() -> tuple[str, ...]:
    return tuple(_native.levels()) if isinstance(_native, ModuleType) else ()


def _why_not(failure: ImportError) -> str:
    if isinstance(failure, ModuleNotFoundError):
        return "the native kernels were not built: no working C++20 compiler was found when Taximeter was installed"
    return f"the native kernels cannot be loaded: {failure}"
