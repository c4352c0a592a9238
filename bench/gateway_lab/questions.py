"""What everybody is asked, and which figures each question gives.

Owns: the questions, their sizes, and the targets. Refuses to know: who answers, and how figures are shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from gateway_lab.contestants import MODEL

_TEXT: Final = "Consider a gateway that costs next to nothing, and say what it may never do. "
_PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, as it is asked in a turn. `rounds` is in how many of the rounds, None for all of them. `is_load` is
    one that is asked as fast as answers come: its figures are rates, others' are times."""

    key: str
    title: str
    body_bytes: int = 1_000
    events: int = 0
    pause_ms: int = 0
    connections: int = 1
    requests: int | None = None
    seconds: float | None = None
    is_load: bool = False
    rounds: int | None = None

    @property
    def body(self) -> str:
        """A request body of about the length."""
        wish = f"{self.events} events every {self.pause_ms} ms. " if self.events else ""
        text = wish + _TEXT * (self.body_bytes // len(_TEXT))
        asked = {"model": MODEL, "messages": [{"role": "user", "content": text[: max(100, self.body_bytes - 100)]}]}
        return json.dumps(asked | ({"stream": True} if self.events else {}))

    def job(self, port: int, headers: dict[str, str]) -> dict[str, object]:
        """For the client."""
        return {
            "port": port,
            "path": _PATH,
            "headers": headers,
            "body": self.body,
            "connections": self.connections,
            "requests": self.requests,
            "seconds": self.seconds,
            "events": self.events,
        }


WARM_UP: Final = Question(key="warm-up", title="", requests=15)

QUESTIONS: Final = (
    Question(key="whole-1k", title="1 kB, one at a time", requests=25),
    Question(key="whole-100k", title="100 kB, one at a time", body_bytes=100_000, requests=15),
    Question(key="whole-1m", title="1 MB, one at a time", body_bytes=1_000_000, requests=8),
    Question(key="stream-10", title="100 events every 10 ms", events=100, pause_ms=10, requests=1),
    Question(key="stream-5", title="8 streams, events every 5 ms", events=100, pause_ms=5, connections=8, requests=8),
    *(
        Question(
            key=f"load-{connections}",
            title=f"closed loop, {connections} connection{'s' if connections > 1 else ''}",
            connections=connections,
            seconds=1.5,
            is_load=True,
        )
        for connections in (1, 8, 32)
    ),
    Question(
        key="slow-500",
        title="500 slow streams at once",
        events=10,
        pause_ms=500,
        connections=500,
        requests=500,
        rounds=1,
    ),
)
