"""Taximeter: where the time and the money of a language-model request go."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("taximeter")
except PackageNotFoundError:  # run from a bare source tree
    __version__ = "0+unknown"
