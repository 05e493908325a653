"""PostgreSQL, by way of asyncpg."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import URL, Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from usechat.database.schema import create_tables
from usechat.errors import DatabaseBusyError

if TYPE_CHECKING:
    # It brings SQLAlchemy's ORM along, a fourth of the time that it takes to start a server.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["Postgres"]

_T = TypeVar("_T")

# Opening may have to fill a new column, and goes on when those who wait for it give up.
_OPEN_WITHIN: Final = 300.0
# After so many seconds the server ends a transaction that nobody goes on with: that of a process that is stopped, or
# of a machine that is gone, would keep its chat locked.
_IDLE: Final = 5.0
# What it takes to say good-bye to a server that answers.
_CLOSE_WITHIN: Final = 1.0
# The classes of SQLSTATE that say that the server is away or has no room: connection exception, insufficient
# resources, operator intervention.
_AWAY: Final = ("08", "53", "57")
_READING: Final[dict[str, Any]] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


class Postgres:
    """A pool of connections. They belong to the event loop that opened them: another loop gets a new pool."""

    def __init__(self, url: URL) -> None:
        self._make_engine = lambda: _make_engine(url)
        self._engine = self._make_engine()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: AsyncGenerator[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[Connection], _T], *, reading: bool, within: float) -> _T:
        await self._enter_loop()
        task = self._start(self._run(work, reading=reading, within=within))
        # What a caller leaves behind goes on, whether the caller was cancelled or not.
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
        self._engine = self._make_engine()
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
            # Its caller may have left, and asyncio would log an exception that nobody asked for.
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
            async with asyncio.timeout(_OPEN_WITHIN):
                await self._transact(create_tables, reading=False)
        except BaseException:
            # The next use tries again.
            self._opening = None
            raise

    async def _transact(self, work: Callable[[Connection], _T], *, reading: bool) -> _T:
        engine = self._engine.execution_options(**_READING) if reading else self._engine
        try:
            return await _attempt(engine, work)
        except _LostError:
            # A server that was restarted has cut the connections in the pool, which is empty after the first loss.
            # To ask each connection before it is used would cost three more round trips.
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
    cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE * 1000:.0f}")
    cursor.close()
    connection.commit()


async def _closing_with_loop(engine: "AsyncEngine") -> AsyncGenerator[None]:
    """Close the connections in the end; at the latest when the event loop ends, which finalizes what still waits."""
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_CLOSE_WITHIN):
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
