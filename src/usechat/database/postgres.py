"""PostgreSQL, by way of asyncpg.

Theory of operation
-------------------
Everything happens in the event loop of the caller: there is no thread and no lock. Work is written with SQLAlchemy's
blocking API and runs in a greenlet, which frees the loop while a statement waits.

Connections belong to the loop that opened them, and loops use it one after the other. A new loop gets a new engine;
the connections of the old one were closed when its loop ended, which finalizes `_closing_with_loop`.

- `_opening` is the one task that creates the tables. All transactions wait for it, shielded, so that it goes on when
  they give up. A failed one is forgotten, and the next transaction tries again.
- `_running` holds all tasks: one for each transaction, and `_opening`. The task of a caller that is cancelled goes on,
  and ends by its own timeout. A caller whose time is over cancels its task, and does not wait for the rollback.
- A transaction whose connection was lost *before* its commit is done once more with a new connection. One that was lost
  *during* its commit may have been committed: it raises `DatabaseBusyError`.
- The server ends a transaction that stays idle for 5 seconds: that of a process that was stopped, or of a machine that
  is gone, would keep its chat locked.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import URL, Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from usechat.errors import DatabaseBusyError

if TYPE_CHECKING:
    # At run time it would load SQLAlchemy's ORM, which takes a fourth of a server's start.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["Postgres"]

_T = TypeVar("_T")

_OPEN_SECONDS: Final = 30.0
_IDLE_MILLISECONDS: Final = 5_000
# Enough for the farewell of a server that responds.
_CLOSE_SECONDS: Final = 1.0
# The classes of SQLSTATE for a server that is away or has no room: connection exception, insufficient resources,
# operator intervention.
_AWAY: Final = ("08", "53", "57")
_READING: Final[dict[str, Any]] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


class Postgres:
    """A pool of connections for each event loop."""

    def __init__(self, url: URL, create_tables: Callable[[Connection], None]) -> None:
        self._url = url
        self._create_tables = create_tables
        # Made here, too, because it finds out whether asyncpg is installed.
        self._engine = _make_engine(url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: AsyncGenerator[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        await self._enter_loop()
        task = self._start(self._run(work, reading=reading, within=within))
        await asyncio.wait((task,), timeout=within)
        if not task.done() or task.cancelled():
            task.cancel()
            raise DatabaseBusyError
        return task.result()

    async def aclose(self, within: float) -> None:
        if self._closing is None or self._loop is not asyncio.get_running_loop():
            return
        if self._running:
            await asyncio.wait(self._running, timeout=within)
        for task in self._running:
            task.cancel()
        self._loop = None
        await self._closing.aclose()

    async def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop = loop
        self._opening = None
        self._running = set()
        self._engine = _make_engine(self._url)
        self._closing = _closing_with_loop(self._engine)
        await anext(self._closing)

    def _start(self, run: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(run)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Its caller may have left, and asyncio would log an exception that nobody fetched.
            task.exception()

    async def _run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        try:
            async with asyncio.timeout(within):
                if self._opening is None:
                    self._opening = self._start(self._open())
                await asyncio.shield(self._opening)
                return await self._transact(work, reading=reading)
        except TimeoutError as error:
            raise DatabaseBusyError from error

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                await self._transact(self._create_tables, reading=False)
        except BaseException:
            self._opening = None
            raise

    async def _transact(self, work: Callable[[Connection], _T], *, reading: bool) -> _T:
        engine = self._engine.execution_options(**_READING) if reading else self._engine
        try:
            return await _attempt(engine, work)
        except _LostError:
            # A restarted server has cut all connections of the pool, which SQLAlchemy drops at the first loss. To ping
            # each connection before its use would cost three more round trips.
            pass
        try:
            return await _attempt(engine, work)
        except _LostError as error:
            raise DatabaseBusyError from error.__cause__


def _make_engine(url: URL) -> "AsyncEngine":
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url, hide_parameters=True)
    event.listen(engine.sync_engine, "connect", _set_up)
    return engine


def _set_up(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    # As a statement, because poolers refuse settings that come with the connection.
    cursor = connection.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MILLISECONDS}")
    cursor.close()
    connection.commit()


async def _closing_with_loop(engine: "AsyncEngine") -> AsyncGenerator[None]:
    """Close the connections when this is closed, or finalized at the end of its event loop."""
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await engine.dispose()
        except TimeoutError:
            await engine.dispose(close=False)


class _LostError(Exception):
    """The connection was lost before the commit was sent."""


async def _attempt(engine: "AsyncEngine", work: Callable[[Connection], _T]) -> _T:
    async with AsyncExitStack() as stack:
        connection = await _connect(stack.enter_async_context(engine.connect()))
        try:
            result = await connection.run_sync(work)
        except DBAPIError as error:
            if _is_away(error):
                raise _LostError from error
            raise
        try:
            await connection.commit()
        except DBAPIError as error:
            if _is_away(error):
                raise DatabaseBusyError from error
            raise
        return result


async def _connect(connecting: Awaitable["AsyncConnection"]) -> "AsyncConnection":
    try:
        return await connecting
    except (OSError, PoolTimeoutError) as error:
        raise DatabaseBusyError from error
    except DBAPIError as error:
        # A wrong password or name will not be right later.
        if isinstance(error, InterfaceError) or _is_away(error):
            raise DatabaseBusyError from error
        raise


def _is_away(error: DBAPIError) -> bool:
    return error.connection_invalidated or str(getattr(error.orig, "sqlstate", "")).startswith(_AWAY)
