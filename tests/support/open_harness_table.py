"""What the mapper of Open Harness makes of each event: the rows of the test, and of the table in its guide."""

from typing import Any, Final

from msgspec import Struct

__all__ = ["ROWS", "Row"]


class Row(Struct, frozen=True, kw_only=True):
    """One event, and the chunks that it gives in a stream that has seen the events `before`."""

    event: dict[str, Any]
    chunks: list[dict[str, Any]]
    before: tuple[dict[str, Any], ...] = ()
    options: dict[str, bool] = {}
    case: str = ""


ALL: Final = {"send_flow_metadata": True, "send_node_outputs": True}
QUIET_STEP: Final[list[dict[str, Any]]] = [
    {"type": "start-step"},
    {"type": "message-metadata", "messageMetadata": {}},
    {"type": "finish-step"},
]


def agent(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"agent:{kind}", "nodeId": "writer", "runId": "r-1", **fields}


def node(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"node:{kind}", "nodeId": "writer", "runId": "r-1", **fields}


def data(name: str, value: dict[str, Any], id_: str | None = None) -> dict[str, Any]:
    part = {"type": f"data-{name}", "data": value}
    return part if id_ is None else {**part, "id": id_}


def node_data(status: str) -> dict[str, Any]:
    return data("node", {"nodeId": "writer", "runId": "r-1", "status": status}, "r-1")


def status_data(status: str) -> dict[str, Any]:
    return data("flow-status", {"status": status, "flowName": "story"}, "flow-status")


def called(call: str, input_: Any) -> dict[str, Any]:
    return {"type": "tool-input-available", "toolCallId": call, "toolName": "search", "input": input_}


def answered(call: str, output: Any) -> dict[str, Any]:
    return {"type": "tool-output-available", "toolCallId": call, "output": output}


def broken(call: str, text: str) -> dict[str, Any]:
    return {"type": "tool-output-error", "toolCallId": call, "errorText": text}


def text(kind: str, part: str, *deltas: str) -> list[dict[str, Any]]:
    return [
        {"type": f"{kind}-start", "id": part},
        *({"type": f"{kind}-delta", "id": part, "delta": delta} for delta in deltas),
        {"type": f"{kind}-end", "id": part},
    ]


FLOW: Final = {"type": "flow:start", "flowName": "story"}
BEGUN: Final = (FLOW, node("start"), agent("start", sessionId="s", prompt="Go"))
USED: Final = {"inputTokens": 3, "outputTokens": 4, "cacheReadInputTokens": 10, "cacheCreationInputTokens": 2}
USAGE: Final = {
    "inputTokens": 15,
    "inputTokenDetails": {"noCacheTokens": 3, "cacheReadTokens": 10, "cacheWriteTokens": 2},
    "outputTokens": 4,
    "outputTokenDetails": {},
    "totalTokens": 19,
    "cachedInputTokens": 10,
}
COMPLETE: Final = agent("complete", result="", usage=USED, totalCostUsd=0.5, durationMs=900, numTurns=2)
TOTALS: Final = {
    "type": "message-metadata",
    "messageMetadata": {"usage": USAGE, "totalCostUsd": 0.5, "durationMs": 900, "numTurns": 2},
}
STEP_END: Final = {"type": "finish-step"}
FAILED: Final = {"type": "error", "errorText": "Something went wrong, and the run could not be finished."}
EVENTS_OF_A_FLOW: Final[tuple[dict[str, Any], ...]] = (
    {"type": "edge:fire", "edgeId": "e-1", "from": "a", "to": "b"},
    {"type": "loop:iterate", "edgeId": "e-1", "iteration": 1},
    {"type": "state:patch", "patch": {"op": "set", "path": "count", "value": 1}},
    {"type": "command:received", "command": {"type": "send", "runId": "r-1", "message": "hi"}},
    {"type": "recording:linked", "nodeId": "writer", "runId": "r-1", "recordingId": "rec", "mode": "live"},
)

TEXTS: Final = [
    row
    for event, kind in (("text", "text"), ("thinking", "reasoning"))
    for row in (
        Row(
            case="the first piece",
            before=BEGUN,
            event=agent(f"{event}:delta", content="Hel"),
            chunks=text(kind, "id-1", "Hel")[:-1],
        ),
        Row(
            case="the next piece",
            before=(*BEGUN, agent(f"{event}:delta", content="Hel")),
            event=agent(f"{event}:delta", content="lo"),
            chunks=text(kind, "id-1", "lo")[1:-1],
        ),
        Row(case="an empty piece", before=BEGUN, event=agent(f"{event}:delta", content=""), chunks=[]),
        Row(
            case="after its pieces",
            before=(*BEGUN, agent(f"{event}:delta", content="Hel"), agent(f"{event}:delta", content="lo")),
            event=agent(event, content="Hello"),
            chunks=[{"type": f"{kind}-end", "id": "id-1"}],
        ),
        Row(
            case="longer than its pieces",
            before=(*BEGUN, agent(f"{event}:delta", content="Hel")),
            event=agent(event, content="Hello"),
            chunks=text(kind, "id-1", "lo")[1:],
        ),
        Row(
            case="without pieces",
            before=BEGUN,
            event=agent(event, content="Hello"),
            chunks=text(kind, "id-1", "Hello"),
        ),
    )
]

REASONING: Final = [
    Row(
        case="without `send_reasoning`",
        before=BEGUN,
        event=agent(kind, content="Hm"),
        options={"send_reasoning": False},
        chunks=[],
    )
    for kind in ("thinking:delta", "thinking")
]

TOOLS: Final = [
    Row(
        case="with its result",
        before=BEGUN,
        event=agent("tool", toolName="search", toolInput={"q": "tide"}, toolOutput=["noon"], durationMs=4),
        chunks=[called("r-1-1", {"q": "tide"}), answered("r-1-1", ["noon"])],
    ),
    Row(
        case="that failed",
        before=BEGUN,
        event=agent("tool", toolName="search", toolInput={"q": "tide"}, toolOutput=None, error="no such page"),
        chunks=[called("r-1-1", {"q": "tide"}), broken("r-1-1", "no such page")],
    ),
    Row(
        case="that failed without a word",
        before=BEGUN,
        event=agent("tool", toolName="search", toolInput={}, error=""),
        chunks=[called("r-1-1", {}), broken("r-1-1", "The tool failed.")],
    ),
    Row(
        case="without input",
        before=BEGUN,
        event=agent("tool", toolName="search", toolOutput=1),
        chunks=[called("id-1", {}), answered("id-1", 1)],
    ),
    Row(
        case="without input or output",
        before=BEGUN,
        event=agent("tool", toolName="search"),
        chunks=[called("id-1", {}), answered("id-1", None)],
    ),
    Row(
        case="that took its time and returned nothing",
        before=BEGUN,
        event=agent("tool", toolName="search", toolInput=None, durationMs=4),
        chunks=[called("r-1-1", {}), answered("r-1-1", None)],
    ),
    Row(
        case="v0.2, its beginning",
        before=BEGUN,
        event=agent("tool", toolName="search", toolInput={"q": "tide"}),
        chunks=[called("r-1-1", {"q": "tide"})],
    ),
    Row(
        case="v0.2, its end",
        before=(*BEGUN, *(agent("tool", toolName="search", toolInput={"page": page}) for page in (1, 2))),
        event=agent("tool", toolName="search", toolOutput=["noon"]),
        chunks=[answered("r-1-1", ["noon"])],
    ),
]

PARTS: Final = [
    Row(case=case, before=BEGUN, event=agent("part", part=part), chunks=[part])
    for case, part in (
        ("a page", {"type": "source-url", "sourceId": "s-1", "url": "https://tides.example", "title": "Tides"}),
        ("a document", {"type": "source-document", "sourceId": "s-1", "mediaType": "text/plain", "title": "Tides"}),
        ("a file", {"type": "file", "url": "data:text/plain,noon", "mediaType": "text/plain"}),
        ("data", {"type": "data-tide", "data": {"at": "noon"}, "id": "d-1"}),
    )
]

NODES: Final = [
    Row(
        case="",
        before=(FLOW,),
        event=node("start"),
        chunks=[
            {"type": "start", "messageId": "m"},
            {"type": "start-step"},
            {"type": "message-metadata", "messageMetadata": {}},
        ],
    ),
    Row(
        case="after another node that said nothing",
        before=BEGUN,
        event={**node("start"), "runId": "r-2"},
        chunks=[STEP_END, {"type": "start-step"}, {"type": "message-metadata", "messageMetadata": {}}],
    ),
    Row(
        case="with `send_flow_metadata`",
        before=(FLOW,),
        event=node("start"),
        options=ALL,
        chunks=[{"type": "start-step"}, node_data("running")],
    ),
    Row(
        case="without `send_step_markers`",
        before=(FLOW,),
        event=node("start"),
        options={"send_step_markers": False},
        chunks=[],
    ),
    Row(case="", before=BEGUN, event=node("complete", output={"text": "Hi"}), chunks=[]),
    Row(
        case="with `send_node_outputs` and `send_flow_metadata`",
        before=BEGUN,
        event=node("complete", output={"text": "Hi"}),
        options=ALL,
        chunks=[
            node_data("complete"),
            data("node-output", {"nodeId": "writer", "runId": "r-1", "output": {"text": "Hi"}}),
        ],
    ),
    Row(
        case="while a call has no result",
        before=(*BEGUN, agent("tool", toolName="search", toolInput={})),
        event=node("complete"),
        chunks=[broken("r-1-1", "The call ended without a result.")],
    ),
    Row(case="", before=BEGUN, event=node("error", error="upstream 503"), chunks=[]),
    Row(
        case="with `send_flow_metadata`",
        before=BEGUN,
        event=node("error", error="upstream 503"),
        options=ALL,
        chunks=[node_data("failed")],
    ),
    Row(
        case="while a call has no result",
        before=(*BEGUN, agent("tool", toolName="search", toolInput={})),
        event=node("error", error="upstream 503"),
        chunks=[broken("r-1-1", "The call was cut off by an error.")],
    ),
    Row(
        case="a timeout, while a call has no result",
        before=(*BEGUN, agent("tool", toolName="search", toolInput={})),
        event=node("error", error="Node execution timed out after 5000ms"),
        chunks=[broken("r-1-1", "The call timed out after 5000 ms.")],
    ),
    Row(case="", before=BEGUN, event={"type": "node:skipped", "nodeId": "editor", "reason": "edge"}, chunks=[]),
    Row(
        case="with `send_flow_metadata`",
        before=BEGUN,
        event={"type": "node:skipped", "nodeId": "editor", "reason": "edge"},
        options=ALL,
        chunks=[data("node", {"nodeId": "editor", "status": "skipped", "reason": "edge"}, "skipped-editor")],
    ),
]

FLOWS: Final = [
    Row(case="", event=FLOW, chunks=[]),
    Row(
        case="with `send_flow_metadata`",
        event=FLOW,
        options=ALL,
        chunks=[{"type": "start", "messageId": "m"}, status_data("running")],
    ),
    Row(
        case="with `send_flow_metadata`",
        before=(FLOW,),
        event={"type": "flow:resumed"},
        options=ALL,
        chunks=[status_data("running")],
    ),
    *(
        row
        for event, status, end in (
            ({"type": "flow:complete", "status": "complete"}, "complete", {"type": "finish", "finishReason": "stop"}),
            ({"type": "flow:complete", "status": "failed"}, "failed", FAILED),
            ({"type": "flow:paused"}, "paused", {"type": "finish", "finishReason": "other"}),
            ({"type": "flow:aborted"}, "aborted", {"type": "abort"}),
        )
        for row in (
            Row(case=status, before=BEGUN, event=event, chunks=[STEP_END, end]),
            Row(
                case=f"{status}, with `send_flow_metadata`",
                before=BEGUN,
                event=event,
                options=ALL,
                chunks=[status_data(status), STEP_END, end],
            ),
        )
    ),
    Row(
        case="failed, after a timeout",
        before=(*BEGUN, node("error", error="Node execution timed out after 5000ms")),
        event={"type": "flow:complete", "flowName": "story", "status": "failed"},
        chunks=[
            STEP_END,
            {"type": "error", "errorText": "A step of the run took too long, and the run could not be finished."},
        ],
    ),
    *(
        row
        for event in EVENTS_OF_A_FLOW
        for row in (
            Row(event=event, before=BEGUN, chunks=[]),
            Row(
                case="with `send_flow_metadata`",
                before=BEGUN,
                event=event,
                options=ALL,
                chunks=[data("flow-event", event)],
            ),
        )
    ),
]

AGENTS: Final = [
    Row(event=agent("start", sessionId="s", prompt="Go"), before=(FLOW, node("start")), chunks=[]),
    Row(
        case="again, after an attempt that failed",
        before=(*BEGUN, agent("text:delta", content="Hel")),
        event=agent("start", sessionId="s", prompt="Go"),
        chunks=[{"type": "text-end", "id": "id-1"}],
    ),
    Row(
        before=(*BEGUN, agent("text:delta", content="Hel")),
        event=agent("error", errorType="error_max_turns", message="The agent took too many turns.", details={"n": 9}),
        chunks=[
            {"type": "text-end", "id": "id-1"},
            data(
                "agent-error",
                {
                    "nodeId": "writer",
                    "runId": "r-1",
                    "errorType": "error_max_turns",
                    "message": "The agent took too many turns.",
                },
            ),
        ],
    ),
    Row(
        case="an exception",
        before=BEGUN,
        event=agent("error", errorType="exception", message="postgres://app:hunter2@db refused"),
        chunks=[
            data(
                "agent-error",
                {
                    "nodeId": "writer",
                    "runId": "r-1",
                    "errorType": "exception",
                    "message": "Something went wrong while the agent was working.",
                },
            )
        ],
    ),
    Row(case="in a flow", before=BEGUN, event=COMPLETE, chunks=[TOTALS]),
    Row(
        case="in a log without `flow:*` and `node:*`",
        before=(agent("start", sessionId="s", prompt="Go"), agent("text", content="Hi")),
        event=COMPLETE,
        chunks=[TOTALS, STEP_END, {"type": "finish", "finishReason": "stop"}],
    ),
    Row(
        case="after the usage of another agent",
        before=(*BEGUN, COMPLETE),
        event=agent("complete", result="", usage={"inputTokens": 1, "outputTokens": True}, numTurns=float("nan")),
        chunks=[
            {
                "type": "message-metadata",
                "messageMetadata": {
                    "usage": {
                        "inputTokens": 16,
                        "inputTokenDetails": {"noCacheTokens": 4, "cacheReadTokens": 10, "cacheWriteTokens": 2},
                        "outputTokens": 4,
                        "outputTokenDetails": {},
                        "totalTokens": 20,
                        "cachedInputTokens": 10,
                    },
                    "totalCostUsd": 0.5,
                    "durationMs": 900,
                    "numTurns": 2,
                },
            }
        ],
    ),
    Row(case="without usage", before=BEGUN, event=agent("complete", result="Hi"), chunks=[]),
    Row(
        before=(*BEGUN, agent("text:delta", content="Hel")),
        event=agent("paused", sessionId="s"),
        chunks=[{"type": "text-end", "id": "id-1"}, STEP_END, {"type": "finish", "finishReason": "other"}],
    ),
    Row(
        before=(*BEGUN, agent("tool", toolName="search", toolInput={})),
        event=agent("aborted", reason="abort"),
        chunks=[broken("r-1-1", "The call was stopped."), STEP_END, *QUIET_STEP, {"type": "abort"}],
    ),
    Row(
        case="of a run that ended in an earlier turn",
        before=({"type": "flow:resumed"},),
        event=agent("aborted", reason="abort"),
        chunks=[],
    ),
    Row(
        case="of a run that ended in an earlier turn",
        before=({"type": "flow:resumed"},),
        event=agent("paused"),
        chunks=[],
    ),
    Row(
        case="a frame of the WebSocket",
        before=BEGUN,
        event={"type": "event", "event": agent("text", content="Hi")},
        chunks=text("text", "id-1", "Hi"),
    ),
]

ROWS: Final[list[Row]] = [*TEXTS, *REASONING, *TOOLS, *PARTS, *NODES, *FLOWS, *AGENTS]
