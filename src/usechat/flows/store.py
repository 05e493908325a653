"""Stores of runs: their events, numbered from 1, and their last snapshot."""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Integer, Table, Text, delete, func, insert, select

from usechat.database import Database, insert_into, metadata
from usechat.flows.scheduling import Event, RunSnapshot
from usechat.integrations.open_harness.agent import ChatRun, ChatRuns

__all__ = ["DatabaseRunStore", "MemoryRunStore", "RunStore"]

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
    """Where runs are kept, by the id of the run, and which chat had which. One process at a time writes a run."""

    async def append_event(self, run_id: str, *events: Event) -> None:
        """Keep events, all or none, with the next sequence numbers of the run."""
        ...

    async def save_snapshot(self, run_id: str, snapshot: RunSnapshot, *events: Event) -> None:
        """Keep the snapshot in place of an earlier one, and the events before it: all or none."""
        ...

    async def load_snapshot(self, run_id: str) -> RunSnapshot | None: ...

    async def load_events(self, run_id: str, after: int = 0) -> list[Event]:
        """Give the events whose sequence number is greater than `after`."""
        ...


class MemoryRunStore:
    """Runs that are gone with the process."""

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
    """Insert a row, or put the values into the one that the run has."""
    new = insert_into(table, connection.dialect.name).values(**key, **values)
    connection.execute(new.on_conflict_do_update(index_elements=[table.c.run_id], set_=values))
