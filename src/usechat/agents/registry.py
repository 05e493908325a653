"""Which agent a thing is: the one place that knows all kinds."""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from usechat.agents import Agent
from usechat.agents.chat import Chat
from usechat.agents.deep_agent import DeepAgent, is_deep_agent
from usechat.agents.deep_agents import DeepGraphAgent, is_deep_graph
from usechat.agents.langgraph import LangGraphAgent, is_graph
from usechat.agents.open_harness import OpenHarnessAgent, Runtime, is_runtime
from usechat.agents.plain import PlainAgent, is_plain
from usechat.turns.threads import THREADS, Threads

__all__ = ["AnyAgent", "agent_of", "find_agent"]


class _Driver(Protocol):
    @property
    def events(self) -> Callable[..., Any]: ...

    @property
    def mapper(self) -> Callable[..., Any]: ...


class _Transport(Protocol):
    @property
    def agent(self) -> Any: ...


class _Graph(Protocol):
    @property
    def astream(self) -> Callable[..., Any]: ...

    @property
    def aget_state(self) -> Callable[..., Any]: ...


class _DeepAgent(Protocol):
    @property
    def stream_with_events(self) -> Callable[..., Any]: ...


AnyAgent: TypeAlias = Callable[[Chat], Any] | DeepAgent | Runtime | _Driver | _Transport | _Graph | _DeepAgent
"""What can be an agent, for type checkers: no more than what tells the kinds apart, so that none is refused wrongly."""


def _as_it_is(thing: Any, _threads: Threads) -> Agent[Any] | None:
    is_agent = callable(getattr(thing, "events", None)) and callable(getattr(thing, "mapper", None))
    # A class of agents has the methods, too.
    return thing if is_agent and not isinstance(thing, type) else None


def _inside(thing: Any, threads: Threads) -> Agent[Any] | None:
    """The agent of a transport."""
    return _as_it_is(getattr(thing, "agent", None), threads)


def _graph(thing: Any, _threads: Threads) -> Agent[Any] | None:
    if is_deep_graph(thing):
        return DeepGraphAgent(thing)
    return LangGraphAgent(thing) if is_graph(thing) else None


def _runtime(thing: Any, _threads: Threads) -> Agent[Any] | None:
    return OpenHarnessAgent(thing) if is_runtime(thing) else None


def _wrapped(thing: Any, _threads: Threads) -> Agent[Any] | None:
    return thing.serving if isinstance(thing, DeepAgent) else None


def _deep_agent(thing: Any, _threads: Threads) -> Agent[Any] | None:
    return DeepAgent(thing) if is_deep_agent(thing) else None


def _plain(thing: Any, threads: Threads) -> Agent[Any] | None:
    return PlainAgent(thing, threads) if is_plain(thing) else None


KINDS: Final[tuple[Callable[[Any, Threads], Agent[Any] | None], ...]] = (
    _wrapped,
    _as_it_is,
    _inside,
    _graph,
    _runtime,
    _deep_agent,
    _plain,
)
"""Each says whether the thing is of its kind; the first that knows it counts."""


def find_agent(thing: object, threads: Threads = THREADS) -> Agent[Any] | None:
    """The agent that drives this thing, if one does."""
    return next((agent for kind in KINDS if (agent := kind(thing, threads)) is not None), None)


def agent_of(thing: object, threads: Threads = THREADS) -> Agent[Any]:
    """The agent that drives this thing; `threads` are for those that cannot wait.

    Raises:
        TypeError: nothing here can drive it.
    """
    agent = find_agent(thing, threads)
    if agent is not None:
        return agent
    name = thing.__name__ if isinstance(thing, type) else type(thing).__name__
    raise TypeError(
        f"{name} is not an agent: give a function that takes the chat and yields text, a runtime, a compiled graph of "
        "LangGraph, an object with stream_with_events(messages, state, thread_id, abort), or one with events(chat) and "
        "mapper(writer)."
    )
