"""Settings: where values come from, and what becomes of wrong ones."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import ConfigError, RequestError
from taximeter.records import Basis, MachineRate
from taximeter.settings import DEFAULT_MODEL, Settings


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's own configuration folder is an empty one."""
    monkeypatch.setattr("taximeter.places._platforms", lambda kind, *_: str(tmp_path / f"no-{kind}"))


def write(home: Path, text: str) -> dict[str, str]:
    """A home with this taximeter.toml, as an environment."""
    (home / "taximeter.toml").write_text(text, "utf-8")
    return {"TAXIMETER_HOME": str(home)}


def test_nothing_set_means_defaults_in_the_platforms_own_folders() -> None:
    """Without any setting there is a model, an address on this machine only, and no price for its time."""
    settings = Settings.load(environ={})
    assert settings.model == DEFAULT_MODEL
    assert settings.host == "127.0.0.1"
    assert settings.machine_rate is None
    assert settings.home is None
    assert settings.models_dir.name == "models"
    assert settings.origins == {}


def test_home_holds_everything(tmp_path: Path) -> None:
    """TAXIMETER_HOME is the one folder for configuration, ledger, prices and models."""
    settings = Settings.load(environ={"TAXIMETER_HOME": str(tmp_path)})
    assert settings.config_path == tmp_path / "taximeter.toml"
    assert settings.models_dir == tmp_path / "models"
    assert settings.prices_overlay == tmp_path / "prices.toml"
    assert settings.ledger_url == f"sqlite:///{tmp_path}/ledger.sqlite"


def test_a_flag_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    """The nearer to the call a value was given, the stronger it is; its origin is known."""
    environ = write(tmp_path, 'port = 1\nhost = "file"\nmodel = "file"')
    environ |= {"TAXIMETER_PORT": "2", "TAXIMETER_HOST": "environment"}
    settings = Settings.load(environ=environ, port=3)
    assert (settings.port, settings.host, settings.model) == (3, "environment", "file")
    assert settings.origins["port"] == "--port"
    assert settings.origins["host"] == "TAXIMETER_HOST"
    assert settings.origins["model"] == f"model in {tmp_path / 'taximeter.toml'}"


def test_a_flag_that_was_not_given_is_none() -> None:
    """None is how the command line says that a flag was not given."""
    assert Settings.load(environ={"TAXIMETER_PORT": "2"}, port=None).port == 2


def test_an_empty_variable_counts_as_unset() -> None:
    """Compose files and shells set variables to nothing when they mean to leave them."""
    assert Settings.load(environ={"TAXIMETER_PORT": "", "TAXIMETER_HOME": ""}).port == 8000


@pytest.mark.parametrize("name", ["PORT", "MAX_QUEUED_REQUESTS", "KV_CACHE_TOKENS", "STEP_TOKENS", "THREADS"])
@pytest.mark.parametrize("text", ["many", "-1", "1.5", "99999999999999999999", "0x10"])
def test_a_bad_number_in_the_environment_is_never_swallowed(name: str, text: str) -> None:
    """The error names the variable and what it says."""
    with pytest.raises(ConfigError, match=f"TAXIMETER_{name} is '{text}': it must be a"):
        Settings.load(environ={f"TAXIMETER_{name}": text})


def test_a_bad_variable_is_told_even_when_a_flag_overrides_it() -> None:
    """Otherwise it would surprise whoever leaves the flag out next time."""
    with pytest.raises(ConfigError, match="TAXIMETER_PORT"):
        Settings.load(environ={"TAXIMETER_PORT": "http"}, port=80)


def test_a_bad_flag_is_the_callers_mistake() -> None:
    """It is a RequestError, which the command line turns into exit code 2."""
    with pytest.raises(RequestError, match="--machine-rate is 'cheap'") as caught:
        Settings.load(environ={}, machine_rate="cheap")
    assert caught.value.param == "machine_rate"


def test_an_unknown_key_names_the_file_and_what_is_allowed(tmp_path: Path) -> None:
    """A typo in the file is told with the keys there are."""
    with pytest.raises(ConfigError, match=r"taximeter\.toml has an unknown key 'prot'") as caught:
        Settings.load(environ=write(tmp_path, "prot = 8000"))
    assert caught.value.hint is not None
    assert "port" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('port = "8000"', "port = '8000': it must be a port number"),
        ("port = true", "port = True: it must be a port number"),
        ("machine_rate = 0.5", "machine_rate = 0.5: it must be a text, such as '0.50/h'"),
        ('model = ""', "model = '': it must be a text"),
        ("model = [", "is not valid TOML"),
    ],
)
def test_a_wrong_type_in_the_file_names_the_key(tmp_path: Path, text: str, told: str) -> None:
    """The file is strict: a number is a number, a text is a text."""
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ=write(tmp_path, text))
    assert told in caught.value.message


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    """A home can be moved as a whole."""
    settings = Settings.load(environ=write(tmp_path, 'models_dir = "weights"'))
    assert settings.models_dir == tmp_path / "weights"


def test_a_price_file_that_is_named_must_exist(tmp_path: Path) -> None:
    """The default overlay may be missing; one that somebody named may not."""
    with pytest.raises(ConfigError, match="TAXIMETER_PRICES names a file that does not exist"):
        Settings.load(environ={"TAXIMETER_PRICES": str(tmp_path / "none.toml")})


def test_a_home_that_is_a_file_is_told(tmp_path: Path) -> None:
    """Nothing could be kept in it."""
    (tmp_path / "home").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        Settings.load(environ={"TAXIMETER_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize("text", ["0.50/h", "$0.50/h", "0.5", "$ 0.500 / hour", ".5/hr"])
def test_a_machine_rate_as_people_write_it(text: str) -> None:
    """Dollars per hour, exact, and assumed: somebody said so."""
    rate = MachineRate.parse(text)
    assert rate.amount_per_hour == Decimal("0.5")
    assert rate.basis is Basis.ASSUMED


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e3", "1/min", "1/s", "1,50", "½", "€1/h", "1/h/h", "٣"])
def test_a_machine_rate_is_a_plain_decimal_per_hour(text: str) -> None:
    """Anything else is refused, not guessed."""
    with pytest.raises(ValueError, match="dollars per hour"):
        MachineRate.parse(text)


@given(st.decimals(min_value=0, max_value=10**6, places=12))
def test_a_machine_rate_keeps_every_digit(amount: Decimal) -> None:
    """What was written is what is charged."""
    assert MachineRate.parse(f"{amount:f}/h").amount_per_hour == amount
