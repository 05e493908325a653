"""Frames of an Agent Ops session at random: those of the golden logs in any order, and frames of no shape at all."""

import json
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from usechat.integrations.agent_ops.frames import SessionFrame, Unusable
from usechat.integrations.agent_ops.turns import PromptTracker

__all__ = ["ANY_FRAMES", "SPOILT_LOGS", "classify"]

Frame = dict[str, Any]

_LOGS: Final = [
    [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    for log in sorted((Path(__file__).parents[1] / "golden" / "agent_ops").glob("*.events.jsonl"))
]
_LINES: Final = [line for log in _LOGS for line in log]

_JUNK: Final = st.sampled_from((None, 7, float("nan"), "", "x", [], {}, {"a": [1]}, True, "\ud800", "__proto__", 2**70))
_TURN: Final = st.sampled_from(("t-1", "t-2")) | _JUNK
_CALL: Final = st.fixed_dictionaries(
    {"type": st.just("tool-call")},
    optional={
        "callId": st.sampled_from(("c-1", "c-2")) | _JUNK,
        "toolName": st.just("bash") | _JUNK,
        "status": st.sampled_from(("pending", "running", "completed", "error")) | _JUNK,
        **dict.fromkeys(("args", "result", "error"), _JUNK),
    },
)
_PART: Final = st.one_of(
    _CALL,
    _CALL,
    _JUNK,
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text("ab😀", max_size=3) | _JUNK}),
    st.fixed_dictionaries({"type": st.just("finish"), "reason": st.sampled_from(("end_turn", "error", "x")) | _JUNK}),
    st.fixed_dictionaries({"type": st.just("error"), "message": st.just("boom") | _JUNK}),
)
_DATA: Final = st.fixed_dictionaries(
    {},
    optional={
        "id": _TURN,
        "role": st.sampled_from(("assistant", "user", "system")) | _JUNK,
        "content": st.text("ab😀", max_size=3) | _JUNK,
        "parts": st.lists(_PART, max_size=3) | _JUNK,
        "status": st.sampled_from(("terminated", "running")) | _JUNK,
        "channelType": st.just("slack") | _JUNK,
        "channelId": st.just("C1") | _JUNK,
        **dict.fromkeys(("runnerBusy", "promptDequeued", "remaining", "promptQueued", "queuePosition"), _JUNK),
        **dict.fromkeys(
            ("questionAnswered", "questionExpired", "answer", "collectPending", "runnerDisconnected"), _JUNK
        ),
    },
)
_FREQUENT: Final = ("message", "message.create", "chunk", "message.part.text-delta", "message.part.tool-update")
_TYPES: Final = (
    *(
        "message.updated",
        "message.finalize",
        "agentStatus",
        "question",
        "status",
        "audit_log",
        "init",
        "model-switched",
    ),
    *("interactive_prompt", "interactive_prompt_resolved", "interactive_prompt_expired", "git-state", "totally-new"),
    *("error", "complete", "aborted"),
)
_FRAME: Final = st.fixed_dictionaries(
    {"type": st.sampled_from(_FREQUENT) | st.sampled_from((*_FREQUENT, *_TYPES)) | _JUNK},
    optional={
        "data": _DATA | _JUNK,
        "turnId": _TURN,
        "messageId": _TURN,
        "content": st.text("ab😀", max_size=3) | _JUNK,
        "delta": st.text("ab😀", max_size=3) | _JUNK,
        "callId": st.sampled_from(("c-1", "c-2")) | _JUNK,
        "toolName": st.just("bash") | _JUNK,
        "status": st.sampled_from(("pending", "running", "completed", "error", "thinking", "idle")) | _JUNK,
        "reason": st.sampled_from(("end_turn", "error", "canceled")) | _JUNK,
        "entry": st.fixed_dictionaries({"eventType": st.sampled_from(("agent.turn_complete", "user.abort")) | _JUNK})
        | _JUNK,
        "prompt": st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "title", "actions", "expiresAt"), _JUNK)),
        **dict.fromkeys(("args", "result", "error", "finalText", "detail", "questionId", "text", "options"), _JUNK),
        **dict.fromkeys(("expiresAt", "promptId", "resolution", "message", "fromModel", "channelType", "dir"), _JUNK),
    },
)
ANY_FRAMES: Final = st.lists(_FRAME, max_size=25)


@st.composite
def _spoilt(draw: st.DrawFn) -> list[Frame]:
    """A log that is cut off, in which lines are missing, come twice, later, or from another log."""
    log = list(draw(st.sampled_from(_LOGS)))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(log)))
        match draw(st.sampled_from(("twice", "later", "missing", "foreign", "frame", "cut"))):
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
            case "frame":
                log.insert(place, draw(_FRAME))
            case _:
                del log[place:]
    return log


SPOILT_LOGS: Final = _spoilt() | st.sampled_from(_LOGS).flatmap(st.permutations)


def classify(tracker: PromptTracker, frame: Frame) -> tuple[str, SessionFrame | None]:
    """What a frame is to the tracker's prompt, and what of it is shown.

    `other` is not ours. `queued`: ours waits. `began`: ours runs from here on. `ours` belongs to our turn. `ended`:
    ours is over with this frame.
    """
    had_ended, ran = tracker.ended, tracker.running
    shown = tracker.see(frame)
    if had_ended or (shown is not None and isinstance(shown.says, Unusable)):
        return "other", shown
    if tracker.ended:
        return "ended", shown
    if tracker.running and not ran:
        return "began", shown
    return ("other" if shown is None else "ours" if tracker.running else "queued"), shown
