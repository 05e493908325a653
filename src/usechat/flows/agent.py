"""The agent node: any agent of usechat as a node of a flow, with the original's events."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from usechat.agents import Agent
from usechat.agents.chat import Chat, Request
from usechat.agents.registry import agent_of
from usechat.errors import AgentError
from usechat.flows.agent_events import AgentEvents
from usechat.flows.context import NodeContext, NodeFunction, without_state
from usechat.flows.node_runs import RESUME_MESSAGE
from usechat.flows.nodes import AgentFunction
from usechat.flows.scheduling import Command
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.stores import StopReason
from usechat.turns.output import Output
from usechat.turns.pump import pump
from usechat.turns.threads import THREADS

__all__ = ["agent_node"]

_Mapping: TypeAlias = Callable[[MessageWriter], Mapper[Any]]


def agent_node(agent: object, mapper: _Mapping | None = None, *, last_block: bool = False) -> NodeFunction:
    """Make a node that runs an agent: any that `create_app` takes. `mapper` is for a function that yields other events.

    The node's input has a `prompt` or `messages` (`{role, content}`, UI messages, or the `{role, text}` of
    `flow.input.messages`); the rest of it is the body of `chat.request`, and `chat.id` is the node's session. What is
    sent to the node while the agent answers is answered after that, in another turn. The output is `{text, usage,
    durationMs, sessionId, numTurns}`, and `sources`, `files`, `data` and `structuredOutput` of an agent that gave some,
    all as the last turn said them; with `last_block` the text is only the last block of it. A node that was paused
    gives what it has, and `paused`.

    Raises:
        TypeError: it is no agent.
    """
    found = agent_of(agent)

    async def run(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        return await _AgentRun(found, mapper or found.mapper, context, value, last_block=last_block).run()

    return without_state(AgentFunction(run))


class _AgentRun:
    def __init__(
        self, agent: Agent[Any], mapper: _Mapping, context: NodeContext, value: dict[str, Any], *, last_block: bool
    ) -> None:
        self._last_block = last_block
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
        self._agent_events = AgentEvents(context.emit, context.room)

    async def run(self) -> dict[str, Any]:
        context = self._context
        context.set_session(self._session)
        context.emit({"type": "agent:start", "sessionId": self._session, "prompt": self._prompt})
        try:
            await self._answer()
        except asyncio.CancelledError as error:
            if _is_cancelled():
                return self._cancelled()
            self._tell_failure(error)
            raise
        # Whatever an agent raises, also to leave the process, fails its node and nothing else.
        except BaseException as error:
            self._tell_failure(error)
            raise
        output = self._output()
        told = {name: output[name] for name in ("usage", "durationMs", "numTurns")}
        told |= self._agent_events.said.structured
        context.emit({"type": "agent:complete", "result": output["text"], **told})
        return output

    async def _answer(self) -> None:
        """Answer the messages, and what is sent meanwhile, until there is nothing left to answer."""
        await self._turn()
        while commands := self._context.inbox.drain():
            said = {"type": "text", "text": self._agent_events.said.text()}
            self._messages.append(UIMessage(str(uuid.uuid4()), "assistant", [said]))
            self._messages += [_user(_said(command)) for command in commands]
            await self._turn()

    async def _turn(self) -> None:
        self._turns += 1
        events, context = self._agent_events, self._context
        turn = _NodeTurn(events.begin())
        leave = context.cancel.on_cancel(turn.stop)
        try:
            mapper = self._mapper(turn.output.writer)
            said = self._agent.events(self._chat(turn))
            await pump(said, mapper, turn.output, unused=context.unused, threads=THREADS)
            events.finish()
        except asyncio.CancelledError:
            if context.cancel.cancelled or not events.halted:
                raise
            _uncancel()
            events.finish()
        finally:
            leave()
            events.close()

    def _tell_failure(self, error: BaseException) -> None:
        # What an exception says was not written for users, unless it is this one.
        kind = "AgentError" if isinstance(error, AgentError) else "exception"
        message = str(error) or type(error).__name__
        self._context.emit({"type": "agent:error", "errorType": kind, "message": message})

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
        said = self._agent_events.said
        return {
            "text": said.text(last_block=self._last_block),
            "usage": self._agent_events.usage,
            "durationMs": round((time.monotonic() - self._began) * 1000),
            "sessionId": self._session,
            "numTurns": self._turns,
            **said.parts,
            **said.structured,
        }

    def _chat(self, turn: "_NodeTurn") -> Chat:
        asked = [message.text for message in self._messages if message.role == "user"]
        return Chat(
            turn,
            id=self._session,
            text=asked[-1] if asked else "",
            messages=list(self._messages),
            request=Request(self._rest, {}),
            client=self._agent_events.client,
        )

    def _unasked(self, commands: list[Command]) -> list[str]:
        """What the commands say, without the word that a run goes on, which is not a question to the agent."""
        texts = [_said(command) for command in commands]
        if self._context.resume_message == RESUME_MESSAGE and RESUME_MESSAGE in texts:
            texts.remove(RESUME_MESSAGE)
        return texts


class _NodeTurn:
    """What a chat needs of the node that runs its agent."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.stopping = asyncio.Event()
        self.stopped: StopReason | None = None

    def stop(self) -> None:
        self.stopped = "stopped"
        self.stopping.set()

    def hold(self) -> AbstractContextManager[None]:
        # A node has no idle clock.
        return nullcontext()

    def touch(self) -> None:
        pass


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


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
        case {"role": "system" | "user" | "assistant" as role, "content": str(text)} | {
            "role": "system" | "user" | "assistant" as role,
            "text": str(text),
        }:
            return UIMessage(str(uuid.uuid4()), role, [{"type": "text", "text": text}])
        case _:
            raise ValueError("A message of an agent node has a role, and a text as its content or parts.")
