"""The one place that makes database engines and creates tables."""

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from sqlalchemy import URL, Connection, MetaData, StaticPool, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, OperationalError

__all__ = ["Database", "metadata"]

_T = TypeVar("_T")

# A module that keeps tables puts them here; they are created when a database is opened.
metadata = MetaData()

_PRAGMAS: Final = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
)
# Any number will do, as long as every process of usechat takes the same.
_CREATION_LOCK: Final = 0x75736563686174


class Database:
    """A database that the first use opens, creating its tables.

    With SQLite a commit outlives a process that dies at any moment, but the last ones may go when the power fails. A
    database that is used after `aclose` is opened again; one in memory is empty then.
    """

    def __init__(self, url: str = "sqlite://") -> None:
        """Take a URL such as `sqlite://` (in memory), `sqlite:///chats.db` or `postgresql://user@host/chats`.

        Raises:
            ValueError: The URL is not one of SQLite or PostgreSQL.
            ImportError: The driver's package is not installed.
        """
        self._engine = _make_engine(url)
        self._opening: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[Connection], _T]) -> _T:
        """Do the work in one transaction, perhaps in another thread; if it raises, the transaction is rolled back.

        A caller that is cancelled leaves at once, and the transaction goes on to its end.
        """
        task = asyncio.create_task(self._run(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait for the transactions that still run, and close the connections."""
        while self._running:
            await asyncio.wait(self._running)
        self._opening = None
        await self._engine.aclose()

    async def _run(self, work: Callable[[Connection], _T]) -> _T:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await self._opening
        return await self._engine.run(work)

    async def _open(self) -> None:
        try:
            await self._engine.run(_create_tables)
        except BaseException:
            # The next use tries again.
            self._opening = None
            raise


class _Sqlite:
    """One connection in one thread.

    One change of threads for a transaction is five times as fast as aiosqlite's several for each statement. More
    connections would only poll for SQLite's one write lock, and a database in memory belongs to its connection.
    """

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url, poolclass=StaticPool, hide_parameters=True)
        self._thread = ThreadPoolExecutor(1)
        event.listen(self._engine, "connect", _prepare_sqlite)
        event.listen(self._engine, "begin", _begin_sqlite)

    async def run(self, work: Callable[[Connection], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown(wait=False)
        self._thread = ThreadPoolExecutor(1)

    def _transact(self, work: Callable[[Connection], _T]) -> _T:
        with self._engine.begin() as connection:
            return work(connection)


class _InMemory(_Sqlite):
    """Nothing here waits for a disk, so that a change of threads would cost more than the work."""

    async def run(self, work: Callable[[Connection], _T]) -> _T:
        return self._transact(work)

    async def aclose(self) -> None:
        self._engine.dispose()


class _Postgres:
    def __init__(self, url: URL) -> None:
        # It brings SQLAlchemy's ORM along, a fourth of the time that it takes to start a server.
        from sqlalchemy.ext.asyncio import create_async_engine

        # A server that was restarted has cut the connections that wait in the pool.
        self._engine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True)

    async def run(self, work: Callable[[Connection], _T]) -> _T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def aclose(self) -> None:
        await self._engine.dispose()


def _make_engine(url: str) -> _Sqlite | _Postgres:
    try:
        read = make_url(url)
        backend = _BACKENDS[read.drivername]
    except (ArgumentError, KeyError, ValueError):
        # The URL may hold a password, so neither it nor the error that repeats it is shown.
        raise ValueError(
            "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///chats.db or postgresql://host/chats."
        ) from None
    return backend(read)


def _make_postgres(url: URL) -> _Postgres:
    # Hosts of PostgreSQL hand out URLs with libpq's name of what asyncpg calls ssl.
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    try:
        return _Postgres(url.set(drivername="postgresql+asyncpg", query=query))
    except ModuleNotFoundError as error:
        raise ImportError("PostgreSQL needs the package asyncpg: install usechat[postgres].") from error


def _make_sqlite(url: URL) -> _Sqlite:
    backend = _InMemory if url.database in (None, "", ":memory:") else _Sqlite
    return backend(url.set(drivername="sqlite"))


_BACKENDS: Final[dict[str, Callable[[URL], _Sqlite | _Postgres]]] = {
    "sqlite": _make_sqlite,
    "sqlite+aiosqlite": _make_sqlite,
    "postgres": _make_postgres,
    "postgresql": _make_postgres,
    "postgresql+asyncpg": _make_postgres,
}


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own BEGIN comes before the first write, so that what was read before it may be out of date.
    connection.isolation_level = None
    # Text that is not UTF-8 is the reader's to refuse, since only the reader can tell where it stood.
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
    for pragma in _PRAGMAS:
        connection.execute(pragma).close()


def _begin_sqlite(connection: Connection) -> None:
    # Straight to the driver, since a transaction has so few statements that this one counts.
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    try:
        driver.execute("BEGIN IMMEDIATE").close()
    except sqlite3.Error as error:
        raise OperationalError("BEGIN IMMEDIATE", None, error) from error


def _create_tables(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # There, CREATE TABLE fails when two processes do it at once, even with IF NOT EXISTS.
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    metadata.create_all(connection)
