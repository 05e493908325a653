import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

import history_crash
from usechat.database import Database
from usechat.history import History, StoredChat
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres").create()
    return {"memory": "sqlite://", "file": f"sqlite:///{tmp_path}/chats.db"}[request.param]


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


@pytest.fixture
def history(database: Database) -> History:
    return History(database)


def said(message_id: str, words: str = "Hello") -> UIMessage:
    return UIMessage(message_id, "user" if message_id[0] == "u" else "assistant", [{"type": "text", "text": words}])


U1, A1, U2, A2, U3 = (said(message_id) for message_id in ("u1", "a1", "u2", "a2", "u3"))


async def execute(database: Database, statement: str, **values: Any) -> None:
    await database.run(lambda connection: connection.execute(text(statement), values))


async def rows(database: Database) -> list[tuple[Any, ...]]:
    query = text("SELECT position, message_id, turn FROM usechat_messages ORDER BY position")
    return [tuple(row) for row in await database.run(lambda connection: connection.execute(query).all())]


async def test_a_chat_that_never_began_is_not_there(history: History):
    assert await history.load("chat") is None


async def test_a_chat_has_its_owner_and_the_messages_of_its_turns(history: History):
    await history.begin("chat", "ann", "t1", [U1])
    assert await history.load("chat") == StoredChat("ann", [U1])
    assert await history.end("chat", "t1", A1)
    assert await history.load("chat") == StoredChat("ann", [U1, A1])
    await history.begin("chat", "ann", "t2", [U1, A1, U2])
    assert await history.end("chat", "t2", A2)
    assert await history.load("chat") == StoredChat("ann", [U1, A1, U2, A2])


async def test_chats_are_apart_whatever_their_ids_look_like(history: History):
    ids = ["chat", "CHAT", "c%", "c_at", "chat ", "chät", "cha\u0308t", "'; DROP TABLE usechat_chats; --", "../../etc"]
    for number, chat_id in enumerate(ids):
        await history.begin(chat_id, f"owner {number}", "t1", [said(f"u{number}")])
    loaded = [await history.load(chat_id) for chat_id in ids]
    assert loaded == [StoredChat(f"owner {number}", [said(f"u{number}")]) for number in range(len(ids))]


async def test_ids_of_the_greatest_length_fit(history: History):
    # Characters of four bytes that do not repeat, so that no index can compress them.
    chat_id = "".join(chr(0x20000 + n * 37) for n in range(512))
    question, answer = said("u" + chat_id[:511]), said("a" + chat_id[:511])
    await history.begin(chat_id, chat_id, "t1", [question])
    assert await history.end(chat_id, "t1", answer)
    assert await history.load(chat_id) == StoredChat(chat_id, [question, answer])


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(UIMessage("u1", "user", U1.parts, metadata=None), id="null metadata"),
        pytest.param(UIMessage("u1", "user", U1.parts, metadata={"b": [1, {"a": None}], "a": 0.1}), id="metadata"),
        pytest.param(said("u1", "\x00 \u2028 \ufffd \U0001f600 e\u0301 \"\\' %s :x ?"), id="characters"),
        pytest.param(
            UIMessage("u1", "user", [{"type": "data-n", "data": [2**80, -(2**63), 1e300, 1.0]}]), id="numbers"
        ),
        pytest.param(UIMessage("u1", "user", [{"type": "of-a-newer-client", "z": 1, "a": {}}]), id="unknown part"),
        pytest.param(UIMessage("u1", "user", [{"type": "data-n"}] * 1_001), id="many parts"),
        pytest.param(said("u1", "ü" * 5_000_000), id="ten megabytes"),
    ],
)
async def test_a_message_is_stored_as_the_very_json_it_is_sent_as(
    history: History, database: Database, message: UIMessage
):
    await history.begin("chat", "ann", "t1", [message])
    body = await database.run(lambda connection: connection.scalar(text("SELECT body FROM usechat_messages")))
    assert body == msgspec.json.encode(message).decode()
    assert await history.load("chat") == StoredChat("ann", [message])


async def test_a_turn_writes_only_what_changed_and_its_question(history: History, database: Database):
    await history.begin("chat", "ann", "t1", [U1])
    await history.end("chat", "t1", A1)
    await history.begin("chat", "ann", "t2", [U1, A1, U2])
    assert await rows(database) == [(0, "u1", "t1"), (1, "a1", "t1"), (2, "u2", "t2")]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([U1, A1, U2], id="regenerated answer"),
        pytest.param([U1, A1, said("u2", "Edited")], id="edited question"),
        pytest.param([said("u1", "Edited")], id="edited first question"),
        pytest.param([U1, A1, U3], id="another question"),
        pytest.param([U1, said("a1", "Edited"), U2], id="edited answer in the middle"),
        pytest.param([A1, U1], id="another order"),
        pytest.param([U1, A1, U2, said("a2", "With a tool's result")], id="continued answer"),
    ],
)
async def test_a_turn_that_begins_elsewhere_replaces_what_came_after(history: History, messages: list[UIMessage]):
    await history.begin("chat", "ann", "t1", [U1, A1, U2])
    await history.end("chat", "t1", A2)
    await history.begin("chat", "ann", "t2", messages)
    assert await history.load("chat") == StoredChat("ann", messages)


async def test_a_chat_stays_its_owners(history: History):
    await history.begin("chat", "ann", "t1", [U1])
    await history.begin("nobody's", "", "t1", [U1])
    for chat_id, owner in [("chat", "bob"), ("chat", ""), ("chat", "Ann"), ("nobody's", "ann")]:
        with pytest.raises(PermissionError, match=r"^The chat belongs to somebody else\.$"):
            await history.begin(chat_id, owner, "t2", [U2])
    assert await history.load("chat") == StoredChat("ann", [U1])
    assert await history.load("nobody's") == StoredChat("", [U1])


async def test_of_owners_who_begin_a_chat_at_once_one_gets_it(history: History):
    owners = [f"owner {n}" for n in range(20)]
    begun = await asyncio.gather(
        *(history.begin("chat", owner, f"turn of {owner}", [said("u1", owner)]) for owner in owners),
        return_exceptions=True,
    )
    [winner] = [owner for owner, outcome in zip(owners, begun, strict=True) if outcome is None]
    assert [type(outcome) for outcome in begun].count(PermissionError) == 19
    assert await history.load("chat") == StoredChat(winner, [said("u1", winner)])


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_of_owners_who_begin_a_chat_at_once_in_two_processes_one_gets_it(url: str):
    databases = [Database(url) for _ in range(2)]
    ann, bob = (History(database) for database in databases)
    for number in range(20):
        chat_id = f"chat {number}"
        begun = await asyncio.gather(
            ann.begin(chat_id, "ann", "t1", [U1]), bob.begin(chat_id, "bob", "t1", [U2]), return_exceptions=True
        )
        stored = [StoredChat("ann", [U1]), StoredChat("bob", [U2])][begun.index(None)]
        assert sorted(type(outcome).__name__ for outcome in begun) == ["NoneType", "PermissionError"]
        assert [await ann.load(chat_id), await bob.load(chat_id)] == [stored, stored]
    for database in databases:
        await database.aclose()


@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
async def test_turns_of_a_chat_that_end_at_once_in_two_processes_both_keep_their_answers(url: str):
    databases = [Database(url) for _ in range(2)]
    one, other = (History(database) for database in databases)
    for number in range(20):
        chat_id = f"chat {number}"
        await one.begin(chat_id, "ann", "t1", [U1])
        await other.begin(chat_id, "ann", "t2", [U1, U2])
        assert await asyncio.gather(one.end(chat_id, "t1", A1), other.end(chat_id, "t2", A2)) == [True, True]
        assert await one.load(chat_id) == StoredChat("ann", [U1, A1, U2, A2])
    for database in databases:
        await database.aclose()


@pytest.mark.parametrize(
    "messages", [[U1, U1], [U1, A1, said("u1", "Edited")], [said("u1"), UIMessage("", "user", [])]]
)
async def test_messages_need_ids_of_their_own(history: History, messages: list[UIMessage]):
    with pytest.raises(ValueError, match=r"^Each message of a chat must have an id of its own\.$"):
        await history.begin("chat", "ann", "t1", messages)
    assert await history.load("chat") is None


async def test_a_turn_needs_a_message(history: History):
    with pytest.raises(ValueError, match=r"^A turn must begin with a message\.$"):
        await history.begin("chat", "ann", "t1", [])
    assert await history.load("chat") is None


@pytest.mark.parametrize("message", [None, UIMessage("a1", "assistant", [])])
async def test_a_turn_that_said_nothing_stores_nothing(history: History, message: UIMessage | None):
    await history.begin("chat", "ann", "t1", [U1])
    assert not await history.end("chat", "t1", message)
    assert await history.load("chat") == StoredChat("ann", [U1])


async def test_the_end_of_a_turn_that_never_began_stores_nothing(history: History):
    assert not await history.end("chat", "t1", A1)
    assert await history.load("chat") is None
    await history.begin("chat", "ann", "t1", [U1])
    assert not await history.end("chat", "t2", A1)
    assert await history.load("chat") == StoredChat("ann", [U1])


async def test_a_turn_may_end_twice(history: History):
    await history.begin("chat", "ann", "t1", [U1])
    assert [await history.end("chat", "t1", A1), await history.end("chat", "t1", A1)] == [True, True]
    assert await history.load("chat") == StoredChat("ann", [U1, A1])


async def test_a_continued_answer_takes_the_place_of_what_it_continues(history: History):
    await history.begin("chat", "ann", "t1", [U1])
    await history.end("chat", "t1", A1)
    await history.begin("chat", "ann", "t2", [U1, said("a1", "With a tool's result")])
    longer = said("a1", "With a tool's result and more")
    assert [await history.end("chat", "t2", longer), await history.end("chat", "t2", longer)] == [True, True]
    assert await history.load("chat") == StoredChat("ann", [U1, longer])


async def test_an_answer_that_comes_late_goes_to_its_question(history: History, database: Database):
    await history.begin("chat", "ann", "t1", [U1])
    await history.begin("chat", "ann", "t2", [U1, U2])
    await history.begin("chat", "ann", "t3", [U1, U2, U3])
    assert [await history.end("chat", "t1", A1), await history.end("chat", "t1", A1)] == [True, True]
    assert await history.load("chat") == StoredChat("ann", [U1, A1, U2, U3])
    assert await history.end("chat", "t3", said("a3"))
    assert await history.end("chat", "t2", A2)
    assert await history.load("chat") == StoredChat("ann", [U1, A1, U2, A2, U3, said("a3")])
    assert [position for position, _, _ in await rows(database)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([U1], id="the question is asked again"),
        pytest.param([said("u1", "Edited")], id="the question is another"),
        pytest.param([U2], id="the question is gone"),
        pytest.param([U1, said("a1", "Half"), U2], id="the newer turn has the answer"),
    ],
)
async def test_an_answer_that_comes_late_changes_nothing_that_a_newer_turn_decided(
    history: History, messages: list[UIMessage]
):
    await history.begin("chat", "ann", "t1", [U1])
    await history.begin("chat", "ann", "t2", messages)
    assert not await history.end("chat", "t1", A1)
    assert await history.load("chat") == StoredChat("ann", messages)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (UIMessage("", "assistant", A1.parts), "The answer of a turn must have an id."),
        (
            UIMessage("a1", "assistant", [{"type": "tool-x", "toolCallId": "a\nb", "state": "input-available"}]),
            "The answer of a turn is broken: message.parts[0].toolCallId must be a string of 1 to 8192 characters "
            "without control characters.",
        ),
    ],
)
async def test_an_answer_that_could_not_be_read_again_is_refused(history: History, message: UIMessage, sentence: str):
    await history.begin("chat", "ann", "t1", [U1])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        await history.end("chat", "t1", message)
    assert str(caught.value) == sentence
    assert await history.load("chat") == StoredChat("ann", [U1])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "Input data was truncated"),
        ('{"id":', "Input data was truncated"),
        ("1e999", "Number out of range"),
        ("[" * 100_000, "maximum recursion depth exceeded while deserializing an object"),
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
    await history.begin("chat\n", "ann", "t1", [U1, A1, U2])
    await execute(database, "UPDATE usechat_messages SET body = :body WHERE position = 1", body=body)
    with pytest.raises(ValueError, match=r"^The stored message at position 1 of chat 'chat\\n' is broken: ") as caught:
        await history.load("chat\n")
    assert problem in str(caught.value)


async def test_a_broken_message_is_mended_by_a_turn_that_replaces_it(history: History, database: Database):
    await history.begin("chat", "ann", "t1", [U1, A1, U2])
    await execute(database, "UPDATE usechat_messages SET body = 'x' WHERE position = 1")
    await history.begin("chat", "ann", "t2", [U1, A1, U2])
    assert await history.load("chat") == StoredChat("ann", [U1, A1, U2])


async def test_text_that_is_not_utf_8_is_refused_like_any_broken_message(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    history = History(database)
    await history.begin("chat", "ann", "t1", [U1])
    await execute(database, "UPDATE usechat_messages SET body = CAST(x'227fff22' AS TEXT)")
    with pytest.raises(ValueError, match=r"^The stored message at position 0 of chat 'chat' is broken: "):
        await history.load("chat")
    await database.aclose()


async def test_a_message_that_somebody_deleted_leaves_the_others_alone(history: History, database: Database):
    await history.begin("chat", "ann", "t1", [U1, A1, U2])
    await execute(database, "DELETE FROM usechat_messages WHERE position = 1")
    await history.begin("chat", "ann", "t2", [U1, U2, U3])
    assert await rows(database) == [(0, "u1", "t1"), (2, "u2", "t1"), (3, "u3", "t2")]


@pytest.fixture(params=["file", "postgres"])
async def url_of_killed(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"sqlite:///{tmp_path}/{{}}.db"
    url: str = request.getfixturevalue("postgres").create()
    # The processes share it. With the tables there, all of them do the same steps.
    database = Database(url)
    await History(database).load("chat")
    await database.aclose()
    return url


@pytest.fixture
def left_by_killed(url_of_killed: str, tmp_path: Path) -> dict[str, int]:
    """How many acts were done in each chat."""
    subprocess.run([sys.executable, history_crash.__file__, str(tmp_path), url_of_killed], check=True)
    return {file.stem: file.stat().st_size for file in sorted(tmp_path.glob("*.done"))}


async def test_a_process_that_is_killed_at_any_step_leaves_whole_turns(
    url_of_killed: str, left_by_killed: dict[str, int]
):
    for chat, done in left_by_killed.items():
        database = Database(url_of_killed.format(chat))
        history = History(database)
        assert await history.load(chat) == history_crash.STATES[done]
        for act, state in zip(history_crash.ACTS[done:], history_crash.STATES[done + 1 :], strict=True):
            await act(history, chat)
            assert await history.load(chat) == state
        await database.aclose()
    assert sorted(set(left_by_killed.values())) == list(range(len(history_crash.STATES)))
