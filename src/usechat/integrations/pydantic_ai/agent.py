"""Pydantic AI: drives an agent by its own `run`, one run per turn."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, cast

from usechat.errors import RequestError
from usechat.integrations.event_queue import EventQueue
from usechat.integrations.pydantic_ai.messages import denied_text, to_messages
from usechat.integrations.pydantic_ai.translator import PydanticAITranslator, SubAgentEvent, UsageEvent
from usechat.turns.chat import Approval, Chat
from usechat.turns.pending import PendingTurn

__all__ = ["PydanticAIAgent", "show_sub_agent"]

_OLDEST: Final = 2
_TURN: ContextVar[EventQueue[Any] | None] = ContextVar("usechat_pydantic_ai_turn", default=None)


class PydanticAIAgent:
    """Drives an agent of Pydantic AI. The messages of the chat are its history, so any process can go on.

    `deps` are the dependencies of each run, or a function, sync or async, that makes them of the chat.
    `model_settings` are those of each run.
    """

    @classmethod
    def wrap(cls, thing: object) -> "PydanticAIAgent | None":
        kinds = ((kind.__module__, kind.__name__) for kind in type(thing).__mro__)
        return cls(thing) if ("pydantic_ai.agent.abstract", "AbstractAgent") in kinds else None

    def __init__(self, agent: Any, *, deps: Any = None, model_settings: Any = None) -> None:
        """Look at the version of the framework.

        Raises:
            RuntimeError: It is too old.
        """
        found = version("pydantic-ai-slim")
        if int(found.partition(".")[0]) < _OLDEST:
            raise RuntimeError(
                f"usechat needs Pydantic AI 2.0 or newer, and {found} is installed. Install it with: pip install "
                "'usechat[pydantic-ai]'"
            )
        self._agent = agent
        self._deps = deps
        self._model_settings = model_settings

    def translator(self, chat: Chat) -> PydanticAITranslator:
        return PydanticAITranslator(output_tools=list(_output_tools(self._agent.output_type)))

    async def admit(self, pending: PendingTurn) -> None:
        """Check the answers to approvals.

        Raises:
            RequestError: An edit is no object, or other calls of the message wait for an answer, too.
        """
        for approval in pending.approvals:
            _edited(approval)
        waits = any(part.get("state") == "approval-requested" for part in pending.message.parts)
        if pending.approvals and waits:
            raise RequestError("The calls that wait together have to be answered together.", status=409)

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Run the agent with the chat as its history, and with the user's answers to approvals.

        Raises:
            RuntimeError: The provider's answer failed.
        """
        framework = import_module("pydantic_ai")
        events = EventQueue[Any]()
        _TURN.set(events)

        async def push(context: Any, said: AsyncIterable[Any]) -> None:
            async for event in said:
                events.push(event)
                await events.drain()
            events.push(UsageEvent(usage=context.usage))

        run = asyncio.create_task(
            self._agent.run(
                message_history=to_messages(
                    await chat.history(), open_calls=[approval.call_id for approval in chat.approvals]
                ),
                deferred_tool_results=_answers(framework, chat.approvals),
                output_type=self._output_type(framework),
                conversation_id=chat.id,
                deps=await self._make_deps(chat),
                model_settings=self._model_settings,
                # A system prompt is only added to an empty history.
                capabilities=[import_module("pydantic_ai.capabilities").ReinjectSystemPrompt()],
                event_stream_handler=push,
            )
        )
        run.add_done_callback(lambda _: events.end())
        try:
            async for event in events:
                yield event
            result = await run
            if result.response.finish_reason == "error":
                # With OpenAI's Responses, releases before 2.52 take an answer that failed for a whole one.
                raise RuntimeError("The model's provider reported that its answer failed.")
            yield framework.AgentRunResultEvent(result)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def _make_deps(self, chat: Chat) -> Any:
        deps = self._deps(chat) if callable(self._deps) else self._deps
        return await deps if inspect.isawaitable(deps) else deps

    def _output_type(self, framework: Any) -> Any:
        """The agent's own output, or calls that wait for the user; without the latter it could not wait."""
        agent = self._agent
        while (inner := getattr(agent, "wrapped", None)) is not None:
            agent = inner
        # A run of an agent with validators cannot have an output type of its own.
        if getattr(agent, "_output_validators", None):
            return None
        return [self._agent.output_type, framework.DeferredToolRequests]


async def show_sub_agent(context: Any, events: AsyncIterable[Any]) -> None:
    """Show the run of another agent in the message of the turn whose tool starts it.

    It is an event stream handler: `await helper.run(question, event_stream_handler=show_sub_agent)`. Outside of a turn
    it shows nothing.
    """
    turn, run_id, name = _TURN.get(), context.run_id, getattr(context.agent, "name", None) or "agent"
    is_last = True
    try:
        async for event in events:
            # The handler is called for each response and for its tools. A response without tools is the last one.
            is_last = is_last and event.event_kind in ("output_tool_call", "output_tool_result")
            if turn is not None:
                turn.push(SubAgentEvent(run_id=run_id, name=name, event=event))
                await turn.drain()
    except Exception:
        if turn is not None:
            turn.push(SubAgentEvent(run_id=run_id, name=name, status="failed"))
        raise
    if turn is not None and is_last:
        turn.push(SubAgentEvent(run_id=run_id, name=name, status="done"))


def _output_tools(output_type: Any) -> Iterator[str]:
    """The names of output tools that a `ToolOutput` gives."""
    for one in cast("Sequence[Any]", output_type) if isinstance(output_type, list | tuple) else (output_type,):
        if isinstance(one, list | tuple):
            yield from _output_tools(one)
        elif type(one).__name__ == "ToolOutput" and one.name:
            yield one.name


def _answers(framework: Any, approvals: Sequence[Approval]) -> Any:
    if not approvals:
        return None
    return framework.DeferredToolResults(
        approvals={approval.call_id: _answer(framework, approval) for approval in approvals}
    )


def _answer(framework: Any, approval: Approval) -> Any:
    if not approval.approved:
        return framework.ToolDenied(denied_text(approval.reason))
    return framework.ToolApproved(override_args=_edited(approval))


def _edited(approval: Approval) -> dict[str, Any] | None:
    """The arguments that the user has changed."""
    match approval.extra:
        case None:
            return None
        case {"input": dict()} if approval.approved:
            return approval.extra["input"]
        case _:
            raise RequestError('An approval can be answered with {"input": {…}} to change the arguments.', status=409)
