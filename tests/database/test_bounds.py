import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Table, Text, text
from sqlalchemy.exc import DBAPIError

from support.hang import HANG_SECONDS
from support.postgres import Postgres
from usechat.database import Database, metadata
from usechat.errors import DatabaseBusyError

pytestmark = pytest.mark.anyio

NAMES = Table("test_names", metadata, Column("name", Text, primary_key=True))
"""Far more than what is bounded may take on a busy machine, and far less than without a bound."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
async def database(file: Path) -> AsyncGenerator[Database]:
    database = Database(f"sqlite:///{file}")
    yield database
    await database.aclose()


@pytest.fixture
async def server(postgres: Postgres) -> AsyncGenerator[Database]:
    database = Database(postgres.create())
    yield database
    await database.aclose()


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Hold the write lock as another process would."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


async def add(database: Database, name: str, within: float = 10.0) -> None:
    await database.run(lambda connection: connection.execute(NAMES.insert().values(name=name)), within=within)


def names(connection: Connection) -> list[str]:
    return list(connection.scalars(NAMES.select().order_by(NAMES.c.name)))


async def test_all_writes_to_a_locked_file_fail_in_their_time_and_write_nothing_later(file: Path, database: Database):
    await add(database, "before")
    with locked(file):
        async with asyncio.timeout(HANG_SECONDS):
            writes = (add(database, str(n), within=0.5) for n in range(100))
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["The database did not answer in time."] * 100
    assert [type(outcome) for outcome in outcomes] == [DatabaseBusyError] * 100
    await add(database, "later")
    assert await database.read(names) == ["before", "later"]


async def test_a_write_waits_for_a_lock_that_is_let_go_in_time(file: Path, database: Database):
    await add(database, "before")
    with locked(file):
        impatient, patient = (asyncio.create_task(add(database, str(within), within)) for within in (0.1, 60))
        with pytest.raises(DatabaseBusyError):
            await impatient
    await patient
    assert await database.read(names) == ["60", "before"]


async def test_reads_do_not_wait_for_a_lock_or_for_writes_that_do(file: Path, database: Database):
    await add(database, "before")
    just_opened = Database(f"sqlite:///{file}")
    with locked(file):
        waiting = asyncio.create_task(add(database, "after", within=60))
        assert await database.read(names, within=HANG_SECONDS) == ["before"]
        assert await just_opened.read(names, within=HANG_SECONDS) == ["before"]
        assert not waiting.done()
    await waiting
    assert await just_opened.read(names) == ["after", "before"]
    await just_opened.aclose()


async def test_opening_a_locked_file_that_has_no_tables_fails_in_time(file: Path, database: Database):
    with locked(file):
        async with asyncio.timeout(HANG_SECONDS):
            for use in (database.run, database.read):
                with pytest.raises(DatabaseBusyError):
                    await use(names, within=0.1)
    assert await database.read(names) == []


async def test_work_that_hangs_costs_its_callers_their_time_and_readers_nothing(file: Path, database: Database):
    going_on = threading.Event()

    def hang(connection: Connection) -> None:
        connection.execute(NAMES.insert().values(name="late"))
        going_on.wait()

    await add(database, "before")
    async with asyncio.timeout(HANG_SECONDS):
        for work in (hang, names):
            with pytest.raises(DatabaseBusyError):
                await database.run(work, within=0.1)
        assert await database.read(names) == ["before"]
        await database.aclose(within=0.1)
    going_on.set()
    # The caller was told nothing about the outcome, and this time it is a commit.
    await add(database, "after")
    assert await database.read(names) == ["after", "before", "late"]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "usechat-sqlite"]


async def test_a_database_that_nobody_has_any_more_leaves_no_thread(file: Path):
    others = threads()
    database = Database(f"sqlite:///{file}")
    await add(database, "kept")
    assert await database.read(names) == ["kept"]
    mine = [thread for thread in threads() if thread not in others]
    del database
    gc.collect()
    for thread in mine:
        await asyncio.to_thread(thread.join, HANG_SECONDS)
    assert [thread.is_alive() for thread in mine] == [False, False]


HANG = """
import asyncio, threading
from usechat.database import Database
from usechat.errors import DatabaseBusyError

async def main():
    database = Database("sqlite:///{}")
    for use in (database.run, database.read):
        try:
            await use(lambda _: threading.Event().wait(), within=0.1)
        except DatabaseBusyError as error:
            print(error)
    {}

asyncio.run(main())
"""


@pytest.mark.parametrize("close", ["", "await database.aclose(within=0.1)"])
def test_a_database_that_hangs_does_not_keep_the_process_from_ending(file: Path, close: str):
    script = HANG.format(file, close)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    said = "The database did not answer in time.\n" * 2
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///{}", "postgres"])
def test_event_loops_may_use_it_one_after_the_other(url: str, file: Path, request: pytest.FixtureRequest):
    if url == "postgres":
        url = request.getfixturevalue("postgres").create()
    database = Database(url.format(file))

    async def use(name: str) -> list[str]:
        await asyncio.gather(*(add(database, f"{name}{n}") for n in range(3)))
        return await database.read(names)

    def run(name: str) -> None:
        outcomes.append(asyncio.run(use(name)))

    outcomes: list[list[str]] = []
    run("a")
    # A test client gives each request a loop in a thread of its own.
    thread = threading.Thread(target=run, args=("b",))
    thread.start()
    thread.join()
    run("c")
    everything = [f"{name}{n}" for name in "abc" for n in range(3)]
    assert outcomes == [everything[:3], everything[:6], everything]
    asyncio.run(database.aclose())


async def test_a_loop_that_closes_before_its_write_is_done_leaves_the_next_one_a_database(file: Path):
    database = Database(f"sqlite:///{file}")
    going_on = threading.Event()

    async def leave() -> None:
        with pytest.raises(DatabaseBusyError):
            await database.run(lambda _: going_on.wait(), within=0.1)

    await asyncio.to_thread(asyncio.run, leave())
    going_on.set()
    await add(database, "after")
    assert await database.read(names) == ["after"]
    await database.aclose()


async def test_a_server_that_refuses_or_does_not_answer_is_busy():
    closing_down = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await closing_down.wait()
        writer.close()

    async with asyncio.timeout(HANG_SECONDS):
        listening = await asyncio.start_server(hang, "127.0.0.1")
        host, port = listening.sockets[0].getsockname()
        database = Database(f"postgresql://ann@{host}:{port}/chats?ssl=disable")
        calls = (use(names, within=0.2) for use in [database.run, database.read] * 25)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DatabaseBusyError] * 50
        closing_down.set()
        await database.aclose(within=0.1)
        listening.close()
        await listening.wait_closed()
        with pytest.raises(DatabaseBusyError):
            await database.run(names)
        await database.aclose()


@asynccontextmanager
async def wire_to(postgres: Postgres, name: str) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """The URL of a port that passes bytes on to the server while the event is set, and the event."""
    passing = asyncio.Event()
    passing.set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await passing.wait()
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(postgres.socket)
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer), return_exceptions=True)
        to_writer.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        host, port = listening.sockets[0].getsockname()
        yield f"postgresql://usechat@{host}:{port}/{name}?ssl=disable", passing
        passing.set()


async def test_a_server_that_falls_silent_is_busy_until_it_speaks_again(postgres: Postgres):
    name = postgres.create().partition("@/")[2].partition("?")[0]
    async with asyncio.timeout(HANG_SECONDS), wire_to(postgres, name) as (url, passing):
        database, closed = Database(url), Database(url)
        await asyncio.gather(*(add(database, str(n)) for n in range(3)), closed.read(names))
        passing.clear()
        calls = (use(names, within=0.3) for use in [database.run, database.read] * 25)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DatabaseBusyError] * 50
        async with asyncio.timeout(HANG_SECONDS):
            await closed.aclose(within=0.1)
        passing.set()
        await add(database, "after")
        assert await database.read(names) == ["0", "1", "2", "after"]
        await database.aclose()


async def test_a_server_that_is_slow_is_busy_at_any_length_of_the_queue_and_well_afterwards(server: Database):
    await add(server, "before")
    sleep = text("SELECT pg_sleep(60)")
    async with asyncio.timeout(HANG_SECONDS):
        slow = (server.run(lambda connection: connection.execute(sleep), within=0.5) for _ in range(50))
        outcomes = await asyncio.gather(*slow, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DatabaseBusyError] * 50
        assert await server.read(names) == ["before"]


async def test_what_a_cancelled_caller_left_behind_ends_in_its_time(server: Database):
    await add(server, "before")
    sleep = text("SELECT pg_sleep(60)")
    sleeping = asyncio.Event()

    def work(connection: Connection) -> None:
        sleeping.set()
        connection.execute(sleep)

    caller = asyncio.create_task(server.run(work, within=0.5))
    await sleeping.wait()
    caller.cancel()
    async with asyncio.timeout(HANG_SECONDS):
        await server.aclose(within=60)
    assert await server.read(names) == ["before"]


async def test_a_row_that_somebody_has_locked_is_waited_for_in_time(postgres: Postgres):
    url = postgres.create()
    one, other = Database(url), Database(url)
    await add(one, "before")
    locking = asyncio.Event()

    def hold(connection: Connection) -> None:
        connection.execute(text("LOCK TABLE test_names"))
        locking.set()
        connection.execute(text("SELECT pg_sleep(60)"))

    holding = asyncio.create_task(one.run(hold, within=2))
    async with asyncio.timeout(HANG_SECONDS):
        await locking.wait()
        with pytest.raises(DatabaseBusyError):
            await add(other, "too late", within=0.2)
        with pytest.raises(DatabaseBusyError):
            await holding
        await add(other, "after")
    assert await other.read(names) == ["after", "before"]
    await one.aclose()
    await other.aclose()


async def test_a_server_without_the_database_is_not_just_busy(postgres: Postgres):
    url, _, query = postgres.create().rpartition("?")
    database = Database(f"{url}_of_nobody?{query}")
    with pytest.raises(DBAPIError, match=r"of_nobody. does not exist"):
        await database.run(names)
    await database.aclose()
