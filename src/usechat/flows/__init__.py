"""Flows in Open Harness's format, and runtimes for them: a graph of nodes that tells what it does."""

from usechat.extras import missing

try:
    from usechat.errors import FlowError
    from usechat.flows.agent import agent_node
    from usechat.flows.loading import load_flow, parse_flow
    from usechat.flows.nodes import NodeContext, NodeFunction, without_state
    from usechat.flows.runtime import FlowRuntime
    from usechat.flows.scheduling import Command, Event, RunSnapshot
    from usechat.flows.spec import Edge, Flow, FlowState, ForEach, Node, Policy, Retry
    from usechat.flows.store import DatabaseRunStore, MemoryRunStore, RunStore
    from usechat.integrations.open_harness.agent import Runtime
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing("usechat.flows", error, "flows"), name=error.name) from error

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
    "without_state",
]
