"""The unit table of the RFC, row by row in its own words; what comes out is what the system's own code makes of it.

The guide to Agent Ops says where and why that is not what the RFC has.
"""

from itertools import count
from typing import Any, TypeAlias

import msgspec
import pytest

from support.goldens import mapped as mapped_log
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops.frames import read_frame
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.protocol.writer import MessageWriter

Frame: TypeAlias = dict[str, Any]

CREATE: Frame = {"type": "message.create", "turnId": "t-1"}
END: Frame = {"type": "message.finalize", "turnId": "t-1", "reason": "end_turn"}
START = {"type": "start", "messageId": "m", "messageMetadata": {"turnId": "t-1"}}
STEP, STEP_END = {"type": "start-step"}, {"type": "finish-step"}
FINISH = {"type": "finish", "finishReason": "stop"}
QUESTION: Frame = {"questionId": "q-1", "text": "Where?", "options": ["here", "there"], "expiresAt": 1772150700}


def delta(text: str) -> Frame:
    return {"type": "message.part.text-delta", "turnId": "t-1", "delta": text}


def tool(status: str, call: str = "c-1", **fields: Any) -> Frame:
    update = {"turnId": "t-1", "callId": call, "toolName": "bash", "status": status, **fields}
    return {"type": "message.part.tool-update", **update}


def said(text: str, part: str = "id-1") -> list[Frame]:
    return [{"type": "text-start", "id": part}, {"type": "text-delta", "id": part, "delta": text}]


def text_end(part: str = "id-1") -> Frame:
    return {"type": "text-end", "id": part}


def started(call: str = "c-1") -> Frame:
    return {"type": "tool-input-start", "toolCallId": call, "toolName": "bash"}


def called(value: Any, call: str = "c-1") -> Frame:
    return {"type": "tool-input-available", "toolCallId": call, "toolName": "bash", "input": value}


def answered(value: Any, call: str = "c-1") -> Frame:
    return {"type": "tool-output-available", "toolCallId": call, "output": value}


# The words of a row, the frames after `message.create`, and the chunks after the start.
ROWS: list[tuple[str, list[Frame], list[Frame]]] = [
    ("message.create → start + text-start", [], []),
    ("message.part.text-delta → text-delta", [delta(" \n😀")], [STEP, *said(" \n😀")]),
    ("chunk → text-delta", [{"type": "chunk", "content": "Hi", "messageId": "t-1"}], [STEP, *said("Hi")]),
    ("message.part.tool-update (pending) → tool-input-start", [tool("pending")], [STEP, started()]),
    (
        "message.part.tool-update (running+args) → tool-input-available",
        [tool("running", args={"command": "ls"})],
        [STEP, called({"command": "ls"})],
    ),
    (
        "message.part.tool-update (completed) → tool-output-available",
        [tool("running", args={}), tool("completed", result={"files": ["a"]})],
        [STEP, called({}), answered({"files": ["a"]})],
    ),
    (
        "message.part.tool-update (error) → error",
        [tool("running", args={}), tool("error", error="exit code 1")],
        [STEP, called({}), {"type": "tool-output-error", "toolCallId": "c-1", "errorText": "exit code 1"}],
    ),
    (
        "message.finalize (end_turn) → text-end + finish-step + message-finish",
        [delta("Hi"), END],
        [STEP, *said("Hi"), text_end(), STEP_END, FINISH],
    ),
    (
        "message.finalize (error) → error + message-finish",
        [delta("Hi"), {**END, "reason": "error", "error": "Overloaded"}],
        [STEP, *said("Hi"), text_end(), STEP_END, {"type": "error", "errorText": "Overloaded"}],
    ),
    (
        "message.finalize (canceled) → text-end + message-finish",
        [delta("Hi"), {**END, "reason": "canceled"}],
        [STEP, *said("Hi"), text_end(), STEP_END, {"type": "abort"}],
    ),
    ("Empty turn (create → finalize, no deltas)", [END], [FINISH]),
    (
        "Full turn lifecycle",
        [delta("Look."), tool("running", args={"a": 1}), tool("completed", result="b"), delta("B."), END],
        [
            *(STEP, *said("Look."), text_end(), called({"a": 1}), answered("b"), STEP_END),
            *(STEP, *said("B.", "id-2"), text_end("id-2"), STEP_END, FINISH),
        ],
    ),
    (
        "Multiple tool calls in single turn",
        [tool("running", "c-1", args=1), tool("running", "c-2", args=2), tool("completed", "c-2", result="b")],
        [STEP, called(1), called(2, "c-2"), answered("b", "c-2")],
    ),
    (
        "Concurrent text and tool updates",
        [tool("pending"), delta("While "), tool("running", args=1), delta("it runs"), tool("completed", result="b")],
        [STEP, started(), *said("While "), called(1), said("it runs")[1], answered("b")],
    ),
    (
        "agentStatus → data-agent-status",
        [{"type": "agentStatus", "status": "tool_calling", "detail": "bash"}],
        [{"type": "data-agent-status", "id": "agent-status", "data": {"status": "tool_calling", "detail": "bash"}}],
    ),
    (
        "question → data-question",
        [{"type": "question", **QUESTION}],
        [{"type": "data-question", "id": "q-1", "data": {**QUESTION, "state": "open"}}],
    ),
    (
        "Skipped events (message, init, domain events)",
        [
            {"type": "init", "session": {"messages": []}},
            {"type": "message", "data": {"id": "u-1", "role": "user", "content": "Hello"}},
            {"type": "git-state", "data": {"branch": "main"}},
        ],
        [],
    ),
]


def mapped(frames: list[Frame]) -> list[Any]:
    numbers = count(1)
    mapper = TranslatingMapper(AgentOpsTranslator(), MessageWriter("m", new_id=lambda: f"id-{next(numbers)}"))
    return msgspec.to_builtins([chunk for frame in frames for chunk in mapper.map(read_frame(frame))])


@pytest.mark.parametrize(("frames", "chunks"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_row_of_the_rfc(frames: list[Frame], chunks: list[Frame]) -> None:
    assert mapped([CREATE, *frames]) == [START, *chunks]


def test_a_row_of_the_rfc_unknown_v2_event_is_an_empty_array() -> None:
    turn = [CREATE, delta("Hi"), END]
    unknown = {"type": "message.part.invented", "turnId": "t-1"}
    assert mapped_log("agent-ops", [turn[0], unknown, *turn[1:]], {}) == mapped_log("agent-ops", turn, {})
