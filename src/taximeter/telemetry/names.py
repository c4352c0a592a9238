"""OpenTelemetry's words, in one table.

Owns: the names of the GenAI conventions as they stood at one commit, and ours for what they have no word for. Refuses
to know: how any of it is measured or sent.

The conventions are in development, and the constants of the Python packages lag behind them. These are those of
open-telemetry/semantic-conventions-genai at CONVENTIONS_COMMIT: docs/gen-ai/client-inference.md and
docs/gen-ai/gen-ai-token-metrics.md. Whoever moves on to a later commit changes this file and docs/telemetry.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taximeter.records import Dialect

CONVENTIONS_COMMIT: Final = "024a4f944a1291fcb627c9c47da69e79868dd15e"

# Attributes.
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
STREAM: Final = "gen_ai.request.stream"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
CHOICES: Final = "gen_ai.request.choice.count"
CONVERSATION: Final = "gen_ai.conversation.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
ERROR: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
MODALITY: Final = "gen_ai.token.modality"

INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"  # all of them, cached or not
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"  # all of them, reasoning included
# Parts of the two, by the leaves of `Usage` that each is the sum of.
USAGE_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "gen_ai.usage.cache_read.input_tokens": ("input_cache_read_tokens", "input_audio_cache_read_tokens"),
    "gen_ai.usage.cache_write.input_tokens": (
        "input_cache_write_5m_tokens",
        "input_cache_write_30m_tokens",
        "input_cache_write_1h_tokens",
        "input_cache_write_12h_tokens",
        "input_cache_write_unknown_tokens",
    ),
    "gen_ai.usage.reasoning.output_tokens": ("output_reasoning_tokens",),
}

# Metrics.
DURATION: Final = "gen_ai.client.inference.duration"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.inference.time_to_first_chunk"
USAGE_INPUT: Final = "gen_ai.client.inference.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.client.inference.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.client.inference.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE: Final = "gen_ai.client.inference.usage.cache_write.input_tokens"
USAGE_REASONING: Final = "gen_ai.client.inference.usage.reasoning.output_tokens"
OPERATION_INPUT: Final = "gen_ai.client.inference.operation.input_tokens"
OPERATION_OUTPUT: Final = "gen_ai.client.inference.operation.output_tokens"

DURATION_BOUNDS_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)

# Each leaf of `Usage`: its modality, and the counters it goes into. Tokens that nobody calls anything else are text.
_INPUT, _READ, _WRITE = (USAGE_INPUT,), (USAGE_INPUT, USAGE_CACHE_READ), (USAGE_INPUT, USAGE_CACHE_WRITE)
LEAVES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "input_fresh_tokens": ("text", _INPUT),
    "input_cache_read_tokens": ("text", _READ),
    "input_cache_write_5m_tokens": ("text", _WRITE),
    "input_cache_write_30m_tokens": ("text", _WRITE),
    "input_cache_write_1h_tokens": ("text", _WRITE),
    "input_cache_write_12h_tokens": ("text", _WRITE),
    "input_cache_write_unknown_tokens": ("text", _WRITE),
    "input_image_tokens": ("image", _INPUT),
    "input_audio_tokens": ("audio", _INPUT),
    "input_audio_cache_read_tokens": ("audio", _READ),
    "output_text_tokens": ("text", (USAGE_OUTPUT,)),
    "output_reasoning_tokens": ("text", (USAGE_OUTPUT, USAGE_REASONING)),
    "output_image_tokens": ("image", (USAGE_OUTPUT,)),
    "output_audio_tokens": ("audio", (USAGE_OUTPUT,)),
}

OPERATIONS: Final[Mapping[Dialect, str]] = {
    Dialect.OPENAI_CHAT: "chat",
    Dialect.OPENAI_COMPLETIONS: "text_completion",
    Dialect.OPENAI_RESPONSES: "chat",
    Dialect.OPENAI_EMBEDDINGS: "embeddings",
    Dialect.ANTHROPIC_MESSAGES: "chat",
    Dialect.COMMAND_LINE: "chat",
    Dialect.UNSAID: "chat",
}

# What the price catalog calls providers, where the conventions have another name.
PROVIDERS: Final[Mapping[str, str]] = {
    "aws": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google": "gcp.gen_ai",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "x-ai": "x_ai",
}
OUR_ENGINE: Final = "taximeter"  # the provider of what our own engine answers

# Ours. The conventions have no word for money, for how long a cache write lasts, for tiers of any provider, for phases,
# and theirs for the first chunk counts chunks without a token in them.
OWN: Final = "taximeter."
OWN_RECEIPT: Final = "taximeter.receipt.id"
OWN_REQUEST: Final = "taximeter.request.id"
OWN_UPSTREAM_REQUEST: Final = "taximeter.upstream.request_id"
OWN_DIALECT: Final = "taximeter.dialect"
OWN_OUTCOME: Final = "taximeter.outcome"
OWN_UPSTREAM: Final = "taximeter.upstream.name"
OWN_ATTEMPTS: Final = "taximeter.attempts"
OWN_TASK: Final = "taximeter.task"
OWN_RUN: Final = "taximeter.run"
OWN_LABEL: Final = "taximeter.label."
OWN_COST: Final = "taximeter.cost.usd"
OWN_COST_EXACT: Final = "taximeter.cost.usd_exact"
OWN_COST_BASIS: Final = "taximeter.cost.basis"
OWN_UNCOSTED: Final = "taximeter.cost.unknown_reason"
OWN_TIER_ASKED: Final = "taximeter.tier.asked"
OWN_TIER_SERVED: Final = "taximeter.tier.served"
OWN_SPEED: Final = "taximeter.speed.served"
OWN_GEOGRAPHY: Final = "taximeter.geography.served"
OWN_PHASE: Final = "taximeter.phase."
OWN_FIRST_TOKEN: Final = "taximeter.time_to_first_token"
OWN_FIRST_ANSWER: Final = "taximeter.time_to_first_answer"
OWN_INTER_TOKEN: Final = "taximeter.inter_token_latency"
OWN_USAGE: Final = "taximeter.usage."
OWN_USAGE_BASIS: Final = "taximeter.usage.basis"
OWN_TRY: Final = "taximeter.try"
OWN_TRY_STATUS: Final = "taximeter.try.status"

OWN_METRIC_RECEIPTS: Final = "taximeter.receipts"
OWN_METRIC_COST: Final = "taximeter.cost"
OWN_METRIC_UNPRICED: Final = "taximeter.receipts.unpriced"
OWN_METRIC_OMITTED: Final = "taximeter.receipts.without_usage"
OWN_METRIC_TOKENS: Final = "taximeter.tokens"
OWN_METRIC_PHASE: Final = "taximeter.phase.duration"
OWN_METRIC_FIRST_TOKEN: Final = "taximeter.time_to_first_token"
OWN_METRIC_INTER_TOKEN: Final = "taximeter.inter_token_latency"
OWN_BUCKET: Final = "taximeter.bucket"
OWN_PHASE_NAME: Final = "taximeter.phase"
