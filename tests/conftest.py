"""Fixtures that every test may use: the real models, and a home of one's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from taximeter.engine.model_store import ModelStore
from taximeter.settings import Settings

# A shell's jobs in the background ignore Ctrl-C, and so does what they start: tests that send it would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes inputs slowly, and stops now and then. What hangs is ended by pytest's own timeout.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder that holds the pulled models, whatever a test makes of the environment."""
    return _REAL_MODELS_DIR


@pytest.fixture(scope="session")
def smollm2_path(models_dir: Path) -> Path:
    """SmolLM2-135M-Instruct: small, real, and with a chat template."""
    return _pulled("smollm2-135m-instruct", models_dir)


@pytest.fixture(scope="session")
def gemma3_path(models_dir: Path) -> Path:
    """Gemma 3 270M: a base model with sliding windows."""
    return _pulled("gemma3-270m", models_dir)


@pytest.fixture
def taximeter_home(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TAXIMETER_HOME, for this process and those it starts. Only the models are the real ones; no other
    setting of the developer's leaks in."""
    for name in [name for name in os.environ if name.startswith("TAXIMETER_") and name != "TAXIMETER_CPU_LEVEL"]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TAXIMETER_HOME", str(home))
    monkeypatch.setenv("TAXIMETER_MODELS_DIR", str(models_dir))
    return home


def _pulled(name: str, models_dir: Path) -> Path:
    model = ModelStore(models_dir).find(name)
    if not model.pulled:
        pytest.fail(
            f"the tests need a real model: run `taximeter models pull {name}` (`make test` does)", pytrace=False
        )
    return model.path


_REAL_MODELS_DIR = Settings.load().models_dir
