"""The events and snapshots of a run on their way: to its listeners at once, to its store in the background.

Everything here runs in the thread of the event loop. A `Journal` has two queues, so that listeners and the store see
the same order:

- `_undelivered`: `emit` delivers it before it returns. A listener that makes the run emit more only adds to the queue,
  which the outer `emit` goes on delivering (`_delivering`), so no listener sees an event before the one that caused it.
- `_unwritten`: events and snapshots for the store. The task `_writer` writes them, up to the last snapshot in one call,
  and ends when nothing is left. If the store raises, the task ends, what it did not take stays in the queue, and the
  next entry or `settled` starts another task.

A store numbers the events of each run from 1, and keeps the last snapshot of each run and the last run of each chat.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Integer, Table, Text, delete, func, insert, select

from usechat.database import Database, insert_into, metadata
from usechat.flows.nodes import as_json
from usechat.flows.scheduling import Event, RunSnapshot
from usechat.integrations.open_harness.agent import ChatRun, ChatRuns

__all__ = ["DatabaseRunStore", "Journal", "Listeners", "MemoryRunStore", "RunStore"]

_log = logging.getLogger("usechat")

_EVENTS = Table(
    "usechat_run_events",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("event", Text, nullable=False),
)
_SNAPSHOTS = Table(
    "usechat_run_snapshots",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("snapshot", Text, nullable=False),
)
_CHAT_RUNS = Table(
    "usechat_chat_runs",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("chat", Text, nullable=False, index=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("message_id", Text, nullable=False),
)


class RunStore(ChatRuns, Protocol):
    """Stores the events and the last snapshot of each run. Only one process at a time writes a run."""

    async def append_event(self, run_id: str, *events: Event) -> None:
        """Store events, all or none, with the next sequence numbers of the run."""
        ...

    async def save_snapshot(self, run_id: str, snapshot: RunSnapshot, *events: Event) -> None:
        """Store the events, then the snapshot in place of an earlier one: all or none."""
        ...

    async def load_snapshot(self, run_id: str) -> RunSnapshot | None: ...

    async def load_events(self, run_id: str, after: int = 0) -> list[Event]:
        """The events whose sequence number is greater than `after`."""
        ...


class MemoryRunStore:
    """Runs in memory, which are gone with the process."""

    def __init__(self) -> None:
        self._events: dict[str, list[bytes]] = {}
        self._snapshots: dict[str, bytes] = {}
        self._chat_runs: dict[str, dict[str, ChatRun]] = {}

    async def append_event(self, run_id: str, *events: Event) -> None:
        bodies = [msgspec.json.encode(event) for event in events]
        self._events.setdefault(run_id, []).extend(bodies)

    async def save_snapshot(self, run_id: str, snapshot: RunSnapshot, *events: Event) -> None:
        body = msgspec.json.encode(snapshot)
        await self.append_event(run_id, *events)
        self._snapshots[run_id] = body

    async def load_snapshot(self, run_id: str) -> RunSnapshot | None:
        stored = self._snapshots.get(run_id)
        return None if stored is None else _read_snapshot(run_id, stored)

    async def load_events(self, run_id: str, after: int = 0) -> list[Event]:
        return [msgspec.json.decode(event) for event in self._events.get(run_id, [])[after:]]

    async def chat_run(self, chat: str) -> ChatRun | None:
        runs = self._chat_runs.get(chat)
        return list(runs.values())[-1] if runs else None

    async def keep_chat_run(self, chat: str, run: ChatRun) -> None:
        self._chat_runs.setdefault(chat, {})[run.run_id] = run

    async def forget_chat(self, chat: str) -> None:
        for run_id in self._chat_runs.pop(chat, {}):
            self._events.pop(run_id, None)
            self._snapshots.pop(run_id, None)


class DatabaseRunStore:
    """Runs in a database; each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append_event(self, run_id: str, *events: Event) -> None:
        bodies = _bodies(events)
        await self._database.run(lambda connection: _append(connection, run_id, bodies))

    async def save_snapshot(self, run_id: str, snapshot: RunSnapshot, *events: Event) -> None:
        body, bodies = msgspec.json.encode(snapshot).decode(), _bodies(events)

        def save(connection: Connection) -> None:
            _append(connection, run_id, bodies)
            _put(connection, _SNAPSHOTS, {"run_id": run_id}, {"snapshot": body})

        await self._database.run(save)

    async def load_snapshot(self, run_id: str) -> RunSnapshot | None:
        query = select(_SNAPSHOTS.c.snapshot).where(_SNAPSHOTS.c.run_id == run_id)
        stored = await self._database.read(lambda connection: connection.execute(query).scalar())
        return None if stored is None else _read_snapshot(run_id, stored)

    async def load_events(self, run_id: str, after: int = 0) -> list[Event]:
        query = select(_EVENTS.c.event).where(_EVENTS.c.run_id == run_id, _EVENTS.c.seq > after)
        rows = await self._database.read(lambda connection: connection.execute(query.order_by(_EVENTS.c.seq)).all())
        return [msgspec.json.decode(row.event) for row in rows]

    async def chat_run(self, chat: str) -> ChatRun | None:
        query = select(_CHAT_RUNS).where(_CHAT_RUNS.c.chat == chat).order_by(_CHAT_RUNS.c.number.desc()).limit(1)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else ChatRun(row.run_id, row.message_id)

    async def keep_chat_run(self, chat: str, run: ChatRun) -> None:
        key, message = {"chat": chat, "run_id": run.run_id}, {"message_id": run.message_id}
        await self._database.run(lambda connection: _put(connection, _CHAT_RUNS, key, message))

    async def forget_chat(self, chat: str) -> None:
        of_chat = _CHAT_RUNS.c.chat == chat

        def forget(connection: Connection) -> None:
            for table in (_EVENTS, _SNAPSHOTS):
                runs = select(_CHAT_RUNS.c.run_id).where(of_chat)
                connection.execute(delete(table).where(table.c.run_id.in_(runs)))
            connection.execute(delete(_CHAT_RUNS).where(of_chat))

        await self._database.run(forget)


def _read_snapshot(run_id: str, stored: str | bytes) -> RunSnapshot:
    try:
        return msgspec.json.decode(stored, type=RunSnapshot)
    except msgspec.DecodeError as error:
        raise ValueError(f"The stored snapshot of run {run_id!a} is broken: {error}") from error


def _bodies(events: Iterable[Event]) -> list[str]:
    return [msgspec.json.encode(event).decode() for event in events]


def _append(connection: Connection, run_id: str, bodies: list[str]) -> None:
    if not bodies:
        return
    last = select(func.max(_EVENTS.c.seq)).where(_EVENTS.c.run_id == run_id)
    first = (connection.execute(last).scalar() or 0) + 1
    rows: list[dict[str, Any]] = [
        {"run_id": run_id, "seq": seq, "event": body} for seq, body in enumerate(bodies, first)
    ]
    connection.execute(insert(_EVENTS), rows)


def _put(connection: Connection, table: Table, key: dict[str, str], values: dict[str, str]) -> None:
    """Insert a row, or update the row of the same run."""
    new = insert_into(table, connection.dialect.name).values(**key, **values)
    connection.execute(new.on_conflict_do_update(index_elements=[table.c.run_id], set_=values))


class Listeners:
    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call the listener with each event from now on; the result removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def notify(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # A listener that fails must not fail the run.
            except Exception:  # noqa: BLE001
                _log.exception("a listener of a run failed")


class Journal:
    def __init__(self, run_id: str, store: RunStore | None) -> None:
        self.run_id = run_id
        self._store = store
        self.listeners = Listeners()
        self._undelivered: deque[Event] = deque()
        self._delivering = False
        self._unwritten: deque[Event | RunSnapshot] = deque()
        self._writer: asyncio.Task[None] | None = None

    def emit(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Emit events that belong together: events that a listener causes come after all of them."""
        timestamp = time.time_ns() // 1_000_000
        events: list[Event] = [{**as_json(payload), "timestamp": timestamp} for payload in payloads]
        self._undelivered.extend(events)
        self._write_later(events)
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self.listeners.notify(self._undelivered.popleft())
        finally:
            self._delivering = False

    def save(self, snapshot: RunSnapshot) -> None:
        """Write the snapshot to the store in one call with the events before it."""
        self._write_later([snapshot])

    async def settled(self) -> None:
        """Wait until everything is written.

        Raises:
            Exception: what the store raised.
        """
        while self._unwritten:
            await asyncio.shield(self._ensure_writer())

    def _write_later(self, entries: Iterable[Event | RunSnapshot]) -> None:
        if self._store is None:
            return
        self._unwritten.extend(entries)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Without a loop nothing can be written. The next call of `run` does it.
            return
        self._ensure_writer()

    def _ensure_writer(self) -> asyncio.Task[None]:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
            self._writer.add_done_callback(self._report)
        return self._writer

    def _report(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and (error := writer.exception()) is not None:
            _log.error("events of run %s could not be stored", self.run_id, exc_info=error)

    async def _write(self) -> None:
        store = cast("RunStore", self._store)
        while self._unwritten:
            entries = list(self._unwritten)
            snapshots = [number for number, entry in enumerate(entries) if isinstance(entry, RunSnapshot)]
            if snapshots:
                del entries[snapshots[-1] + 1 :]
            events = [entry for entry in entries if not isinstance(entry, RunSnapshot)]
            if isinstance(entries[-1], RunSnapshot):
                await store.save_snapshot(self.run_id, entries[-1], *events)
            else:
                await store.append_event(self.run_id, *events)
            # Not before: what the store refuses now, it may take later.
            for _ in entries:
                self._unwritten.popleft()
