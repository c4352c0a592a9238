"""From whatever a ledger's database is to what this version needs.

Owns: the numbered steps in `versions`, each applied once, what they make of an empty file, and the refusal of databases
that are newer or somebody else's. Refuses to know: records, and who else has the database open (the caller holds the
lock).
"""

from __future__ import annotations

from pathlib import Path

from taximeter.errors import LedgerError
from taximeter.ledger.database import Database, Session

_VERSION_TABLE = "schema_version"
_STEPS = Path(__file__).with_name("versions")
_NEW = Path(__file__).with_name("new_sqlite.sql")


def known_versions() -> list[str]:
    """The numbers of all steps, oldest first."""
    return sorted(step.name[:4] for step in _STEPS.glob("[0-9][0-9][0-9][0-9]_*.py"))


def is_current(session: Session, database: Database) -> bool:
    """Whether the ledger needs nothing. Raises LedgerError for one that a newer version made, and for a database that
    is no ledger."""
    tables = database.tables(session)
    if _VERSION_TABLE not in tables:
        if tables:
            raise LedgerError(f"{database.name} is another program's database", hint="name another for the ledger")
        return False
    found = session.ask(f"SELECT version_num FROM {_VERSION_TABLE}")  # noqa: S608 - our own word
    version = found[0][0] if found else None
    if version is not None and version not in known_versions():
        raise LedgerError(
            f"the ledger {database.name} was made by a newer version of Taximeter (its schema is {version}, "
            f"the newest known here {known_versions()[-1]})",
            hint="upgrade Taximeter",
        )
    return version == known_versions()[-1]


def make_new(session: Session) -> None:
    """Make an empty SQLite file what all steps make of it: a test holds the two together. What takes steps need not be
    imported for it, which is most of the time that a first command would take."""
    with session.transaction():
        for statement in _NEW.read_text(encoding="utf-8").split(";\n\n"):
            session.ask(statement)


def upgrade(session: Session, to: str = "head") -> None:
    """Apply the steps that are missing, up to the one numbered `to`; all or none of them."""
    # Here, because most openings need no step and these cost 0.4 s to import.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["version_table"] = _VERSION_TABLE
    with session.describe() as described:
        config.attributes["connection"] = described
        command.upgrade(config, to)
