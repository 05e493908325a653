"""DeepAgent: any object with `stream_with_events(messages=…, state=…, thread_id=…, abort=…)`."""

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeAlias, TypeVar, cast

from msgspec import Struct

from usechat.errors import UsechatError
from usechat.events import Mapper
from usechat.integrations.deepagent_sdk.fields import is_abort, kind_of
from usechat.integrations.deepagent_sdk.mapper import DeepAgentMapper, DeepAgentOptions
from usechat.integrations.deepagent_sdk.options import Shown, SourceForm
from usechat.integrations.deepagent_sdk.paced import paced
from usechat.integrations.deepagents.agent import DeepGraphAgent
from usechat.integrations.langgraph.agent import is_graph
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Approval, Chat
from usechat.turns.pump import closing_events

__all__ = ["DeepAgent", "DeepAgentError", "Run", "is_deep_agent"]

_T = TypeVar("_T")
Event: TypeAlias = Mapping[str, Any]
PerTurn: TypeAlias = _T | Callable[[Chat], _T | Awaitable[_T]]
MapperMaker: TypeAlias = Callable[[MessageWriter], Mapper[Event]]

_log = logging.getLogger("usechat")

# How long an agent that is done may take to tell what comes after that.
_AFTER_DONE: Final = 5.0


class DeepAgentError(UsechatError):
    """What a run failed with, where its `error` event holds no exception; users are not shown it."""


class Run(Struct, frozen=True):
    """What one run is given beside its chat; each turn has values of its own."""

    state: Any = None
    thread_id: str | None = None
    max_steps: int | None = None


def is_deep_agent(thing: object) -> bool:
    """Whether this streams DeepAgent events itself."""
    return callable(getattr(thing, "stream_with_events", None)) and not isinstance(thing, type)


def _check(agent: object) -> None:
    if not is_deep_agent(agent):
        name = agent.__name__ if isinstance(agent, type) else type(agent).__name__
        raise TypeError(
            f"{name} is no DeepAgent: it is no graph of LangGraph, and has no "
            "stream_with_events(messages=, state=, thread_id=, abort=)."
        )


class DeepAgent:
    """Serves an agent that yields DeepAgent events, or a graph of deepagents, from whose runs they are derived.

    `events`, `sources` and `batch` say what a page is shown (`DeepAgentOptions`, which `options` gives as a whole).
    With `throttle`, of each kind of side events at most one is shown in so many seconds, and always the last.
    `mapper` makes the mapper of a turn from its writer, in place of a `DeepAgentMapper`. `initial_state` and
    `thread_id` are functions of the chat, or values of which every turn gets a copy. `max_steps` is handed on. These
    three are not for graphs, whose threads are those of their chats; there, `mapper` is that of the side events.

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
        mapper: MapperMaker | None = None,
        initial_state: PerTurn[Any] = None,
        thread_id: PerTurn[str | None] = None,
        max_steps: int | None = None,
        options: DeepAgentOptions | None = None,
    ) -> None:
        if throttle is not None and not 0 < throttle < 3600:
            raise ValueError(f"throttle is a number of seconds, not {throttle!r:.60}.")
        self._options = options or DeepAgentOptions(events=events, sources=sources, batch=batch)
        self.serving: Any = self
        if is_graph(agent):
            if (initial_state, thread_id, max_steps) != (None, None, None):
                raise TypeError("A graph has its own state and threads: leave out initial_state, thread_id, max_steps.")
            self.serving = DeepGraphAgent(agent, options=self._options, throttle=throttle, side_events=mapper)
        else:
            _check(agent)
        self._agent = agent
        self._throttle = throttle
        self._mapper = mapper
        self._initial_state = initial_state
        self._thread_id = thread_id
        self._max_steps = max_steps

    def mapper(self, writer: MessageWriter) -> Mapper[Event]:
        return DeepAgentMapper(writer, self._options) if self._mapper is None else self._mapper(writer)

    async def run(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Run the agent for one turn.

        Raises:
            DeepAgentError: the run failed, or the exception that it failed with.
        """
        run = Run(await _value(self._initial_state, chat), await _value(self._thread_id, chat), self._max_steps)
        events = _to_its_end(_stream(self._agent, chat, run))
        batches = self._mapper is None and self._options.together > 1
        if self._throttle is not None or batches:
            events = paced(events, self._throttle, batches=batches)
        with _Patience(chat) as patience:
            async with closing_events(events):
                async for event in events:
                    patience.see(event)
                    yield event


class _Patience(ExitStack):
    """Suspends the idle clock while the run has open calls, since a tool or a sub-agent may be silent for long."""

    def __init__(self, chat: Chat) -> None:
        super().__init__()
        self._chat = chat
        self._open: set[str] = set()

    def see(self, event: Event) -> None:
        kind = kind_of(event)
        if kind not in ("tool-call", "tool-result"):
            return
        were_open, call = bool(self._open), event.get("toolCallId")
        if isinstance(call, str):
            (self._open.add if kind == "tool-call" else self._open.discard)(call)
        if self._open and not were_open:
            self.enter_context(self._chat.hold())
        elif were_open and not self._open:
            self.close()


async def _value(given: Any, chat: Chat) -> Any:
    if not callable(given):
        return copy.deepcopy(given)
    value = given(chat)
    return await value if inspect.isawaitable(value) else value


async def _stream(agent: Any, chat: Chat, run: Run) -> AsyncGenerator[Event, None]:
    arguments: dict[str, Any] = {
        "messages": await chat.model_messages(),
        "state": run.state,
        "thread_id": run.thread_id,
        "abort": chat.stopping,
    }
    if run.max_steps is not None:
        arguments["max_steps"] = run.max_steps
    if chat.approvals and _takes(agent.stream_with_events, "resume"):
        arguments["resume"] = {"decisions": [_decision(approval) for approval in chat.approvals]}
    events = agent.stream_with_events(**arguments)
    if inspect.isawaitable(events):
        events = await events
    async with closing_events(events):
        async for event in events:
            yield event


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
    """The events of a run, whose failure is raised, and whose end is told also where the agent does not tell it.

    An agent that is done and does not end is not waited for.
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
