"""Who takes part: Taximeter and its peers, each in front of the same mock, each with one worker; and what is missing.

Owns: command lines, configurations and versions. Refuses to know: what they are asked. `README.md` beside this file
says how to get the peers, and what each one's makers advise; nothing here installs anything.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from taximeter import __version__

MODEL: Final = "gpt-4o-mini"
_PORTKEY_SERVER: Final = Path("node_modules/@portkey-ai/gateway")
_LITELLM_ASK: Final = "from importlib.metadata import version; print(version('litellm'))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are. None: the operator did not say."""

    scratch: Path
    ledger: Path
    """The folder of our ledger: what disk it is on decides half of an answer's way."""
    litellm_python: Path | None
    portkey: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a gateway. `headers` are what its clients have to send beside the body."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Contestant(Protocol):
    """One gateway."""

    @property
    def label(self) -> str: ...

    def missing(self) -> str | None:
        """Why it cannot take part, and what to do about it."""
        ...

    def version(self) -> str: ...

    def launch(self, port: int, upstream_port: int) -> Launch:
        """How to start it on `port`, in front of the mock."""
        ...


@dataclass(frozen=True, kw_only=True)
class Taximeter:
    """Ours: priced receipts, durable in SQLite before an answer ends."""

    places: Places
    label: str = "Taximeter"

    @property
    def ledger(self) -> Path:
        return self.places.ledger / "ledger.sqlite"

    @property
    def _home(self) -> Path:
        return self.places.scratch / "taximeter"

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return __version__

    def launch(self, port: int, upstream_port: int) -> Launch:
        self._home.mkdir(exist_ok=True)
        (self._home / "taximeter.toml").write_text(
            f'[upstreams.mock]\nurl = "http://127.0.0.1:{upstream_port}"\nspeaks = "openai"\nkey = "env:MOCK_KEY"\n'
            f'provider = "openai"\n\n[[routes]]\nmodel = "*"\nupstreams = ["mock"]\n'
        )
        return Launch(
            command=[sys.executable, "-m", "taximeter", "serve", "--port", str(port)],
            environment={
                "TAXIMETER_HOME": str(self._home),
                "TAXIMETER_LEDGER": f"sqlite:///{self.ledger}",
                "MOCK_KEY": "sk-mock",
            },
            headers={"authorization": "Bearer sk-client"},
        )


@dataclass(frozen=True, kw_only=True)
class LiteLLM:
    """Its proxy, set up as its page for production says. Without a database it writes nothing down."""

    places: Places
    label: str = "LiteLLM"

    def missing(self) -> str | None:
        return _missing(self.places.litellm_python, "--litellm-python PROGRAM")

    def version(self) -> str:
        return _said([str(self.places.litellm_python), "-c", _LITELLM_ASK])

    def launch(self, port: int, upstream_port: int) -> Launch:
        upstream = {
            "model": f"openai/{MODEL}",
            "api_base": f"http://127.0.0.1:{upstream_port}/v1",
            "api_key": "sk-mock",
        }
        config = {
            "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
            "litellm_settings": {"set_verbose": False, "json_logs": True, "request_timeout": 600, "telemetry": False},
        }
        path = self.places.scratch / "litellm.yaml"
        path.write_text(json.dumps(config))  # which is YAML as well
        program = Path(str(self.places.litellm_python)).with_name("litellm")
        command = [
            str(program),
            "--config",
            str(path),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        key = f"sk-{secrets.token_hex(32)}"  # without one it refuses to start
        environment = {
            "LITELLM_MASTER_KEY": key,
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would ask for the newest prices before it listens
            "NO_PROXY": "127.0.0.1",
        }
        return Launch(command=command, environment=environment, headers={"authorization": f"Bearer {key}"})


@dataclass(frozen=True, kw_only=True)
class Portkey:
    """Its open source gateway on Node. It keeps no books."""

    places: Places
    label: str = "Portkey"

    def missing(self) -> str | None:
        if shutil.which("node") is None:
            return "node was not found: it needs Node.js 20"
        folder = self.places.portkey
        return _missing(None if folder is None else folder / _PORTKEY_SERVER, "--portkey FOLDER")

    def version(self) -> str:
        return json.loads((Path(str(self.places.portkey)) / _PORTKEY_SERVER / "package.json").read_text())["version"]

    def launch(self, port: int, upstream_port: int) -> Launch:
        server = Path(str(self.places.portkey)) / _PORTKEY_SERVER / "build" / "start-server.js"
        return Launch(
            command=["node", str(server), f"--port={port}", "--headless"],
            environment={"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"},
            headers={
                "authorization": "Bearer sk-mock",
                "x-portkey-provider": "openai",
                "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
            },
        )


def contestants(places: Places) -> list[Contestant]:
    """Everybody, ours first."""
    return [Taximeter(places=places), LiteLLM(places=places), Portkey(places=places)]


def _missing(path: Path | None, option: str) -> str | None:
    if path is None:
        return f"bench/gateway_lab/README.md says how to install it; then say {option}"
    return None if path.exists() else f"{path} is not there"


def _said(command: Sequence[str]) -> str:
    told = subprocess.run(  # noqa: S603 - the operator said where it is
        command, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"
