"""From whatever a ledger file is to what this version needs.

Owns: the numbered steps in `versions`, each applied once, and the refusal of files that are newer or somebody else's.
Refuses to know: records, and who else has the file open (the caller holds the lock).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from taximeter.errors import LedgerError

_VERSION_TABLE = "schema_version"
_STEPS = Path(__file__).with_name("versions")


def known_versions() -> list[str]:
    """The numbers of all steps, oldest first."""
    return sorted(step.name[:4] for step in _STEPS.glob("[0-9][0-9][0-9][0-9]_*.py"))


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the ledger at `path` needs nothing. Raises LedgerError for one that a newer version made, and for a
    database that is no ledger."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if _VERSION_TABLE not in tables:
        if tables:
            raise LedgerError(f"{path} is another program's database", hint="name another file for the ledger")
        return False
    found = connection.execute(f"SELECT version_num FROM {_VERSION_TABLE}").fetchone()  # noqa: S608 - our own word
    version = None if found is None else found[0]
    if version is not None and version not in known_versions():
        raise LedgerError(
            f"the ledger {path} was made by a newer version of Taximeter (its schema is {version}, "
            f"the newest known here {known_versions()[-1]})",
            hint="upgrade Taximeter",
        )
    return version == known_versions()[-1]


def upgrade(connection: sqlite3.Connection) -> None:
    """Apply the steps that are missing, all or none of them."""
    # Here, because most openings need no step and these cost 0.4 s to import.
    import sqlalchemy as sa  # noqa: PLC0415
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["version_table"] = _VERSION_TABLE
    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.StaticPool)
    with engine.begin() as described:
        described.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = described
        command.upgrade(config, "head")
