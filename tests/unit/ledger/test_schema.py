"""The tables, and the steps that lead to them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, migrations, schema
from taximeter.records import Usage
from tests.unit.ledger.records import a_receipt


def test_the_steps_lead_to_the_tables(ledger: Ledger, path: Path) -> None:
    """What the migrations make is what the code believes, column by column and index by index."""
    ledger.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "schema_version"})
        assert compare_metadata(context, schema.metadata) == []
        view = connection.exec_driver_sql("SELECT * FROM current_receipts")
        assert sorted(view.keys()) == sorted(schema.receipts.columns.keys())
        view.close()
    engine.dispose()


def test_what_is_written_is_what_the_tables_say(ledger: Ledger, path: Path) -> None:
    """The writer has SQL of its own: through the description of the tables its rows read as they were meant."""
    receipt = a_receipt()
    ledger.append(receipt).result()
    ledger.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        row = connection.execute(sa.select(schema.receipts)).mappings().one()
    engine.dispose()
    assert (row["received_at"], row["closed_at"]) == (receipt.request.received_at, receipt.closed_at)
    assert (row["id"], row["model"], row["stream"]) == (receipt.id, receipt.request.model, receipt.request.stream)
    assert row["input_fresh_tokens"] == (receipt.usage and receipt.usage.input_fresh_tokens)


def test_the_steps_are_numbered_as_they_follow_each_other() -> None:
    """Alembic's chain from first to last is the order of the files' names."""
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert [step.revision for step in script.walk_revisions()][::-1] == migrations.known_versions()


def test_every_token_leaf_has_its_column() -> None:
    """A new bucket in the vocabulary is a new column, or this fails."""
    leaves = Usage(input_fresh_tokens=0, input_cache_read_tokens=0, output_text_tokens=0).leaves()
    assert set(leaves) <= set(schema.receipts.columns.keys())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE receipts SET model = 'another'",
        "DELETE FROM receipts",
        "INSERT OR REPLACE INTO receipts SELECT * FROM receipts",
        "UPDATE documents SET document = '{}'",
        "DELETE FROM documents",
        "INSERT OR REPLACE INTO documents SELECT * FROM documents",
    ],
)
def test_no_hand_changes_a_receipt(ledger: Ledger, path: Path, change: str) -> None:
    """The database itself refuses, whoever asks."""
    receipt = a_receipt()
    ledger.append(receipt).result()
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(change)
    connection.close()
    assert ledger.receipts() == [receipt]


def test_a_newer_ledger_is_refused(ledger: Ledger, path: Path) -> None:
    """An old version does not guess at what a newer one made."""
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerError, match=r"newer version of Taximeter .*9999"):
        Ledger.open(str(path))


def test_another_programs_database_is_refused(path: Path) -> None:
    """A database with tables of somebody else's gets none of ours."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (id)")
    with pytest.raises(LedgerError, match="another program's"):
        Ledger.open(str(path))
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


def test_a_step_that_fails_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is all or nothing, so that the next opening starts from where this one did."""
    monkeypatch.setattr("alembic.operations.ops.CreateIndexOp.create_index", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Ledger.open(str(path))
    monkeypatch.undo()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    Ledger.open(str(path)).close()
