"""How a number is known."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Basis(StrEnum):
    """From strongest to weakest. A result takes the weakest basis among its inputs."""

    REPORTED = "reported"  # a provider's own figure
    MEASURED = "measured"  # counted or timed by us
    DERIVED = "derived"  # arithmetic on the two above
    MODELLED = "modelled"  # a fitted or theoretical model
    ASSUMED = "assumed"  # somebody said so


_STRENGTH = {basis: rank for rank, basis in enumerate(Basis)}


def weakest(bases: Iterable[Basis]) -> Basis:
    """The weakest of `bases`. Raises ValueError when there is none."""
    return max(bases, key=_STRENGTH.__getitem__)
