"""What an agent is given: the chat that it answers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct

from usechat.agents.writing import ChatWriter
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import ModelMessage, to_model_messages
from usechat.protocol.requests import Trigger
from usechat.stores import StopReason
from usechat.turns.output import Output

__all__ = ["Approval", "Chat", "Request", "RunOptions", "ToolAnswer", "TurnControl"]


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
    """What came with the request: the body's fields beside the protocol's, and the headers, by lower-case name.

    `context` is what a route of its own has found out for its agent.
    """

    body: Mapping[str, Any]
    headers: Mapping[str, str]
    context: Any = None


class RunOptions(Struct, frozen=True):
    """The context of a request whose route says itself which thread it belongs to, and in which state that begins."""

    state: Any = None
    thread_id: str | None = None


class TurnControl(Protocol):
    """What a chat needs of whatever runs its agent."""

    output: Output
    stopped: StopReason | None

    @property
    def stopping(self) -> asyncio.Event: ...

    def hold(self) -> AbstractContextManager[None]: ...

    def touch(self) -> None: ...


class Chat:
    """One turn of a chat, as its agent sees it.

    `messages` are those that are loaded, of which the last is the one to answer; `await chat.history()` loads all of
    them. `continues` is the assistant message that the turn goes on with, after the browser answered its tool calls or
    the user its approvals. `stopping` is set when the turn is stopped, and `stopped` says why. `write` has the methods
    of `MessageWriter`, for any thread; what is written after the end is dropped.
    """

    __slots__ = (
        "_load",
        "_loop",
        "_thread",
        "_turn",
        "approvals",
        "client",
        "continues",
        "id",
        "messages",
        "request",
        "text",
        "tool_results",
        "trigger",
        "user",
        "write",
    )

    def __init__(
        self,
        turn: TurnControl,
        *,
        id: str,  # noqa: A002
        text: str,
        messages: list[UIMessage],
        request: Request,
        client: ClientName,
        user: str | None = None,
        trigger: Trigger = "submit-message",
        continues: UIMessage | None = None,
        tool_results: list[ToolAnswer] | None = None,
        approvals: list[Approval] | None = None,
        load: Callable[[], Awaitable[list[UIMessage]]] | None = None,
    ) -> None:
        self.id = id
        self.text = text
        self.messages = messages
        self.request = request
        self.client: ClientName = client
        self.user = user
        self.trigger: Trigger = trigger
        self.continues = continues
        self.tool_results = tool_results or []
        self.approvals = approvals or []
        self.write = ChatWriter(turn.output)
        self._turn = turn
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def stopping(self) -> asyncio.Event:
        return self._turn.stopping

    @property
    def stopped(self) -> StopReason | None:
        return self._turn.stopped

    async def history(self) -> list[UIMessage]:
        """All messages of the chat, of which the last is the one to answer; from then on `messages` has them, too."""
        if self._load is not None:
            messages = await self._load()
            if self._load is not None:
                self.messages, self._load = messages, None
        return self.messages

    def read_history(self) -> list[UIMessage]:
        """The same for an agent that runs in a thread: it blocks.

        Raises:
            RuntimeError: it is called in the event loop, which would wait for itself.
        """
        if threading.get_ident() == self._thread:
            raise RuntimeError("read_history() is for agents in threads. Write `await chat.history()` here.")
        return asyncio.run_coroutine_threadsafe(self.history(), self._loop).result()

    async def model_messages(self) -> list[ModelMessage]:
        """All messages as the AI SDK's `convertToModelMessages` gives them, for `to_openai` and `to_anthropic`.

        An agent in a thread writes `to_model_messages(chat.read_history())`.
        """
        return to_model_messages(await self.history())

    def hold(self) -> AbstractContextManager[None]:
        """Suspend the idle clock, for work of which nothing is shown: `with chat.hold(): …`, in the event loop."""
        return self._turn.hold()

    def touch(self) -> None:
        """Let the idle clock begin anew: something has come of which nothing is shown; in the event loop."""
        self._turn.touch()

    async def room(self) -> None:
        """Wait until the readers have caught up, where the turn has a bound for that."""
        await self._turn.output.room()
