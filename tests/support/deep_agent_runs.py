"""Events of DeepAgent runs at random: those of the golden logs in any order, and events of no shape at all."""

import json
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from usechat.integrations.deepagent_sdk.events import EVENTS

__all__ = ["ANY_EVENTS", "OPTIONS", "SPOILT_RUNS"]

Event = dict[str, Any]

_LOGS: Final = [
    [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    for log in sorted((Path(__file__).parents[1] / "golden" / "deep_agent").glob("*.events.jsonl"))
]
_LINES: Final = [line for log in _LOGS for line in log]

_JUNK: Final = st.sampled_from((None, 7, float("nan"), "", "x", [], {}, {"a": [1]}, True, "\ud800", "__proto__", 2**70))
_TEXT: Final = st.text("ab😀", max_size=3) | _JUNK
_CALL: Final = st.sampled_from(("c-1", "c-2", "c-3")) | _JUNK
_FREQUENT: Final = ("text", "tool-call", "tool-result", "tool-input-start", "tool-input-delta", "step-start")
_APPROVALS: Final = ("approval-requested", "approval-response", "step-finish", "subagent-start", "subagent-finish")
_ERRORS: Final[tuple[Event, ...]] = ({"name": "AbortError"}, {"name": [], "message": "no"})
_EVENT: Final = st.fixed_dictionaries(
    {"type": st.sampled_from((*_FREQUENT, *_APPROVALS)) | st.sampled_from((*sorted(EVENTS), "batch", "new")) | _JUNK},
    optional={
        "toolCallId": _CALL,
        "toolName": st.sampled_from(("ls", "task", "web_search")) | _JUNK,
        "approvalId": st.sampled_from(("a-1", "a-2")) | _JUNK,
        "approved": st.booleans() | _JUNK,
        "isError": st.booleans() | _JUNK,
        "todos": st.just([{"content": "x", "status": "pending"}]) | _JUNK,
        "error": st.sampled_from(_ERRORS) | _JUNK,
        "events": st.just([{"type": "ls", "path": ".", "count": 1}] * 2) | _JUNK,
        **dict.fromkeys(("text", "delta", "path", "content", "pattern", "command", "query", "url", "task"), _TEXT),
        **dict.fromkeys(("count", "lines", "occurrences", "stepIndex", "exitCode", "inputTokens"), _JUNK),
        **dict.fromkeys(("args", "result", "output", "usage", "name", "truncated", "success", "toolCalls"), _JUNK),
    },
)
ANY_EVENTS: Final = st.lists(_EVENT, max_size=30)

OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "events": st.sampled_from(("all", "critical", ["ls"], ["text", "file-written"])),
        "sources": st.sampled_from(("data", "standard", "both")),
        "batch": st.sampled_from((True, 2)),
    },
)


@st.composite
def _spoilt(draw: st.DrawFn) -> list[Event]:
    """A log that is cut off, in which lines are missing, come twice, later, or from another log."""
    log = list(draw(st.sampled_from(_LOGS)))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(log)))
        match draw(st.sampled_from(("twice", "later", "missing", "foreign", "event", "cut"))):
            case "twice":
                log[place:place] = log[place : place + 1]
            case "later":
                moved = log[place : place + 1]
                del log[place : place + 1]
                log[place + 2 : place + 2] = moved
            case "missing":
                del log[place : place + 1]
            case "foreign":
                log.insert(place, draw(st.sampled_from(_LINES)))
            case "event":
                log.insert(place, draw(_EVENT))
            case _:
                del log[place:]
    return log


SPOILT_RUNS: Final = _spoilt() | st.sampled_from(_LOGS).flatmap(st.permutations)
