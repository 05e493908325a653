"""LangChain's deepagents: drives graphs of `create_deep_agent`, and tells the DeepAgent events of their runs."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from usechat.events import Mapper
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.deepagent_sdk.mapper import DeepAgentMapper, DeepAgentOptions
from usechat.integrations.deepagent_sdk.paced import paced
from usechat.integrations.deepagents.side_events import TOOLS, DeepAgentEvents
from usechat.integrations.langgraph.agent import LangGraphAgent, is_graph
from usechat.integrations.langgraph.messages import field
from usechat.integrations.langgraph.thread import Thread
from usechat.integrations.langgraph.translator import Subgraphs
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Chat

__all__ = ["DeepGraphAgent", "is_deep_graph"]

Event: TypeAlias = Mapping[str, Any]
MapperMaker: TypeAlias = Callable[[MessageWriter], Mapper[Event]]

_OPTIONS: Final = DeepAgentOptions()


def is_deep_graph(thing: object) -> bool:
    """Whether it is a graph of `create_deep_agent`, which says so in the metadata of its config."""
    return is_graph(thing) and field(field(field(thing, "config"), "metadata"), "ls_integration") == "deepagents"


class DeepGraphAgent(LangGraphAgent):
    """Drives a graph of `create_deep_agent` as any other, and shows the DeepAgent events that follow from its stream.

    `options` say which of these events a page is shown and how. With `throttle`, at most one of a kind is shown in that
    many seconds, and always the last. `side_events` makes another mapper of them, which writes to the same message; it
    is given no others. `tools` are the names of the tools that they are derived from, where the agent calls them
    otherwise than deepagents does: `{"execute": "shell"}`. All other options are those of `LangGraphAgent`.
    """

    modes: ClassVar[tuple[str, ...]] = (*LangGraphAgent.modes, "checkpoints")

    @classmethod
    def wrap(cls, thing: object) -> "DeepGraphAgent | None":
        return cls(thing) if is_deep_graph(thing) else None

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
        super().__init__(graph, state=state, subgraphs=subgraphs, config=config, context=context)
        self._side_events = side_events or partial(DeepAgentMapper, options=options)
        self._throttle = throttle
        self._batches = side_events is None and options.together > 1
        self._tools = tools

    def mapper(self, writer: MessageWriter) -> Mapper[Event]:
        parts = TranslatingMapper(self._translator(writer.continues), writer)
        return _BothMapper(parts, self._side_events(writer))

    def run(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Give the parts of the graph's stream, and after each the events that follow from it.

        Raises:
            AgentError: there is nothing to run the graph with.
        """
        events = self._both(chat)
        if self._throttle is None and not self._batches:
            return events
        return paced(events, self._throttle, batches=self._batches)

    async def _both(self, chat: Chat) -> AsyncGenerator[Event, None]:
        derived, is_first = DeepAgentEvents(chat.id, self._tools, chat.continues), True
        async with aclosing(super().run(chat)) as parts:
            async for part in parts:
                if is_first and isinstance(chat.admitted, Thread) and chat.admitted.about is not None:
                    yield derived.loaded(chat.admitted.about)
                is_first = False
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
        # `paced` has flushed what waited for others.
        return self._graph.end()
