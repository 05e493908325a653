"""DeepAgent: any object with `stream_with_events(messages=…, state=…, thread_id=…, abort=…)`."""

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

from usechat.errors import UsechatError
from usechat.events import Translator
from usechat.integrations import load_integration
from usechat.integrations.deepagent_sdk.events import Event, is_abort, kind_of
from usechat.integrations.deepagent_sdk.pace import paced
from usechat.integrations.deepagent_sdk.translator import (
    DeepAgentOptions,
    DeepAgentTranslator,
    Shown,
    SourceForm,
)
from usechat.turns.chat import Approval, Chat
from usechat.turns.pump import closing_events

__all__ = ["DeepAgent", "DeepAgentError", "TranslatorMaker", "is_deep_agent"]

_T = TypeVar("_T")
PerTurn: TypeAlias = _T | Callable[[Chat], _T | Awaitable[_T]]
TranslatorMaker: TypeAlias = Callable[[Chat], Translator[Event]]

_log = logging.getLogger("usechat")

# Seconds that an agent may take for the events after `done`.
_AFTER_DONE: Final = 5.0


class DeepAgentError(UsechatError):
    """What a run failed with, if its `error` event holds no exception; users do not see it."""


def is_deep_agent(thing: object) -> bool:
    """Whether this streams DeepAgent events itself."""
    return callable(getattr(thing, "stream_with_events", None)) and not isinstance(thing, type)


class DeepAgent:
    """Serves an agent that yields DeepAgent events, or a graph of LangGraph, from whose runs they are derived.

    `events`, `sources` and `batch` say what a page is shown (`DeepAgentOptions`, which `options` gives as a whole).
    With `throttle`, of each kind of side events at most one is shown in that many seconds, and always the last.
    `translator` makes the translator of a turn from its chat, in place of a `DeepAgentTranslator`. `initial_state` and
    `thread_id` are functions of the chat, or values of which every turn gets a copy. `max_steps` is handed on. These
    three are not for graphs, whose threads are those of their chats; there, `translator` is that of the side events.

    `serving` is the agent to serve: this one, or the one that drives the graph.

    Raises:
        TypeError: it is no agent of that kind, or a graph is given what is not for graphs.
        ValueError: an option has a value that it cannot have.
    """

    @classmethod
    def wrap(cls, thing: object) -> Any:
        return thing.serving if isinstance(thing, cls) else cls(thing) if is_deep_agent(thing) else None

    def __init__(
        self,
        agent: object,
        *,
        events: Shown = "all",
        throttle: float | None = None,
        sources: SourceForm = "data",
        batch: bool | int = False,
        translator: TranslatorMaker | None = None,
        initial_state: PerTurn[Any] = None,
        thread_id: PerTurn[str | None] = None,
        max_steps: int | None = None,
        options: DeepAgentOptions | None = None,
    ) -> None:
        if throttle is not None and not 0 < throttle < 3600:
            raise ValueError(f"throttle is a number of seconds, not {throttle!r:.60}.")
        self._options = options or DeepAgentOptions(events=events, sources=sources, batch=batch)
        self._agent = agent
        self._throttle = throttle
        self._translator = translator
        self._initial_state = initial_state
        self._thread_id = thread_id
        self._max_steps = max_steps
        self.serving: Any = self if is_deep_agent(agent) else self._for_graph(agent)

    def translator(self, chat: Chat) -> Translator[Event]:
        if self._translator is not None:
            return self._translator(chat)
        return DeepAgentTranslator(self._options, continues=chat.continues)

    def run(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Run the agent for one turn.

        Raises:
            DeepAgentError: the run failed, or the exception that it failed with.
        """
        batches = self._options.batches if self._translator is None else None
        return paced(_to_its_end(self._stream(chat)), self._throttle, batches)

    async def _stream(self, chat: Chat) -> AsyncGenerator[Event, None]:
        agent: Any = self._agent
        arguments: dict[str, Any] = {
            "messages": await chat.model_messages(),
            "state": await _value(self._initial_state, chat),
            "thread_id": await _value(self._thread_id, chat),
            "abort": chat.stopping,
        }
        if self._max_steps is not None:
            arguments["max_steps"] = self._max_steps
        if chat.approvals and _takes(agent.stream_with_events, "resume"):
            arguments["resume"] = {"decisions": [_decision(approval) for approval in chat.approvals]}
        events = agent.stream_with_events(**arguments)
        if inspect.isawaitable(events):
            events = await events
        async with closing_events(events):
            async for event in events:
                yield event

    def _for_graph(self, graph: object) -> Any:
        if load_integration("langgraph").wrap(graph) is None:
            name = graph.__name__ if isinstance(graph, type) else type(graph).__name__
            raise TypeError(
                f"{name} is no DeepAgent: it is no graph of LangGraph, and has no "
                "stream_with_events(messages=, state=, thread_id=, abort=)."
            )
        if (self._initial_state, self._thread_id, self._max_steps) != (None, None, None):
            raise TypeError("A graph has its own state and threads: leave out initial_state, thread_id, max_steps.")
        driver = load_integration("deepagents")
        return driver(graph, options=self._options, throttle=self._throttle, side_events=self._translator)


async def _value(given: Any, chat: Chat) -> Any:
    if not callable(given):
        return copy.deepcopy(given)
    value = given(chat)
    return await value if inspect.isawaitable(value) else value


def _takes(function: Callable[..., object], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _decision(approval: Approval) -> dict[str, Any]:
    """The user's answer, as the original has it, and for which call it is."""
    decision: dict[str, Any] = {
        "type": "approve" if approval.approved else "deny",
        "approvalId": approval.id,
        "toolCallId": approval.call_id,
        "toolName": approval.tool,
    }
    if approval.reason is not None:
        decision["reason"] = approval.reason
    if isinstance(approval.extra, dict):
        extra = cast("dict[str, Any]", approval.extra)
        decision |= {name: extra[name] for name in ("modifiedArgs",) if name in extra}
    return decision


async def _to_its_end(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """The events of a run up to its end: a failure is raised, and `done` is added where the agent leaves it out.

    An agent that is done has five seconds to end.
    """
    async with closing_events(events):
        async for event in events:
            if kind_of(event) == "done":
                yield event
                break
            yield _checked(event)
        else:
            yield {"type": "done"}
            return
        deadline = asyncio.get_running_loop().time() + _AFTER_DONE
        while (event := await _next(events, deadline)) is not None:
            yield _checked(event)


async def _next(events: AsyncIterator[Event], deadline: float) -> Event | None:
    timeout = asyncio.timeout_at(deadline)
    try:
        async with timeout:
            return await anext(events, None)
    except TimeoutError:
        if not timeout.expired():
            raise
        _log.warning("a DeepAgent was done and did not end within %g seconds, so it was not waited for", _AFTER_DONE)
        return None


def _checked(event: Event) -> Event:
    """The event, unless it is a failure.

    Raises:
        DeepAgentError: it is one, or the exception that it holds.
    """
    if kind_of(event) != "error" or is_abort(error := event.get("error")):
        return event
    if isinstance(error, Exception):
        raise error
    raise DeepAgentError(f"{error!r:.1000}")
