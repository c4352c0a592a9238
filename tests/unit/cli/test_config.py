"""`taximeter config`: everything that is wrong, and where; and what is in force."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.cli.main import app
from taximeter.cli.toml_lines import lines_of

UPSTREAM = '[upstreams.one]\nurl = "https://api.example"\nspeaks = "openai"\nkey = "env:KEY"\nprovider = "openai"\n'
TWO = '[upstreams.two]\nurl = "https://x.example"\nspeaks = "openai"\n'
ROUTE = '[[routes]]\nmodel = "gpt-*"\nupstreams = ["one"]\n'


@pytest.fixture
def home(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEY", "sk-secret")
    return taximeter_home


def check(
    capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, list[dict[str, object]], list[dict[str, object]]]:
    code = app(["config", "check", "--json", *flags], standalone_mode=False)
    text = capsys.readouterr().out
    assert "sk-" not in text
    said = json.loads(text)
    return code, said["errors"], said["warnings"]


def test_what_is_right_is_right(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No line but one, and a 0."""
    (home / "taximeter.toml").write_text(UPSTREAM + ROUTE)
    assert check(capsys) == (0, [], [])
    assert app(["config", "check"], standalone_mode=False) == 0
    assert capsys.readouterr().out == f"{home / 'taximeter.toml'} is right\n"


# Each of these is put into a file that is right otherwise; `@` is the line that is told, the key is behind it.
@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('port = "eight" # @\n', "port", "a port number"),
        ("colour = 3 # @\n", "colour", "unknown key"),
        ('machine_rate = "cheap" # @\n', "machine_rate", "dollars per hour"),
        ('prices = "nowhere.toml" # @\n', "prices", "does not exist"),
        ('api_key = "env:NOT_THERE" # @\n', "api_key", "NOT_THERE is not set"),
        ('api_key = "sk-abc" # @\n', "api_key", "never written into the configuration"),
        ('priced_as = "nobody/nothing" # @\n', "priced_as", "no prices for a model"),
        ("port = # @\n", None, "not valid TOML"),
        ("[upstreams]\ntwo = 7 # @\n", "upstreams.two", "expected"),
        ('[upstreams.two]\nurl = "ftp://x" # @\nspeaks = "openai"\n', "upstreams.two.url", "begins with http"),
        ('[upstreams.two]\nurl = "http://u:p@x" # @\nspeaks = "openai"\n', "upstreams.two.url", "a user or a password"),
        ('[upstreams.two] # @\nspeaks = "openai"\n', "upstreams.two.url", "must be a key `url`"),
        ('[upstreams."a b"]\nurl = "http://x"\nspeaks = "x" # @\n', 'upstreams."a b".speaks', "invalid enum value"),
        ('[upstreams.two]\nurl = "http://x"\nspeaks = "openai"\nretires = 3 # @\n', "upstreams.two.retires", "no key"),
        ('[upstreams.two]\nurl = "http://x"\nspeaks = "openai"\nkey = "sk-1" # @\n', "upstreams.two.key", "never"),
        ('[[routes]]\nupstreams = ["one"]\nmodel = "a*b" # @\n', "routes[2].model", "only be its end"),
        ('[[routes]]\nmodel = "x"\nupstreams = [ # @\n"one",\n"two"]\n', "routes[2].upstreams", "no [upstreams.two]"),
        ('[[routes]]\nmodel = "gpt-*" # @\nupstreams = ["one"]\n', "routes[2].model", "there is a route for"),
        ('[[routes]]\nmodel = "x"\nupstreams = ["one", "one"] # @\n', "routes[2].upstreams", "one twice"),
    ],
)
def test_a_mistake_is_told_where_it_is(
    text: str, key: str | None, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its line, its table and key, and what to write; the server would not start."""
    upstream = UPSTREAM + ROUTE
    whole = upstream + text if text.startswith("[") else text + upstream
    if text.startswith("[upstreams]"):
        whole = text + ROUTE + UPSTREAM
    (home / "taximeter.toml").write_text(whole)
    code, errors, _ = check(capsys)
    assert code == 1
    line = next(number for number, each in enumerate(whole.split("\n"), 1) if "@" in each and "# @" in each)
    (error,) = [each for each in errors if message in str(each["message"])]
    assert (error["file"], error["line"], error["key"]) == (str(home / "taximeter.toml"), line, key)
    assert str(home) not in str(error["message"]) or key in (None, "prices")


def test_all_of_it_is_told_at_once(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file, of the environment, of prices and secrets; of one table, too."""
    monkeypatch.delenv("KEY")
    monkeypatch.setenv("TAXIMETER_PORT", "x")
    bad = '[upstreams.two]\nurl = "x"\nspeaks = "y"\nretries = -1\nkey = "sk-1"\n'
    (home / "taximeter.toml").write_text("colour = 3\n" + UPSTREAM + bad + ROUTE)
    (home / "prices.toml").write_text('[[price]]\nmodel = "x"\n\n[[price]]\nmodel = "openai/gpt-5"\nfoo = 1\n')
    code, errors, _ = check(capsys)
    assert code == 1
    told = [(Path(str(each["file"])).name, each["line"], each["key"]) for each in errors]
    assert told == [
        ("None", None, None),
        ("prices.toml", 1, "price[1]"),
        ("prices.toml", 4, "price[2]"),
        ("taximeter.toml", 1, "colour"),
        ("taximeter.toml", 5, "upstreams.one.key"),
        ("taximeter.toml", 8, "upstreams.two.url"),
        ("taximeter.toml", 9, "upstreams.two.speaks"),
        ("taximeter.toml", 10, "upstreams.two.retries"),
        ("taximeter.toml", 11, "upstreams.two.key"),
    ]
    assert app(["config", "check"], standalone_mode=False) == 1
    shown = capsys.readouterr().out
    assert f"error {home / 'taximeter.toml'}:9, upstreams.two.speaks: " in shown
    assert '  hint: write speaks = "openai", or "anthropic"\n' in shown
    assert shown.splitlines()[-1] == "9 errors, 0 warnings"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (UPSTREAM.replace("one", "two"), "upstreams.two", "no route leads there"),
        (TWO + 'key = "env:KEY"\nprovider = "nobody"\n', "upstreams.two.provider", "no price of any 'nobody'"),
        (TWO + 'key = "env:KEY"\n', "upstreams.two", "no cost"),
        (TWO + 'provider = "openai"\n', "upstreams.two", "has no key"),
        ('[[routes]]\nmodel = "no-such"\nupstreams = ["one"]\n', "routes[2].model", "no prices for a model"),
        ('[[routes]]\nmodel = "x*"\nsend_as = "no-such"\nupstreams = ["one"]\n', "routes[2].send_as", "no prices"),
    ],
)
def test_what_works_but_hardly_as_meant_is_a_warning(
    text: str, key: str, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code stays 0."""
    (home / "taximeter.toml").write_text(UPSTREAM + ROUTE + text)
    code, errors, warnings = check(capsys)
    assert (code, errors) == (0, [])
    assert (key, True) in [(each["key"], message in str(each["message"])) for each in warnings]


def test_an_open_door_needs_a_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And where the gateway asks for one of its own, upstreams need theirs: callers' keys do not reach them."""
    (home / "taximeter.toml").write_text('host = "0.0.0.0"\n' + UPSTREAM + ROUTE)
    assert "no key is asked for" in str(check(capsys)[1])
    own = 'api_key = "env:KEY"\n'
    (home / "taximeter.toml").write_text('host = "0.0.0.0"\n' + own + UPSTREAM.replace('key = "env:KEY"\n', "") + ROUTE)
    code, errors, warnings = check(capsys)
    assert (code, errors) == (0, [])
    assert "they must send that as x-taximeter-key" in str(warnings)


@contextmanager
def a_provider(status: int) -> Iterator[str]:
    """Something that answers everything with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_nobody_is_called_unless_asked_to(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--online` calls every upstream, and the page with its numbers."""
    with a_provider(401) as url:
        here = UPSTREAM.replace("https://api.example", url) + f'metrics_url = "{url}/metrics"\n'
        away = UPSTREAM.replace("one", "two").replace("https://api.example", "http://127.0.0.1:9")
        (home / "taximeter.toml").write_text(here + away + ROUTE.replace('"one"', '"one", "two"'))
        assert check(capsys) == (0, [], [])
        code, errors, warnings = check(capsys, "--online")
    assert (code, errors) == (0, [])
    assert [(each["key"], each["message"]) for each in warnings][:2] == [
        ("upstreams.one.key", "it refuses the key (status 401)"),
        ("upstreams.one.metrics_url", "it answers with status 401"),
    ]
    assert warnings[2]["key"] == "upstreams.two.url"


def test_what_is_in_force_is_shown_and_no_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value with where it comes from; of keys only where they lie."""
    text = 'api_key = "env:KEY"\nport = 8123\nledger = "postgresql://me:sk-word@db/x"\n'
    (home / "taximeter.toml").write_text(text + UPSTREAM + ROUTE)
    assert app(["config", "show", "--json"], standalone_mode=False) == 0
    shown = capsys.readouterr().out
    assert "sk-" not in shown
    said = json.loads(shown)
    settings = {one["key"]: (one["value"], one["origin"]) for one in said["settings"]}
    assert settings["port"] == (8123, f"port in {home / 'taximeter.toml'}")
    assert settings["host"] == ("127.0.0.1", "default")
    assert settings["api_key"][0] == "env:KEY (set)"
    assert settings["ledger"][0] == "postgresql://me:***@db/x"
    assert said["upstreams"]["one"]["key"] == "env:KEY (set)"
    assert said["routes"] == [{"model": "gpt-*", "upstreams": ["one"], "send_as": None}]
    assert app(["config", "show"], standalone_mode=False) == 0
    table = capsys.readouterr().out
    assert "sk-" not in table
    assert re.search(r"^route +gpt-\* to one *$", table, re.MULTILINE)


KEYS = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
VALUES = st.sampled_from(
    ['"x"', "1", '"""a\nb = 1\n[c]\n"""', '[\n  "a",\n  "b = 2",\n]', "{ k = 1 }", "'''\n[[t]]\n'''"]
)


@given(st.lists(st.tuples(KEYS, st.dictionaries(KEYS, VALUES, max_size=4)), max_size=4, unique_by=lambda pair: pair[0]))
def test_keys_are_found_whatever_is_between_them(tables: list[tuple[str, dict[str, str]]]) -> None:
    """Also values of many lines, in which other keys and tables seem to stand."""
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}
    for name, fields in tables:
        lines.append(f"[[{name}]]  # a list")
        expected[name,] = expected[name, 0] = len(lines)
        for key, value in fields.items():
            lines.append(f"{key} = {value}")
            expected[name, 0, key] = sum(line.count("\n") + 1 for line in lines[:-1]) + 1
        lines[:] = "\n".join(lines).split("\n")
    found = lines_of("\n".join(lines))
    assert {place: found[place] for place in expected} == expected


@given(st.text(max_size=200))
def test_any_text_has_lines(text: str) -> None:
    """It is looked at before anybody knows that it is TOML."""
    lines_of(text)
