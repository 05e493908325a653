"""What an agent is given: the chat that it answers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from usechat.protocol.chunks import Chunk, FinishReason
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import ModelMessage, to_model_messages
from usechat.protocol.requests import Trigger
from usechat.stores import StopReason
from usechat.turns.output import Output

__all__ = ["Approval", "Chat", "ChatWriter", "Request", "RunOptions", "ToolAnswer"]

_T = TypeVar("_T")


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


class Chat:
    """One turn of a chat, as its agent sees it.

    `messages` are those that are loaded, of which the last is the one to answer; `await chat.history()` loads all of
    them. `continues` is the assistant message that the turn goes on with, after the browser answered its tool calls or
    the user its approvals. `admitted` is what the agent's `admit` returned, and None where it was not called.
    `stopping` is set when the turn is stopped, and `stopped` says why. `write` has the methods of `MessageWriter`, for
    any thread; what is written after the end is dropped.
    """

    __slots__ = (
        "_load",
        "_loop",
        "_output",
        "_thread",
        "admitted",
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
        output: Output,
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
        admitted: Any = None,
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
        self.admitted = admitted
        self.write = ChatWriter(output)
        self._output = output
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def stopping(self) -> asyncio.Event:
        return self._output.stopping

    @property
    def stopped(self) -> StopReason | None:
        return self._output.stopped

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

        The last one is what this turn has said so far, with the results of its calls, so that a tool loop asks anew
        for each model call. An agent in a thread writes `to_model_messages(chat.read_history())`.
        """
        messages, said = await self.history(), self._output.said()
        if said is None or not said.parts:
            return to_model_messages(messages)
        return to_model_messages([*(messages if self.continues is None else messages[:-1]), said])

    def hold(self) -> AbstractContextManager[None]:
        """Suspend the idle clock, for work of which nothing is shown: `with chat.hold(): …`, in the event loop."""
        return self._output.hold()

    def touch(self) -> None:
        """Let the idle clock begin anew: something has come of which nothing is shown; in the event loop."""
        self._output.touch()

    async def drain(self) -> None:
        """Wait until the readers have caught up, where the turn has a bound for that."""
        await self._output.drain()


class ChatWriter:
    """Writes to the turn's message. After the end of the turn its methods do nothing.

    What is illegal where it is written raises `LocalProtocolError`. What is None is left out.
    """

    __slots__ = ("_output",)

    def __init__(self, output: Output) -> None:
        self._output = output

    def text(self, delta: str, lane: str = "") -> None:
        """Add to the lane's text."""
        self._output.write(self._output.writer.text, delta, lane)

    def reasoning(self, delta: str, lane: str = "") -> None:
        """Add to the lane's reasoning."""
        self._output.write(self._output.writer.reasoning, delta, lane)

    def end_part(self, *, lane: str = "") -> None:
        """End the lane's open text or reasoning, so that what follows is a part of its own."""
        self._output.write(self._output.writer.end_part, lane=lane)

    def tool_input_start(
        self,
        call_id: str,
        name: str,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | None = None,
        title: str | None = None,
    ) -> None:
        """Begin a call whose input is streamed."""
        self._output.write(
            self._output.writer.tool_input_start,
            call_id,
            name,
            lane=lane,
            dynamic=dynamic,
            provider_executed=_or_unset(provider_executed),
            title=_or_unset(title),
        )

    def tool_input_delta(self, call_id: str, delta: str) -> None:
        """Add to the JSON text of a call's input."""
        self._output.write(self._output.writer.tool_input_delta, call_id, delta)

    def tool_input(
        self,
        call_id: str,
        name: str,
        value: Any,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | None = None,
        title: str | None = None,
    ) -> None:
        """The whole input of a call, whether its beginning was streamed or not."""
        self._output.write(
            self._output.writer.tool_input,
            call_id,
            name,
            value,
            lane=lane,
            dynamic=dynamic,
            provider_executed=_or_unset(provider_executed),
            title=_or_unset(title),
        )

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> None:
        """An input that the tool could not be called with; `value` is what was given, of whatever shape."""
        write = self._output.writer.tool_input_error
        self._output.write(write, call_id, name, value, error_text, lane=lane, dynamic=dynamic)

    def tool_output(self, call_id: str, output: Any, *, preliminary: bool = False) -> None:
        """The result of a call; a preliminary one is replaced by the next."""
        self._output.write(self._output.writer.tool_output, call_id, output, preliminary=preliminary)

    def tool_error(self, call_id: str, error_text: str) -> None:
        """The failure of a call; the user sees the text."""
        self._output.write(self._output.writer.tool_error, call_id, error_text)

    def tool_denied(self, call_id: str) -> None:
        """The call is not carried out: after the user's refusal, or, as an error, by a decision of the server."""
        self._output.write(self._output.writer.tool_denied, call_id)

    def approval_request(
        self,
        call_id: str,
        *,
        approval_id: str | None = None,
        reason: str | None = None,
        signature: str | None = None,
    ) -> None:
        """Ask the user whether the call may be carried out."""
        write = self._output.writer.approval_request
        self._output.write(
            write, call_id, approval_id=approval_id, reason=_or_unset(reason), signature=_or_unset(signature)
        )

    def source_url(self, url: str, *, title: str | None = None, source_id: str | None = None) -> None:
        """A page that the answer is taken from."""
        self._output.write(self._output.writer.source_url, url, title=_or_unset(title), source_id=source_id)

    def source_document(
        self, title: str, media_type: str, *, filename: str | None = None, source_id: str | None = None
    ) -> None:
        """A document that the answer is taken from."""
        write = self._output.writer.source_document
        self._output.write(write, title, media_type, filename=_or_unset(filename), source_id=source_id)

    def file(self, url: str, media_type: str) -> None:
        """A file, by its address or as a data URL."""
        self._output.write(self._output.writer.file, url, media_type)

    def data(
        self,
        name: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        transient: bool = False,
    ) -> None:
        """Data of the app's own, as `data-<name>`; with an id it replaces the part that has the same one."""
        self._output.write(self._output.writer.data, name, value, id=_or_unset(id), transient=transient)

    def metadata(self, value: Any) -> None:
        """Merge an object into the message's metadata."""
        self._output.write(self._output.writer.metadata, value)

    def step(self) -> None:
        """Begin a new step, as soon as no tool input is streaming."""
        self._output.write(self._output.writer.step)

    def send(self, chunk: Chunk) -> None:
        """Write a chunk as it is, with its values made plain."""
        self._output.write(self._output.writer.send, chunk)

    def finish(self, reason: FinishReason = "stop", metadata: Any = None) -> None:
        """End the message; with `tool-calls`, calls that wait for the browser or for an approval stay open."""
        self._output.write(self._output.writer.finish, reason, _or_unset(metadata))

    def abort(self, reason: str | None = None) -> None:
        """End the message because somebody stopped it."""
        self._output.write(self._output.writer.abort, _or_unset(reason))

    def fail(self, error_text: str) -> None:
        """End the message with an error, whose text the user sees."""
        self._output.write(self._output.writer.fail, error_text)


def _or_unset(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value
