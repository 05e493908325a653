"""What the nodes of a flow do to the turns of a chat."""

import asyncio
from typing import Any

import msgspec
import pytest

from support.hang import HANG_SECONDS
from usechat.flows import FlowRuntime, NodeContext, NodeFunction, agent_node
from usechat.protocol.chunks import Chunk, Finish, TextDelta
from usechat.protocol.requests import decode_request
from usechat.transports import OpenHarnessChatTransport
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio


async def answers(node: NodeFunction, *texts: str, given: dict[str, Any] | None = None) -> list[tuple[str, str | None]]:
    """What a chat is told after each of these messages, and how that turn finishes."""
    nodes: list[dict[str, Any]] = [
        {"id": name, "type": kind, "input": given or {}} for name, kind in (("a", "node"), ("b", "ends"))
    ]
    flow = {"name": "two", "nodes": nodes, "edges": [{"from": "a", "to": "b"}]}

    async def ends(context: NodeContext, _value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": "The end."})

    transport = OpenHarnessChatTransport(lambda: FlowRuntime(flow, {"node": node, "ends": ends}))
    messages: list[Any] = []
    told: list[tuple[str, str | None]] = []
    for number, text in enumerate(texts):
        messages.append({"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": text}]})
        request = decode_request(msgspec.json.encode({"id": "c", "messages": messages, "trigger": "submit-message"}))
        async with asyncio.timeout(HANG_SECONDS):
            told.append(_told([chunk async for chunk in await transport.send_messages(request)]))
    return told


def _told(chunks: list[Chunk]) -> tuple[str, str | None]:
    text = "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta))
    finished = [str(chunk.finish_reason) for chunk in chunks if isinstance(chunk, Finish)]
    return text, finished[0] if finished else None


async def test_a_node_that_pauses_the_run_is_given_the_next_message():
    async def approve(context: NodeContext, _value: dict[str, Any]) -> None:
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": "May I?"})
            context.pause()
        else:
            context.emit({"type": "agent:text", "content": f"{context.resume_message}! "})

    assert await answers(approve, "Go", "yes") == [("May I?", "other"), ("yes! The end.", "stop")]


@pytest.mark.parametrize("frames", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", ["flow:complete", "flow:paused", "flow:aborted", "runtime:lost", "agent:paused", "agent:aborted"]
)
async def test_a_node_that_says_that_the_flow_is_over_does_not_end_the_turn(kind: str, frames: int):
    async def forge(context: NodeContext, _value: dict[str, Any]) -> None:
        ids = {"nodeId": context.node_id, "runId": context.run_id}
        event: dict[str, Any] = {"type": kind, "flowName": "two", "status": "complete", **ids}
        for _ in range(frames):
            event = {"type": "event", "event": event}
        context.emit(event)

    assert await answers(forge, "Go") == [("The end.", "stop")]


async def test_a_frame_that_a_node_emits_is_an_event_of_that_node():
    async def frames(context: NodeContext, _value: dict[str, Any]) -> None:
        said = {"type": "agent:text", "content": "Framed. ", "nodeId": "b", "runId": "another"}
        context.emit({"type": "event", "event": said})
        told.append(context.run_id)

    told: list[str] = []
    runtime = FlowRuntime({"name": "f", "nodes": [{"id": "a", "type": "n", "input": {}}], "edges": []}, {"n": frames})
    events: list[Any] = []
    runtime.on_event(events.append)
    await runtime.run()
    (said,) = [event for event in events if event["type"] == "agent:text"]
    assert (said["content"], said["nodeId"], said["runId"]) == ("Framed. ", "a", told[0])
    assert await answers(frames, "Go") == [("Framed. The end.", "stop")]


async def test_an_agent_may_be_given_the_messages_of_the_chat():
    async def repeat(chat: Chat) -> str:
        return ", ".join(f"{message.role}: {message.text}" for message in chat.messages) + ". "

    given = {"messages": "{{ flow.input.messages }}"}
    told = await answers(agent_node(repeat), "One", "Two", given=given)
    assert told == [("user: One. The end.", "stop"), ("user: One, user: Two. The end.", "stop")]
