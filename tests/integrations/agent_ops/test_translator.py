"""The mapper of Agent Ops: the RFC's unit tests, as the system's own code corrects them, and what they leave out."""

import tracemalloc
from itertools import count
from typing import Any

import msgspec
import pytest

from usechat.errors import MappingError
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops.frames import read_frame
from usechat.integrations.agent_ops.options import AgentOpsOptions, read_options
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.protocol.chunks import Chunk, Finish
from usechat.protocol.writer import MessageWriter

Frame = dict[str, Any]

CREATE: Frame = {"type": "message.create", "turnId": "t-1", "channelType": "web", "channelId": "default"}
MESSAGE: Frame = {"type": "message", "data": {"id": "t-1", "role": "assistant", "content": "", "parts": []}}
COMPLETE: Frame = {"type": "complete"}
TURN_COMPLETE: Frame = {"type": "audit_log", "entry": {"eventType": "agent.turn_complete", "summary": "…"}}
STEP = {"type": "start-step"}
STEP_END = {"type": "finish-step"}
STOP = {"type": "finish", "finishReason": "stop"}
OTHER = {"type": "finish", "finishReason": "other"}


class TurnMapper:
    """The chunks that the translator and the mapper of events make of frames."""

    def __init__(self, **options: Any) -> None:
        numbers = count(1)
        self._translator = AgentOpsTranslator(read_options(options))
        writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}")
        self._mapper = TranslatingMapper(self._translator, writer)

    @property
    def ended(self) -> bool:
        return self._translator.ended

    def map(self, frame: Frame) -> list[Chunk]:
        return list(self._mapper.map(read_frame(frame)))

    def end(self) -> list[Chunk]:
        return list(self._mapper.end())


def mapped(mapper: TurnMapper, *frames: Frame) -> list[Any]:
    return msgspec.to_builtins([chunk for frame in frames for chunk in mapper.map(frame)])


def said(*frames: Frame, **options: Any) -> list[Any]:
    """The chunks of a turn after its first two, which are its start."""
    chunks = mapped(TurnMapper(**options), CREATE, *frames)
    assert chunks[0] == {"type": "start", "messageId": "m", "messageMetadata": {"turnId": "t-1"}}
    return chunks[1:]


def delta(text: str, turn: str = "t-1") -> Frame:
    return {"type": "message.part.text-delta", "turnId": turn, "delta": text}


def chunk(text: str, turn: str = "t-1") -> Frame:
    return {"type": "chunk", "content": text, "messageId": turn}


def tool(status: str, call: str = "c-1", **fields: Any) -> Frame:
    update = {"turnId": "t-1", "callId": call, "toolName": "bash", "status": status, **fields}
    return {"type": "message.part.tool-update", **update}


def updated(*parts: Any, content: str = "", turn: str = "t-1") -> Frame:
    data = {"id": turn, "role": "assistant", "content": content, "parts": [*parts]}
    return {"type": "message.updated", "data": data}


def part(status: str, call: str = "c-1", **fields: Any) -> Frame:
    return {"type": "tool-call", "callId": call, "toolName": "bash", "status": status, **fields}


def finish(reason: str = "end_turn", **fields: Any) -> Frame:
    return {"type": "message.finalize", "turnId": "t-1", "reason": reason, **fields}


def status(**data: Any) -> Frame:
    return {"type": "status", "data": data}


def text(*deltas: str, part: str = "id-1") -> list[Frame]:
    return [{"type": "text-start", "id": part}, *({"type": "text-delta", "id": part, "delta": one} for one in deltas)]


def text_end(part: str = "id-1") -> Frame:
    return {"type": "text-end", "id": part}


def called(value: Any, call: str = "c-1") -> Frame:
    return {"type": "tool-input-available", "toolCallId": call, "toolName": "bash", "input": value}


def answered(value: Any, call: str = "c-1") -> Frame:
    return {"type": "tool-output-available", "toolCallId": call, "output": value}


def shown(**data: Any) -> Frame:
    return {"type": "data-agent-status", "data": data, "id": "agent-status"}


def failed(text: str) -> Frame:
    return {"type": "error", "errorText": text}


# The 18 rows of the RFC.


@pytest.mark.parametrize("begin", [CREATE, MESSAGE])
def test_a_turn_begins_the_message_with_our_id_and_the_turn_as_metadata(begin: Frame) -> None:
    start = {"type": "start", "messageId": "m", "messageMetadata": {"turnId": "t-1"}}
    assert mapped(TurnMapper(), begin) == [start]
    assert mapped(TurnMapper(), begin, begin) == [start]


def test_a_text_delta_is_kept_exactly() -> None:
    assert said(delta("Hel"), delta("lo "), delta("\n 😀 ")) == [STEP, *text("Hel", "lo ", "\n 😀 ")]


def test_a_chunk_is_a_text_delta() -> None:
    assert said(chunk("Hel"), {"type": "chunk", "content": "lo"}) == [STEP, *text("Hel", "lo")]


def test_a_pending_tool_begins_its_input() -> None:
    start = {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "bash"}
    assert said(tool("pending", args={})) == said(updated(part("pending", args={}))) == [STEP, start]


def test_a_running_tool_with_arguments_has_its_input() -> None:
    frames = [tool("pending", args={}), tool("running", args={"command": "ls"})]
    assert said(*frames)[2:] == [called({"command": "ls"})]


def test_a_completed_tool_has_its_output() -> None:
    frames = [tool("running", args={}), tool("completed", result={"files": [1]})]
    assert said(*frames) == [STEP, called({}), answered({"files": [1]})]


def test_a_failed_tool_is_an_error_of_the_tool_and_not_of_the_turn() -> None:
    frames = [tool("running", args={}), tool("error", error="exit code 1")]
    error = {"type": "tool-output-error", "toolCallId": "c-1", "errorText": "exit code 1"}
    assert said(*frames) == [STEP, called({}), error]
    assert said(tool("error"))[-1] == {**error, "errorText": "The tool failed."}


def test_a_turn_that_ends_well_finishes_the_message() -> None:
    assert said(delta("Hi"), finish()) == [STEP, *text("Hi"), text_end(), STEP_END, STOP]


def test_a_turn_that_fails_closes_its_parts_and_ends_with_the_error() -> None:
    end = [STEP, *text("Par"), text_end(), STEP_END, failed("Overloaded")]
    reason = {"type": "finish", "reason": "error"}
    error = {"type": "error", "message": "Overloaded"}
    assert said(delta("Par"), finish("error", error="Overloaded")) == end
    # Of both orders, one is that of the RFC's commit and one a later one.
    assert said(chunk("Par"), updated(reason, error, content="Par")) == end
    assert said(chunk("Par"), updated(error, reason, content="Par")) == end
    assert said(finish("error")) == [failed("The turn failed.")]


def test_a_canceled_turn_is_aborted_without_an_error() -> None:
    frames = [delta("Work"), finish("canceled", error="OpenCode restarting for config update")]
    assert said(*frames) == [STEP, *text("Work"), text_end(), STEP_END, {"type": "abort"}]


def test_an_empty_turn_that_ended_well_is_an_empty_message() -> None:
    assert said(finish()) == said(updated({"type": "finish", "reason": "end_turn"})) == [STOP]


def test_an_unknown_frame_is_counted_and_writes_nothing() -> None:
    with pytest.raises(MappingError, match=r"^Agent Ops has no frame of the type 'totally-new'\.$"):
        TurnMapper().map({"type": "totally-new", "x": 1})


def test_a_whole_turn_is_one_legal_message() -> None:
    frames = [delta("Look: "), tool("pending"), tool("running", args={"c": 1}), tool("completed", result="a")]
    assert said(*frames, delta("One."), finish(finalText="One."), COMPLETE) == [
        STEP,
        *text("Look: "),
        text_end(),
        {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "bash"},
        called({"c": 1}),
        answered("a"),
        STEP_END,
        STEP,
        *text("One.", part="id-2"),
        text_end("id-2"),
        STEP_END,
        STOP,
    ]


def test_each_of_several_tools_has_its_own_id_and_results_come_in_any_order() -> None:
    parts = [part("running", "c-1", args=1), part("running", "c-2", args=2)]
    done = [part("running", "c-1", args=1), part("completed", "c-2", args=2, result="b")]
    assert said(updated(*parts), updated(*done), updated(part("completed", "c-1", result="a"), done[1])) == [
        STEP,
        called(1),
        called(2, "c-2"),
        answered("b", "c-2"),
        answered("a"),
    ]


def test_text_and_tools_alternate_in_the_order_in_which_they_come() -> None:
    types = [
        one["type"] for one in said(delta("a"), tool("running", args=1), delta("b"), tool("completed"), delta("c"))
    ]
    assert types == [
        *("start-step", "text-start", "text-delta", "text-end", "tool-input-available", "text-start", "text-delta"),
        *("tool-output-available", "text-end", "finish-step", "start-step", "text-start", "text-delta"),
    ]


def test_the_agents_status_is_one_part_that_is_replaced() -> None:
    frames: list[Frame] = [
        {"type": "agentStatus", "status": "thinking"},
        {"type": "agentStatus", "status": "thinking"},
        {"type": "agentStatus", "status": "tool_calling", "detail": "bash"},
    ]
    assert said(*frames) == [shown(status="thinking"), shown(status="tool_calling", detail="bash")]
    assert said(frames[0], transient_status=True) == [{**shown(status="thinking"), "transient": True}]


def test_a_question_is_kept_whole_and_gets_its_answer() -> None:
    asked = {"type": "question", "questionId": "q-1", "text": "Where?", "options": ["a", "b"], "expiresAt": 1772150700}
    data = {"questionId": "q-1", "state": "open", "text": "Where?", "options": ["a", "b"], "expiresAt": 1772150700}
    assert said(asked) == [{"type": "data-question", "data": data, "id": "q-1"}]
    mapper = TurnMapper()
    mapped(mapper, CREATE, asked)
    answer = {"type": "data-question", "data": {**data, "state": "answered", "answer": "a"}, "id": "q-1"}
    assert mapped(mapper, status(questionAnswered="q-1", answer="a")) == [answer]
    assert mapped(mapper, status(questionAnswered="q-1", answer="a"), status(questionExpired="q-2")) == []


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "init", "session": {"messages": []}},
        {"type": "message", "data": {"id": "m-1", "role": "user", "content": "Hi"}},
        {"type": "message", "data": {"id": "m-1", "role": "system", "content": "x", "parts": {"type": "screenshot"}}},
        {"type": "message", "data": {"id": "f-1", "role": "assistant", "content": "", "parts": {"forwarded": True}}},
        {"type": "message.updated", "data": {"id": "m-2", "parts": [{"type": "audio", "transcript": "hello"}]}},
        {"type": "message.updated", "data": {"id": "t-1", "role": "assistant", "channelType": "web"}},
        {"type": "messages.removed", "messageIds": ["m-1"]},
        {"type": "git-state", "data": {"branch": "main"}},
        {"type": "audit_log", "entry": {"eventType": "user.abort", "summary": "User aborted agent"}},
        {"type": "audit_log", "entry": {"eventType": "prompt.queued", "summary": "Queued: runner busy (…)"}},
        {"type": "audit_log"},
        {"type": "pong"},
        {"type": "queue.state", "data": {"pending": []}},
        status(status="hibernating"),
        status(promptDequeued=True, remaining=0),
        status(promptQueued=True, queuePosition=1),
        status(collectPending=True, collectCount=2),
        status(queueCleared=True, cleared=3),
        {"type": "status", "status": "running"},
        {"type": "status"},
        status(questionAnswered="not-ours", answer="a"),
    ],
)
def test_what_is_known_and_not_of_the_turn_is_skipped(frame: Frame) -> None:
    assert said(delta("Hi"), frame, delta("!")) == [STEP, *text("Hi", "!")]


# What the RFC does not have.


def test_of_two_forms_of_the_same_text_the_first_is_taken_for_the_turn() -> None:
    both = [delta("ha"), chunk("ha"), delta("ha"), chunk("ha")]
    assert said(*both) == [STEP, *text("ha", "ha")]
    assert said(*both[1:]) == [STEP, *text("ha", "ha")]
    assert said(chunk(""), *both) == [STEP, *text("ha", "ha")]


def test_an_emoji_that_comes_in_two_halves_is_one() -> None:
    halves = [chunk("a\ud83d"), chunk("\ude00b\ud83d"), chunk("\ude00"), chunk("!")]
    assert said(*halves) == [STEP, *text("a", "\U0001f600b", "\U0001f600", "!")]
    assert said(*halves, finish(finalText="a\U0001f600b\U0001f600!?"))[-4:] == [
        *text("?")[1:],
        text_end(),
        STEP_END,
        STOP,
    ]
    assert said(chunk("\ud83d"), chunk("c")) == [STEP, *text("\ufffdc")]


def test_the_final_text_is_said_where_no_delta_brought_it() -> None:
    end = [text_end(), STEP_END, STOP]
    assert said(finish(finalText="All.")) == [STEP, *text("All."), *end]
    recovered = updated({"type": "text", "text": "All."}, {"type": "finish", "reason": "end_turn"})
    assert said(recovered) == [STEP, *text("All."), *end]
    assert said(delta("Al"), finish(finalText="All.")) == [STEP, *text("Al", "l."), *end]
    assert said(delta("All."), finish(finalText="All.")) == [STEP, *text("All."), *end]
    assert said(delta("All."), finish(finalText="Something else.")) == [STEP, *text("All."), *end]


@pytest.mark.parametrize(
    ("final", "rest"), [("Two", "Two"), ("One", ""), ("", ""), ("ne", ""), ("OneTwo", "Two"), ("x" * 80, "x" * 80)]
)
def test_the_final_text_after_a_tool_is_said_once(final: str, rest: str) -> None:
    frames = [delta("One"), tool("completed", result=1), finish(finalText=final)]
    deltas = [one["delta"] for one in said(*frames) if one["type"] == "text-delta"]
    assert deltas == ["One", *([rest] if rest else [])]


def test_the_cumulative_text_of_the_upstreams_parts_is_not_said_again() -> None:
    frames = [chunk("First."), updated(part("completed", args=1, result=2), content="First."), chunk(" Second.")]
    for content in (" Second.", "First. Second.", "First."):
        last = updated({"type": "text", "text": content}, {"type": "finish", "reason": "end_turn"}, content=content)
        deltas = [one["delta"] for one in said(*frames, last) if one["type"] == "text-delta"]
        assert deltas == ["First.", " Second."]


@pytest.mark.parametrize("first", ["running", "completed", "error"])
def test_a_tool_may_be_seen_first_in_any_state(first: str) -> None:
    chunks = said(tool(first, args={"a": 1}, result=None))
    assert chunks[:2] == [STEP, called({"a": 1})]


def test_a_tool_that_runs_without_arguments_gets_them_with_its_result() -> None:
    chunks = said(tool("running"), tool("pending"), tool("completed", args={"a": 1}), tool("running", args={}))
    start = {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "bash"}
    assert chunks == [STEP, start, called({"a": 1}), answered(None)]


def test_a_call_that_is_tried_again_under_the_same_id_is_another_call() -> None:
    lost = status(runnerDisconnected=True)
    again = [{**tool("running", call, args=call), "turnId": "t-2"} for call in ("c-1", "c-2")]
    done = [{**tool("completed", call, result="ok"), "turnId": "t-2"} for call in ("c-1", "c-2")]
    tried = [tool("completed", "c-1", args=1, result=2), tool("running", "c-2", args=3)]
    chunks = said(*tried, lost, {**CREATE, "turnId": "t-2"}, *again, *done)
    assert chunks[-6:] == [
        STEP_END,
        STEP,
        called("c-1", "id-1"),
        called("c-2", "id-2"),
        answered("ok", "id-1"),
        answered("ok", "id-2"),
    ]


def test_tools_that_are_still_open_are_answered_after_the_finish_part() -> None:
    end = {"type": "finish", "reason": "end_turn"}
    mapper = TurnMapper()
    mapped(mapper, MESSAGE, updated(part("running", args=1)), updated(part("running", args=1), end))
    assert not mapper.ended
    assert mapped(mapper, chunk("late")) == []
    assert mapped(mapper, updated(part("completed", args=1, result="ok"), end))[0] == answered("ok")
    assert mapper.ended
    assert mapped(mapper, delta("more"), {"type": "totally-new"}) == []


@pytest.mark.parametrize("end", [COMPLETE, TURN_COMPLETE, status(runnerBusy=False), None])
def test_a_tool_that_is_never_answered_does_not_keep_the_turn_open(end: Frame | None) -> None:
    mapper = TurnMapper()
    mapped(mapper, CREATE, tool("running", args=1), finish())
    last = mapper.end() if end is None else mapper.map(end)
    assert last[-1] == Finish("stop")


@pytest.mark.parametrize("end", [COMPLETE, TURN_COMPLETE, status(runnerBusy=False)])
def test_a_failure_before_any_output_is_an_error_and_not_silence(end: Frame) -> None:
    assert said(end) == [failed("The agent gave no answer.")]
    assert mapped(TurnMapper(), end)[-1] == failed("The agent gave no answer.")


def test_a_turn_that_is_over_without_an_end_finishes_with_what_it_said() -> None:
    assert said(delta("Hi"), TURN_COMPLETE)[-1] == OTHER
    assert said(delta("Hi"), finish("max_tokens"))[-1] == OTHER
    assert said(tool("completed"), COMPLETE)[-1] == OTHER


@pytest.mark.parametrize("frame", [{"type": "aborted"}, status(runnerBusy=False, aborted=True)])
def test_a_user_abort_has_no_finish_part_and_aborts(frame: Frame) -> None:
    idle: Frame = {"type": "agentStatus", "status": "idle"}
    assert said(delta("Once"), idle, delta(" a"), frame)[-1] == {"type": "abort"}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ({"type": "error", "messageId": "e-1", "error": "boom"}, "boom"),
        ({"type": "error", "message": "Missing content or attachments"}, "Missing content or attachments"),
        ({"type": "error", "error": "é" * 600}, "é" * 500),
        ({"type": "error", "error": {"name": "x"}}, "The turn failed."),
        ({"type": "error"}, "The turn failed."),
        (status(status="terminated", sandboxRunning=False), "The session was terminated."),
        (status(status="error"), "The session failed."),
        ({"type": "status", "status": "error"}, "The session failed."),
    ],
)
def test_an_error_closes_the_parts_and_has_the_upstreams_text(frame: Frame, expected: str) -> None:
    assert said(delta("Par"), frame)[-3:] == [text_end(), STEP_END, failed(expected)]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (
            {"type": "model-switched", "messageId": "s-1", "fromModel": "a", "toModel": "b", "reason": "Overloaded"},
            {"detail": "Overloaded", "fromModel": "a", "toModel": "b"},
        ),
        (status(runnerConnected=False, queuedPrompts=1, runnerDisconnected=True), {"detail": "The runner was lost."}),
        (status(runnerBusy=False, watchdogRecovery=True), {"detail": "The runner was lost."}),
        ({"type": "audit_log", "entry": {"eventType": "prompt.dispatch_failed"}}, {"detail": "The runner was lost."}),
        (None, {"detail": "The answer is begun anew."}),
    ],
)
def test_a_prompt_that_is_tried_again_goes_on_in_the_same_message(why: Frame | None, told: Frame) -> None:
    again = {"type": "message.create", "turnId": "t-2"}
    frames = [delta("Half"), tool("running", args=1), *([] if why is None else [why]), again]
    chunks = said(*frames, delta("late"), tool("completed"), delta("Whole.", "t-2"))
    cut_off = "The call was cut off, and the prompt is tried again."
    assert chunks[5:9] == [
        {"type": "tool-output-error", "toolCallId": "c-1", "errorText": cut_off},
        shown(status="retrying", **told),
        {"type": "message-metadata", "messageMetadata": {"turnId": "t-2"}},
        STEP_END,
    ]
    assert chunks[9:] == [STEP, *text("Whole.", part="id-2")]


def test_a_turn_that_said_nothing_is_replaced_without_a_word() -> None:
    assert said({"type": "message.create", "turnId": "t-2"}) == [
        {"type": "message-metadata", "messageMetadata": {"turnId": "t-2"}}
    ]
    assert said({"type": "message.create", "turnId": "t-2"}, CREATE)[1:] == []


def test_the_same_turn_may_begin_again_after_the_runner_was_lost() -> None:
    lost = status(runnerDisconnected=True)
    assert said(delta("Half"), lost, CREATE, delta("Whole"))[-1]["delta"] == "Whole"


def test_waiting_is_a_status_with_the_position_until_the_turn_begins() -> None:
    mapper = TurnMapper()
    assert mapped(mapper, status(promptQueued=True, queuePosition=2))[1:] == [shown(status="queued", position=2)]
    assert mapped(mapper, status(promptQueued=True, queuePosition=1)) == [shown(status="queued", position=1)]
    assert mapped(mapper, status(queueCleared=True, cleared=1)) == [{"type": "abort"}]


RESOLUTIONS: list[tuple[Any, Any]] = [
    ("yes", "yes"),
    ({"actionId": "a1", "value": "Staging"}, "Staging"),
    ({"actionId": "yes"}, "yes"),
    ({"by": 1}, {"by": 1}),
]


def test_a_later_interactive_prompt_is_a_question_too() -> None:
    actions = [{"id": "yes", "label": "Yes", "style": "primary"}, {"id": "no", "label": "No"}]
    prompt = {"id": "p-1", "type": "approval", "title": "Deploy?", "body": "To production.", "actions": actions}
    mapper = TurnMapper()
    mapped(mapper, CREATE)
    data = {"questionId": "p-1", "state": "open", "text": "Deploy?\nTo production.", "options": ["Yes", "No"]}
    data |= {"actions": actions, "expiresAt": 1772150700.5}
    asked: Frame = {"type": "interactive_prompt", "prompt": {**prompt, "expiresAt": 1772150700500}}
    assert mapped(mapper, asked) == [{"type": "data-question", "data": data, "id": "p-1"}]
    resolved: Frame = {"type": "interactive_prompt_resolved", "promptId": "p-1"}
    for resolution, answer in RESOLUTIONS:
        mapped(mapper, asked)
        answered = mapped(mapper, {**resolved, "resolution": resolution})[0]["data"]
        assert answered == {**data, "state": "answered", "answer": answer}
    mapped(mapper, {"type": "interactive_prompt", "prompt": {"id": "p-2", "title": "?"}})
    expired = {"questionId": "p-2", "state": "expired", "text": "?"}
    assert mapped(mapper, {"type": "interactive_prompt_expired", "promptId": "p-2"})[0]["data"] == expired


def test_frames_are_forwarded_by_name() -> None:
    frames: list[Frame] = [
        {"type": "git-state", "data": {"branch": "main"}},
        {"type": "git-state", "branch": "main", "commitCount": 0},
        {"type": "title", "title": "New"},
        status(status="hibernating"),
        {"type": "diff", "requestId": "d-1", "data": {"files": []}},
    ]
    assert said(*frames, forward=["git-state", "status", "diff"]) == [
        {"type": "data-git-state", "data": {"branch": "main"}},
        {"type": "data-git-state", "data": {"branch": "main", "commitCount": 0}},
        {"type": "data-status", "data": {"status": "hibernating"}},
        {"type": "data-diff", "data": {"requestId": "d-1", "data": {"files": []}}},
    ]
    assert said(TURN_COMPLETE, forward="audit_log") == [failed("The agent gave no answer.")]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"forward": ["git-state", "chunk"]}, "'chunk' cannot be forwarded: what can is audit_log, child-session,"),
        ({"forward": [1]}, "The option forward is a list of frames, not [1]."),
        ({"transient_status": 1}, "The option transient_status is true or false, not 1."),
        ({"channel": None}, "The option channel is a text like web:default, not None."),
        ({"colour": True}, "There is no option 'colour': the options are forward, transient_status, channel."),
    ],
)
def test_an_option_that_is_wrong_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_options(given)
    assert str(caught.value).startswith(problem)
    assert read_options({"channel": "slack:C1"}) == AgentOpsOptions(channel="slack:C1")


UNUSABLE: list[tuple[Any, str]] = [
    ("chunk", "An Agent Ops frame has no type."),
    ({}, "An Agent Ops frame has no type."),
    ({"type": ["chunk"]}, "An Agent Ops frame has no type."),
    ({"type": "prompt", "content": "Hello"}, "Agent Ops has no frame of the type 'prompt'."),
    ({"type": "chunk", "messageId": "t-1"}, "`chunk` has no usable `content`."),
    ({"type": "message.create"}, "`message.create` has no usable `turnId`."),
    ({"type": "message.part.text-delta", "turnId": "t-1"}, "`message.part.text-delta` has no usable `delta`."),
    ({"type": "message.part.text-delta", "delta": "x"}, "`message.part.text-delta` has no usable `turnId`."),
    ({**tool("running"), "callId": ""}, "`message.part.tool-update` has no usable `callId`."),
    ({**tool("running"), "toolName": None}, "`message.part.tool-update` has no usable `toolName`."),
    (tool("lost"), "`message.part.tool-update` has no usable `status`."),
    ({"type": "message"}, "`message` has no usable `data`."),
    ({"type": "message", "data": {"role": "assistant"}}, "`message` has no usable `id`."),
    ({"type": "message.updated", "data": {"role": "assistant", "parts": []}}, "has no usable `id`."),
    ({"type": "agentStatus"}, "`agentStatus` has no usable `status`."),
    ({"type": "question", "text": "?"}, "`question` has no usable `questionId`."),
    ({"type": "interactive_prompt"}, "`interactive_prompt` has no usable `prompt`."),
    ({"type": "interactive_prompt_resolved"}, "has no usable `promptId`."),
    (delta("x", "t-9"), "An Agent Ops frame belongs to a turn that has not begun."),
    (updated(turn="t-9"), "An Agent Ops frame belongs to a turn that has not begun."),
]


@pytest.mark.parametrize(("frame", "problem"), UNUSABLE)
def test_a_frame_that_cannot_be_used_is_refused_and_changes_nothing(frame: Any, problem: str) -> None:
    mapper, untouched = TurnMapper(), TurnMapper()
    mapped(mapper, CREATE, delta("a"))
    mapped(untouched, CREATE, delta("a"))
    with pytest.raises(MappingError) as caught:
        mapper.map(frame)
    assert str(caught.value).endswith(problem)
    assert mapped(mapper, delta("b"), finish()) == mapped(untouched, delta("b"), finish())


def test_parts_of_no_use_do_not_hide_the_others() -> None:
    parts: list[Any] = [None, 7, {}, {"type": "tool-call"}, {"type": "text", "text": 7}, part("completed", result=1)]
    assert said(updated(*parts, {"type": "finish"}))[1:3] == [called({}), answered(1)]


def test_a_failure_without_a_turn_belongs_to_the_one_that_runs() -> None:
    null: Frame = {"type": "message.finalize", "turnId": None, "reason": "error", "error": "No model"}
    assert said(null) == [failed("No model")]
    with pytest.raises(MappingError):
        TurnMapper().map(null)


def test_frames_that_end_early_end_the_message_with_an_error() -> None:
    mapper = TurnMapper()
    mapped(mapper, CREATE, delta("Ha"))
    assert msgspec.to_builtins(mapper.end()) == [text_end(), STEP_END, failed("Stream interrupted")]
    assert mapper.end() == []


def test_a_long_turn_is_not_kept() -> None:
    mapper = TurnMapper()
    frames = [delta("x" * 1_000), tool("completed", result="y" * 1_000)]
    mapped(mapper, CREATE, *frames)
    tracemalloc.start()
    sizes: list[int] = []
    for _ in range(2):
        for _ in range(2_000):
            written: list[Chunk] = mapper.map(frames[0])
            assert len(written) <= 4
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 50_000
