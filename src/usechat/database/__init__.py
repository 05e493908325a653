"""The one place that makes database engines and creates tables."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Final, TypeVar

from sqlalchemy import URL, Connection, MetaData, Table, func, inspect, make_url, select
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.exc import ArgumentError, InvalidRequestError

from usechat.database.postgres import Postgres
from usechat.database.sqlite import SqliteFile, SqliteMemory
from usechat.extras import missing

__all__ = ["Database", "insert_into", "metadata"]

_T = TypeVar("_T")

_SQLITE: Final = ("sqlite", "sqlite+aiosqlite")
_POSTGRES: Final = ("postgres", "postgresql", "postgresql+asyncpg")
_IN_MEMORY: Final = (None, "", ":memory:")
# Any number will do, as long as every process of usechat takes the same.
_CREATION_LOCK: Final = 0x75736563686174

metadata = MetaData()
"""Modules register their tables here; opening a database creates them."""


@cache
def insert_into(table: Table, dialect: str) -> Insert:
    """The dialect's own INSERT, for ON CONFLICT; PostgreSQL's has the same methods as SQLite's."""
    # Imported by name, so that an app on SQLite does not load the dialect of PostgreSQL.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def _create_tables(connection: Connection) -> None:
    inspector = inspect(connection)
    there = metadata.tables.keys() & set(inspector.get_table_names())
    for (_, name), columns in inspector.get_multi_columns(filter_names=list(there)).items() if there else ():
        if lacking := {column.name for column in metadata.tables[name].columns} - {each["name"] for each in columns}:
            raise InvalidRequestError(
                f"The table {name} lacks the column {' and '.join(sorted(lacking))}, because another version of "
                f"usechat made it: use a new database, or drop the tables whose names begin with usechat_"
            )
    if len(there) == len(metadata.tables):
        return
    if connection.dialect.name == "postgresql":
        # There, CREATE TABLE fails when two processes do it at once, even with IF NOT EXISTS.
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    metadata.create_all(connection)


class Database:
    """A database that its first use opens, creating the tables that it lacks.

    With SQLite a commit survives the death of its process, but the last ones may be lost when the power fails. A use
    after `aclose` opens the database again; one in memory is empty then. Several event loops may use it one after the
    other.
    """

    def __init__(self, url: str = "sqlite://") -> None:
        """Take a URL such as `sqlite://` (in memory), `sqlite:///chats.db` or `postgresql://user@host/chats`.

        Raises:
            ValueError: The URL is not one of SQLite or PostgreSQL, or names no file where it should.
            ImportError: The driver's package is not installed.
        """
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            parsed = None
        if parsed is None or parsed.drivername not in (*_SQLITE, *_POSTGRES):
            # Neither the URL nor the error that repeats it is shown, because it may hold a password.
            raise ValueError(
                "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or "
                "postgresql://host/name."
            )
        self._backend = _make_backend(parsed)
        self.name = _name(parsed)
        """Its name in a log, without the password of its URL."""

    async def run(self, work: Callable[[Connection], _T], *, within: float = 8.0) -> _T:
        """Do the work in one transaction, perhaps in another thread; if it raises, the transaction is rolled back.

        A caller that is cancelled leaves at once, and the transaction goes on. A caller that gave up, by cancellation
        or after `within` seconds, cannot know whether the transaction is or will be committed. PostgreSQL does the work
        a second time if the connection was lost before its commit.

        Raises:
            DatabaseBusyError: There was no result within `within` seconds, or the database cannot be reached.
        """
        return await self._backend.run(work, reading=False, within=within)

    async def read(self, work: Callable[[Connection], _T], *, within: float = 8.0) -> _T:
        """Do work that only reads, on one state of the database and without waiting for writers.

        Raises:
            DatabaseBusyError: As for `run`.
        """
        return await self._backend.run(work, reading=True, within=within)

    async def aclose(self, within: float = 5.0) -> None:
        """Wait at most `within` seconds for the transactions that still run, and close the connections."""
        await self._backend.aclose(within)


def _make_backend(url: URL) -> SqliteFile | SqliteMemory | Postgres:
    if url.drivername in _SQLITE:
        if url.host or url.port or url.username or url.password:
            raise ValueError("The file of SQLite comes after three slashes, as in sqlite:///name.db.")
        backend = SqliteMemory if url.database in _IN_MEMORY else SqliteFile
        return backend(url.set(drivername="sqlite"), _create_tables)
    # Hosts of PostgreSQL hand out URLs with libpq's name of what asyncpg calls ssl.
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    try:
        return Postgres(url.set(drivername="postgresql+asyncpg", query=query), _create_tables)
    except ModuleNotFoundError as error:
        raise ImportError(missing("PostgreSQL", error, "postgres")) from error


def _name(url: URL) -> str:
    if url.drivername in _SQLITE:
        return "memory" if url.database in _IN_MEMORY else str(url.database)
    return f"{url.database} on {url.host or 'localhost'}"
