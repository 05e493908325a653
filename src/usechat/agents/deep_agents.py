"""LangChain's deepagents: graphs of `create_deep_agent`, shown with the DeepAgent events of their runs."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, TypeAlias

from usechat.agents.chat import Chat
from usechat.agents.langgraph import LangGraphAgent, is_graph
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.sources.deep_agents import TOOLS, DeepAgentEvents
from usechat.sources.langgraph import Subgraphs
from usechat.sources.langgraph_messages import field

__all__ = ["DeepGraphAgent", "is_deep_graph"]

Event: TypeAlias = Mapping[str, Any]
MapperMaker: TypeAlias = Callable[[MessageWriter], Mapper[Event]]


def is_deep_graph(thing: object) -> bool:
    """Whether it is a graph of `create_deep_agent`, which says so in the metadata of its config."""
    return is_graph(thing) and field(field(field(thing, "config"), "metadata"), "ls_integration") == "deepagents"


class DeepGraphAgent(LangGraphAgent):
    """Drives a graph of `create_deep_agent` as any other, and shows the DeepAgent events that follow from its stream.

    `side_events` makes the mapper of these events, which writes to the same message; it is given no others. `tools` are
    the names of the tools that they are derived from, where the agent calls them otherwise than deepagents does:
    `{"execute": "shell"}`. Everything else is as for `LangGraphAgent`.
    """

    modes: ClassVar[tuple[str, ...]] = (*LangGraphAgent.modes, "checkpoints")

    def __init__(
        self,
        graph: Any,
        *,
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
        self._side_events = side_events or _DataParts
        self._tools = tools

    def mapper(self, writer: MessageWriter) -> Mapper[Event]:
        return _BothMapper(super().mapper(writer), self._side_events(writer))

    async def events(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Give the parts of the graph's stream, and after each the events that follow from it.

        Raises:
            AgentError: there is nothing to run the graph with.
        """
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
        return self._graph.end()


class _DataParts:
    """Each event as the data part of its name; that of the todos is replaced in place."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def map(self, event: Event) -> Iterable[Chunk]:
        name, data = event["type"], {key: value for key, value in event.items() if key != "type"}
        return self._writer.data(name, data, id="todos") if name == "todos-changed" else self._writer.data(name, data)

    def end(self) -> Iterable[Chunk]:
        return ()
