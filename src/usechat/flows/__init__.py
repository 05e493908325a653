"""Flows in Open Harness's format, and runtimes for them: a graph of nodes that tells what it does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from usechat.flows.agent import agent_node
from usechat.flows.context import NodeContext, NodeFunction
from usechat.flows.errors import FlowError
from usechat.flows.loading import load_flow, parse_flow
from usechat.flows.runtime import FlowRuntime
from usechat.flows.scheduling import Command, Event, RunSnapshot
from usechat.flows.spec import Edge, Flow, FlowState, ForEach, Node, Policy, Retry
from usechat.flows.store import DatabaseRunStore, MemoryRunStore, RunStore

__all__ = [
    "Command",
    "DatabaseRunStore",
    "Edge",
    "Event",
    "Flow",
    "FlowError",
    "FlowRuntime",
    "FlowState",
    "ForEach",
    "MemoryRunStore",
    "Node",
    "NodeContext",
    "NodeFunction",
    "Policy",
    "Retry",
    "RunSnapshot",
    "RunStore",
    "Runtime",
    "agent_node",
    "load_flow",
    "parse_flow",
]


class Runtime(Protocol):
    """One run of a flow, here or elsewhere. Events and commands are Open Harness's, as JSON-shaped dicts."""

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        """Run until the flow is complete, paused or aborted; a paused run goes on.

        Raises:
            FlowError: the run is over already, or the flow cannot go on.
        """
        ...

    def dispatch(self, command: Command) -> None:
        """Take a command: `send`, `reply`, `abort`, `resume`, `pause` or `stop`.

        Raises:
            FlowError: the command is not one, or cannot be taken.
        """
        ...

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that."""
        ...

    def snapshot(self) -> RunSnapshot:
        """A copy of all that the run is now."""
        ...

    @property
    def waiting(self) -> Sequence[str]:
        """The run ids of the nodes that wait for a message, in the order of their start, as far as that is known."""
        ...
