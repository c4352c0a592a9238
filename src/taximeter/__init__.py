"""Taximeter: where the time and the money of a language-model request go.

    import taximeter

    client = taximeter.instrument(OpenAI(base_url="http://127.0.0.1:8000/v1"))
    with taximeter.task("triage", labels={"customer": "acme"}):
        client.chat.completions.create(...)

`task`, `instrument` and `headers` say to a gateway what requests are for; see `taximeter.grouping`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it; `typing` itself is slow to load for a status line
if TYPE_CHECKING:
    from typing import Any

    from taximeter.grouping import headers, instrument, task

    __version__: str

__all__ = ["__version__", "headers", "instrument", "task"]


def __getattr__(name: str) -> Any:
    """Looked up when somebody asks: reading the metadata takes longer than most commands, and few need the rest."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "__version__":
        from taximeter import grouping  # noqa: PLC0415 - see above

        return getattr(grouping, name)
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version(__name__)
    except PackageNotFoundError:  # run from a bare source tree
        return "0+unknown"
