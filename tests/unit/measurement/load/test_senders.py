"""More clients where one is too slow, and not where that would not help, or cost money."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from taximeter.measurement.load.arrivals import Arrivals
from taximeter.measurement.load.client_health import ClientHealth
from taximeter.measurement.load.level import Level, open_level
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.senders import Send, Senders
from taximeter.measurement.load.workload import fixed

ONE_CAN = 100.0  # requests per second that keep one client busy all the time


def level(rate_per_s: float) -> Level:
    return open_level(fixed(64, 16), rate_per_s, arrivals=Arrivals(), duration_s=1, seed=1)


class Clients:
    """Clients that are the busier the more each has to send. `sent` has each level as it was sent, and by how many."""

    def __init__(self, *, stops: bool = False) -> None:
        self.sent: list[tuple[float, int]] = []
        self.running: set[int] = set()
        self.told: list[tuple[str, int]] = []
        self._stops = stops

    def senders(self, *, clients: int | None = None, most: int = 4) -> Senders:
        def told(which: Level, how_many: int) -> None:
            self.told.append((which.name, how_many))

        return Senders(lambda each: self._send(each, 1), self._fleet, clients=clients, most=most, on_more=told)

    @asynccontextmanager
    async def _fleet(self, clients: int) -> AsyncGenerator[Send]:
        self.running.add(clients)
        yield lambda each: self._send(each, clients)
        self.running.remove(clients)

    async def _send(self, which: Level, clients: int) -> LoadRun:
        self.sent.append((which.value, clients))
        share = min(1.0, which.value / clients / ONE_CAN)
        health = ClientHealth(due_ns=(), lag_ns=(), cpu_ns=round(share * 1e9), wall_ns=10**9, waited_ns=0)
        return LoadRun(
            is_open_loop=True,
            rate_per_s=which.value,
            ended_ns=10**9,
            observations=(),
            clients=(health,) * clients,
            was_stopped=self._stops,
        )


def sent_by(made: Clients, rates: list[float], *, clients: int | None = None, most: int = 4) -> list[LoadRun]:
    async def work() -> list[LoadRun]:
        async with made.senders(clients=clients, most=most) as senders:
            return [await senders.send(level(rate)) for rate in rates]

    return asyncio.run(work())


def test_a_level_that_is_too_much_for_one_client_is_sent_again_by_two() -> None:
    """50/s keeps one busy half of the time. 150/s are too much for it, and kept by two; those stay for what follows.
    350/s are too much for two, and are the figures of four."""
    made = Clients()
    runs = sent_by(made, [50, 150, 60, 350])
    assert made.sent == [(50, 1), (150, 1), (150, 2), (60, 2), (350, 2), (350, 4)]
    assert [len(run.clients) for run in runs] == [1, 2, 2, 4]
    assert made.told == [("150/s", 2), ("350/s", 4)]
    assert made.running == set()


def test_there_are_no_more_clients_than_processors() -> None:
    made = Clients()
    [run] = sent_by(made, [5000], most=3)
    assert made.sent == [(5000, 1), (5000, 2), (5000, 3)]
    assert all(client.is_busy for client in run.clients)  # which the flag of that level says


@pytest.mark.parametrize(("clients", "most"), [(1, 4), (2, 4), (None, 1)])
def test_who_says_how_many_gets_them_and_what_costs_money_is_sent_once(clients: int | None, most: int) -> None:
    made = Clients()
    sent_by(made, [5000], clients=clients, most=most)
    assert made.sent == [(5000, clients or 1)]


def test_a_level_that_was_stopped_is_not_sent_again() -> None:
    made = Clients(stops=True)
    sent_by(made, [5000])
    assert made.sent == [(5000, 1)]
