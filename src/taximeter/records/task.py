"""What requests are for: a task, which is finished one day, well or badly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work that requests name as theirs. `name` is how they name it. `finished_at` and `succeeded` are None
    while it goes on: what a finished task costs, and what a failed one did, is the sum of its receipts."""

    name: str
    finished_at: datetime | None = None
    succeeded: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if (self.finished_at is None) != (self.succeeded is None):
            raise ValueError("a task is finished when it is known whether it succeeded")
