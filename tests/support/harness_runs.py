"""A runtime of Open Harness at random: runs in the order that it keeps, and events in no order at all."""

from typing import Any, Final

from hypothesis import strategies as st
from msgspec import Struct

from usechat.protocol.chunks import Chunk, ReasoningDelta, ReasoningStart, TextDelta, TextStart

__all__ = ["ANY_EVENTS", "OPTIONS", "RUNS", "Story", "texts_of"]

# Each run has characters of its own for each kind, so that what mixes shows.
ALPHABETS: Final = {
    ("r-1", "text"): "ab 😀",
    ("r-1", "thinking"): 'cd"',
    ("r-2", "text"): "ef\u2028",
    ("r-2", "thinking"): "gh🐍",
    ("r-3", "text"): "ij",
    ("r-3", "thinking"): "kl\n",
}
OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("send_reasoning", "send_step_markers", "send_flow_metadata", "send_node_outputs"), st.booleans()
    ),
)
ENDS: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"type": "flow:complete", "flowName": "f", "status": "complete"}],
    [{"type": "flow:complete", "flowName": "f", "status": "failed"}],
    [{"type": "flow:paused"}, {"type": "agent:paused", "nodeId": "n", "runId": "r-1"}],
    [{"type": "flow:aborted"}, {"type": "agent:aborted", "nodeId": "n", "runId": "r-1", "reason": "abort"}],
    [],
)


class Story(Struct):
    """The events of a flow, and what each of its runs says in them."""

    events: list[dict[str, Any]]
    said: dict[tuple[str, str], str]


def _event(kind: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "nodeId": f"node-{run}", "runId": run, **fields}


@st.composite
def _block(draw: st.DrawFn, run: str, regime: str) -> tuple[list[dict[str, Any]], str, str]:
    kind = draw(st.sampled_from(("text", "thinking")))
    pieces = draw(st.lists(st.text(ALPHABETS[run, kind], max_size=3), max_size=4))
    rest = draw(st.text(ALPHABETS[run, kind], max_size=2)) if regime == "both" else ""
    events = [_event(f"agent:{kind}:delta", run, content=piece) for piece in pieces if regime != "whole"]
    said = "".join(pieces) + rest
    whole = [_event(f"agent:{kind}", run, content=said)] if regime != "pieces" else []
    return events + whole, kind, said


@st.composite
def _call(draw: st.DrawFn, run: str) -> list[dict[str, Any]]:
    name = draw(st.sampled_from(("Read", "unknown")))
    end = draw(st.sampled_from(({"toolOutput": None}, {"toolOutput": {"a": 1}}, {"error": "no"}, {"durationMs": 4})))
    match draw(st.sampled_from(("whole", "split", "without input", "without end"))):
        case "whole":
            return [_event("agent:tool", run, toolName=name, toolInput={"q": 1}, **end)]
        case "split":
            begin = _event("agent:tool", run, toolName=name, toolInput={"q": 1})
            return [begin, _event("agent:tool", run, toolName=name, **end)]
        case "without input":
            return [_event("agent:tool", run, toolName=name, **end)]
        case _:
            return [_event("agent:tool", run, toolName=name, toolInput={"q": 1})]


@st.composite
def _run(draw: st.DrawFn, run: str, said: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    regime = draw(st.sampled_from(("pieces", "both", "whole")))
    events = [_event("node:start", run), _event("agent:start", run, sessionId="s", prompt="Go")]
    for is_call in draw(st.lists(st.booleans(), max_size=5)):
        if is_call:
            events += draw(_call(run))
            continue
        block, kind, text = draw(_block(run, regime))
        events += block
        said[run, kind] = said.get((run, kind), "") + text
        if draw(st.integers(0, 5)) == 0:
            events += [_event("agent:error", run, errorType="overloaded", message="Wait."), events[1]]
    events += [_event("agent:complete", run, result="", usage={"inputTokens": 1, "outputTokens": 2}, numTurns=1)]
    ends = (_event("node:complete", run, output={}), _event("node:error", run, error="timed out after 5ms"))
    return [*events, draw(st.sampled_from(ends))]


@st.composite
def _story(draw: st.DrawFn) -> Story:
    said: dict[tuple[str, str], str] = {}
    runs = [draw(_run(run, said)) for run in draw(st.sampled_from((["r-1"], ["r-1", "r-2"], ["r-1", "r-2", "r-3"])))]
    events: list[dict[str, Any]] = [{"type": "flow:start", "flowName": "f"}]
    at_once = draw(st.booleans())
    while runs:
        run = draw(st.sampled_from(runs)) if at_once else runs[0]
        events.append(run.pop(0))
        runs = [run for run in runs if run]
    return Story(events + draw(st.sampled_from(ENDS)), {owner: text for owner, text in said.items() if text})


RUNS: Final = _story()

_JUNK: Final = st.sampled_from((None, 7, float("nan"), "", "x", [], {}, {"a": [1]}, True, "\ud800", "__proto__"))
_TYPES: Final = st.sampled_from(
    (
        *("flow:start", "flow:complete", "flow:paused", "flow:resumed", "flow:aborted", "node:start", "node:complete"),
        *("node:error", "node:skipped", "edge:fire", "loop:iterate", "state:patch", "command:received", "agent:start"),
        *("agent:text:delta", "agent:text", "agent:thinking:delta", "agent:thinking", "agent:tool", "agent:error"),
        *("agent:complete", "agent:paused", "agent:aborted", "recording:linked", "phase:entered", "event", "", None),
        "agent:part",
    )
)
# Few events end the turn, so that most streams get somewhere.
_MOSTLY: Final = st.sampled_from(
    ("node:start", "node:complete", "node:error", "agent:text:delta", "agent:text", "agent:thinking", "agent:tool")
)
_EVENT: Final = st.fixed_dictionaries(
    {"type": _MOSTLY | _MOSTLY | _TYPES},
    optional={
        "nodeId": st.just("a") | st.just("b") | _JUNK,
        "runId": st.just("r-1") | st.just("r-2") | _JUNK,
        "content": st.text("ab😀", max_size=3) | _JUNK,
        "toolName": st.just("Read") | st.just("Bash") | _JUNK,
        "error": st.just("Node execution timed out after 5000ms") | _JUNK,
        "status": st.just("failed") | _JUNK,
        "usage": st.just({"inputTokens": 1, "outputTokens": None}) | _JUNK,
        "part": st.sampled_from(({"type": "file", "url": "u", "mediaType": "m"}, {"type": "data-x", "data": 1}))
        | _JUNK,
        **dict.fromkeys(("toolInput", "toolOutput", "durationMs", "errorType", "message", "output", "event"), _JUNK),
        **dict.fromkeys(("reason", "flowName", "totalCostUsd", "numTurns"), _JUNK),
    },
)
ANY_EVENTS: Final = st.lists(_EVENT, max_size=25)


def texts_of(chunks: list[Chunk]) -> dict[tuple[str, str], str]:
    """What each run says in a stream, by its characters.

    Raises:
        KeyError: a part has characters of two of them.
    """
    parts: dict[tuple[str, str], str] = {}
    for chunk in chunks:
        if isinstance(chunk, TextStart | ReasoningStart):
            parts["text" if isinstance(chunk, TextStart) else "thinking", chunk.id] = ""
        elif isinstance(chunk, TextDelta | ReasoningDelta):
            parts["text" if isinstance(chunk, TextDelta) else "thinking", chunk.id] += chunk.delta
    texts: dict[tuple[str, str], str] = {}
    for text in parts.values():
        [owner] = [owner for owner, alphabet in ALPHABETS.items() if set(text) <= set(alphabet)]
        texts[owner] = texts.get(owner, "") + text
    return texts
