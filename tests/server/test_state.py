"""`chat.state`: what an agent keeps from turn to turn."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.driving import new_chat, user
from support.graph_chats import GraphChat
from support.hang import HANG_SECONDS
from usechat import Chat, ToolCall, ToolResult
from usechat.database import Database
from usechat.events import AgentEvent
from usechat.history import History, HistoryStore, MemoryHistory
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import STATE_LIMIT
from usechat.turns.pending import PendingTurn

pytestmark = pytest.mark.anyio

NUMBERS = count(1)
NO_JSON = r"^chat\.state must be JSON: dicts whose keys are strings, lists, .* Convert what you keep there"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[HistoryStore]:
    if request.param == "memory":
        yield MemoryHistory()
        return
    is_file = request.param == "sqlite"
    database = Database(
        f"sqlite:///{tmp_path}/c.db" if is_file else request.getfixturevalue("postgres").create_tables()
    )
    yield History(database)
    await database.aclose()


class Talk(GraphChat):
    """A chat with an agent that notes the state that it sees, does `does`, and speaks."""

    def __init__(self, history: HistoryStore | None = None) -> None:
        self.does: Callable[[Chat], None] = lambda chat: None
        self.seen: list[Any] = []
        super().__init__(self._agent, history=history)

    async def _agent(self, chat: Chat) -> AsyncIterator[AgentEvent]:
        self.seen.append(chat.state)
        self.does(chat)
        if chat.text != "silence":
            yield "Hello. "
        if chat.text == "fail":
            raise ValueError
        if chat.text == "stay":
            await asyncio.Event().wait()

    async def sees(self) -> Any:
        """The state that the next turn sees."""
        self.does = lambda chat: None
        await self.say("And now?", message_id=f"sees {next(NUMBERS)}")
        return self.seen[-1]


def sets(value: Any) -> Callable[[Chat], None]:
    def do(chat: Chat) -> None:
        chat.state = value

    return do


async def test_a_turn_sees_the_state_that_the_one_before_has_set(history: HistoryStore):
    value: Any = {"ids": [1 << 80, 2.5, None, True], "\x00": "ü \U0001f600", "deep": {"__proto__": [[0]]}}
    talk, other = Talk(history), Talk(history)
    steps: list[tuple[Talk, Any]] = [(talk, value), (other, "text"), (talk, 0), (other, [])]
    for one, given in steps:
        one.does = sets(given)
        await one.say("Hello", message_id=f"set {given}")
        assert await other.sees() == given
    talk.does = sets(None)
    await talk.say("Forget", message_id="forget")
    assert await other.sees() is None
    assert talk.seen == [None, "text", []]


async def test_a_state_that_was_changed_in_place_is_stored(history: HistoryStore):
    talk = Talk(history)
    talk.does = sets({"n": 0})
    await talk.say("Begin")

    def add_one(chat: Chat) -> None:
        chat.state["n"] += 1

    talk.does = add_one
    await talk.say("One")
    await talk.say("Two")
    assert await talk.sees() == {"n": 2}


@pytest.mark.parametrize("text", ["fail", "stay", "silence"])
async def test_what_was_set_is_stored_also_if_the_turn_fails_is_stopped_or_says_nothing(
    history: HistoryStore, text: str
):
    talk = Talk(history)
    talk.does = sets(text)
    reader = await talk.begin(UIMessage("u0", "user", [{"type": "text", "text": text}]))
    while b"Hello" not in b"".join(reader.log.frames) and reader.log.outcome is None:
        await reader.log.changed()
    await talk.endpoint.chats.stop("chat", None, None)
    assert await talk.sees() == text


async def test_answering_again_sees_the_state_before_the_answer_that_goes(history: HistoryStore):
    talk = Talk(history)
    for number, text in enumerate(("one", "two", "silence")):
        talk.does = sets(text)
        await talk.say(text, message_id=f"u{number}")
    talk.does = lambda chat: None
    messages = {message.id: message for message in await talk.messages()}
    # Again after silence, the second one again, the second one edited, the first one edited.
    await talk.post(messages["u2"], "regenerate-message")
    await talk.post(messages["u1"], "regenerate-message")
    await talk.say("two, edited", message_id="u1")
    await talk.say("one, edited", message_id="u0")
    assert talk.seen == [None, "one", "two", "two", "one", "one", None]


async def test_a_turn_that_goes_on_after_an_approval_sees_the_state_of_the_message(history: HistoryStore):
    seen: list[Any] = []

    class Cleaner:
        async def admit(self, pending: PendingTurn) -> Any:
            return pending.state

        def translator(self, _: Chat) -> None:
            pass

        async def run(self, chat: Chat) -> AsyncIterator[AgentEvent]:
            seen.append([chat.admitted, chat.state])
            if not chat.approvals:
                yield ToolCall("call", "rm", {"file": "a"})
                chat.write.approval_request("call", approval_id="p")
            for approval in chat.approvals:
                yield ToolResult(approval.call_id, "deleted")
            chat.state = {"run": len(seen)}

    talk = GraphChat(Cleaner(), history=history)
    for _ in range(2):
        await talk.say("Clean up")
        await talk.answer({"call": {"approved": True}})
    assert seen == [[None] * 2, [{"run": 1}] * 2, [{"run": 2}] * 2, [{"run": 3}] * 2]


async def test_threads_may_set_the_state(history: HistoryStore):
    def agent(chat: Chat) -> str:
        chat.state = (chat.state or 0) + 1
        return str(chat.state)

    talk = GraphChat(agent, history=history)
    for _ in range(3):
        await talk.say("Count")
    assert [message.text for message in await talk.messages()][1::2] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "value",
    [date(2026, 1, 1), {1: 2}, {"a": (1, 2)}, {"a": {1}}, math.nan, b"bytes", "\ud800", object(), Chat, ...],
)
async def test_what_is_no_json_is_refused_where_it_is_set(value: Any):
    raised = list[Exception]()

    def do(chat: Chat) -> None:
        chat.state = "kept"
        try:
            chat.state = value
        except TypeError as error:
            raised.append(error)

    talk = Talk()
    talk.does = do
    await talk.say("Hello")
    with pytest.raises(TypeError, match=NO_JSON):
        raise raised[0]
    assert await talk.sees() == "kept"


async def test_a_cycle_is_no_json():
    value: list[Any] = []
    value.append(value)
    await test_what_is_no_json_is_refused_where_it_is_set(value)


async def test_a_state_of_1_mb_is_kept_and_a_larger_one_refused_where_it_is_set(history: HistoryStore):
    largest = "x" * (STATE_LIMIT - 2)
    raised = list[Exception]()

    def do(chat: Chat) -> None:
        chat.state = largest
        try:
            chat.state = largest + "x"
        except ValueError as error:
            raised.append(error)

    talk = Talk(history)
    talk.does = do
    await talk.say("Hello")
    [error] = raised
    assert str(error) == (
        "chat.state must be at most 1 MB as JSON, and this is 1,048,577 bytes. Keep large values in a database of your "
        "own, and their ids here."
    )
    assert await talk.sees() == largest


async def test_a_state_that_became_no_json_in_place_stays_as_it_was_before_the_turn(caplog: pytest.LogCaptureFixture):
    talk = Talk()
    talk.does = sets({"n": 1})
    await talk.say("Hello")
    talk.does = lambda chat: chat.state.update(n={1})
    await talk.say("Hello")
    [line] = [record.getMessage() for record in caplog.records if "chat.state" in record.getMessage()]
    assert line.startswith("chat.state stays as it was before the turn: chat.state must be JSON")
    assert await talk.sees() == {"n": 1}


async def test_a_state_that_is_set_after_the_end_of_the_message_is_not_stored(caplog: pytest.LogCaptureFixture):
    ended = asyncio.Event()

    async def agent(chat: Chat) -> None:
        chat.state = "before"
        chat.write.text("That is all.")
        chat.write.finish()
        chat.state = "after"
        ended.set()

    history = MemoryHistory()
    await GraphChat(agent, history=history).say("Hello")
    async with asyncio.timeout(HANG_SECONDS):
        await ended.wait()
    assert [record.getMessage() for record in caplog.records if "chat.state" in record.getMessage()] == [
        "chat.state was set after the end of its message, and is not stored: set it before"
    ]
    assert await Talk(history).sees() == "before"


class Stateless:
    """A history of an app's own that was written before there was a state."""

    def __init__(self) -> None:
        self._inner = MemoryHistory()
        self.ping, self.read, self.begin = self._inner.ping, self._inner.read, self._inner.begin
        self.has_ended, self.load, self.load_json = self._inner.has_ended, self._inner.load, self._inner.load_json
        self.chats, self.delete = self._inner.chats, self._inner.delete

    async def end(self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None) -> bool:
        return await self._inner.end(chat_id, turn_id, epoch, message)


class Off(MemoryHistory):
    keeps_state = False


@pytest.mark.parametrize("history", ["client", Stateless(), Off()])
async def test_where_nothing_keeps_a_state_it_reads_none_and_says_so_when_it_is_set(history: Any):
    said: list[tuple[Any, str]] = []

    async def agent(chat: Chat) -> str:
        try:
            chat.state = 1
        except RuntimeError as error:
            said.append((chat.state, str(error)))
        return "Hello."

    endpoint = ChatEndpoint(agent, history=history)
    for number in range(2):
        asked = UIMessage(f"u{number}", "user", [{"type": "text", "text": "Hello"}])
        reader = await endpoint.chats.begin(ChatRequest(id="chat", last=asked), None, {})
        while reader.log.outcome is None:
            await reader.log.changed()
        assert reader.log.outcome == "done"
        reader.leave()
    sentence = (
        "chat.state cannot be set here, because nothing keeps it. Serve the agent with chats in memory or in a "
        'database: history="client", flows, AgentTransport and a HistoryStore without keeps_state keep no state.'
    )
    assert said == [(None, sentence)] * 2


async def test_a_chat_outside_a_server_has_no_state():
    chat = new_chat(user("Hello"))
    assert chat.state is None
    with pytest.raises(RuntimeError, match="nothing keeps it"):
        chat.state = 1


async def test_a_deleted_chat_leaves_no_state(history: HistoryStore):
    talk = Talk(history)
    talk.does = sets(1)
    await talk.say("Hello")
    await talk.endpoint.chats.delete("chat", None)
    assert await talk.sees() is None
