"""Results as files: what was measured, on what, by which definitions, so that it can be looked at and compared later.

Owns: the file's shape and its version, and what is noted about the machine that measured. Refuses to know: what was
concluded: a study brings its own words and figures.

A file is one JSON document. It never has a prompt, an answer or a key in it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from taximeter.errors import ConfigError
from taximeter.measurement.asking.observation import Observation
from taximeter.records import to_json

SCHEMA: Final = "taximeter.measurement"
VERSION: Final = 1
"""Of the file's shape. A file of another version is not read: its figures may mean something else."""

DEFINITIONS: Final[Mapping[str, str]] = {
    "ttft": "first event with a generated token on any channel, minus the origin",
    "end_to_end": "last event with a generated token, minus the origin",
    "itl": "(end_to_end - ttft) / (output_tokens - 1), per request; output_tokens as the server counts",
    "chunk_gap": "time between successive events with generated tokens; of chunks, not of tokens",
    "origin": "the scheduled arrival; in a closed loop, and in a sweep, that is when it was sent",
    "percentile": "linear interpolation between order statistics",
    "interval": "95 %, by bootstrap unless a figure says otherwise",
    "failures": "refused, failed and cut answers are misses: in no latency, and in every count of requests",
    "time": "nanoseconds since the run began, on the monotonic clock of the client",
}
_CPU_FILE: Final = Path("/proc/cpuinfo")

Kind = Literal["sweep", "load", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One study. `targets` is who was measured (`Target.describe`), `plan` what was asked of them and how, so that the
    same can be asked again, `conclusions` what came out, in the study's own words. `observations` are all requests that
    were measured, by target, in the order they were sent; `warnings` is what whoever reads the figures must know.
    """

    kind: Kind
    run: str
    made_at: datetime
    taximeter_version: str
    environment: Mapping[str, str]
    targets: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any]
    conclusions: Mapping[str, Any]
    observations: Mapping[str, tuple[Observation, ...]] = field(
        default_factory=dict[str, tuple[Observation, ...]], repr=False
    )
    warnings: tuple[str, ...] = ()
    definitions: Mapping[str, str] = field(default_factory=lambda: dict(DEFINITIONS))
    schema: str = SCHEMA
    schema_version: int = VERSION


def write_result(path: Path, result: Result) -> None:
    """Write the file, whole or not at all. Raises ConfigError when it cannot be written."""
    write_whole(path, json.dumps(to_json(result), ensure_ascii=False, separators=(",", ":")) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody ever finds half of it; a pipe or a device is written to as it is. Raises ConfigError
    when it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        whole = path.resolve()  # a link stays one
        part = whole.with_name(f".{whole.name}.{os.getpid()}.part")  # a temporary file would be for its owner only
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def read_result(path: Path) -> Result:
    """Read a file that `write_result` wrote, here or elsewhere. Raises ConfigError that says what is wrong with it."""
    try:
        found: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no result of a measurement: it is not JSON") from error
    document = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if document.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is no result of a measurement", hint="sweep and load write one with --out FILE")
    if document.get("schema_version") != VERSION:
        raise ConfigError(
            f"{path} has version {document.get('schema_version')} of the format; this reads version {VERSION}",
            hint="measure again, or use the version of Taximeter that wrote it",
        )
    try:
        return msgspec.convert(document, Result, str_keys=True)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def environment() -> dict[str, str]:
    """What is worth knowing of the machine that measures, for whoever compares."""
    return {
        "client_cpu": _cpu(),
        "client_processors": str(os.cpu_count() or "unknown"),
        "client_system": f"{platform.system()} {platform.release()}",
        "client_python": platform.python_version(),
        "client_load_before": " ".join(f"{load:.2f}" for load in os.getloadavg()) if hasattr(os, "getloadavg") else "?",
    }


def _cpu() -> str:
    try:
        lines = _CPU_FILE.read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()
