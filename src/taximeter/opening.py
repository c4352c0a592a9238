"""The beginning of a start: models found, and on their way into memory.

Owns: which files the models to serve are. Refuses to know: what serves them. It is apart from `serve` because it takes
a part only of what that imports: whoever starts a program begins here, and imports the rest while weights are packed by
native code, which needs no Python. The two take about as long as each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from taximeter.engine.loading import Loadings
from taximeter.engine.model_store import ModelStore
from taximeter.errors import ConfigError
from taximeter.settings import Settings


def begin_loading(
    settings: Settings,
    models: Sequence[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    *,
    profile: bool = False,
) -> Loadings:
    """Begin to load `models` (names, paths or `hf:` references), or the settings' model.

    `on_progress` is told in words what is going on. Raises ConfigError, with nothing left open.
    """
    store = ModelStore(settings.models_dir)
    paths: dict[str, Path] = {}
    for ref in models or [settings.model]:
        name, path = store.serving_name(ref), store.resolve(ref)
        if paths.setdefault(name, path) != path:
            raise ConfigError(f"two models would both be served as {name}: {paths[name]} and {path}")
    if on_progress is not None:
        on_progress(f"loading {', '.join(paths)}")
    return Loadings.begin(paths, threads=settings.threads, weights=settings.weights, profile=profile)
