"""The agents of the test server: what the user says is the name of what the agent does."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeAlias

import msgspec

from usechat.events import AgentEvent, Reasoning, ToolCall, ToolError, ToolProgress, ToolResult
from usechat.turns.chat import Chat

__all__ = ["SECRET", "agent", "hold", "let_go", "seen"]

SECRET: Final = "the password is swordfish"  # noqa: S105

_Events: TypeAlias = AsyncGenerator[AgentEvent, None]

# Of each chat: how many turns it had, what the last ones were given, and the gate at which its agent waits.
_turns: Counter[str] = Counter()
_seen: defaultdict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=8))
_gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))


def seen(chat_id: str) -> list[Any]:
    """What the agents of a chat were given, turn by turn, and that they were cancelled."""
    return list(_seen[chat_id])


def let_go(chat_id: str) -> None:
    """Open the gate of a chat once, whether its agent is there already or not."""
    _gates[chat_id].release()


async def hold(chat_id: str) -> None:
    """Wait until the gate of the chat is opened."""
    await _gates[chat_id].acquire()


async def agent(chat: Chat) -> _Events:
    _turns[chat.id] += 1
    _seen[chat.id].append(
        {
            "trigger": chat.trigger,
            "messages": [message.text for message in await chat.history()],
            "continues": chat.continues.id if chat.continues else None,
            "tool_results": msgspec.to_builtins(chat.tool_results),
            "approvals": msgspec.to_builtins(chat.approvals),
            "extra": chat.request.body,
            "user": chat.user,
        }
    )
    try:
        async for event in _SCRIPTS.get(chat.text, _answer)(chat):
            yield event
    except asyncio.CancelledError:
        _seen[chat.id].append("cancelled")
        raise


async def _answer(chat: Chat) -> _Events:
    yield f"Answer {_turns[chat.id]} "
    yield f"to {chat.text[:20]}."


async def _everything(chat: Chat) -> _Events:
    write = chat.write
    write.metadata({"model": "m-1"})
    yield Reasoning("Let me ")
    yield Reasoning("see.")
    yield "I look it up."
    yield ToolCall("call-1", "weather", {"city": "Paris"})
    yield ToolProgress("call-1", {"degrees": None})
    yield ToolResult("call-1", {"degrees": 21.5})
    write.tool_input_start("call-2", "traffic")
    for delta in ('{"road"', ': "A', '4"}'):
        write.tool_input_delta("call-2", delta)
    write.tool_input("call-2", "traffic", {"road": "A4"})
    yield ToolError("call-2", "The road is closed.")
    write.source_url("https://example.com/a", title="A", source_id="source-1")
    write.source_document("Report", "application/pdf", filename="report.pdf", source_id="source-2")
    write.file("data:text/plain;base64,aGk=", "text/plain")
    write.data("progress", {"done": 1}, id="p")
    write.data("progress", {"done": 2}, id="p")
    write.data("toast", "Saved.", transient=True)
    yield "It is warm."
    write.metadata({"tokens": 12})


async def _unhurried(chat: Chat) -> _Events:
    """Everything, with pauses in which connections can break, and with characters of several bytes."""
    for word in ("Zuerst ", "прежде ", "まず", "👩🏽‍🚀 ", "a\u2028b\u0085c\r\n\nid: x\ndata: y", ' "\\"'):
        yield Reasoning(word)
        yield f"{word}!"
        await asyncio.sleep(0.001)
    async for event in _everything(chat):
        yield event
        await asyncio.sleep(0.001)
    for number in range(15):
        yield f"{number} Wörter, "
        await asyncio.sleep(0.001)
    yield "a long one: " + "☃ " * 500


async def _unhurried_and_hold(chat: Chat) -> _Events:
    async for event in _unhurried(chat):
        yield event
    await hold(chat.id)
    yield "The end."


async def _failure(chat: Chat) -> _Events:
    yield Reasoning("Let me see.")
    yield "It begins well, "
    yield ToolCall("call-1", "weather", {"city": "Paris"})
    raise ValueError(SECRET)


async def _hold_in_the_middle(chat: Chat) -> _Events:
    yield "One, "
    await hold(chat.id)
    yield "two."


async def _hold_everywhere(chat: Chat) -> _Events:
    await hold(chat.id)
    yield Reasoning("First ")
    await hold(chat.id)
    yield Reasoning("second.")
    chat.write.data("progress", 1, id="p")
    chat.write.tool_input_start("call-1", "weather")
    chat.write.tool_input_delta("call-1", '{"city": "Pa')
    await hold(chat.id)
    chat.write.tool_input_delta("call-1", 'ris"}')
    yield ToolCall("call-1", "weather", {"city": "Paris"})
    yield ToolProgress("call-1", "cold")
    await hold(chat.id)
    yield ToolResult("call-1", "warm")
    chat.write.data("progress", 2, id="p")
    chat.write.metadata({"tokens": 12})
    yield "Third "
    await hold(chat.id)
    yield "fourth."


async def _browser_tool_and_hold(chat: Chat) -> _Events:
    if chat.tool_results:
        yield "You are "
        await hold(chat.id)
        yield "there."
        return
    async for event in _browser_tool(chat):
        yield event


async def _browser_tool(chat: Chat) -> _Events:
    if chat.tool_results:
        yield "You are in " + ", ".join(str(result.error or result.output) for result in chat.tool_results) + "."
        return
    yield "Where are you?"
    yield ToolCall("call-1", "location", {"precise": True})


async def _two_browser_tools(chat: Chat) -> _Events:
    async for event in _browser_tool(chat):
        yield event
    if not chat.tool_results:
        yield ToolCall("call-2", "location", {"precise": True})


async def _odd_numbers(chat: Chat) -> _Events:
    if chat.tool_results:
        yield "You are in Paris."
    else:
        yield ToolCall("call-1", "location", {"one": 1.0, "zero": -0.0, "small": 5e-324, "big": 1e300})


async def _approval(chat: Chat) -> _Events:
    for answer in chat.approvals:
        if answer.approved:
            yield ToolResult(answer.call_id, "deleted")
            yield "It is gone."
        else:
            chat.write.tool_denied(answer.call_id)
            yield f"It stays: {answer.reason}"
    if not chat.approvals:
        yield "May I?"
        chat.write.tool_input("call-1", "delete", {"file": "a.txt"})
        chat.write.approval_request("call-1", approval_id="approval-1")


async def _approval_and_hold(chat: Chat) -> _Events:
    if chat.approvals:
        chat.write.data("note", "I ask.")
        await hold(chat.id)
    async for event in _approval(chat):
        yield event


async def _long(chat: Chat) -> _Events:
    for number in range(int(chat.request.body["lines"])):
        yield f"{number:1023}\n"
    chat.write.end_part()
    await hold(chat.id)
    yield "The end."


_SCRIPTS: Final[dict[str, Callable[[Chat], _Events]]] = {
    "everything": _everything,
    "unhurried": _unhurried,
    "unhurried and hold": _unhurried_and_hold,
    "failure": _failure,
    "hold": _hold_in_the_middle,
    "hold everywhere": _hold_everywhere,
    "browser tool": _browser_tool,
    "browser tool and hold": _browser_tool_and_hold,
    "two browser tools": _two_browser_tools,
    "odd numbers": _odd_numbers,
    "approval": _approval,
    "approval and hold": _approval_and_hold,
    "long": _long,
}
