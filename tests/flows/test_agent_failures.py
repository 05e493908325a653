"""What an agent node does when its agent, or the translator of its events, does something wrong."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

import pytest

from flows.play import Play, flow, node
from support.hang import HANG_SECONDS
from usechat import AgentEvent, Chat
from usechat.errors import AgentError, LocalProtocolError, MappingError
from usechat.flows import NodeContext, agent_node
from usechat.turns.pump import Unused

pytestmark = pytest.mark.anyio

ASKED = flow([node("a", "agent", {"prompt": "Hi"})])


class Picky:
    """An agent whose translator knows words, passes over numbers and fails at anything else."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def translator(self, _chat: Chat) -> "Picky":
        return self

    def translate(self, event: Any) -> list[AgentEvent]:
        if isinstance(event, int):
            raise MappingError(f"There is no event {event}.")
        return [event["word"]]

    def end(self) -> list[AgentEvent]:
        return []


async def play(agent: Any) -> Play:
    played = Play(ASKED, {"agent": agent_node(agent)})
    await asyncio.wait_for(played.run(), HANG_SECONDS)
    return played


def failed(sentence: str) -> list[str]:
    return [f"agent:error a {sentence}", f"node:error a {sentence}", "flow:complete failed"]


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_translator_that_fails_fails_the_node(in_a_thread: bool):
    async def agent(_chat: Chat) -> AsyncGenerator[Any]:
        yield {"word": "Hello"}
        yield {}
        yield {"word": "never"}

    def sync_agent(_chat: Chat) -> Iterator[Any]:
        yield from ({"word": "Hello"}, {}, {"word": "never"})

    played = await play(Picky(sync_agent if in_a_thread else agent))
    assert played.lines("agent:text:delta") == ["agent:text:delta a Hello"]
    assert played.lines()[-3:] == failed("'word'")


async def test_events_of_no_use_are_counted_by_the_runtime_and_logged_once_a_kind(caplog: pytest.LogCaptureFixture):
    async def agent(_chat: Chat) -> AsyncGenerator[Any]:
        for number in (1, 2, 1):
            yield number
        yield {"word": "fine"}

    played = Play(ASKED, {"agent": agent_node(Picky(agent))})
    counted: list[None] = []
    played.runtime.unused = Unused(lambda: counted.append(None))
    await played.run()
    assert played.lines("agent:text:delta") == ["agent:text:delta a fine"]
    assert played.lines()[-1] == "flow:complete complete"
    assert played.runtime.unused.counts == {"There is no event 1.": 2, "There is no event 2.": 1}
    assert [record.message for record in caplog.records] == ["There is no event 1.", "There is no event 2."]
    assert len(counted) == 3


async def test_to_yield_something_that_is_no_event_fails_the_node():
    async def agent(_chat: Chat) -> AsyncGenerator[Any]:
        yield 7
        yield "fine"

    played = await play(agent)
    assert played.lines("agent:text") == []
    assert played.lines()[-3:] == failed("An agent cannot yield a value of type int.")


@pytest.mark.parametrize("kind", ["generator", "coroutine", "sync generator", "function"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration])
async def test_whatever_an_agent_raises_fails_its_node_and_nothing_else(kind: str, error: type[BaseException]):
    async def generator(_chat: Chat) -> AsyncGenerator[str]:
        yield "So"
        raise error("leave")

    async def coroutine(_chat: Chat) -> None:
        raise error("leave")

    def sync_generator(_chat: Chat) -> Generator[str]:
        yield "So"
        raise error("leave")

    def function(_chat: Chat) -> None:
        raise error("leave")

    agents = {"generator": generator, "coroutine": coroutine, "sync generator": sync_generator, "function": function}
    played = await play(agents[kind])
    kinds = [line.split(" ")[0] for line in played.lines()]
    assert kinds[-3:] == ["agent:error", "node:error", "flow:complete"]
    assert played.lines()[-1] == "flow:complete failed"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_whatever_any_node_raises_fails_it_and_nothing_else(error: type[BaseException]):
    async def leaves(_context: NodeContext, _value: dict[str, Any]) -> None:
        raise error("leave")

    played = Play(ASKED, {"agent": leaves})
    await asyncio.wait_for(played.run(), HANG_SECONDS)
    assert played.lines()[-2:] == ["node:error a leave", "flow:complete failed"]


@pytest.mark.parametrize(("error", "kind"), [(AgentError, "AgentError"), (RuntimeError, "exception")])
async def test_only_a_text_that_is_meant_for_the_user_is_told_as_such(error: type[Exception], kind: str):
    async def agent(_chat: Chat) -> None:
        raise error("no credit")

    played = await play(agent)
    [told] = [event for event in played.events if event["type"] == "agent:error"]
    assert (told["errorType"], told["message"]) == (kind, "no credit")


async def test_what_threads_and_the_loop_write_is_told_in_the_order_of_writing():
    async def agent(chat: Chat) -> None:
        for number in range(0, 20, 2):
            thread = threading.Thread(target=chat.write.text, args=(str(number),))
            thread.start()
            # The loop does not run meanwhile.
            thread.join()
            chat.write.text(str(number + 1))

    played = await play(agent)
    assert played.lines("agent:text:delta") == [f"agent:text:delta a {number}" for number in range(20)]


async def test_what_is_illegal_raises_where_it_is_written_also_in_a_thread():
    raised: list[str] = []

    def agent(chat: Chat) -> str:
        with pytest.raises(LocalProtocolError) as caught:
            chat.write.tool_output("nobody-called", 1)
        raised.append(caught.value.chunk)
        return "fine"

    played = await play(agent)
    assert raised == ["tool-output-available"]
    assert played.lines()[-1] == "flow:complete complete"


async def test_an_error_that_a_thread_writes_ends_an_agent_that_waits():
    closed: list[bool] = []

    async def agent(chat: Chat) -> AsyncGenerator[str]:
        try:
            yield "So"
            threading.Thread(target=chat.write.fail, args=("no credit",)).start()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    played = await play(agent)
    assert played.lines()[-3:] == failed("no credit")
    assert closed == [True]


async def test_a_message_that_a_thread_ends_is_answered_after_the_next_command():
    told = asyncio.Event()

    async def agent(chat: Chat) -> AsyncGenerator[str]:
        yield f"To {chat.text}"
        await told.wait()
        threading.Thread(target=chat.write.finish).start()
        await asyncio.Event().wait()

    played = Play(ASKED, {"agent": agent_node(agent)})
    run = asyncio.create_task(played.run())
    run_id = (await played.until("agent:text:delta a To Hi"))["runId"]
    played.runtime.dispatch({"type": "send", "runId": run_id, "message": "two"})
    told.set()
    output = (await asyncio.wait_for(run, HANG_SECONDS)).outputs["a"]
    assert (output["text"], output["numTurns"]) == ("To two", 2)
