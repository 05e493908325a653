import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, ForeignKey, Integer, Pool, Table, Text, event, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, OperationalError

from support.hang import HANG_SECONDS
from support.postgres import Postgres
from usechat.database import Database, metadata
from usechat.errors import DatabaseBusyError

pytestmark = pytest.mark.anyio

# Put there as the package's modules do it.
PARENTS = Table("test_parents", metadata, Column("name", Text, primary_key=True))
CHILDREN = Table(
    "test_children",
    metadata,
    Column("number", Integer, primary_key=True),
    Column[str]("parent", ForeignKey(PARENTS.c.name), nullable=False),
)

URLS = {
    "memory": "sqlite://",
    "memory by name": "sqlite:///:memory:",
    "memory of aiosqlite": "sqlite+aiosqlite://",
    "file": "sqlite:///{}/chats.db",
    "file of aiosqlite": "sqlite+aiosqlite:///{}/chats.db",
}


@pytest.fixture(params=[*URLS, "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres").create_tables()
    return URLS[request.param].format(tmp_path)


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


async def add(database: Database, *names: str) -> None:
    await database.run(lambda connection: connection.execute(PARENTS.insert(), [{"name": name} for name in names]))


def names(connection: Connection) -> list[str]:
    return list(connection.scalars(PARENTS.select().order_by(PARENTS.c.name)))


async def test_the_first_use_creates_the_tables(database: Database):
    tables = await database.run(lambda connection: inspect(connection).get_table_names())
    assert {"test_parents", "test_children"} <= set(tables)


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_tables_of_another_version_are_refused_and_named(url: str, database: Database):
    await add(database, "kept")
    await database.run(lambda connection: connection.execute(text("ALTER TABLE test_children RENAME number TO old")))
    await database.aclose()
    sentence = (
        r"^The table test_children lacks the column number, because another version of usechat made it: use a new"
    )
    for use in (add(database, "lost"), database.read(names)):
        with pytest.raises(InvalidRequestError, match=sentence):
            await use
    await database.aclose()


async def test_many_tasks_may_be_the_first_to_use_it(database: Database):
    await asyncio.gather(*(add(database, f"{n:02}") for n in range(20)))
    assert await database.run(names) == [f"{n:02}" for n in range(20)]


async def test_work_that_raises_changes_nothing(database: Database):
    def fail(connection: Connection) -> None:
        connection.execute(PARENTS.insert().values(name="lost"))
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(fail)
    assert await database.run(names) == []


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_work_goes_on_when_its_caller_is_cancelled(database: Database):
    loop = asyncio.get_running_loop()

    def work(connection: Connection) -> None:
        connection.execute(PARENTS.insert().values(name="before"))
        loop.call_soon_threadsafe(caller.cancel)
        connection.execute(PARENTS.insert().values(name="after"))

    caller = asyncio.create_task(database.run(work))
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await database.run(names) == ["after", "before"]


async def test_what_was_written_is_read(database: Database):
    await add(database, "one")
    assert await database.read(names) == ["one"]
    await add(database, "two")
    assert await database.read(names) == ["one", "two"]


async def test_many_tasks_may_be_the_first_to_read_it(database: Database):
    assert await asyncio.gather(*(database.read(names) for _ in range(20))) == [[]] * 20


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_work_that_only_reads_cannot_write(database: Database):
    with pytest.raises(DBAPIError, match=r"read-?only"):
        await database.read(lambda connection: connection.execute(PARENTS.insert().values(name="lost")))
    assert await database.run(names) == []


async def test_foreign_keys_are_kept(database: Database):
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: connection.execute(CHILDREN.insert().values(parent="nobody")))


async def test_an_error_does_not_show_what_was_to_be_stored(database: Database):
    await add(database, "a secret")
    with pytest.raises(IntegrityError) as caught:
        await add(database, "a secret")
    assert "a secret" not in str(caught.value)


async def pragmas(database: Database, *wanted: str) -> list[Any]:
    statements = [text(f"PRAGMA {name}") for name in wanted]
    return await database.run(lambda connection: [connection.scalar(statement) for statement in statements])


async def test_a_file_is_set_up_to_be_shared_and_to_outlive_a_crash(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    settings = await pragmas(database, "journal_mode", "synchronous", "foreign_keys")
    assert settings == ["wal", 1, 1]
    await database.aclose()


def files_in(directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir()]


async def test_a_file_is_opened_by_its_first_use_and_kept_after_the_last(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    assert files_in(tmp_path) == []
    await add(database, "kept")
    await database.aclose()
    assert files_in(tmp_path) == ["chats.db"]
    assert await database.run(names) == ["kept"]
    await database.aclose()


async def test_the_connections_to_a_file_close_one_after_the_other_and_leave_one_file(tmp_path: Path):
    closing_now: list[object] = []
    most = 0

    def close(connection: object, _record: object) -> None:
        nonlocal most
        closing_now.append(connection)
        time.sleep(0.05)
        most = max(most, len(closing_now))
        closing_now.remove(connection)

    database = Database(f"sqlite:///{tmp_path}/chats.db")
    await add(database, "kept")
    assert await database.read(names) == ["kept"]
    event.listen(Pool, "close", close)
    try:
        await database.aclose()
    finally:
        event.remove(Pool, "close", close)
    assert (most, files_in(tmp_path)) == (1, ["chats.db"])


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_a_new_database_may_be_opened_by_many_at_once(url: str):
    databases = [Database(url) for _ in range(8)]
    await asyncio.gather(*(add(database, str(n)) for n, database in enumerate(databases)))
    assert [await database.run(names) for database in databases] == [[str(n) for n in range(8)]] * 8
    for database in databases:
        await database.aclose()


async def test_a_database_that_could_not_be_opened_is_tried_again_by_the_next_use(tmp_path: Path):
    directory = tmp_path / "later"
    database = Database(f"sqlite:///{directory}/chats.db")
    outcomes = await asyncio.gather(*(add(database, str(n)) for n in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OperationalError] * 3
    directory.mkdir()
    await add(database, "kept")
    assert await database.run(names) == ["kept"]
    await database.aclose()


async def test_closing_waits_for_what_still_runs_though_its_caller_is_cancelled(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    callers = [asyncio.create_task(add(database, str(n))) for n in range(3)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await database.aclose()
    assert [caller.cancelled() for caller in callers] == [True, True, True]
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection:
        assert connection.execute("SELECT name FROM test_parents ORDER BY name").fetchall() == [("0",), ("1",), ("2",)]


async def test_a_server_that_cut_the_connections_is_connected_to_again(postgres: Postgres):
    url = postgres.create()
    database, other = Database(url), Database(url)
    await add(database, "before")
    cut = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert await other.run(lambda connection: connection.scalar(cut)) == 1
    await add(database, "after")
    assert await database.run(names) == ["after", "before"]
    await database.aclose()
    await other.aclose()


async def test_a_transaction_that_nobody_goes_on_with_is_ended_by_the_server_and_done_again_by_whoever_wakes(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("usechat.database.postgres._IDLE_MILLISECONDS", 200)
    url = postgres.create()
    sleeper, other = Database(url), Database(url)
    await add(sleeper, "name")
    lock, attempts = PARENTS.select().with_for_update(), list[int]()

    async def lock_elsewhere() -> None:
        await other.run(lambda connection: connection.execute(lock), within=HANG_SECONDS)
        await other.aclose()

    def sleep(connection: Connection) -> None:
        attempts.append(len(attempts))
        connection.execute(lock)
        if len(attempts) == 1:
            # All of the loop sleeps, until somebody else has got the lock.
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(asyncio.run, lock_elsewhere()).result()
        connection.execute(lock)

    await sleeper.run(sleep, within=HANG_SECONDS)
    assert attempts == [0, 1]
    await sleeper.aclose()


async def test_a_database_in_memory_ends_when_it_is_closed():
    database = Database()
    await add(database, "gone")
    await database.aclose()
    await database.aclose()
    assert await database.run(names) == []
    await database.aclose()


async def test_databases_in_memory_are_apart():
    first, second = Database(), Database()
    await add(first, "mine")
    assert [await first.run(names), await second.run(names)] == [["mine"], []]
    await first.aclose()
    await second.aclose()


def test_a_process_that_never_closes_its_database_ends_all_the_same(tmp_path: Path):
    script = f"import asyncio, usechat.database as d; asyncio.run(d.Database('sqlite:///{tmp_path}/c.db').run(print))"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "chats.db",
        "mysql://root:secret@host/chats",
        "postgresql+psycopg2://root:secret@host/chats",
        "postgresql://root:secret@host:port/chats",
        "redis://host",
    ],
)
def test_another_url_is_refused_without_repeating_its_password(url: str):
    with pytest.raises(ValueError, match="must be one of SQLite") as caught:
        Database(url)
    assert (str(caught.value), caught.value.__cause__) == (
        "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or postgresql://host/name.",
        None,
    )


def test_postgresql_without_its_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(
        ImportError, match=r"^PostgreSQL needs asyncpg\. Install it with: pip install 'usechat\[postgres\]'$"
    ):
        Database("postgresql://host/chats")


SSL_REQUEST = b"\x04\xd2\x16\x2f"
STARTUP = b"\x00\x03\x00\x00client_encoding\x00'utf-8'\x00user\x00ann\x00database\x00chats\x00\x00"


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("postgres://ann:secret@{}/chats?sslmode=require", SSL_REQUEST),
        ("postgresql://ann:secret@{}/chats?ssl=require", SSL_REQUEST),
        ("postgresql://ann:secret@{}/chats?sslmode=disable", STARTUP),
        ("postgresql+asyncpg://ann:secret@{}/chats?ssl=disable", STARTUP),
    ],
)
async def test_a_postgresql_url_is_understood_as_people_write_it(url: str, sent: bytes):
    received: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(4))
        received.append(await reader.readexactly(length - 4))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        database = Database(url.format(f"{host}:{port}"))
        with pytest.raises(DatabaseBusyError):
            await database.run(names)
        await database.aclose()
    assert received == [sent]
