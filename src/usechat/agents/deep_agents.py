"""LangChain's deepagents: graphs of `create_deep_agent`, shown with the DeepAgent events of their runs."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from usechat.agents.chat import Chat
from usechat.agents.langgraph import LangGraphAgent, is_graph
from usechat.agents.paced import paced
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.sources.deep_agent import DeepAgentMapper, DeepAgentOptions
from usechat.sources.deep_agents import TOOLS, DeepAgentEvents
from usechat.sources.langgraph import Subgraphs
from usechat.sources.langgraph_messages import field

__all__ = ["DeepGraphAgent", "is_deep_graph"]

Event: TypeAlias = Mapping[str, Any]
MapperMaker: TypeAlias = Callable[[MessageWriter], Mapper[Event]]

_OPTIONS: Final = DeepAgentOptions()


def is_deep_graph(thing: object) -> bool:
    """Whether it is a graph of `create_deep_agent`, which says so in the metadata of its config."""
    return is_graph(thing) and field(field(field(thing, "config"), "metadata"), "ls_integration") == "deepagents"


class DeepGraphAgent(LangGraphAgent):
    """Drives a graph of `create_deep_agent` as any other, and shows the DeepAgent events that follow from its stream.

    `options` say which of these events a page is shown and how, and with `throttle`, at most one of a kind is shown in
    so many seconds, and always the last. `side_events` makes another mapper of them, which writes to the same message;
    it is given no others. `tools` are the names of the tools that they are derived from, where the agent calls them
    otherwise than deepagents does: `{"execute": "shell"}`. Everything else is as for `LangGraphAgent`.
    """

    modes: ClassVar[tuple[str, ...]] = (*LangGraphAgent.modes, "checkpoints")

    def __init__(
        self,
        graph: Any,
        *,
        options: DeepAgentOptions = _OPTIONS,
        throttle: float | None = None,
        side_events: MapperMaker | None = None,
        tools: Mapping[str, str] = TOOLS,
        state: Collection[str] = (),
        subgraphs: Subgraphs = "data",
        config: Mapping[str, Any] | None = None,
        context: Callable[[Chat], Any] | None = None,
    ) -> None:
        """Prepare the threads.

        Raises:
            TypeError: it is no compiled graph, and nothing that could make one.
        """
        super().__init__(graph, state=state, subgraphs=subgraphs, config=config, context=context)
        self._side_events = side_events or partial(DeepAgentMapper, options=options)
        self._throttle = throttle
        self._batches = side_events is None and options.together > 1
        self._tools = tools

    def mapper(self, writer: MessageWriter) -> Mapper[Event]:
        return _BothMapper(super().mapper(writer), self._side_events(writer))

    def events(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Give the parts of the graph's stream, and after each the events that follow from it.

        Raises:
            AgentError: there is nothing to run the graph with.
        """
        events = self._both(chat)
        if self._throttle is None and not self._batches:
            return events
        return paced(events, self._throttle, batches=self._batches)

    async def _both(self, chat: Chat) -> AsyncGenerator[Event, None]:
        derived = DeepAgentEvents(chat.id, self._tools)
        async with aclosing(super().events(chat)) as parts:
            async for part in parts:
                yield part
                for event in derived.see(part):
                    yield event


class _BothMapper:
    """Gives the parts of a graph to one mapper, and the events, which have no namespace, to the other."""

    def __init__(self, graph: Mapper[Event], side_events: Mapper[Event]) -> None:
        self._graph = graph
        self._side_events = side_events

    def map(self, event: Event) -> Iterable[Chunk]:
        return (self._graph if "ns" in event else self._side_events).map(event)

    def end(self) -> Iterable[Chunk]:
        # What waited for others was flushed by whoever has the clock.
        return self._graph.end()
