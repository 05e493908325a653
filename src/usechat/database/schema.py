"""The tables of the package, and how an older database gets what it lacks of them."""

from functools import cache
from importlib import import_module
from typing import Any, Final

from sqlalchemy import Column, Connection, MetaData, Table, func, inspect, select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateColumn

__all__ = ["create_tables", "insert_into", "metadata"]

# A module that keeps tables puts them here; they are created when a database is opened. A column that was added later
# has a default, and in `info["fill"]` perhaps a function of the connection that gives the rows of before their values.
metadata = MetaData()

# Any number will do, as long as every process of usechat takes the same.
_CREATION_LOCK: Final = 0x75736563686174


@cache
def insert_into(table: Table, dialect: str) -> sqlite.Insert:
    """The INSERT of a dialect, which can say what becomes of a conflict; that of PostgreSQL has the same methods."""
    # Whoever has a file of SQLite should not wait for the import of the other.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def create_tables(connection: Connection) -> None:
    """Create the tables, columns and indexes that the database lacks; one that has all of them is only read."""
    if not _missing(connection):
        return
    if connection.dialect.name == "postgresql":
        # There, CREATE TABLE fails when two processes do it at once, even with IF NOT EXISTS.
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    added = [column for column in _missing(connection) if inspect(connection).has_table(column.table.name)]
    metadata.create_all(connection)
    for column in added:
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}"))
    # Only when all of them are there, since one may be filled from another.
    for column in added:
        if fill := column.info.get("fill"):
            fill(connection)
    for table in {column.table for column in added}:
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _missing(connection: Connection) -> list[Column[Any]]:
    found = inspect(connection).get_multi_columns(filter_names=list(metadata.tables))
    names = {(table, column["name"]) for (_, table), columns in found.items() for column in columns}
    wanted = (column for table in metadata.tables.values() for column in table.columns)
    return [column for column in wanted if (column.table.name, column.name) not in names]
