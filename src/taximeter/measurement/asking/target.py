"""Who is measured: what can be found out about a server before anything is asked of it.

Owns: what an address means, which model is asked and in which dialect, which engine answers and how it is set up, and
the connection to it. Refuses to know: what is asked, and when. What a server does not say is None, never a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.asker import Asker, Bookkeeper
from taximeter.measurement.asking.wire import HTTPWire
from taximeter.records import Dialect, MachineRate
from taximeter.telemetry.engines import EngineState, nothing_known, read_page
from taximeter.upstreams.config import Family, Upstream
from taximeter.upstreams.secrets import Secret, keys_shown

if TYPE_CHECKING:
    from taximeter.upstreams.client import Client

PATHS: Final[Mapping[Dialect, str]] = {
    Dialect.OPENAI_CHAT: "/v1/chat/completions",
    Dialect.OPENAI_COMPLETIONS: "/v1/completions",
    Dialect.ANTHROPIC_MESSAGES: "/v1/messages",
}
_DOORS: Final = (*PATHS.values(), "/v1/models", "/v1")
_LARGEST_PAGE_BYTES: Final = 8 * 1024 * 1024
_PATIENCE_S: Final = 10.0
# Engines that take token ids, `ignore_eos` and greedy sampling, whatever the model.
OWN_ENGINES: Final = frozenset({"taximeter", "vllm", "sglang", "llama.cpp", "tensorrt-llm"})
_OWNERS: Final = {"llamacpp": "llama.cpp", "llama.cpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang"}
_HOSTED: Final = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}

Object = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One model at one server. `name` is what receipts and tables call it, `url` the server's root.

    `engine` is who computes there, where the server says it; `context_tokens` the longest it takes. `setup` has what
    else it says of itself, by the server's own names, each as text. `metrics_url` is its page of counters.
    """

    name: str
    url: str
    model: str
    dialect: Dialect
    engine: str | None = None
    server_version: str | None = None
    context_tokens: int | None = None
    metrics_url: str | None = None
    setup: Mapping[str, str] = field(default_factory=dict[str, str])
    upstream: Upstream = field(repr=False)

    @property
    def path(self) -> str:
        return PATHS[self.dialect]

    @property
    def is_taximeter(self) -> bool:
        """Whether a gateway of ours answers: then it has a receipt of its own for each request."""
        return self.engine == "taximeter"

    @property
    def obeys(self) -> bool:
        """Whether the length of an answer can be prescribed there, and its tokens need not be drawn."""
        return self.engine in OWN_ENGINES

    def asker(
        self,
        client: Client,
        run: str,
        *,
        books: Bookkeeper | None = None,
        clock: Clock = SYSTEM_CLOCK,
        began_ns: int | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> Asker:
        """Who asks there, for the run of that name. A gateway of ours is told the run; others are told nothing."""
        headers = {"x-taximeter-run": run} if self.is_taximeter else {}
        wire = HTTPWire(client, self.upstream, headers=headers)
        return Asker(
            wire,
            name=self.name,
            run=run,
            books=books,
            clock=clock,
            began_ns=began_ns,
            on_progress=on_progress,
            keys=keys_shown(self.upstream.key, ()),
        )

    def describe(self) -> dict[str, object]:
        """For a result file: everything but the key."""
        return {
            "name": self.name,
            "url": self.url,
            "model": self.model,
            "dialect": self.dialect.value,
            "engine": self.engine,
            "server_version": self.server_version,
            "context_tokens": self.context_tokens,
            "setup": dict(self.setup),
        }


def is_address(text: str) -> bool:
    """Whether `text` is a server's address and not a model's name: it has a scheme, or a host and a port."""
    if "://" in text:
        return True
    host, colon, rest = text.partition(":")
    port = rest.partition("/")[0]
    return bool(colon and host and port.isdecimal() and "/" not in host)


def root_of(address: str) -> str:
    """The root of the server at `address`, as people paste it: with a scheme or without, with a door behind it or
    without. Raises RequestError for what is none."""
    text = address if "://" in address else f"http://{address}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise RequestError(f"{address!r} is no address of a server", param="url", hint="http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise RequestError("a key does not belong into an address", param="url", hint="--key env:NAME")
    path = parts.path.rstrip("/")
    door = next((door for door in _DOORS if path.endswith(door)), "")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix(door)}".rstrip("/")


def usual_key(address: str) -> str | None:
    """Where the key of a well-known provider usually lies, for `read_secret`; None for all others: a key goes to whom
    it belongs and nowhere else."""
    host = urlsplit(root_of(address)).hostname or ""
    provider = _HOSTED.get(host)
    return None if provider is None else f"env:{provider.upper()}_API_KEY"


async def find_target(
    client: Client,
    address: str,
    *,
    model: str | None = None,
    dialect: Dialect | None = None,
    key: Secret | None = None,
    provider: str | None = None,
    machine_rate: MachineRate | None = None,
    name: str | None = None,
) -> Target:
    """Look at the server at `address`, without asking a model anything.

    `model` may be left out where there is only one. Without `dialect` it is plain completions where an engine is known
    to have them, because no template is put around a prompt there; else chat, or Anthropic's messages at Anthropic.
    Raises RequestError where it is not clear which model is meant, and UpstreamError when nobody is there.
    """
    root = root_of(address)
    hosted = _HOSTED.get(urlsplit(root).hostname or "")
    family = Family.ANTHROPIC if dialect is Dialect.ANTHROPIC_MESSAGES or hosted == "anthropic" else Family.OPENAI
    upstream = Upstream(
        name=name or urlsplit(root).netloc,
        url=root,
        speaks=family,
        key=key,
        provider=provider or hosted,
        machine_rate=machine_rate,
        retries=0,
    )
    looking = _Looking(client, upstream)
    models = await looking.models(is_needed=model is None)
    chosen = _chosen(models, model, root)
    engine, version, setup, context = await looking.engine(models.get(chosen, {}))
    if dialect is None:
        plain = Dialect.OPENAI_COMPLETIONS if engine in OWN_ENGINES else Dialect.OPENAI_CHAT
        dialect = Dialect.ANTHROPIC_MESSAGES if family is Family.ANTHROPIC else plain
    has_page = (await looking.page()).engine is not None
    return Target(
        name=upstream.name,
        url=root,
        model=chosen,
        dialect=dialect,
        engine=engine,
        server_version=version,
        context_tokens=context,
        metrics_url=f"{root}/metrics" if has_page else None,
        setup=setup,
        upstream=upstream,
    )


async def read_counters(client: Client, target: Target) -> EngineState:
    """What the server's page of counters says now. Never raises: a page that cannot be read says nothing."""
    if target.metrics_url is None:
        return nothing_known("the server has no page of counters that is known here", target.engine)
    return await _Looking(client, target.upstream).page()


async def server_receipt(client: Client, target: Target, receipt_id: str) -> Object | None:
    """The receipt that a gateway of ours wrote for a request, as JSON: it has the engine's own phases. None where the
    gateway does not give it (it may ask for another key)."""
    found = await _Looking(client, target.upstream).json(f"/api/receipts/{receipt_id}")
    return found if found and "request" in found else None


class _Looking:
    """Reads the pages of one server. What is not there, or not understood, is an empty answer."""

    def __init__(self, client: Client, upstream: Upstream) -> None:
        self._client = client
        self._upstream = replace(upstream, first_byte_timeout_s=_PATIENCE_S, idle_timeout_s=_PATIENCE_S)

    async def models(self, *, is_needed: bool) -> dict[str, Object]:
        """Those that it lists, by id, with what it says of each. Raises UpstreamError when nobody answers at all, and
        RequestError when it lists none and no other way is left to know one."""
        status, body = await self._get("/v1/models")
        listed = _object(body).get("data")
        entries = cast("list[object]", listed) if isinstance(listed, list) else []
        objects = [cast("Object", entry) for entry in entries if isinstance(entry, Mapping)]
        models = {str(entry["id"]): entry for entry in objects if entry.get("id")}
        if not models and is_needed:
            hint = "it wants a key: --key env:NAME" if status in (401, 403) else "say which one: --model NAME"
            raise RequestError(
                f"{self._upstream.url} does not list its models (status {status})", param="model", hint=hint
            )
        return models

    async def engine(self, entry: Object) -> tuple[str | None, str | None, dict[str, str], int | None]:
        """Who computes there, its version, what else it says, and the longest context."""
        owner = str(entry.get("owned_by", "")).lower()
        engine = "taximeter" if owner == "taximeter" else _OWNERS.get(owner)
        setup: dict[str, str] = {}
        context = _count(entry.get("max_model_len")) or _count(entry.get("context_length_tokens"))
        version: str | None = None
        if engine == "llama.cpp":
            props = await self.json("/props")
            version = _text(props.get("build_info"))
            setup |= _texts(props, "total_slots", "model_path", "chat_template_caps")
            settings = props.get("default_generation_settings")
            if isinstance(settings, Mapping):
                context = _count(cast("Object", settings).get("n_ctx")) or context
        elif engine in ("vllm", "sglang"):
            version = _text((await self.json("/version")).get("version"))
            if engine == "sglang":
                info = await self.json("/get_server_info")
                setup |= _texts(info, "quantization", "dtype", "kv_cache_dtype", "tp_size", "max_running_requests")
        elif engine is None:
            engine = (await self.page()).engine
        if context is not None:
            setup["context_tokens"] = str(context)
        return engine, version, setup, context

    async def page(self) -> EngineState:
        """Its page of counters."""
        try:
            status, body = await self._get("/metrics")
        except UpstreamError as error:
            return nothing_known(error.message)
        if status != 200:
            return nothing_known(f"status {status}")
        try:
            return await asyncio.to_thread(read_page, body.decode("utf-8", "replace"))
        except ValueError:
            return nothing_known("its page is not in Prometheus' text format")

    async def json(self, path: str) -> Object:
        try:
            status, body = await self._get(path)
        except UpstreamError:
            return {}
        return _object(body) if status == 200 else {}

    async def _get(self, path: str) -> tuple[int, bytes]:
        headers = [(b"anthropic-version", b"2023-06-01")] if self._upstream.speaks is Family.ANTHROPIC else []
        incoming = await self._client.send(self._upstream, "GET", path, headers, b"")
        try:
            body = bytearray()
            async for read in incoming:
                body += read.data
                if len(body) > _LARGEST_PAGE_BYTES:
                    break
            return incoming.status, bytes(body)
        finally:
            incoming.close()


def _chosen(models: Mapping[str, Object], asked: str | None, root: str) -> str:
    if asked is not None:
        if models and asked not in models and "*" not in "".join(models):
            some = ", ".join(list(models)[:8])
            raise RequestError(f"{root} has no model {asked!r}", param="model", hint=f"it lists {some}")
        return asked
    if len(models) > 1:
        some = ", ".join(list(models)[:8]) + (", ..." if len(models) > 8 else "")
        raise RequestError(f"{root} has {len(models)} models", param="model", hint=f"say which: --model; {some}")
    return next(iter(models))


def _object(body: bytes) -> Object:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return cast("Object", found) if isinstance(found, Mapping) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _texts(said: Object, *names: str) -> dict[str, str]:
    return {
        name: str(said[name])[:200] for name in names if isinstance(said.get(name), str | int | float) and name in said
    }
