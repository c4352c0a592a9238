"""From a model's name to whoever answers in this process's name: our own engine, or an upstream of another dialect.

Owns: the choice between backends, and the list of all that can be asked for. Refuses to know: how either answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import ModelNotFound
from taximeter.records import Answer, Backend, MachineTime, ModelInfo, Prompt, Request
from taximeter.upstreams.config import Network
from taximeter.upstreams.dispatch import Dispatcher
from taximeter.upstreams.translated import translated

if TYPE_CHECKING:
    from taximeter.upstreams.client import Client


class Switchboard:
    """A `Backend` in front of the others. `engine` is our own, None where there is none."""

    def __init__(
        self,
        engine: Backend | None,
        network: Network,
        dispatcher: Dispatcher,
        client: Client,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = engine
        self._network = network
        self._dispatcher = dispatcher
        self._client = client
        self._clock = clock

    @property
    def name(self) -> str:
        return "upstreams" if self._engine is None else self._engine.name

    def models(self) -> Sequence[ModelInfo]:
        own = [] if self._engine is None else list(self._engine.models())
        names = {info.id for info in own}
        return own + [
            ModelInfo(id=route.model, owned_by=route.upstreams[0].name)
            for route in self._network.routes
            if not route.model.endswith("*") and route.model not in names
        ]

    async def submit(self, request: Request, prompt: Prompt) -> Answer:
        route = self._network.route(request.model)
        if route is not None:
            return translated(self._dispatcher, route, request, prompt, self._clock)
        return await self._own(request.model).submit(request, prompt)

    async def count_tokens(self, model: str, prompt: Prompt) -> int | None:
        return None if self._network.route(model) is not None else await self._own(model).count_tokens(model, prompt)

    def machine_time(self) -> MachineTime | None:
        return None if self._engine is None else self._engine.machine_time()

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._engine is not None:
            await self._engine.aclose()

    def _own(self, model: str) -> Backend:
        if self._engine is None:
            hint = "GET /v1/models lists some; [[routes]] in taximeter.toml lead to models"
            raise ModelNotFound(f"no route leads to a model called {model[:100]!r}", param="model", hint=hint)
        return self._engine
