"""The page about the gateway says what is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from taximeter.upstreams import config
from taximeter.upstreams.config import read_network

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text("utf-8")


def test_every_example_is_right() -> None:
    """Each TOML block is understood, and is a network."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        document = tomllib.loads(block)
        network = read_network(
            document["upstreams"],
            document.get("routes", []),
            path=Path("taximeter.toml"),
            environ={"ANTHROPIC_API_KEY": "sk-test"},
        )
        assert network.upstreams


def test_every_key_is_on_the_page() -> None:
    """A new one is explained before it ships."""
    keys = [
        field.name for kind in (config._UpstreamTable, config._RouteTable) for field in msgspec.structs.fields(kind)
    ]
    assert [key for key in keys if f"`{key}`" not in PAGE] == []
