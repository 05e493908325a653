"""What an agent is given: the chat that it answers."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.protocol.chunks import Chunk, FinishReason, ProviderMetadata
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import ModelMessage, to_model_messages
from usechat.protocol.requests import Trigger
from usechat.stores import StopReason
from usechat.turns.output import Output

__all__ = [
    "NO_STATE",
    "STATE_LIMIT",
    "Approval",
    "Chat",
    "ChatState",
    "ChatWriter",
    "Request",
    "RunOptions",
    "ToolAnswer",
]

_T = TypeVar("_T")

_log = logging.getLogger("usechat")

NO_STATE: Final = b"null"
"""The JSON of a state that was never set."""

STATE_LIMIT: Final = 1024 * 1024
"""How many bytes of JSON `chat.state` may take."""

_NOT_JSON: Final = (
    "chat.state must be JSON: dicts whose keys are strings, lists, strings, finite numbers, True, False and None. "
    "Convert what you keep there, for example with model_dump(mode='json')."
)
_TOO_LARGE: Final = (
    "chat.state must be at most 1 MB as JSON, and this is {:,} bytes. Keep large values in a database of your own, and "
    "their ids here."
)
_KEPT_NOWHERE: Final = (
    "chat.state cannot be set here, because nothing keeps it. Serve the agent with chats in memory or in a database: "
    'history="client", flows, AgentTransport and a HistoryStore without keeps_state keep no state.'
)


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
    """The fields of the body beside the protocol's, and the headers by lower-case name.

    `context` is what a route of the app hands to its agent.
    """

    body: Mapping[str, Any]
    headers: Mapping[str, str]
    context: Any = None


class RunOptions(Struct, frozen=True):
    """The `context` of a route that chooses the thread of a graph, and the state in which a new thread begins."""

    state: Any = None
    thread_id: str | None = None


class ChatState:
    """`chat.state` in one turn: decoded when the agent reads it first, and encoded when the turn has ended.

    Any thread may use it. The lock of the output guards all fields.
    """

    __slots__ = ("_before", "_is_decoded", "_output", "_value")

    def __init__(self, output: Output, before: bytes | None) -> None:
        """Begin with the JSON that the turn before left; None if nothing keeps it."""
        self._output = output
        self._before = before
        self._is_decoded = False
        self._value: Any = None

    @property
    def value(self) -> Any:
        with self._output.lock:
            if not self._is_decoded and self._before is not None:
                self._value = msgspec.json.decode(self._before)
                self._is_decoded = True
            return self._value

    def replace(self, value: Any) -> None:
        """Replace the value, unless the turn has ended.

        Raises:
            RuntimeError: Nothing keeps it.
            TypeError: It is no JSON.
            ValueError: It takes more than 1 MB.
        """
        if self._before is None:
            raise RuntimeError(_KEPT_NOWHERE)
        _encode_state(value)
        with self._output.lock:
            if not self._output.closed:
                self._value, self._is_decoded = value, True
            elif self._output.stopped is None:
                _log.warning("chat.state was set after the end of its message, and is not stored: set it before")

    def changed(self) -> bytes | None:
        """The JSON of the value, if the agent has replaced or changed it."""
        with self._output.lock:
            if not self._is_decoded:
                return None
            try:
                encoded = _encode_state(self._value)
            except (TypeError, ValueError) as error:
                # The agent has changed the value in place.
                _log.error("chat.state stays as it was before the turn: %s", error)
                return None
            return None if encoded == self._before else encoded


def _encode_state(value: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(value)
        # What the next turn reads must be what this one has set.
        is_json = msgspec.json.decode(encoded) == value
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(_NOT_JSON) from error
    if not is_json:
        raise TypeError(_NOT_JSON)
    if len(encoded) > STATE_LIMIT:
        raise ValueError(_TOO_LARGE.format(len(encoded)))
    return encoded


class Chat:
    """One turn of a chat, as its agent sees it.

    `messages` are those that are loaded, and the last one is the one to answer; `await chat.history()` loads all.
    `continues` is the assistant message that the turn goes on with, after the browser answered its tool calls or the
    user its approvals. `admitted` is what the agent's `admit` returned. `stopping` is set when the turn is stopped, and
    `stopped` says why. `write` has the methods of `MessageWriter`, for any thread; after the end they do nothing.
    """

    __slots__ = (
        "_load",
        "_loop",
        "_output",
        "_state",
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
        state: ChatState | None = None,
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
        self._state = ChatState(output, None) if state is None else state
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def stopping(self) -> asyncio.Event:
        return self._output.stopping

    @property
    def stopped(self) -> StopReason | None:
        return self._output.stopped

    @property
    def state(self) -> Any:
        """A JSON value of up to 1 MB that the chat keeps from turn to turn; None until an agent sets it.

        What is set, or changed in place, is stored with the answer, also if that ends with an error or is stopped. It
        also goes with the answer: a regeneration and an edit see the state from before the answers that they replace.

        Raises:
            RuntimeError: It is set, and nothing keeps it, as with `history="client"`, where it reads None.
            TypeError: What is set is no JSON.
            ValueError: What is set takes more than 1 MB.
        """
        return self._state.value

    @state.setter
    def state(self, value: Any) -> None:
        self._state.replace(value)

    async def history(self) -> list[UIMessage]:
        """All messages of the chat, the one to answer last; from then on `messages` has them, too."""
        if self._load is not None:
            messages = await self._load()
            if self._load is not None:
                self.messages, self._load = messages, None
        return self.messages

    def read_history(self) -> list[UIMessage]:
        """`history` for an agent that runs in a thread: it blocks.

        Raises:
            RuntimeError: It is called in the event loop, which would wait for itself.
        """
        if threading.get_ident() == self._thread:
            raise RuntimeError("read_history() is for agents in threads. Write `await chat.history()` here.")
        return asyncio.run_coroutine_threadsafe(self.history(), self._loop).result()

    async def model_messages(self) -> list[ModelMessage]:
        """All messages as the AI SDK's `convertToModelMessages` gives them, for `to_openai` and `to_anthropic`.

        The last one is what this turn has said so far, with the results of its calls, so that a tool loop asks anew
        for each model call. An agent in a thread writes `to_model_messages(chat.read_history())`.
        """
        messages, said = await self.history(), self._output.snapshot()
        if said is None or not said.parts:
            return to_model_messages(messages)
        return to_model_messages([*(messages if self.continues is None else messages[:-1]), said])

    def hold(self) -> AbstractContextManager[None]:
        """Suspend the idle clock, for work of which nothing is shown: `with chat.hold(): …`, in the event loop."""
        return self._output.hold()

    def touch(self) -> None:
        """Restart the idle clock, after progress of which nothing is shown; in the event loop."""
        self._output.touch()

    async def drain(self) -> None:
        """Wait until the readers have caught up, with `TurnLimits.ahead`."""
        await self._output.drain()


class ChatWriter:
    """Writes to the turn's message. After the end of the turn its methods do nothing.

    What is illegal where it is written raises `LocalProtocolError`. What is None is left out. A lane is one of several
    speakers, each with an open text or reasoning of its own. `metadata` is the provider's, by its name.
    """

    __slots__ = ("_write", "_writer")

    def __init__(self, output: Output) -> None:
        self._write = output.write
        self._writer = output.writer

    def text(self, delta: str, lane: str = "") -> None:
        """Add to the lane's text."""
        self._write(self._writer.text, delta, lane)

    def reasoning(self, delta: str, lane: str = "") -> None:
        """Add to the lane's reasoning."""
        self._write(self._writer.reasoning, delta, lane)

    def begin_reasoning(self, lane: str = "") -> None:
        """Begin reasoning that may have no text, only provider metadata, unless the lane has it open."""
        self._write(self._writer.begin_reasoning, lane)

    def end_part(self, *, lane: str = "", metadata: ProviderMetadata | None = None) -> None:
        """End the lane's open text or reasoning, so that what follows is a part of its own."""
        self._write(self._writer.end_part, lane=lane, metadata=_or_unset(metadata))

    def tool_input_start(
        self,
        call_id: str,
        name: str,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | None = None,
        title: str | None = None,
        metadata: ProviderMetadata | None = None,
    ) -> None:
        """Begin a call whose input is streamed."""
        given = _given(provider_executed=provider_executed, title=title, metadata=metadata)
        self._write(self._writer.tool_input_start, call_id, name, lane=lane, dynamic=dynamic, **given)

    def tool_input_delta(self, call_id: str, delta: str) -> None:
        """Add to the JSON text of a call's input."""
        self._write(self._writer.tool_input_delta, call_id, delta)

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
        metadata: ProviderMetadata | None = None,
    ) -> None:
        """The whole input of a call, whether its beginning was streamed or not."""
        given = _given(provider_executed=provider_executed, title=title, metadata=metadata)
        self._write(self._writer.tool_input, call_id, name, value, lane=lane, dynamic=dynamic, **given)

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> None:
        """An input that the tool could not be called with; `value` is what was given, of whatever shape."""
        self._write(self._writer.tool_input_error, call_id, name, value, error_text, lane=lane, dynamic=dynamic)

    def tool_output(
        self,
        call_id: str,
        output: Any,
        *,
        preliminary: bool = False,
        provider_executed: bool | None = None,
        metadata: ProviderMetadata | None = None,
    ) -> None:
        """The result of a call; a preliminary one is replaced by the next."""
        given = _given(provider_executed=provider_executed, metadata=metadata)
        self._write(self._writer.tool_output, call_id, output, preliminary=preliminary, **given)

    def tool_error(
        self,
        call_id: str,
        error_text: str,
        *,
        provider_executed: bool | None = None,
        metadata: ProviderMetadata | None = None,
    ) -> None:
        """The failure of a call; the user sees the text."""
        given = _given(provider_executed=provider_executed, metadata=metadata)
        self._write(self._writer.tool_error, call_id, error_text, **given)

    def tool_denied(self, call_id: str) -> None:
        """The call is not carried out: after the user's refusal, or, as an error, by a decision of the server."""
        self._write(self._writer.tool_denied, call_id)

    def approval_request(
        self, call_id: str, *, approval_id: str | None = None, reason: str | None = None, signature: str | None = None
    ) -> None:
        """Ask the user whether the call may be carried out."""
        given = _given(approval_id=approval_id, reason=reason, signature=signature)
        self._write(self._writer.approval_request, call_id, **given)

    def source_url(self, url: str, *, title: str | None = None, source_id: str | None = None) -> None:
        """A page that the answer cites."""
        self._write(self._writer.source_url, url, title=_or_unset(title), source_id=source_id)

    def source_document(
        self, title: str, media_type: str, *, filename: str | None = None, source_id: str | None = None
    ) -> None:
        """A document that the answer cites."""
        given = _given(filename=filename, source_id=source_id)
        self._write(self._writer.source_document, title, media_type, **given)

    def file(self, url: str, media_type: str) -> None:
        """A file, by its address or as a data URL."""
        self._write(self._writer.file, url, media_type)

    def data(self, name: str, value: Any, *, id: str | None = None, transient: bool = False) -> None:  # noqa: A002
        """Data of the app's own, as `data-<name>`; with an id it replaces the part that has the same one."""
        self._write(self._writer.data, name, value, id=_or_unset(id), transient=transient)

    def metadata(self, value: Any) -> None:
        """Merge an object into the message's metadata."""
        self._write(self._writer.metadata, value)

    def step(self, *, lazy: bool = False) -> None:
        """Begin a new step, as soon as no tool input is streaming; a `lazy` one begins with its first content."""
        self._write(self._writer.step, lazy=lazy)

    def send(self, chunk: Chunk) -> None:
        """Write a chunk as it is, with its values made plain."""
        self._write(self._writer.send, chunk)

    def finish(self, reason: FinishReason = "stop", metadata: Any = None) -> None:
        """End the message; with `tool-calls`, calls that wait for the browser or for an approval stay open."""
        self._write(self._writer.finish, reason, _or_unset(metadata))

    def abort(self, reason: str | None = None) -> None:
        """End the message as stopped."""
        self._write(self._writer.abort, _or_unset(reason))

    def fail(self, error_text: str) -> None:
        """End the message with an error, whose text the user sees."""
        self._write(self._writer.fail, error_text)


def _or_unset(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
