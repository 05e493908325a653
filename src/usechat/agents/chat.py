"""What an agent is given: the chat that it answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import Trigger
from usechat.protocol.writer import MessageWriter
from usechat.turns import Turn

__all__ = ["Approval", "Chat", "Request", "ToolAnswer", "live_writer"]


class ToolAnswer(Struct, frozen=True):
    """What the browser answered to a tool call: an output, or the text of an error."""

    call_id: str
    tool: str
    input: Any
    output: Any = None
    error: str | None = None


class Approval(Struct, frozen=True):
    """What the user answered to a call that waited for approval. `extra` is the body's richer answer, if any."""

    id: str
    call_id: str
    tool: str
    input: Any
    approved: bool
    reason: str | None = None
    extra: Any = None


class Request(Struct, frozen=True):
    """What came with the request: the body's fields beside the protocol's, and the headers, by lower-case name."""

    body: Mapping[str, Any]
    headers: Mapping[str, str]


class Chat(Struct, frozen=True, kw_only=True):
    """One turn of a chat, as its agent sees it.

    `messages` end with the message to answer; `continues` is the assistant message that the turn goes on with, after
    the browser answered its tool calls or the user its approvals. `stopping` is set when somebody stops the turn.
    `write` has the methods of `MessageWriter`, for any thread; what is written after the end is dropped.
    """

    id: str
    text: str
    messages: list[UIMessage]
    request: Request
    user: str | None
    trigger: Trigger
    continues: UIMessage | None
    tool_results: list[ToolAnswer]
    approvals: list[Approval]
    stopping: asyncio.Event
    client: ClientName
    write: MessageWriter


def live_writer(turn: Turn) -> MessageWriter:
    """A writer whose methods write to the turn's log at once, from any thread."""
    return cast("MessageWriter", _LiveWriter(turn))


class _LiveWriter:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        method = getattr(self._turn.writer, name)

        def write(*arguments: Any, **options: Any) -> list[Any]:
            self._turn.say(method, *arguments, **options)
            return []

        return write
