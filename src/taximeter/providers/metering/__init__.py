"""What an answer says it took: taps that look at answers as they pass, for each dialect.

Owns: reading usage, terms, errors and engines' own times out of bytes that others forward, and saying of each event
whether it holds generated tokens. Refuses to know: sockets, clocks, prices. docs/metering.md says it in words.
"""

from __future__ import annotations

from taximeter.providers.metering import words
from taximeter.providers.metering.anthropic_messages import AnthropicMessagesTap
from taximeter.providers.metering.openai_chat import OpenAIChatTap
from taximeter.providers.metering.openai_responses import OpenAIResponsesTap
from taximeter.providers.sighting import Tap
from taximeter.records import Dialect

__all__ = ["tap_for"]


def tap_for(dialect: Dialect, *, streamed: bool) -> Tap:
    """A fresh tap for one answer in `dialect`; `streamed` is whether it was asked for as a stream.

    A refusal of a stream comes as a whole body, and its tap takes that too. Raises ValueError for a dialect that is
    spoken on no wire.
    """
    match dialect:
        case Dialect.OPENAI_CHAT | Dialect.OPENAI_COMPLETIONS:
            return OpenAIChatTap(words.CHAT, streamed=streamed)
        case Dialect.OPENAI_EMBEDDINGS:
            return OpenAIChatTap(words.EMBEDDINGS, streamed=streamed)
        case Dialect.OPENAI_RESPONSES:
            return OpenAIResponsesTap(words.RESPONSES, streamed=streamed)
        case Dialect.ANTHROPIC_MESSAGES:
            return AnthropicMessagesTap(words.MESSAGES, streamed=streamed)
        case Dialect.COMMAND_LINE | Dialect.UNSAID:
            raise ValueError(f"nothing comes by wire in the dialect {dialect}")
