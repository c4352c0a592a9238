"""How a pull tells whoever waits for it how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """What a pull is doing, in words for people."""

    WAITING = "waiting for another pull"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    VERIFYING = "verifying"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """`done_bytes` of `total_bytes` of one stage; waiting has no bytes."""

    stage: Stage
    done_bytes: int
    total_bytes: int


Report = Callable[[PullProgress], None]


def ignore(progress: PullProgress) -> None:
    """Nobody is watching."""
