"""From whatever a ledger file is to what this version needs.

Owns: the numbered steps in `versions`, each applied once, and the refusal of files that are newer or somebody else's.
Refuses to know: records, and who else has the file open (the caller holds the lock).
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from taximeter.errors import LedgerError

_VERSION = sa.table("schema_version", sa.column("version_num", sa.String))
_STEPS = Path(__file__).with_name("versions")


def known_versions() -> list[str]:
    """The numbers of all steps, oldest first."""
    return sorted(step.name[:4] for step in _STEPS.glob("[0-9][0-9][0-9][0-9]_*.py"))


def is_current(readers: sa.Engine) -> bool:
    """Whether the ledger needs nothing. Raises LedgerError for one that a newer version made, and for a database that
    is no ledger."""
    with readers.begin() as connection:
        tables = sa.inspect(connection).get_table_names()
        if _VERSION.name not in tables:
            if tables:
                raise LedgerError(
                    f"{readers.url.database} is another program's database", hint="name another file for the ledger"
                )
            return False
        version = connection.scalar(sa.select(_VERSION.c.version_num))
    if version is not None and version not in known_versions():
        raise LedgerError(
            f"the ledger {readers.url.database} was made by a newer version of Taximeter (its schema is {version}, "
            f"the newest known here {known_versions()[-1]})",
            hint="upgrade Taximeter",
        )
    return version == known_versions()[-1]


def upgrade(writers: sa.Engine) -> None:
    """Apply the steps that are missing, all or none of them."""
    # Here, because most openings need no step and these cost 0.3 s to import.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["version_table"] = _VERSION.name
    with writers.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
