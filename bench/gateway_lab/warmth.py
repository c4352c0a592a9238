"""What a tenth of a millisecond of Python takes when something else came before it.

    python bench/gateway_lab/warmth.py

A gateway that asks, waits and answers never runs for long: its code and data have to come back into the caches of a
processor that slept, or did something else, since. This measures by how much that stretches the same work here.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import time
from collections.abc import Callable
from typing import Final

_TIMES: Final = 100
_DOCUMENT: Final = {"numbers": [1, 2, 3], "text": "a" * 200}


def main() -> None:
    """Measure and print."""
    for _ in range(_TIMES):
        _work_us()
    print(f"again and again: {_median_us(lambda: None):.0f} us")
    for pause_ms in (0.2, 1, 3, 10):
        print(f"after {pause_ms} ms of sleep: {_median_us(lambda: time.sleep(pause_ms / 1000)):.0f} us")  # noqa: B023
    print(f"after 3 ms of a busy loop: {_median_us(_be_busy):.0f} us")


def _work_us() -> float:
    began_ns = time.perf_counter_ns()
    for _ in range(3):
        text = json.dumps(_DOCUMENT)
        json.loads(text)
        hashlib.sha256(text.encode()).hexdigest()
        re.sub("a+", "b", text)
        sorted(_DOCUMENT)
    return (time.perf_counter_ns() - began_ns) / 1_000


def _median_us(before: Callable[[], object]) -> float:
    took_us: list[float] = []
    for _ in range(_TIMES):
        before()
        took_us.append(_work_us())
    return statistics.median(took_us)


def _be_busy() -> None:
    until_ns = time.perf_counter_ns() + 3_000_000
    while time.perf_counter_ns() < until_ns:
        pass


if __name__ == "__main__":
    main()
