"""What agents say, as calls of the writer: one file for each world of agents."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources import agent_ops_options, deep_agent_options, langgraph, open_harness_options
from usechat.sources.agent_ops_log import AgentOpsLog
from usechat.sources.deep_agent import DeepAgentMapper
from usechat.sources.open_harness import OpenHarnessMapper

__all__ = ["SOURCES", "Mapper", "Source"]

_Event = TypeVar("_Event", contravariant=True)


class Mapper(Protocol[_Event]):
    """Turns events into chunks, by a writer that it was made with; it waits for nothing."""

    def map(self, event: _Event) -> Iterable[Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: the event is of no use; nothing was written.
        """
        ...

    def end(self) -> Iterable[Chunk]:
        """What follows when no more events come; a message that is not ended by it ends well."""
        ...


Source: TypeAlias = Callable[[MessageWriter, Mapping[str, Any]], Mapper[dict[str, Any]]]

SOURCES: Final[dict[str, Source]] = {
    "open-harness": lambda writer, options: OpenHarnessMapper(writer, open_harness_options.read_options(options)),
    "agent-ops": lambda writer, options: AgentOpsLog(writer, agent_ops_options.read_options(options)),
    "deep-agent": lambda writer, options: DeepAgentMapper(writer, deep_agent_options.read_options(options)),
    "langgraph": lambda writer, options: langgraph.LangGraphMapper(writer, langgraph.read_options(options)),
}
"""The sources whose events a log can hold, by name; each raises ValueError for an option that it does not have."""
