"""The dialect table: where each dialect's usage object says what, and which of its totals include which parts.

Owns: the providers' names for counts. Refuses to know: how an answer is framed, and what is done with a count. A
dialect that differs only in its words is one entry here and no code elsewhere.

Streams report snapshots in all of these dialects, never increments: a later value replaces an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Where a usage object has its counts, as paths of keys. Of several paths the first that is there counts.

    `input` is the whole prompt if `input_has_parts`, else what of it came neither from a cache nor went into one.
    `output` is the whole answer, None where the dialect has no tokens to answer with. `total` is the sum of both.
    `writes` divides `write` by how long the cache keeps it, by leaf. `counted` are extras by their unit. `iterations`
    is a list of the calls that a request took, in which those of the types `beside` are in no total of the object.
    `tier`, `speed` and `geography` are terms that are said within the usage object.
    """

    input: Path
    input_has_parts: bool
    output: Path | None
    total: Path | None = None
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    writes: Mapping[str, tuple[Path, ...]] = field(default_factory=dict[str, tuple[Path, ...]])
    input_audio: tuple[Path, ...] = ()
    input_image: tuple[Path, ...] = ()
    read_audio: tuple[Path, ...] = ()
    read_image: tuple[Path, ...] = ()
    reasoning: tuple[Path, ...] = ()
    output_audio: tuple[Path, ...] = ()
    output_image: tuple[Path, ...] = ()
    counted: Mapping[str, Path] = field(default_factory=dict[str, Path])
    iterations: Path | None = None
    beside: frozenset[str] = frozenset()
    tier: Path | None = None
    speed: Path | None = None
    geography: Path | None = None
    repriced: Path | None = None


CHAT = Words(
    input=("prompt_tokens",),
    input_has_parts=True,
    output=("completion_tokens",),
    total=("total_tokens",),
    read=(
        ("prompt_tokens_details", "cached_tokens"),
        ("prompt_cache_hit_tokens",),  # DeepSeek
        ("cached_tokens",),  # Moonshot, Together
        ("num_cached_tokens",),  # Mistral
        ("cache_read_input_tokens",),  # LiteLLM, which has Anthropic's words beside OpenAI's
    ),
    write=(
        ("prompt_tokens_details", "cache_write_tokens"),
        ("prompt_tokens_details", "cache_creation_tokens"),
        ("cache_creation_input_tokens",),
    ),
    writes=MappingProxyType(
        {
            "input_cache_write_5m_tokens": (
                ("prompt_tokens_details", "cache_creation_token_details", "ephemeral_5m_input_tokens"),
                ("cache_creation", "ephemeral_5m_input_tokens"),
            ),
            "input_cache_write_1h_tokens": (
                ("prompt_tokens_details", "cache_creation_token_details", "ephemeral_1h_input_tokens"),
                ("cache_creation", "ephemeral_1h_input_tokens"),
            ),
            "input_cache_write_30m_tokens": (
                ("prompt_tokens_details", "cache_write_tokens_details", "ttl_30m_tokens"),
            ),
            "input_cache_write_12h_tokens": (
                ("prompt_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens"),
            ),
        }
    ),
    input_audio=(("prompt_tokens_details", "audio_tokens"),),
    input_image=(("prompt_tokens_details", "image_tokens"),),
    read_audio=(("prompt_tokens_details", "cached_tokens_details", "audio_tokens"),),
    read_image=(("prompt_tokens_details", "cached_tokens_details", "image_tokens"),),
    reasoning=(
        ("completion_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),  # SGLang
    ),
    output_audio=(("completion_tokens_details", "audio_tokens"),),
    output_image=(("completion_tokens_details", "image_tokens"),),
)
"""OpenAI's chat and legacy completions, and everybody who speaks like them. Predicted tokens that were rejected are
billed as output and stay in it."""

EMBEDDINGS = Words(input=("prompt_tokens",), input_has_parts=True, output=None, total=("total_tokens",))

RESPONSES = Words(
    input=("input_tokens",),
    input_has_parts=True,
    output=("output_tokens",),
    total=("total_tokens",),
    read=(("input_tokens_details", "cached_tokens"),),
    write=(("input_tokens_details", "cache_write_tokens"),),
    writes=MappingProxyType(
        {
            "input_cache_write_30m_tokens": (("input_tokens_details", "cache_write_tokens_details", "ttl_30m_tokens"),),
            "input_cache_write_12h_tokens": (("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens"),),
        }
    ),
    input_audio=(("input_tokens_details", "audio_tokens"),),
    input_image=(("input_tokens_details", "image_tokens"),),
    read_audio=(("input_tokens_details", "cached_tokens_details", "audio_tokens"),),
    read_image=(("input_tokens_details", "cached_tokens_details", "image_tokens"),),
    reasoning=(("output_tokens_details", "reasoning_tokens"),),
    output_audio=(("output_tokens_details", "audio_tokens"),),
    output_image=(("output_tokens_details", "image_tokens"),),
)

MESSAGES = Words(
    input=("input_tokens",),
    input_has_parts=False,
    output=("output_tokens",),
    read=(("cache_read_input_tokens",),),
    write=(("cache_creation_input_tokens",),),
    writes=MappingProxyType(
        {
            "input_cache_write_5m_tokens": (("cache_creation", "ephemeral_5m_input_tokens"),),
            "input_cache_write_1h_tokens": (("cache_creation", "ephemeral_1h_input_tokens"),),
        }
    ),
    reasoning=(("output_tokens_details", "thinking_tokens"),),
    counted=MappingProxyType({"web_searches": ("server_tool_use", "web_search_requests")}),
    iterations=("iterations",),
    beside=frozenset({"compaction", "advisor_message"}),
    tier=("service_tier",),
    speed=("speed",),
    geography=("inference_geo",),
    repriced=("fallback_credit", "status", "type"),
)

CODEX = Words(
    input=("input_tokens",),
    input_has_parts=True,
    output=("output_tokens",),
    total=("total_tokens",),
    read=(("cached_input_tokens",),),
    write=(("cache_write_input_tokens",), ("cache_creation_input_tokens",)),
    reasoning=(("reasoning_output_tokens",),),
)
"""The usage objects in Codex's own logs."""

LITELLM = Words(
    input=("prompt_tokens",),
    input_has_parts=True,
    output=("completion_tokens",),
    total=("total_tokens",),
    read=(("cache_read_input_tokens",), ("prompt_tokens_details", "cached_tokens")),
    write=(("cache_creation_input_tokens",), ("prompt_tokens_details", "cache_creation_tokens")),
    writes=MappingProxyType(
        {
            "input_cache_write_5m_tokens": (
                ("prompt_tokens_details", "cache_creation_token_details", "ephemeral_5m_input_tokens"),
                ("cache_creation", "ephemeral_5m_input_tokens"),
            ),
            "input_cache_write_1h_tokens": (
                ("prompt_tokens_details", "cache_creation_token_details", "ephemeral_1h_input_tokens"),
                ("cache_creation", "ephemeral_1h_input_tokens"),
            ),
        }
    ),
    input_audio=(("prompt_tokens_details", "audio_tokens"),),
    input_image=(("prompt_tokens_details", "image_tokens"),),
    reasoning=(("completion_tokens_details", "reasoning_tokens"),),
    output_audio=(("completion_tokens_details", "audio_tokens"),),
    counted=MappingProxyType({"web_searches": ("server_tool_use", "web_search_requests")}),
    tier=("service_tier",),
)
"""What LiteLLM makes of all providers' usage objects: OpenAI's words, with Anthropic's for caches beside them."""

OTEL = Words(
    input=("gen_ai.usage.input_tokens",),
    input_has_parts=True,
    output=("gen_ai.usage.output_tokens",),
    read=(("gen_ai.usage.cache_read.input_tokens",),),
    write=(("gen_ai.usage.cache_write.input_tokens",), ("gen_ai.usage.cache_creation.input_tokens",)),
    reasoning=(("gen_ai.usage.reasoning.output_tokens",),),
    tier=("openai.response.service_tier",),
)
"""The attributes of OpenTelemetry's spans for models, by their newest names. All parts are in the totals."""

SEARCHES = MappingProxyType({"web_search_call": "web_searches", "file_search_call": "storage_searches"})
"""Output items of the Responses dialect that are billed by the call, and the units they are counted in."""

SEARCHING = frozenset({"search"})
"""What a web search call does when it is billed. To open a page or to look into it is free."""
