"""SQLite: a file with a thread that writes and one that reads, or a database in memory without threads."""

import asyncio
import functools
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

from sqlalchemy import URL, Connection, StaticPool, create_engine, event
from sqlalchemy.exc import OperationalError

from usechat.database.schema import create_tables
from usechat.errors import DatabaseBusyError

__all__ = ["SqliteFile", "SqliteMemory"]

_T = TypeVar("_T")

_PRAGMAS: Final = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA foreign_keys = ON")
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# How often opening a file that somebody has locked is tried again, in seconds.
_RETRY: Final = 0.01


class SqliteFile:
    """Two threads with a connection each, since a transaction changes threads once and aiosqlite's statements do twice.

    All writes go through one connection, because more would only poll for SQLite's one write lock; in WAL mode a reader
    waits for nobody. The threads are daemons, so that a disk that hangs does not keep the process from ending.
    """

    def __init__(self, url: URL) -> None:
        self._url = url
        self._threads: dict[bool, _Thread] = {}
        self._starting = threading.Lock()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        with self._starting:
            thread = self._threads.get(reading)
            if thread is None:
                thread = self._threads[reading] = _Thread(_Sqlite(self._url, reading=reading))
        deadline = time.monotonic() + within
        return await thread.ask(lambda database: database.transact(work, deadline), within)

    async def aclose(self, within: float) -> None:
        with self._starting:
            threads, self._threads = self._threads, {}
        # One after the other: only a connection that finds itself the last one moves the log into the file, and of two
        # that close at once each may see the other.
        deadline = time.monotonic() + within
        for reading in (True, False):
            if reading in threads:
                await threads[reading].aclose(max(0.0, deadline - time.monotonic()))


class SqliteMemory:
    """One connection, to which the database belongs, and no thread, which would cost more than the work."""

    def __init__(self, url: URL) -> None:
        self._database = _Sqlite(url, reading=False)
        # Event loops in several threads may share it.
        self._using = threading.Lock()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        with self._using:
            return self._database.transact(work, time.monotonic() + within)

    async def aclose(self, within: float) -> None:
        with self._using:
            self._database.close()


class _Sqlite:
    """One connection, opened by its first transaction; one thread at a time may use it."""

    def __init__(self, url: URL, *, reading: bool) -> None:
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
                time.sleep(_RETRY)
        return self._connection

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            with connection.begin():
                create_tables(connection)
        except BaseException:
            connection.close()
            self._engine.dispose()
            raise
        if self._reading:
            _driver(connection).execute("PRAGMA query_only = ON").close()
        return connection

    def _begin_transaction(self, connection: Connection) -> None:
        # Straight to the driver, since a transaction has so few statements that this one counts.
        try:
            _driver(connection).execute(self._begin).close()
        except sqlite3.Error as error:
            raise OperationalError(self._begin, None, error) from error


class _Thread:
    """A thread that does the jobs of its queue with a connection; any thread and any event loop may ask it."""

    def __init__(self, database: _Sqlite) -> None:
        self._jobs: SimpleQueue[Callable[[_Sqlite], None] | None] = SimpleQueue()
        # It knows the queue and not this object, which ends it when nobody holds it any more.
        threading.Thread(target=_do_jobs, args=(self._jobs, database), name="usechat-sqlite", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    async def ask(self, job: Callable[[_Sqlite], _T], within: float) -> _T:
        """Wait for the job's result, though not for longer than `within` seconds.

        Raises:
            DatabaseBusyError: There was none; the job may still be done.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        self._jobs.put(functools.partial(_do, job, loop, answer))
        timer = loop.call_later(within, _settle, answer, None, DatabaseBusyError())
        try:
            return await answer
        finally:
            timer.cancel()

    async def aclose(self, within: float) -> None:
        """End the thread after the jobs that it has."""
        with suppress(DatabaseBusyError):
            await self.ask(_Sqlite.close, within)
        self._jobs.put(None)


def _do_jobs(jobs: SimpleQueue[Callable[[_Sqlite], None] | None], database: _Sqlite) -> None:
    while (job := jobs.get()) is not None:
        job(database)
        # A queue that is empty for long must not keep what the last job knew.
        del job
    database.close()


def _do(
    job: Callable[[_Sqlite], _T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[_T], database: _Sqlite
) -> None:
    result, error = None, None
    try:
        result = job(database)
    # Whatever the work raises is its caller's, and the thread goes on.
    except BaseException as raised:  # noqa: BLE001
        error = raised
    # A loop that is closed has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _check(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise DatabaseBusyError


def _driver(connection: Connection) -> sqlite3.Connection:
    # The type that SQLAlchemy gives is that of any driver.
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _is_busy(error: OperationalError) -> bool:
    # The low byte is the error; the others tell its variants apart.
    return isinstance(error.orig, sqlite3.Error) and error.orig.sqlite_errorcode & 0xFF in _BUSY


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own BEGIN comes before the first write, so that what was read before it may be out of date.
    connection.isolation_level = None
    # Text that is not UTF-8 is the reader's to refuse, since only the reader can tell where it stood.
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
    for pragma in _PRAGMAS:
        connection.execute(pragma).close()
