"""What Alembic runs for every upgrade. The connection, and the transaction around all steps, are the caller's."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()
