"""A real Postgres for tests: a cluster in a folder of its own, on a socket there, that trusts whoever asks."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

WHY_NOT = "there is no Postgres server here (Debian: apt-get install postgresql)"
_USER = "postgres"  # the server refuses to run as root


def binaries() -> Path | None:
    """The folder with `initdb` and `pg_ctl`, of the newest version; None where there is no server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("pg_ctl")
    return Path(on_path).parent if on_path and shutil.which("initdb") else None


class Server:
    """A cluster that can be stopped, started and frozen."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self._folder = folder
        self._bin = bin_folder
        self._data = folder / "data"
        self._numbers = itertools.count()
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--username=postgres", "--no-sync")

    def start(self) -> None:
        """On a socket only, and without syncing: after a crash it would sync every file of every test's database. No
        test cuts the power."""
        options = f"-k {self._folder} -c listen_addresses='' -c max_connections=60 -c fsync=off"
        self._run("pg_ctl", "--wait", f"--log={self._folder / 'log'}", f"--options={options}", "start")

    def stop(self, mode: str = "fast") -> None:
        """`fast` ends all sessions; `immediate` is as good as a crash."""
        self._run("pg_ctl", "--wait", f"--mode={mode}", "stop")

    @contextmanager
    def stopped(self) -> Generator[None]:
        """It is not running."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Every process of it is stopped in its tracks: connections stay open, and nobody answers."""
        everybody = self._processes()
        for process_id in everybody:
            os.kill(process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            for process_id in everybody:
                os.kill(process_id, signal.SIGCONT)

    def new_database(self) -> str:
        """The URL of a place that nobody has used: a schema, which costs a hundredth of a database."""
        name = f"ledger_{next(self._numbers)}"
        made = f"--command=CREATE SCHEMA {name}"
        self._run("psql", "--no-psqlrc", f"--host={self._folder}", "--username=postgres", made, "postgres")
        return f"postgresql://postgres:a-secret@/postgres?host={self._folder}&options=-csearch_path%3D{name}"

    def _processes(self) -> list[int]:
        first = int((self._data / "postmaster.pid").read_text().split()[0])
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=False)
        return [first, *map(int, listed.stdout.split())]

    def _run(self, program: str, *arguments: str) -> None:
        as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"] if os.getuid() == 0 else []
        subprocess.run(
            [*as_user, str(self._bin / program), *arguments],
            env={"PATH": os.environ["PATH"], "PGDATA": str(self._data), "LC_ALL": "C.UTF-8"},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )


@contextmanager
def server() -> Generator[Server]:
    """One that runs until the end. Only where `binaries` finds any."""
    bin_folder = binaries()
    assert bin_folder is not None, WHY_NOT
    # Not pytest's own folder: sockets have short names only, and the server's user must be able to get there.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.getuid() == 0:
            user = pwd.getpwnam(_USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
        running = Server(folder, bin_folder)
        running.start()
        try:
            yield running
        finally:
            running.stop("immediate")
