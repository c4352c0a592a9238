"""The tables, and the steps that lead to them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, migrations
from taximeter.ledger.database import Refused, Session, database_at
from taximeter.ledger.sqlite import Sqlite
from taximeter.records import Task, Usage
from tests.unit.ledger import tables
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import NOON, a_receipt


def test_the_steps_lead_to_the_tables(ledger: Ledger) -> None:
    """What the migrations make is what the code believes, column by column and index by index."""
    with closing(ledger._database.session(patience_s=9)) as session, session.describe() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "schema_version"})
        assert compare_metadata(context, tables.metadata) == []
        view = connection.exec_driver_sql("SELECT * FROM current_receipts")
        assert sorted(view.keys()) == sorted(tables.receipts.columns.keys())
        view.close()


def test_what_is_written_is_what_the_tables_say(ledger: Ledger) -> None:
    """The writer has SQL of its own: through the description of the tables its rows read as they were meant."""
    receipt = a_receipt()
    ledger.append(receipt).result()
    with closing(ledger._database.session(patience_s=9)) as session, session.describe() as connection:
        row = connection.execute(sa.select(tables.receipts)).mappings().one()
    assert (row["received_at"], row["closed_at"]) == (receipt.request.received_at, receipt.closed_at)
    assert (row["id"], row["model"], row["stream"]) == (receipt.id, receipt.request.model, receipt.request.stream)
    assert row["input_fresh_tokens"] == (receipt.usage and receipt.usage.input_fresh_tokens)


def test_the_steps_are_numbered_as_they_follow_each_other() -> None:
    """Alembic's chain from first to last is the order of the files' names."""
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert [step.revision for step in script.walk_revisions()][::-1] == migrations.known_versions()


def test_a_new_file_is_what_the_steps_lead_to(tmp_path: Path) -> None:
    """`new_sqlite.sql` is a second account of the tables: to the letter what the steps make of an empty file."""
    made = []
    for name, make in (("steps", migrations.upgrade), ("new", migrations.make_new)):
        path = tmp_path / name
        with closing(Sqlite(path).session(patience_s=9)) as session:
            make(session)
        with closing(sqlite3.connect(path)) as connection:
            pragmas = [connection.execute(f"PRAGMA {word}").fetchone() for word in ("application_id", "user_version")]
            made.append([*pragmas, *connection.iterdump()])
    assert made[1] == made[0]


def test_every_token_leaf_has_its_column() -> None:
    """A new bucket in the vocabulary is a new column, or this fails."""
    leaves = Usage(input_fresh_tokens=0, input_cache_read_tokens=0, output_text_tokens=0).leaves()
    assert set(leaves) <= set(tables.receipts.columns.keys())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE receipts SET model = 'another'",
        "DELETE FROM receipts",
        "INSERT OR REPLACE INTO receipts SELECT * FROM receipts",
        "TRUNCATE receipts CASCADE",
        "UPDATE documents SET document = '{}'",
        "DELETE FROM documents",
        "INSERT OR REPLACE INTO documents SELECT * FROM documents",
        "TRUNCATE documents",
        "UPDATE task_ends SET succeeded = NOT succeeded",
        "DELETE FROM task_ends",
    ],
)
def test_no_hand_changes_a_receipt(ledger: Ledger, stranger: Session, change: str) -> None:
    """The database itself refuses, whoever asks."""
    is_sqlite = isinstance(ledger._database, Sqlite)
    if ("REPLACE" in change and not is_sqlite) or ("TRUNCATE" in change and is_sqlite):
        pytest.skip("a word that this database does not have")
    receipt = a_receipt()
    ledger.append(receipt).result()
    ledger.finish_task("a task", succeeded=True, at=NOON).result()
    with pytest.raises(Refused, match="append-only"):
        stranger.tell(change, [()])
    assert ledger.receipts() == [receipt]
    assert ledger.task("a task") == Task(name="a task", finished_at=NOON, succeeded=True)


def test_a_newer_ledger_is_refused(ledger: Ledger, stranger: Session, reopen: Open) -> None:
    """An old version does not guess at what a newer one made."""
    stranger.tell("UPDATE schema_version SET version_num = '9999'", [()])
    with pytest.raises(LedgerError, match=r"newer version of Taximeter .*9999"):
        reopen()


def test_another_programs_database_is_refused(url: str, reopen: Open, tmp_path: Path) -> None:
    """A database with tables of somebody else's gets none of ours."""
    database = database_at(url, spool=tmp_path)
    assert database is not None
    with closing(database.session(patience_s=9)) as session:
        session.tell("CREATE TABLE theirs (id INTEGER)", [()])
        with pytest.raises(LedgerError, match="another program's"):
            reopen()
        assert database.tables(session) == {"theirs"}


def test_a_step_that_fails_leaves_nothing_behind(
    url: str, reopen: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration is all or nothing, so that the next opening starts from where this one did."""
    database = database_at(url, spool=tmp_path)
    assert database is not None
    with closing(database.session(patience_s=9)) as session:
        migrations.upgrade(session, "0003")
        before = database.tables(session)
        monkeypatch.setattr("alembic.operations.ops.CreateIndexOp.create_index", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reopen()
        monkeypatch.undo()
        assert database.tables(session) == before
    reopen().close()


def test_half_a_new_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of a new ledger are all made, or none is."""
    script = tmp_path / "new.sql"
    script.write_text("CREATE TABLE one (a);\n\nCREATE TABLE one (a);\n")
    database = Sqlite(tmp_path / "ledger.db")
    monkeypatch.setattr(migrations, "_NEW", script)
    with pytest.raises(LedgerError):
        Ledger.open(str(database.path))
    monkeypatch.undo()
    with closing(database.session(patience_s=9)) as session:
        assert database.tables(session) == set()
    Ledger.open(str(database.path)).close()
