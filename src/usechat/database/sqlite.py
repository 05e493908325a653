"""SQLite: a file with a thread that writes and one that reads, or a database in memory without threads.

Theory of operation
-------------------
A file has two daemon threads, started by the first write and the first read, with one connection each. All writes share
one connection, because more would only poll for SQLite's one write lock; in WAL mode the reader waits for nobody. A
transaction changes threads once, where aiosqlite changes them with every statement. The threads are daemons, so that a
disk that hangs does not keep the process from ending.

Any thread and any event loop may call `run`. It queues a job and awaits a future of its own loop; the thread does the
jobs in order, and settles each future by `call_soon_threadsafe`. So a connection is used by its own thread alone, and a
future is touched by its own loop alone. `SqliteFile._starting` guards the table of threads.

A job has one deadline, checked in three places: the caller's loop has a timer, the thread does not begin a job that is
late, and `busy_timeout` ends the wait for another process's lock. A transaction that has its lock in time runs to its
end, also if its caller has given up by then; such a caller cannot know whether it was committed.

A thread ends when `aclose` queues `None`, or when nobody holds its `_Thread` any more; then it closes its connection.

A database in memory belongs to one connection. Its work takes less time than a change of threads, so it runs in the
caller's thread; `SqliteMemory._using` lets event loops of several threads share it.
"""

import asyncio
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar, cast

from sqlalchemy import URL, Connection, StaticPool, create_engine, event
from sqlalchemy.exc import OperationalError

from usechat.errors import DatabaseBusyError

__all__ = ["SqliteFile", "SqliteMemory"]

_T = TypeVar("_T")
_CreateTables: TypeAlias = Callable[[Connection], None]

_PRAGMAS: Final = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA foreign_keys = ON")
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# How long to wait before another attempt to open a file that another process has locked.
_RETRY_SECONDS: Final = 0.01


class SqliteFile:
    """A thread that writes and one that reads."""

    def __init__(self, url: URL, create_tables: _CreateTables) -> None:
        self._connect = partial(_Connection, url, create_tables)
        self._threads: dict[bool, _Thread] = {}
        self._starting = threading.Lock()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        with self._starting:
            thread = self._threads.get(reading)
            if thread is None:
                thread = self._threads[reading] = _Thread(self._connect(reading=reading))
        deadline = time.monotonic() + within
        return await thread.run(lambda connection: connection.transact(work, deadline), within)

    async def aclose(self, within: float) -> None:
        with self._starting:
            threads, self._threads = self._threads, {}
        # One after the other: only the last connection moves the log into the file, and of two that close at once each
        # may see the other.
        deadline = time.monotonic() + within
        for reading in (True, False):
            if reading in threads:
                await threads[reading].aclose(max(0.0, deadline - time.monotonic()))


class SqliteMemory:
    """One connection and no thread."""

    def __init__(self, url: URL, create_tables: _CreateTables) -> None:
        self._connection = _Connection(url, create_tables, reading=False)
        self._using = threading.Lock()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        with self._using:
            return self._connection.transact(work, time.monotonic() + within)

    async def aclose(self, within: float) -> None:
        with self._using:
            self._connection.close()


class _Connection:
    """One connection, which its first transaction opens; one thread at a time may use it."""

    def __init__(self, url: URL, create_tables: _CreateTables, *, reading: bool) -> None:
        self._create_tables = create_tables
        self._reading = reading
        self._begin = "BEGIN" if reading else "BEGIN IMMEDIATE"
        self._connection: Connection | None = None
        self._engine = create_engine(
            url, poolclass=StaticPool, hide_parameters=True, connect_args={"check_same_thread": False, "timeout": 0}
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", self._begin_transaction)

    def transact(self, work: Callable[[Connection], _T], deadline: float) -> _T:
        _check(deadline)
        try:
            connection = self._connection or self._open(deadline)
            left = max(0, int((deadline - time.monotonic()) * 1000))
            _driver(connection).execute(f"PRAGMA busy_timeout = {left}").close()
            with connection.begin():
                _check(deadline)
                return work(connection)
        except OperationalError as error:
            if _is_busy(error):
                raise DatabaseBusyError from error
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()

    def _open(self, deadline: float) -> Connection:
        while self._connection is None:
            try:
                self._connection = self._connect()
            except OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        return self._connection

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            with connection.begin():
                self._create_tables(connection)
        except BaseException:
            connection.close()
            self._engine.dispose()
            raise
        if self._reading:
            _driver(connection).execute("PRAGMA query_only = ON").close()
        return connection

    def _begin_transaction(self, connection: Connection) -> None:
        # Straight to the driver: of the few statements of a transaction, this one counts.
        try:
            _driver(connection).execute(self._begin).close()
        except sqlite3.Error as error:
            raise OperationalError(self._begin, None, error) from error


class _Thread:
    """A thread that does the jobs of a queue with its connection."""

    def __init__(self, connection: _Connection) -> None:
        self._jobs: _Jobs = SimpleQueue()
        # The thread holds the queue and not this object, whose end it would otherwise never see.
        threading.Thread(target=_do_jobs, args=(self._jobs, connection), name="usechat-sqlite", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    async def run(self, job: Callable[[_Connection], _T], within: float) -> _T:
        """Queue the job and wait at most `within` seconds for its result.

        Raises:
            DatabaseBusyError: There was none; the job may still be done.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def do(connection: _Connection) -> None:
            result, error = None, None
            try:
                result = job(connection)
            # What the work raises is its caller's, and the thread goes on.
            except BaseException as raised:  # noqa: BLE001
                error = raised
            # Nobody waits in a loop that is closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, result, error)

        self._jobs.put(do)
        timer = loop.call_later(within, _settle, future, None, DatabaseBusyError())
        try:
            return await future
        finally:
            timer.cancel()

    async def aclose(self, within: float) -> None:
        """End the thread after the jobs that are queued."""
        with suppress(DatabaseBusyError):
            await self.run(_Connection.close, within)
        self._jobs.put(None)


_Jobs: TypeAlias = SimpleQueue[Callable[[_Connection], None] | None]


def _do_jobs(jobs: _Jobs, connection: _Connection) -> None:
    while (job := jobs.get()) is not None:
        job(connection)
        # A queue that is empty for long must not keep what the last job holds.
        del job
    connection.close()


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _check(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise DatabaseBusyError


def _driver(connection: Connection) -> sqlite3.Connection:
    # SQLAlchemy's type is that of any driver.
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _is_busy(error: OperationalError) -> bool:
    # The low byte is the error; the others are its variants.
    return isinstance(error.orig, sqlite3.Error) and error.orig.sqlite_errorcode & 0xFF in _BUSY


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # No BEGIN of the driver's own: it comes with the first write, when what was read before may be out of date.
    connection.isolation_level = None
    # Text that is not UTF-8 is refused by its reader, who can say where it stood.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    for pragma in _PRAGMAS:
        connection.execute(pragma).close()
