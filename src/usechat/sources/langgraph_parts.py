"""LangGraph: the data parts of a graph's message, beside those that its nodes and its state name themselves.

`usechat types deep-agent` makes TypeScript of these classes, since a graph of deepagents has such parts, too.
"""

from typing import Any, Final, Literal, NotRequired, TypedDict

__all__ = ["GRAPH_PARTS", "Interrupted", "Subgraph", "SubgraphCall"]


class SubgraphCall(TypedDict):
    toolCallId: str
    toolName: str
    state: Literal["streaming", "running", "done", "failed"]


class Subgraph(TypedDict):
    """What a sub-graph has said so far; `toolCallId` is the call that it answers, and `parent` the part around it."""

    name: str
    status: Literal["running", "waiting", "complete", "failed"]
    text: str
    reasoning: NotRequired[str]
    tools: NotRequired[list[SubgraphCall]]
    toolCallId: NotRequired[str]
    parent: NotRequired[str]


class Interrupted(TypedDict):
    """What a node waits for; the body's `resume: {id: …}` answers it."""

    id: str
    value: Any


GRAPH_PARTS: Final[dict[str, Any]] = {"subgraph": Subgraph, "interrupt": Interrupted}
