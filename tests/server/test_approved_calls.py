"""A turn that goes on after an approval: every way to name the approved call means that one."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from support.graph_chats import GraphChat
from support.loopback import STEP
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.protocol.chunks import ToolInputAvailable, ToolOutputAvailable
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio

INPUT = {"files": ["a", 1]}


def yields_the_call_again(chat: Chat) -> list[AgentEvent]:
    return [ToolCall("c", "rm", INPUT), ToolResult("c", "gone")]


def yields_the_chunks_again(chat: Chat) -> list[AgentEvent]:
    return [ToolInputAvailable("c", "rm", INPUT), ToolOutputAvailable("c", "gone")]


def yields_them_as_another_bridge_does(chat: Chat) -> list[AgentEvent]:
    called = {"type": "tool-input-available", "toolCallId": "c", "toolName": "rm", "input": INPUT}
    return [{"type": "start-step"}, called, {"type": "tool-output-available", "toolCallId": "c", "output": "gone"}]


def writes_it_again(chat: Chat) -> list[AgentEvent]:
    chat.write.tool_input("c", "rm", INPUT)
    chat.write.tool_output("c", "gone")
    return []


@pytest.mark.parametrize(
    "go_on", [yields_the_call_again, yields_the_chunks_again, yields_them_as_another_bridge_does, writes_it_again]
)
async def test_an_approved_call_that_is_named_again_is_carried_out(go_on: Callable[[Chat], list[AgentEvent]]) -> None:
    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
        if chat.approvals:
            for event in go_on(chat):
                yield event
            yield "Done."
        else:
            yield ToolCall("c", "rm", INPUT)
            chat.write.approval_request("c")

    chat = GraphChat(agent)
    await chat.say("Remove them")
    approvals = await chat.approvals()
    chunks: list[Any] = await chat.answer({"c": {"approved": True}})
    assert [chunk["type"] for chunk in chunks if chunk["type"].startswith("tool-")] == ["tool-output-available"]
    done: dict[str, Any] = {
        "type": "tool-rm",
        "toolCallId": "c",
        "state": "output-available",
        "input": INPUT,
        "output": "gone",
    }
    done["approval"] = {"id": approvals["c"], "approved": True}
    assert [part for part in (await chat.messages())[-1].parts if part != STEP] == [
        done,
        {"type": "text", "text": "Done.", "state": "done"},
    ]
