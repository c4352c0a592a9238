"""Where Taximeter keeps its things on this machine, before anybody has read a setting.

With `TAXIMETER_HOME` set, everything lives in that one folder; without it, in the platform's own places for
configuration, data and caches. Owns: those places. Refuses to know: settings that name other ones.

Paths are text: the status line needs them, and may not wait for a library of paths.
"""

from __future__ import annotations

import os
import sys

from taximeter.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_NAME = "taximeter.toml"

_APP = "taximeter"


def home(environ: Mapping[str, str]) -> str | None:
    """The one folder for everything, None for the platform's own places. Raises ConfigError where it is none."""
    text = environ.get("TAXIMETER_HOME", "")
    if not text:
        return None
    folder = os.path.abspath(os.path.expanduser(text))
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"TAXIMETER_HOME is {text!r}, which is not a folder")
    return folder


def config_path(own: str | None) -> str:
    """The file of settings; `own` is what `home` says."""
    return os.path.join(own or _platforms("config", "XDG_CONFIG_HOME", "~/.config"), CONFIG_NAME)


def data_dir(own: str | None) -> str:
    """The folder of what must not be lost."""
    return own or _platforms("data", "XDG_DATA_HOME", "~/.local/share")


def cache_dir(own: str | None) -> str:
    """The folder of what can be fetched again."""
    return own or _platforms("cache", "XDG_CACHE_HOME", "~/.cache")


def ledger_path(own: str | None) -> str:
    """The file of the ledger, where no setting names another one."""
    return os.path.abspath(os.path.join(data_dir(own), "ledger.sqlite"))


def _platforms(kind: str, variable: str, usual: str) -> str:
    """The platform's own place: on Linux by the XDG specification, elsewhere as the library says that knows all."""
    if sys.platform == "linux":
        return os.path.join(os.environ.get(variable, "").strip() or os.path.expanduser(usual), _APP)
    import platformdirs  # noqa: PLC0415  # takes longer to load than a status line may

    folder: str = getattr(platformdirs, f"user_{kind}_dir")(_APP, appauthor=False)
    return folder
