"""The agent node: any agent of usechat as a node of a flow, with the original's events.

An agent node is one `_AgentRun`. It runs a turn of its agent for the node's input, and another one as long as commands
arrived meanwhile. A turn has an `Output` as a served one has, `_AgentEvents`: chunks in, Open Harness events out.

Threads: the agent may write from any thread, one at a time (`Output.lock`). `_AgentEvents.take` only puts the chunks
into `_chunks`; they become events in the thread of the event loop, where everything else runs.

A turn ends in one of three ways: the agent returns and `finish` ends the message; the agent's task is cancelled because
the node is (`context.cancel`); or something other than the agent's task ended the message (`chat.write.finish()` in a
thread, a text that failed later). In the third case `_halt` cancels the task and sets `halted`, and `_turn` takes the
cancellation back.
"""

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from usechat.errors import AgentError
from usechat.events.mapper import STRUCTURED_OUTPUT
from usechat.flows.nodes import RESUME_MESSAGE, AgentFunction, NodeContext, NodeFunction
from usechat.flows.scheduling import Command
from usechat.integrations import Integration, agent_of, drive
from usechat.protocol import chunks as c
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Chat, Request
from usechat.turns.output import Output

__all__ = ["agent_node"]

_USAGE: Final = ("inputTokens", "outputTokens")

# The newest client, so that nothing is changed for an older one.
_CLIENT: Final[ClientName] = "v7"
# After 16 events in a row an agent waits until the page has caught up, and other tasks have run.
_IN_A_ROW: Final = 16


def agent_node(agent: object, *, last_block: bool = False) -> NodeFunction:
    """Make a node that runs an agent: any that `create_app` takes.

    The node's input has a `prompt` or `messages` (`{role, content}`, UI messages, or the `{role, text}` of
    `flow.input.messages`). The rest of the input is the body of `chat.request`, and `chat.id` is the node's session.
    Commands that arrive while the agent answers get another turn of the agent.

    The output is `{text, usage, durationMs, sessionId, numTurns}`, and `sources`, `files`, `data` and
    `structuredOutput` if the agent gave some. `text` and these four are those of the last turn; with `last_block`,
    `text` is only the last block of it. A paused node returns what it has so far, with `paused`.

    Raises:
        TypeError: it is no agent.
    """
    found = agent_of(agent)

    async def run(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        return await _AgentRun(found, context, value, last_block=last_block).run()

    return AgentFunction(run)


class _AgentRun:
    def __init__(
        self, agent: Integration[Any], context: NodeContext, value: dict[str, Any], *, last_block: bool
    ) -> None:
        self._last_block = last_block
        self._agent = agent
        self._context = context
        self._rest = {name: value[name] for name in value if name not in ("prompt", "messages")}
        self._prompt: Any = value.get("prompt", value.get("messages"))
        self._messages = _read_messages(value)
        texts = [_text_of(command) for command in context.inbox.drain()]
        # The message that resumes a run without a message is not for the agent.
        if context.resume_message == RESUME_MESSAGE and RESUME_MESSAGE in texts:
            texts.remove(RESUME_MESSAGE)
        self._messages += map(_user, texts)
        self._session = context.session or str(uuid.uuid4())
        self._began = time.monotonic()
        self._turns = 0
        self._said = _Said()
        self._usage: dict[str, int] = dict.fromkeys(_USAGE, 0)

    async def run(self) -> dict[str, Any]:
        context = self._context
        context.set_session(self._session)
        context.emit({"type": "agent:start", "sessionId": self._session, "prompt": self._prompt})
        try:
            await self._answer()
        # Whatever an agent raises, even SystemExit, fails its node and nothing else.
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _this_task().cancelling():
                return self._cancelled()
            # The text of an exception was not written for users, unless it is an AgentError.
            kind = "AgentError" if isinstance(error, AgentError) else "exception"
            message = str(error) or type(error).__name__
            context.emit({"type": "agent:error", "errorType": kind, "message": message})
            raise
        output = self._output()
        usage = {name: output[name] for name in ("usage", "durationMs", "numTurns")}
        structured = self._said.structured
        context.emit({"type": "agent:complete", "result": output["text"], **usage, **structured})
        return output

    async def _answer(self) -> None:
        """Answer the messages, then the commands that arrived meanwhile, until none is left."""
        await self._turn()
        while commands := self._context.inbox.drain():
            said = {"type": "text", "text": self._said.text()}
            self._messages.append(UIMessage(str(uuid.uuid4()), "assistant", [said]))
            self._messages += [_user(_text_of(command)) for command in commands]
            await self._turn()

    async def _turn(self) -> None:
        self._turns += 1
        context, output = self._context, _AgentEvents(self._context.emit, self._context.drain)
        self._said = output.said
        leave = context.cancel.on_cancel(output.stop)
        asked = [message.text for message in self._messages if message.role == "user"]
        chat = Chat(
            output,
            id=self._session,
            text=asked[-1] if asked else "",
            messages=list(self._messages),
            request=Request(self._rest, {}),
            client=_CLIENT,
        )
        try:
            await drive(self._agent, chat, output, unused=context.unused)
            output.finish()
        except asyncio.CancelledError:
            if context.cancel.cancelled or not output.halted:
                raise
            _this_task().uncancel()
            output.finish()
        finally:
            leave()
            output.close()
        for name, count in output.usage.items():
            self._usage[name] += count

    def _cancelled(self) -> dict[str, Any]:
        reason = self._context.cancel.reason
        if reason == "pause":
            turns = {"sessionId": self._session, "numTurns": self._turns}
            self._context.emit({"type": "agent:paused", **turns})
            return {**self._output(), "paused": True}
        if reason == "abort":
            self._context.emit({"type": "agent:aborted", "reason": "abort"})
        raise asyncio.CancelledError

    def _output(self) -> dict[str, Any]:
        said = self._said
        return {
            "text": said.text(last_block=self._last_block),
            "usage": self._usage,
            "durationMs": round((time.monotonic() - self._began) * 1000),
            "sessionId": self._session,
            "numTurns": self._turns,
            **{name: list(parts) for name, parts in said.parts.items() if parts},
            **said.structured,
        }


class _Said:
    """What one turn said, for the node's output, without data that was replaced or is transient."""

    def __init__(self) -> None:
        self.blocks: list[list[str]] = []
        self.parts: dict[str, list[dict[str, Any]]] = {"sources": [], "files": [], "data": []}
        self.structured: dict[str, Any] = {}

    def text(self, *, last_block: bool = False) -> str:
        return "".join(chain.from_iterable(self.blocks[-1:] if last_block else self.blocks))

    def add_part(self, chunk: c.SourceUrl | c.SourceDocument | c.File | c.Data) -> dict[str, Any]:
        """Keep the part, and return the chunk as it is on the wire."""
        part: dict[str, Any] = msgspec.to_builtins(chunk)
        if not isinstance(chunk, c.Data):
            self.parts["files" if isinstance(chunk, c.File) else "sources"].append(part)
        elif chunk.type == f"data-{STRUCTURED_OUTPUT}":
            self.structured = {"structuredOutput": chunk.data}
        elif chunk.transient is not True:
            kept = self.parts["data"]
            same = (n for n, other in enumerate(kept) if (other["type"], other.get("id")) == (chunk.type, chunk.id))
            place = next(same, len(kept))
            kept[place : place + 1] = [part]
        return part


class _Call(Struct, frozen=True):
    name: str
    input: Any
    began: float


class _AgentEvents(Output):
    """The output of one turn, in the current task: it makes `agent:text`, `agent:thinking` and `agent:tool` events.

    The original has no event for sources, files and data: they are `agent:part`. `said` is what the turn said, `usage`
    the last of its `metadata.usage`.
    """

    def __init__(self, emit: Callable[[Mapping[str, Any]], None], drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(MessageWriter(str(uuid.uuid4()), new_id=lambda: str(uuid.uuid4()), client=_CLIENT))
        self.said = _Said()
        self.usage: dict[str, int] = {}
        self.halted = False
        self._emit = emit
        self._drain = drain
        self._failure: BaseException | None = None
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = _this_task()
        self._chunks: deque[c.Chunk] = deque()
        self._in_a_row = 0
        self._blocks: dict[str, list[str]] = {}
        self._calls: dict[str, _Call] = {}

    def stop(self) -> None:
        self.stopped = "stopped"
        self.set_stopping()

    def finish(self) -> None:
        """End the message; calls without a result fail, since there is no browser to run them.

        Raises:
            AgentError: the agent ended the message with an error.
        """
        self.write(self.writer.finish)
        self._emit_all()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Emit what the agent said so far, and nothing from now on."""
        self._task = None
        with self.lock:
            self.closed = True
        self._emit_all()

    @property
    def full(self) -> Callable[[], bool]:
        return lambda: self._in_a_row + len(self._chunks) >= _IN_A_ROW

    async def drain(self) -> None:
        self._in_a_row = 0
        await self._drain()

    def take(self, chunks: Iterable[c.Chunk]) -> None:
        try:
            self._chunks.extend(chunks)
        finally:
            self._in_loop(self._emit_all)
            if self.writer.state.phase in ("ended", "failed"):
                self.closed = True
                self._in_loop(self._halt)

    def fail(self, error: BaseException) -> None:
        self.closed = True
        self._failure = error
        self._halt()

    def _in_loop(self, callback: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    def _halt(self) -> None:
        """Cancel the agent, unless its own task has ended the message."""
        if self._task is not None and self._task is not asyncio.current_task():
            self.halted = True
            self._task.cancel()

    def _emit_all(self) -> None:
        while self._chunks:
            self._in_a_row += 1
            self._emit_chunk(self._chunks.popleft())

    def _emit_chunk(self, chunk: c.Chunk) -> None:
        match chunk:
            case c.TextDelta() | c.ReasoningDelta():
                if chunk.id not in self._blocks:
                    self._blocks[chunk.id] = []
                    if isinstance(chunk, c.TextDelta):
                        self.said.blocks.append(self._blocks[chunk.id])
                self._blocks[chunk.id].append(chunk.delta)
                kind = "text" if isinstance(chunk, c.TextDelta) else "thinking"
                self._emit({"type": f"agent:{kind}:delta", "content": chunk.delta})
            case c.TextEnd() | c.ReasoningEnd():
                kind = "text" if isinstance(chunk, c.TextEnd) else "thinking"
                self._emit({"type": f"agent:{kind}", "content": "".join(self._blocks.pop(chunk.id, ()))})
            case c.SourceUrl() | c.SourceDocument() | c.File() | c.Data():
                self._emit({"type": "agent:part", "part": self.said.add_part(chunk)})
            case c.Start() | c.Finish() | c.MessageMetadata():
                self._count(chunk.message_metadata)
            case c.Error():
                self._failure = AgentError(chunk.error_text)
            case _:
                self._emit_tool(chunk)

    def _emit_tool(self, chunk: c.Chunk) -> None:
        match chunk:
            case c.ToolInputAvailable() | c.ToolInputError():
                self._calls[chunk.tool_call_id] = _Call(chunk.tool_name, chunk.input, time.monotonic())
                if isinstance(chunk, c.ToolInputError):
                    self._emit_call(chunk.tool_call_id, _error(chunk.error_text))
            case c.ToolOutputAvailable() if chunk.preliminary is not True:
                self._emit_call(chunk.tool_call_id, {"toolOutput": chunk.output})
            case c.ToolOutputError():
                self._emit_call(chunk.tool_call_id, _error(chunk.error_text))
            case c.ToolOutputDenied():
                self._emit_call(chunk.tool_call_id, _error("The call was denied."))
            case _:
                pass

    def _emit_call(self, call_id: str, result: Mapping[str, Any]) -> None:
        call = self._calls.pop(call_id)
        duration = round((time.monotonic() - call.began) * 1000)
        about = {"toolName": call.name, "toolInput": call.input}
        self._emit({"type": "agent:tool", **about, **result, "durationMs": duration})

    def _count(self, metadata: Any) -> None:
        match metadata:
            case {"usage": {**usage}}:
                counts = {name: usage.get(name) for name in _USAGE}
                self.usage = {name: count for name, count in counts.items() if isinstance(count, int)}
            case _:
                pass


def _error(text: str) -> dict[str, Any]:
    return {"toolOutput": {"error": text}, "error": text}


def _this_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())


def _text_of(command: Command) -> str:
    return str(command.get("message", command.get("content", "")))


def _user(text: str) -> UIMessage:
    return UIMessage(str(uuid.uuid4()), "user", [{"type": "text", "text": text}])


def _read_messages(value: dict[str, Any]) -> list[UIMessage]:
    match value:
        case {"prompt": _, "messages": _}:
            raise ValueError("An agent node takes either a prompt or messages, not both.")
        case {"prompt": str(prompt)}:
            return [_user(prompt)]
        case {"messages": [*messages]}:
            return [_read_message(message) for message in messages]
        case _:
            raise ValueError("An agent node needs a prompt or messages in its input.")


def _read_message(message: Any) -> UIMessage:
    match message:
        case {"role": "system" | "user" | "assistant" as role, "parts": [*parts]}:
            return UIMessage(str(message.get("id") or uuid.uuid4()), role, parts)
        case {"role": "system" | "user" | "assistant" as role, "content": str(text)} | {
            "role": "system" | "user" | "assistant" as role,
            "text": str(text),
        }:
            return UIMessage(str(uuid.uuid4()), role, [{"type": "text", "text": text}])
        case _:
            raise ValueError("A message of an agent node has a role, and a text as its content or parts.")
