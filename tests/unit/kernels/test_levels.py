"""The choice of level: the fastest by default, lowered on request, never raised, never slow in silence."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.kernels import choice as module
from taximeter.errors import ConfigError


@pytest.fixture(autouse=True)
def _fresh_choice() -> Iterator[None]:
    """Let each test choose anew, and leave the choice to the next test."""
    module._chosen.cache_clear()
    yield
    module._chosen.cache_clear()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(module.VARIABLE, raising=False)
    return monkeypatch


def test_the_fastest_level_is_the_default(environment: pytest.MonkeyPatch) -> None:
    """Without a word from the operator, the last of levels() runs."""
    assert kernels.level() == kernels.levels()[-1]


@pytest.mark.parametrize("level", kernels.levels())
def test_the_environment_may_lower_it(environment: pytest.MonkeyPatch, level: str) -> None:
    """Each level of this machine can be asked for by its short name."""
    environment.setenv(module.VARIABLE, level.removeprefix("native:"))
    assert kernels.level() == level


def test_the_environment_never_raises_it(environment: pytest.MonkeyPatch) -> None:
    """A processor that stops at the first native level, or has none, stays there whatever is asked for."""
    lowest = module._runnable()[:1]
    environment.setattr(module, "_runnable", lambda: lowest)
    if not lowest:
        environment.setattr(module, "_native", ModuleNotFoundError())
    environment.setenv(module.VARIABLE, "avx512")
    assert kernels.level() == (f"native:{lowest[0]}" if lowest else "reference")


@pytest.mark.parametrize("nonsense", ["avx1024", "native:avx2", "fast"])
def test_a_bad_value_is_a_configuration_error(environment: pytest.MonkeyPatch, nonsense: str) -> None:
    """A misspelt level is reported with the names that exist, not ignored."""
    environment.setenv(module.VARIABLE, nonsense)
    with pytest.raises(ConfigError, match="reference, portable, avx2, avx512"):
        kernels.level()


def test_the_reference_path_always_has_a_reason(environment: pytest.MonkeyPatch) -> None:
    """Native code needs no excuse; the slow path says why, be it asked for or all there is."""
    assert (kernels.reason() is None) == kernels.level().startswith("native:")
    environment.setenv(module.VARIABLE, "reference")
    module._chosen.cache_clear()
    assert kernels.reason() == "TAXIMETER_CPU_LEVEL asks for it"
    environment.delenv(module.VARIABLE)
    environment.setattr(module, "_native", ModuleNotFoundError("taximeter._native"))
    module._chosen.cache_clear()
    assert kernels.level() == "reference"
    assert "not built" in (kernels.reason() or "")


def test_use_level_restores_what_was_there() -> None:
    """Also when the block fails, and when blocks nest."""
    before = kernels.level()

    def fail_at_another_level() -> None:
        with kernels.use_level(kernels.levels()[-1]), kernels.use_level("reference"):
            raise RuntimeError(kernels.level())

    with pytest.raises(RuntimeError, match="reference"):
        fail_at_another_level()
    assert kernels.level() == before


def test_use_level_refuses_what_this_machine_has_not() -> None:
    """A level that cannot run here is refused with those that can."""
    with pytest.raises(ConfigError, match="reference"), kernels.use_level("native:avx1024"):
        pass


def test_set_threads_refuses_less_than_one() -> None:
    """Somebody has to do the work."""
    with pytest.raises(ValueError, match="at least one"):
        kernels.set_threads(0)


def test_set_threads_refuses_more_than_any_machine_has() -> None:
    """A slip of the keyboard takes no memory, and is told with what to do."""
    before = kernels.threads()
    with pytest.raises(ConfigError, match="200,000 threads are more than the 4,096"):
        kernels.set_threads(200_000)
    assert kernels.threads() == before


THREADLESS = """
import resource
import numpy as np
from taximeter.engine import kernels

x = np.ones((40, 300), np.float32)
kernels.matmul(x, x)
before = resource.getrlimit(resource.RLIMIT_AS)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20), before[1]))  # a thread's stack takes megabytes of it
kernels.set_threads(4000)
resource.setrlimit(resource.RLIMIT_AS, before)
assert 1 <= kernels.threads() < 4000, kernels.threads()
assert kernels.matmul(x, x)[0, 0] == 300.0
"""


@pytest.mark.skipif(not kernels.is_built(), reason="the native code was not built (no compiler)")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere this limit limits nothing")
def test_a_system_that_gives_no_more_threads_is_made_do_with() -> None:
    """The threads that it gave compute, and the answer is the same."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # sanitizers map terabytes
    subprocess.run([sys.executable, "-c", THREADLESS], check=True, timeout=60, env=plain)


def test_callers_on_many_threads_take_turns() -> None:
    """Concurrent calls, larger and smaller, each get their own right answer."""
    w = np.random.default_rng(1).standard_normal((300, 200), dtype=np.float32)
    inputs = [np.random.default_rng(n).standard_normal((n, 200), dtype=np.float32) for n in (1, 2, 30, 97)] * 25
    expected = [kernels.matmul(x, w) for x in inputs]
    with ThreadPoolExecutor(4) as callers:
        for got, wanted in zip(callers.map(lambda x: kernels.matmul(x, w), inputs), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


FORKING = """
import os
import numpy as np
from taximeter.engine import kernels

x = np.ones((40, 300), np.float32)
kernels.matmul(x, x)
child = os.fork()
if child == 0:
    os._exit(0 if kernels.matmul(x, x)[0, 0] == 300.0 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("level", [name for name in kernels.levels() if name != "reference"][-1:])
def test_a_forked_child_has_its_own_threads(level: str) -> None:
    """The child of a fork computes, instead of waiting for threads that only its parent has."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=30)


def cgroup(root: Path, own: str, limits: dict[str, str]) -> Path:
    """A file system as version 2 of control groups shows it: the process's own group, and `cpu.max` of some."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(f"3:cpuset:/elsewhere\n0::{own}\n")
    for group, limit in limits.items():
        folder = root / "sys" / "fs" / "cgroup" / group.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{limit}\n")
    return root


linux = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


@linux
@pytest.mark.parametrize(
    ("own", "limits", "at_most"),
    [
        ("/", {"/": "100000 100000"}, 1),
        ("/", {"/": "1000 100000"}, 1),
        ("/", {"/": "100001 100000"}, 2),
        ("/a/b", {"/a/b": "max 100000", "/a": "50000 100000"}, 1),
        ("/host/path/of/it", {"/": "100000 100000"}, 1),
        ("/", {"/": "max 100000"}, None),
        ("/", {"/": "rubbish"}, None),
        ("/", {}, None),
    ],
)
def test_a_quota_of_processors_is_kept(tmp_path: Path, own: str, limits: dict[str, str], at_most: int | None) -> None:
    """A container that may use one processor gets one thread, however many there are: more would only be throttled."""
    native = pytest.importorskip("taximeter._native")
    allowed = len(os.sched_getaffinity(0))
    expected = allowed if at_most is None else min(allowed, at_most)
    assert native.usable_processors(str(cgroup(tmp_path, own, limits))) == expected


@linux
def test_a_process_bound_to_one_processor_uses_one_thread() -> None:
    """As `taskset` and containers with a set of processors do."""
    program = (
        "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
        "from taximeter.engine import kernels; raise SystemExit(kernels.threads() - 1)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
