"""The frozen price card, and the shortest way to a usage and its cost. For tests only."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from taximeter.pricing import charge
from taximeter.pricing.catalog import Catalog
from taximeter.records import Basis, Cost, Usage

PRICE_CARD = Path(__file__).parent / "golden" / "price_card.toml"
CHECKED_AT = datetime(2026, 10, 29, tzinfo=UTC)  # the day the worked example's prices were checked


def usage(
    *,
    fresh: int = 0,
    read: int = 0,
    write_5m: int = 0,
    write_1h: int = 0,
    text: int = 0,
    reasoning: int = 0,
    audio: int = 0,
    read_audio: int = 0,
    basis: Basis = Basis.REPORTED,
    **other_units: int,
) -> Usage:
    """A usage in which every bucket is known."""
    return Usage(
        input_fresh_tokens=fresh,
        input_cache_read_tokens=read,
        input_cache_write_5m_tokens=write_5m,
        input_cache_write_1h_tokens=write_1h,
        input_audio_tokens=audio,
        input_audio_cache_read_tokens=read_audio,
        output_text_tokens=text,
        output_reasoning_tokens=reasoning,
        other_units=other_units,
        basis=basis,
    )


def cost(catalog: Catalog, model: str, used: Usage, *, at: datetime = CHECKED_AT, tier: str = "standard") -> Cost:
    """What `used` costs: the price is found for its whole prompt, as a caller should."""
    assert used.input_tokens is not None
    return charge(used, catalog.price_list(model, at=at, tier=tier, input_tokens=used.input_tokens))
