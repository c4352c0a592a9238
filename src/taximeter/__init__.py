"""Taximeter: where the time and the money of a language-model request go."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up when somebody asks: reading the metadata takes longer than most commands."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version(__name__)
    except PackageNotFoundError:  # run from a bare source tree
        return "0+unknown"
