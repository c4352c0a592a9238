"""A pytest plugin that runs the tests on another build of the native extension, the file TAXIMETER_TEST_NATIVE names.

`pytest -p tests.other_native` loads it in the place of the installed one, before anything can import that.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_NAME = "taximeter._native"


def _load(path: Path) -> None:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[_NAME] = module
    import taximeter  # noqa: PLC0415 - after its extension, so that `from taximeter import _native` finds this one

    taximeter._native = module  # type: ignore[attr-defined]


_load(Path(os.environ["TAXIMETER_TEST_NATIVE"]))
