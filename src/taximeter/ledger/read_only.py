"""A ledger that may be read and not written: on a medium for reading, somebody else's, an archive.

Owns: telling that, and the copy that is asked instead. Refuses to know: what is asked.

To open a ledger is to write: what dead processes left is put in order, and who opens it is noted. So a copy is opened,
with its log and with what was on its way into it; what was in flight is interrupted in the copy.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from taximeter.ledger.sqlite import Sqlite

_MAY_NOT_WRITE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SQLITE_READONLY, _SQLITE_CANTOPEN = 8, 14


def is_for_reading(database: object, error: BaseException) -> bool:
    """Whether `error` came of a ledger's file that is there and may not be written."""
    if not isinstance(database, Sqlite) or not database.path.is_file():
        return False
    cause = error.__cause__ or error
    code = getattr(cause, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF in (_SQLITE_READONLY, _SQLITE_CANTOPEN)
    return isinstance(cause, OSError) and cause.errno in _MAY_NOT_WRITE


def copied(database: Sqlite, folder: Path) -> Path:
    """A copy of the ledger in `folder`, which may be written. Raises OSError."""
    copy = folder / database.path.name
    shutil.copyfile(database.path, copy)
    log = database.path.with_name(f"{database.path.name}-wal")
    if log.is_file():
        shutil.copyfile(log, copy.with_name(log.name))
    if database.folder.is_dir():
        shutil.copytree(database.folder, copy.with_name(database.folder.name), copy_function=shutil.copyfile)
    return copy
