"""Python's garbage collector, kept away from what stays. Owns: when it looks at nothing. Refuses to know: at what."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Generator[None]:
    """For imports and loading, which make objects that stay: a program's, and a million of a vocabulary. The collector
    would look at them all over and over while they come, and again whenever it looks at everything."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
