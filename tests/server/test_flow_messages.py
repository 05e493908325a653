"""A message to a chat whose flow runs: what becomes of it, and of the answer that is being written."""

import asyncio
from typing import Any

import msgspec
import pytest

from support.hang import HANG_SECONDS
from support.loopback import message
from usechat.errors import RequestError
from usechat.flows import FlowRuntime, NodeContext
from usechat.protocol.requests import decode_request
from usechat.server.endpoint import ChatEndpoint
from usechat.stores import Reader
from usechat.transports import OpenHarnessChatTransport
from usechat.turns.settings import ChatSettings, Conflict

pytestmark = pytest.mark.anyio

FLOW = {
    "name": "one",
    "nodes": [{"id": "a", "type": "talk", "input": {"message": "{{ flow.input.message }}"}}],
    "edges": [],
}


class Server:
    """Chats with a flow that says each message as often as it was let go on."""

    def __init__(self, history: Any = None, *, conflict: Conflict = "replace") -> None:
        self.go_on = asyncio.Event()
        self.heard: list[str] = []
        transport = OpenHarnessChatTransport(lambda: FlowRuntime(FLOW, {"talk": self._talk}))
        self.chats = ChatEndpoint(transport, history=history, settings=ChatSettings(conflict=conflict)).chats

    async def send(self, message_id: str, text: str, **body: Any) -> Reader | str:
        sent = {**message(text), **body}
        sent["messages"][0]["id"] = message_id
        try:
            return await self.chats.begin(decode_request(msgspec.json.encode(sent)), "ann", {})
        except RequestError as error:
            return f"{error.status} {error}"

    async def _talk(self, context: NodeContext, value: dict[str, Any]) -> None:
        self.heard.append(value["message"])
        context.emit({"type": "agent:text:delta", "content": value["message"]})
        await self.go_on.wait()
        context.emit({"type": "agent:text:delta", "content": " and on"})


async def end_of(reader: Reader | str) -> str:
    assert isinstance(reader, Reader)
    async with asyncio.timeout(HANG_SECONDS):
        while reader.log.outcome is None:
            await reader.log.changed()
    return "".join(frame.decode() for frame in reader.log.frames)


@pytest.mark.parametrize("history", [None, "client"])
async def test_the_answer_of_a_flow_that_takes_no_messages_goes_on_and_the_message_is_refused(history: Any) -> None:
    server = Server(history)
    first = await server.send("m1", "one")
    for number in range(2, 5):
        assert await server.send(f"m{number}", "two") == "409 An answer is still being written in this chat."
    server.go_on.set()
    said = await end_of(first)
    assert " and on" in said
    assert '"finishReason":"stop"' in said
    await end_of(await server.send("m9", "three"))
    assert server.heard == ["one", "three"]


@pytest.mark.parametrize("body", [{"trigger": "regenerate-message"}, {"messageId": "m1"}, {}])
async def test_to_answer_the_same_message_anew_ends_the_answer_that_is_being_written(body: dict[str, Any]) -> None:
    server = Server()
    first = await server.send("m1", "one")
    again = await server.send("m1", "one", **body)
    assert '"type":"abort"' in await end_of(first)
    server.go_on.set()
    assert '"finishReason":"stop"' in await end_of(again)


async def test_where_messages_wait_in_line_one_to_a_flow_does_so() -> None:
    server = Server(conflict="queue")
    first = await server.send("m1", "one")
    second = asyncio.create_task(server.send("m2", "two"))
    server.go_on.set()
    assert " and on" in await end_of(first)
    assert '"finishReason":"stop"' in await end_of(await second)
    assert server.heard == ["one", "two"]


@pytest.mark.parametrize("conflict", ["replace", "queue", "reject"])
async def test_a_node_that_waits_for_a_message_is_given_it_whatever_becomes_of_others(conflict: Conflict) -> None:
    class Asking(Server):
        async def _talk(self, context: NodeContext, value: dict[str, Any]) -> None:
            if value["message"] == "one":
                self.waits.set()
                value = await context.inbox.next()
            self.heard.append(value["message"])

        waits = asyncio.Event()

    server = Asking(conflict=conflict)
    await server.send("m1", "one")
    async with asyncio.timeout(HANG_SECONDS):
        await server.waits.wait()
    second = await server.send("m2", "two")
    assert '"finishReason":"stop"' in await end_of(second)
    assert server.heard == ["two"]
