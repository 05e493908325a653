"""The agent node: any agent of usechat as a node of a flow, with the original's events."""

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from contextlib import aclosing
from typing import Any, Final, TypeAlias, cast

from usechat.agents.chat import Chat, Request, live_writer
from usechat.errors import MappingError
from usechat.flows.agent_events import AgentEvents
from usechat.flows.context import NodeContext, NodeFunction
from usechat.flows.node_runs import RESUME_MESSAGE
from usechat.flows.scheduling import Command
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.sources.plain import PlainMapper
from usechat.turns import Turn

__all__ = ["agent_node"]

_Agent: TypeAlias = Callable[[Chat], Any]
_Mapping: TypeAlias = Callable[[MessageWriter], Mapper[Any]]

_log = logging.getLogger("usechat")
_END: Final = object()


def agent_node(agent: _Agent, mapper: _Mapping = PlainMapper) -> NodeFunction:
    """Make a node that runs an agent: a plain one, or one whose events another mapper understands.

    The node's input has a `prompt` or `messages` (`{role, content}` or UI messages); the rest of it is the body of
    `chat.request`, and `chat.id` is the node's session. What is sent to the node while the agent answers is answered
    after that, in another turn. The output is `{text, usage, durationMs, sessionId, numTurns}`, where the text is the
    last block of it; a node that was paused gives what it has, and `paused`.
    """

    async def run(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        return await _AgentRun(agent, mapper, context, value).run()

    return run


class _AgentRun:
    def __init__(self, agent: _Agent, mapper: _Mapping, context: NodeContext, value: dict[str, Any]) -> None:
        self._agent = agent
        self._mapper = mapper
        self._context = context
        self._rest = {name: value[name] for name in value if name not in ("prompt", "messages")}
        self._prompt: Any = value.get("prompt", value.get("messages"))
        self._messages = _read_messages(value)
        self._messages += [_user(text) for text in self._unasked(context.inbox.drain())]
        self._session = context.session or str(uuid.uuid4())
        self._began = time.monotonic()
        self._turns = 0
        self._agent_events = AgentEvents(context.emit)

    async def run(self) -> dict[str, Any]:
        context = self._context
        context.set_session(self._session)
        context.emit({"type": "agent:start", "sessionId": self._session, "prompt": self._prompt})
        try:
            await self._answer()
        except asyncio.CancelledError:
            return self._cancelled()
        except Exception as error:
            context.emit({"type": "agent:error", "errorType": "exception", "message": str(error)})
            raise
        output = self._output()
        told = {name: output[name] for name in ("usage", "durationMs", "numTurns")}
        context.emit({"type": "agent:complete", "result": output["text"], **told})
        return output

    async def _answer(self) -> None:
        """Answer the messages, and what is sent meanwhile, until there is nothing left to answer."""
        await self._turn()
        while commands := self._context.inbox.drain():
            said = {"type": "text", "text": self._agent_events.text}
            self._messages.append(UIMessage(str(uuid.uuid4()), "assistant", [said]))
            self._messages += [_user(_said(command)) for command in commands]
            await self._turn()

    async def _turn(self) -> None:
        self._turns += 1
        writer = self._agent_events.begin()
        mapper = self._mapper(writer)
        async with aclosing(_events(self._agent(self._chat()))) as events:
            async for event in events:
                try:
                    self._agent_events.say(mapper.map, event)
                except MappingError as error:
                    _log.warning("node %s: %s", self._context.node_id, error)
                # An agent that waits for nothing must not keep a command from being heard.
                await asyncio.sleep(0)
        self._agent_events.end()

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
        return {
            "text": self._agent_events.text,
            "usage": self._agent_events.usage,
            "durationMs": round((time.monotonic() - self._began) * 1000),
            "sessionId": self._session,
            "numTurns": self._turns,
        }

    def _chat(self) -> Chat:
        stopping = asyncio.Event()
        self._context.cancel.on_cancel(stopping.set)
        asked = [message.text for message in self._messages if message.role == "user"]
        return Chat(
            id=self._session,
            text=asked[-1] if asked else "",
            messages=list(self._messages),
            request=Request(self._rest, {}),
            user=None,
            trigger="submit-message",
            continues=None,
            tool_results=[],
            approvals=[],
            stopping=stopping,
            client=self._agent_events.client,
            # Of a turn the writer needs only what these events have too.
            write=live_writer(cast("Turn", self._agent_events)),
        )

    def _unasked(self, commands: list[Command]) -> list[str]:
        """What the commands say, without the word that a run goes on, which is not a question to the agent."""
        texts = [_said(command) for command in commands]
        if self._context.resume_message == RESUME_MESSAGE and RESUME_MESSAGE in texts:
            texts.remove(RESUME_MESSAGE)
        return texts


async def _events(said: Any) -> AsyncGenerator[Any, None]:
    if inspect.isasyncgen(said):
        async with aclosing(cast("AsyncGenerator[Any, None]", said)) as events:
            async for event in events:
                yield event
    elif isinstance(said, AsyncIterable):
        async for event in cast("AsyncIterable[Any]", said):
            yield event
    elif inspect.isgenerator(said):
        events = cast("Generator[Any, None, None]", said)
        while (event := await asyncio.to_thread(next, events, _END)) is not _END:
            yield event
    elif inspect.isawaitable(said):
        if (event := await said) is not None:
            yield event
    else:
        raise TypeError(f"An agent is a generator or a coroutine, but this one returned {type(said).__name__}.")


def _said(command: Command) -> str:
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
        case {"role": "system" | "user" | "assistant" as role, "content": str(content)}:
            return UIMessage(str(uuid.uuid4()), role, [{"type": "text", "text": content}])
        case _:
            raise ValueError("A message of an agent node has a role, and a text as its content or parts.")
