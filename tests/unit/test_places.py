"""Where things are, before anybody has read a setting."""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs
import pytest

from taximeter import places
from taximeter.errors import ConfigError


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the library itself is asked")
@pytest.mark.parametrize("set_", [True, False])
def test_they_are_those_of_the_platforms_library(set_: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found without it, since a status line cannot wait for it; and the same."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        if set_:
            monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
        else:
            monkeypatch.delenv(variable, raising=False)
    assert places.config_path(None) == f"{platformdirs.user_config_dir('taximeter', appauthor=False)}/taximeter.toml"
    assert places.data_dir(None) == platformdirs.user_data_dir("taximeter", appauthor=False)
    assert places.cache_dir(None) == platformdirs.user_cache_dir("taximeter", appauthor=False)
    assert places.ledger_path(None) == f"{places.data_dir(None)}/ledger.sqlite"


def test_a_home_that_is_a_file_is_told(tmp_path: Path) -> None:
    """Before anything is looked for in it."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="which is not a folder"):
        places.home({"TAXIMETER_HOME": str(tmp_path / "file")})
