"""Upstreams and routes as the operator writes them: every mistake is one clear sentence that names file and key."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.errors import ConfigError
from taximeter.upstreams.config import Family, Network, read_network

PATH = Path("/etc/taximeter/taximeter.toml")
KEY = "sk-secret-0123456789"
OPENAI = '[upstreams.a]\nurl = "https://api.example.com/v1/"\nspeaks = "openai"\n'
ROUTE = '[[routes]]\nmodel = "gpt-*"\nupstreams = ["a"]\n'


def read(text: str, problems: list[ConfigError] | None = None, **environ: str) -> Network:
    tables = tomllib.loads(text)
    upstreams, routes = tables.get("upstreams", {}), tables.get("routes", [])
    return read_network(upstreams, routes, path=PATH, environ=environ, problems=problems)


def test_what_is_written_is_what_is_meant() -> None:
    """Every key, and the defaults of those that are left out."""
    network = read(
        OPENAI
        + 'key = "env:K"\nheaders = {"x-team" = "blue"}\nprovider = "openai"\nconnect_timeout_s = 1\n'
        + "first_byte_timeout_s = 2\nidle_timeout_s = 3\nretries = 4\ndrain_s = 5\n"
        + 'proxy = "http://user:pass@proxy:3128"\nmetrics_url = "http://a/metrics"\n'
        + '[upstreams.b]\nurl = "http://10.0.0.1:8000/base"\nspeaks = "anthropic"\nmachine_rate = "3.60/h"\n'
        + ROUTE
        + '[[routes]]\nmodel = "local"\nupstreams = ["b"]\nsend_as = "llama"\n',
        K=f" {KEY}\n",
    )
    a, b = network.upstreams["a"], network.upstreams["b"]
    assert (a.url, a.speaks, a.provider) == ("https://api.example.com", Family.OPENAI, "openai")
    assert a.key is not None
    assert a.key.reveal() == KEY
    assert (a.connect_timeout_s, a.first_byte_timeout_s, a.idle_timeout_s, a.retries, a.drain_s) == (1, 2, 3, 4, 5)
    assert (b.url, b.key, b.retries, b.drain_s, b.proxy) == ("http://10.0.0.1:8000/base", None, 1, 0, None)
    assert b.machine_rate is not None
    assert b.machine_rate.amount_per_hour == Decimal("3.60")
    assert network.routes[1].send_as == "llama"
    for secret in (KEY, "user:pass"):
        assert secret not in repr(network)


def test_a_whole_name_wins_then_the_longest_beginning() -> None:
    """And what is served here goes elsewhere by its whole name only."""
    routes = "".join(
        f'[[routes]]\nmodel = "{model}"\nupstreams = ["a"]\n' for model in ("*", "gpt-*", "gpt-5*", "gpt-5")
    )
    network = read(OPENAI + routes)

    def way(model: str, own: frozenset[str] = frozenset()) -> str | None:
        route = Network(upstreams=network.upstreams, routes=network.routes, own_models=own).route(model)
        return None if route is None else route.model

    names = ("gpt-5", "gpt-5-mini", "gpt-4", "x")
    assert [way(name) for name in names] == ["gpt-5", "gpt-5*", "gpt-*", "*"]
    assert [way(name, frozenset(names)) for name in names] == ["gpt-5", None, None, None]
    assert read(OPENAI + ROUTE).route("claude") is None


def wrong(**changes: str) -> str:
    """A table with other lines for some keys."""
    lines = {"url": '"https://api.example.com"', "speaks": '"openai"'} | changes
    return "[upstreams.a]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value) + ROUTE


UPSTREAM_MISTAKES: dict[str, tuple[str, str]] = {
    "no url": (wrong(url=""), "`url`"),
    "no scheme": (wrong(url='"api.example.com"'), "`url` must be a URL that begins with http:// or https://"),
    "another scheme": (wrong(url='"ftp://api.example.com"'), "`url` must be a URL"),
    "no host": (wrong(url='"https://"'), "`url` must be a URL"),
    "a port that is none": (wrong(url='"http://a:port"'), "`url` is no URL"),
    "a query": (wrong(url='"http://a/?key=1"'), "`url` has a query"),
    "a password": (wrong(url=f'"http://me:{KEY}@a"'), "`url` has a user or a password in it"),
    "no language": (wrong(speaks=""), "`speaks`"),
    "a strange language": (wrong(speaks='"klingon"'), "`speaks`"),
    "a strange key": (wrong(colour='"blue"'), "colour"),
    "a key in the file": (wrong(key=f'"{KEY}"'), "a key is never written into the configuration"),
    "a key for a variable's name": (wrong(key=f'"env:{KEY}"'), "env: is followed by the name of a variable"),
    "an unset variable": (wrong(key='"env:NOT_THERE"'), "the environment variable NOT_THERE is not set"),
    "a key of two lines": (wrong(key='"env:TWO_LINES"'), "must be one line of ASCII"),
    "a file that is not there": (wrong(key='"file:nowhere"'), "/etc/taximeter/nowhere cannot be read"),
    "a key among the headers": (wrong(headers=f'{{Authorization = "Bearer {KEY}"}}'), "a key belongs into `key`"),
    "a header of two lines": (wrong(headers='{"x-a" = "b\\nc"}'), "cannot be sent"),
    "bought and owned": (wrong(provider='"openai"', machine_rate='"1/h"'), "exclude each other"),
    "a rate that is none": (wrong(machine_rate='"cheap"'), "`machine_rate` is 'cheap'"),
    "no patience": (wrong(idle_timeout_s="0"), "`idle_timeout_s`"),
    "negative retries": (wrong(retries="-1"), "`retries`"),
    "a number in words": (wrong(drain_s='"long"'), "`drain_s`"),
    "a proxy that is none": (wrong(proxy='"proxy:3128"'), "`proxy` must be a URL"),
}


@pytest.mark.parametrize("mistake", UPSTREAM_MISTAKES)
def test_a_mistake_in_an_upstream_is_one_sentence(mistake: str) -> None:
    """File, table, key, and what to do; a secret that was put in the wrong place is not repeated."""
    text, said = UPSTREAM_MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        read(text, TWO_LINES="a\nb")
    assert str(caught.value).startswith(f"{PATH}, upstreams.a: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


ROUTE_MISTAKES: dict[str, tuple[str, str]] = {
    "no model": (ROUTE.replace('model = "gpt-*"\n', ""), "`model`"),
    "a star in the middle": (ROUTE.replace("gpt-*", "g*t"), "a * may only be its end"),
    "nobody": (ROUTE.replace('["a"]', "[]"), "`upstreams`"),
    "somebody else": (ROUTE.replace('["a"]', '["z"]'), "there is no [upstreams.z]"),
    "one twice": (ROUTE.replace('["a"]', '["a", "a"]'), "names one twice"),
    "two languages": (ROUTE.replace('["a"]', '["a", "b"]'), "speak different dialects"),
    "a second route": (ROUTE + ROUTE, "there is a route for 'gpt-*' already"),
    "a strange key": (ROUTE + 'to = "x"\n', "to"),
}


@pytest.mark.parametrize("mistake", ROUTE_MISTAKES)
def test_a_mistake_in_a_route_is_one_sentence(mistake: str) -> None:
    """With the number of the route."""
    text, said = ROUTE_MISTAKES[mistake]
    also = '[upstreams.b]\nurl = "http://b"\nspeaks = "anthropic"\n[[routes]]\nmodel = "b"\nupstreams = ["b"]\n'
    with pytest.raises(ConfigError) as caught:
        read(OPENAI + also + text)
    assert str(caught.value).startswith(f"{PATH}, route ")
    assert said in str(caught.value)


def test_all_mistakes_can_be_had_at_once() -> None:
    """And what is right is understood."""
    problems: list[ConfigError] = []
    network = read(
        OPENAI
        + '[upstreams.b]\nurl = "b"\nspeaks = "x"\nretries = -1\n[upstreams.c]\nurl = "http://c"\nspeaks = "openai"\n'
        + ROUTE,
        problems,
    )
    assert {problem.message.split(": ")[0] for problem in problems} == {f"{PATH}, upstreams.b"}
    keys = ("url", "speaks", "retries")
    assert sorted(problem.place for problem in problems) == sorted(("upstreams", "b", key) for key in keys)
    assert network.upstreams.keys() == {"a", "c"}
    assert [route.model for route in network.routes] == ["gpt-*"]


def test_keys_come_from_files_too(tmp_path: Path) -> None:
    """Relative to the file that names them; an empty one is none."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "empty").write_text("\n")
    tables = tomllib.loads(OPENAI + 'key = "file:key"\n' + ROUTE)
    path = tmp_path / "taximeter.toml"
    network = read_network(tables["upstreams"], tables["routes"], path=path, environ={})
    assert network.upstreams["a"].key.reveal() == KEY
    tables = tomllib.loads(OPENAI + 'key = "file:empty"\n' + ROUTE)
    with pytest.raises(ConfigError, match="is empty"):
        read_network(tables["upstreams"], tables["routes"], path=path, environ={})
