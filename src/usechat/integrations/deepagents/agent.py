"""LangChain's deepagents: drives graphs of `create_deep_agent`, and tells the DeepAgent events of their runs."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final, TypeAlias

from usechat.events import AgentEvent, Translator
from usechat.integrations.deepagent_sdk.pace import paced
from usechat.integrations.deepagent_sdk.translator import DeepAgentOptions, DeepAgentTranslator
from usechat.integrations.deepagents.side_events import TOOLS, DeepAgentEvents
from usechat.integrations.langgraph.agent import LangGraphAgent, is_graph
from usechat.integrations.langgraph.messages import field
from usechat.integrations.langgraph.thread import Thread
from usechat.integrations.langgraph.translator import Subgraphs
from usechat.turns.chat import Chat

__all__ = ["DeepGraphAgent", "is_deep_graph"]

Event: TypeAlias = Mapping[str, Any]
TranslatorMaker: TypeAlias = Callable[[Chat], Translator[Event]]

_OPTIONS: Final = DeepAgentOptions()


def is_deep_graph(thing: object) -> bool:
    """Whether it is a graph of `create_deep_agent`, which says so in the metadata of its config."""
    return is_graph(thing) and field(field(field(thing, "config"), "metadata"), "ls_integration") == "deepagents"


class DeepGraphAgent(LangGraphAgent):
    """Drives a graph of `create_deep_agent` as any other, and shows the DeepAgent events that follow from its stream.

    `options` say which of these events a page is shown and how. With `throttle`, at most one of a kind is shown in that
    many seconds, and always the last. `side_events` makes another translator of them from the chat; it is given no
    others. `tools` are the names of the tools that they are derived from, where the agent calls them
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
        side_events: TranslatorMaker | None = None,
        tools: Mapping[str, str] = TOOLS,
        state: Collection[str] = (),
        subgraphs: Subgraphs = "data",
        config: Mapping[str, Any] | None = None,
        context: Callable[[Chat], Any] | None = None,
    ) -> None:
        super().__init__(graph, state=state, subgraphs=subgraphs, config=config, context=context)
        self._shown = options
        self._side_events = side_events
        self._throttle = throttle
        self._tools = tools

    def translator(self, chat: Chat) -> Translator[Event]:
        side_events = DeepAgentTranslator(self._shown) if self._side_events is None else self._side_events(chat)
        return DeepGraphTranslator(super().translator(chat), side_events)

    def run(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Give the parts of the graph's stream, and after each the events that follow from it.

        Raises:
            AgentError: there is nothing to run the graph with.
        """
        return paced(self._both(chat), self._throttle, self._shown.batches if self._side_events is None else None)

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


class DeepGraphTranslator:
    """Gives the parts of a graph to one translator, and the events, which have no namespace, to the other."""

    def __init__(self, graph: Translator[Event], side_events: Translator[Event]) -> None:
        self._graph = graph
        self._side_events = side_events

    def translate(self, event: Event) -> Iterable[AgentEvent]:
        return (self._graph if "ns" in event else self._side_events).translate(event)

    def end(self) -> Iterable[AgentEvent]:
        return self._graph.end()
