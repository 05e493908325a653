"""What is in the tables of a history, and what survives in them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from support import history_crash
from support.histories import A1, A2, U1, U2, U3, begin, said, tail
from usechat.database import Database
from usechat.history import History, Tail
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

TESTS = Path(__file__).parents[1]


@pytest.fixture(params=["memory", "file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres").create_tables()
    return {"memory": "sqlite://", "file": f"sqlite:///{tmp_path}/chats.db"}[request.param]


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


@pytest.fixture
def history(database: Database) -> History:
    return History(database)


async def execute(database: Database, statement: str, **values: Any) -> None:
    await database.run(lambda connection: connection.execute(text(statement), values))


async def rows(database: Database, columns: str = "position, message_id, turn") -> list[tuple[Any, ...]]:
    query = text(f"SELECT {columns} FROM usechat_messages ORDER BY position")  # noqa: S608
    return [tuple(row) for row in await database.run(lambda connection: connection.execute(query).all())]


async def test_a_turn_writes_only_what_changed_and_its_question(history: History, database: Database):
    await begin(history, "t1", 0, [U1])
    await history.end("chat", "t1", 1, A1)
    await begin(history, "t2", 2, [U2], epoch=7)
    columns = "position, message_id, turn, role, epoch"
    assert await rows(database, columns) == [
        (0, "u1", "t1", "user", 1),
        (1, "a1", "t1", "assistant", 1),
        (2, "u2", "t2", "user", 7),
    ]


async def test_a_message_is_stored_as_its_json(history: History, database: Database):
    message = said("u1", "\x00 ü \U0001f600")
    await begin(history, "t1", 0, [message])
    assert await rows(database, "body") == [(msgspec.json.encode(message).decode(),)]


@pytest.mark.parametrize("length", [2, 200])
async def test_a_turn_has_as_many_statements_however_long_its_chat_is(history: History, url: str, length: int):
    await begin(history, "t0", 0, [said(f"{'ua'[n % 2]}{n}") for n in range(length)])
    after = await tail(history)
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    await history.begin("chat", "ann", "t1", after=after, keep=length, new=[said("u!")], epoch=1)
    await history.end("chat", "t1", 1, said("a!"))
    event.remove(Engine, "before_cursor_execute", note)
    lock = ["SELECT"] if url.startswith("postgresql") else []
    assert statements == [*lock, "SELECT", "UPDATE", "INSERT", *lock, "SELECT", "INSERT"]


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_of_owners_who_begin_a_chat_at_once_in_two_processes_one_gets_it(url: str):
    databases = [Database(url) for _ in range(2)]
    ann, bob = (History(database) for database in databases)
    for number in range(20):
        chat_id = f"chat {number}"
        begun = await asyncio.gather(
            ann.begin(chat_id, "ann", "t1", after=Tail(0), keep=0, new=[U1], epoch=1),
            bob.begin(chat_id, "bob", "t1", after=Tail(0), keep=0, new=[U2], epoch=1),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in begun) == ["NoneType", "PermissionError"]
        owner, messages = [("ann", [U1]), ("bob", [U2])][begun.index(None)]
        assert [await ann.load(chat_id, owner), await bob.load(chat_id, owner)] == [messages, messages]
    for database in databases:
        await database.aclose()


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_of_turns_that_begin_at_once_in_two_processes_one_does(url: str):
    databases = [Database(url) for _ in range(2)]
    histories = [History(database) for database in databases]
    await begin(histories[0], "t0", 0, [said("u0")])
    for number in range(1, 21):
        after = await tail(histories[0])
        # The one appends, the other replaces the last message.
        begun = await asyncio.gather(
            *(
                history.begin("chat", "ann", f"t{number}", after=after, keep=keep, new=[said(f"u{number}")], epoch=1)
                for history, keep in zip(histories, (number, number - 1), strict=True)
            ),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in begun) == ["NoneType", "TailChangedError"]
        if begun[1] is None:
            await begin(histories[0], "more", number, [said(f"u+{number}")])
    assert (await tail(histories[1])).length == 21
    for database in databases:
        await database.aclose()


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_turns_of_a_chat_that_end_at_once_in_two_processes_both_keep_their_answers(url: str):
    databases = [Database(url) for _ in range(2)]
    one, other = (History(database) for database in databases)
    for number in range(20):
        chat_id = f"chat {number}"
        await begin(one, "t1", 0, [U1], chat_id=chat_id)
        await begin(other, "t2", 1, [U2], chat_id=chat_id)
        ended = await asyncio.gather(one.end(chat_id, "t1", 1, A1), other.end(chat_id, "t2", 1, A2))
        assert ended == [True, True]
        assert await one.load(chat_id, "ann") == [U1, A1, U2, A2]
    for database in databases:
        await database.aclose()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "Input data was truncated"),
        ('{"id":', "Input data was truncated"),
        ("1e999", "Number out of range"),
        ("[" * 100_000, "while deserializing an object"),
        ("null", "message must be an object."),
        ('{"id":"a1"}', "message.role is missing."),
        ('{"id":5,"role":"user","parts":[]}', "message.id must be a string of at most 512 characters without control"),
        ('{"id":"a1","role":"root","parts":[]}', "message.role must be one of system, user, assistant."),
        ('{"id":"a1","role":"assistant","parts":[{}]}', "message.parts[0].type is missing."),
        ('{"id":"a1","role":"assistant","parts":[{"type":"text"}]}', "message.parts[0].text is missing."),
    ],
)
async def test_a_stored_message_that_is_broken_is_refused_with_its_place(
    history: History, database: Database, body: str, problem: str
):
    await begin(history, "t1", 0, [U1, A1, U2], chat_id="chat\n")
    await execute(database, "UPDATE usechat_messages SET body = :body WHERE position = 1", body=body)
    for call in (history.load("chat\n", "ann"), history.read("chat\n", "ann", lambda stored: stored.message(1))):
        with pytest.raises(
            ValueError, match=r"^The stored message at position 1 of chat 'chat\\n' is broken: "
        ) as caught:
            await call
        assert problem in str(caught.value)
    assert await history.load_json("chat\n", "ann", limit=1) == [("u2", msgspec.json.encode(U2))]


async def test_a_message_to_look_at_is_checked_more_than_one_to_show(history: History, database: Database):
    await begin(history, "t1", 0, [U1])
    body = '{"id":"u1","role":"user","parts":[{"type":"tool-x"}]}'
    await execute(database, "UPDATE usechat_messages SET body = :body", body=body)
    assert await history.load("chat", "ann") == [UIMessage("u1", "user", [{"type": "tool-x"}])]
    for call in (
        history.read("chat", "ann", lambda stored: stored.message(0)),
        history.read("chat", "ann", lambda stored: stored.last_user(1)),
    ):
        with pytest.raises(ValueError, match=r"is broken: message\.parts\[0\]\.toolCallId is missing\.$"):
            await call


async def test_a_broken_message_is_mended_by_a_turn_that_replaces_it(history: History, database: Database):
    await begin(history, "t1", 0, [U1, A1, U2])
    await execute(database, "UPDATE usechat_messages SET body = 'x' WHERE position = 1")
    await begin(history, "t2", 1, [A1, U2])
    assert await history.load("chat", "ann") == [U1, A1, U2]


async def test_text_that_is_not_utf_8_is_refused_like_any_broken_message(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    history = History(database)
    await begin(history, "t1", 0, [U1])
    await execute(database, "UPDATE usechat_messages SET body = CAST(x'227fff22' AS TEXT)")
    with pytest.raises(ValueError, match=r"^The stored message at position 0 of chat 'chat' is broken: "):
        await history.load("chat", "ann")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        await history.load_json("chat", "ann")
    await database.aclose()


async def test_a_message_that_somebody_deleted_leaves_the_others_alone(history: History, database: Database):
    await begin(history, "t1", 0, [U1, A1, U2])
    await execute(database, "DELETE FROM usechat_messages WHERE position = 1")
    await begin(history, "t2", 3, [U3])
    assert await rows(database) == [(0, "u1", "t1"), (2, "u2", "t1"), (3, "u3", "t2")]
    assert await history.load("chat", "ann") == [U1, U2, U3]


@pytest.fixture(params=["file", "postgres"])
async def url_of_killed(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"sqlite:///{tmp_path}/{{}}.db"
    url: str = request.getfixturevalue("postgres").create_tables()
    # The processes share it. With the tables there, all of them do the same steps.
    database = Database(url)
    await History(database).load("chat", "ann")
    await database.aclose()
    return url


@pytest.fixture
def left_by_killed(url_of_killed: str, tmp_path: Path) -> dict[str, int]:
    """How many acts were done in each chat."""
    subprocess.run([sys.executable, "-m", "support.history_crash", str(tmp_path), url_of_killed], check=True, cwd=TESTS)
    return {file.stem: file.stat().st_size for file in sorted(tmp_path.glob("*.done"))}


async def stored(history: History, chat: str) -> tuple[list[UIMessage], bytes | None]:
    return await history.load(chat, "ann"), await history.read(chat, "ann", lambda stored: stored.state(9))


async def test_a_process_that_is_killed_at_any_step_leaves_whole_turns(
    url_of_killed: str, left_by_killed: dict[str, int]
):
    for chat, done in left_by_killed.items():
        database = Database(url_of_killed.format(chat))
        history = History(database)
        assert await stored(history, chat) == history_crash.STATES[done]
        for act, state in zip(history_crash.ACTS[done:], history_crash.STATES[done + 1 :], strict=True):
            await act(history, chat)
            assert await stored(history, chat) == state
        await database.aclose()
    assert sorted(set(left_by_killed.values())) == list(range(len(history_crash.STATES)))
