"""The one place that makes database engines and creates tables."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from usechat.database.postgres import Postgres
from usechat.database.schema import insert_into, metadata
from usechat.database.sqlite import SqliteFile, SqliteMemory
from usechat.extras import missing

__all__ = ["Database", "insert_into", "metadata"]

_T = TypeVar("_T")

_IN_MEMORY: Final = (None, "", ":memory:")


class _Backend(Protocol):
    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T: ...

    async def aclose(self, within: float) -> None: ...


class Database:
    """A database that the first use opens, creating its tables and the columns that an older form of them lacks.

    With SQLite a commit outlives a process that dies at any moment, but the last ones may go when the power fails. A
    database that is used after `aclose` is opened again; one in memory is empty then. It belongs to no event loop:
    several may use it one after the other.
    """

    def __init__(self, url: str = "sqlite://") -> None:
        """Take a URL such as `sqlite://` (in memory), `sqlite:///chats.db` or `postgresql://user@host/chats`.

        Raises:
            ValueError: The URL is not one of SQLite or PostgreSQL, or names no file where it should.
            ImportError: The driver's package is not installed.
        """
        self._backend = _make_backend(url)
        self.name = _name(make_url(url))
        """What to call it in a log, without the passwords that its URL may hold."""

    async def run(self, work: Callable[[Connection], _T], *, within: float = 8.0) -> _T:
        """Do the work in one transaction, perhaps in another thread; if it raises, the transaction is rolled back.

        A caller that is cancelled leaves at once, and the transaction goes on. One that gave up, by cancellation or
        after `within` seconds, cannot know whether the transaction was committed or will be. PostgreSQL may do the work
        a second time, if a connection was lost before its commit.

        Raises:
            DatabaseBusyError: There was no result after `within` seconds, or the database cannot be reached.
        """
        return await self._backend.run(work, reading=False, within=within)

    async def read(self, work: Callable[[Connection], _T], *, within: float = 8.0) -> _T:
        """Do work that only reads, on one state of the database and without waiting for those who write.

        Raises:
            DatabaseBusyError: There was no result after `within` seconds, or the database cannot be reached.
        """
        return await self._backend.run(work, reading=True, within=within)

    async def aclose(self, within: float = 5.0) -> None:
        """Wait at most `within` seconds for the transactions that still run, and close the connections."""
        await self._backend.aclose(within)


def _make_backend(url: str) -> _Backend:
    try:
        read = make_url(url)
        make = _BACKENDS[read.drivername]
    except (ArgumentError, KeyError, ValueError):
        # The URL may hold a password, so neither it nor the error that repeats it is shown.
        raise ValueError(
            "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or postgresql://host/name."
        ) from None
    return make(read)


def _name(url: URL) -> str:
    if url.drivername.startswith("sqlite"):
        return "memory" if url.database in _IN_MEMORY else str(url.database)
    return f"{url.database} on {url.host or 'localhost'}"


def _make_postgres(url: URL) -> _Backend:
    # Hosts of PostgreSQL hand out URLs with libpq's name of what asyncpg calls ssl.
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    try:
        return Postgres(url.set(drivername="postgresql+asyncpg", query=query))
    except ModuleNotFoundError as error:
        raise ImportError(missing("PostgreSQL", error, "postgres")) from error


def _make_sqlite(url: URL) -> _Backend:
    if url.host or url.port or url.username or url.password:
        raise ValueError("The file of SQLite comes after three slashes, as in sqlite:///name.db.")
    backend = SqliteMemory if url.database in _IN_MEMORY else SqliteFile
    return backend(url.set(drivername="sqlite"))


_BACKENDS: Final[dict[str, Callable[[URL], _Backend]]] = {
    "sqlite": _make_sqlite,
    "sqlite+aiosqlite": _make_sqlite,
    "postgres": _make_postgres,
    "postgresql": _make_postgres,
    "postgresql+asyncpg": _make_postgres,
}
