"""What a driver asks of the tracker, case by case; whole sessions are in `test_agent_ops_sessions.py`."""

import sys
from typing import Any

import pytest

from support.goldens import cases
from support.session_frames import classify
from usechat.integrations.agent_ops.turns import PromptTracker

Frame = dict[str, Any]

THINKING: Frame = {"type": "agentStatus", "status": "thinking"}
IDLE: Frame = {"type": "agentStatus", "status": "idle"}
COMPLETE: Frame = {"type": "audit_log", "entry": {"eventType": "agent.turn_complete"}}
LOGS = {case.name: case.events for case in cases("agent-ops")}


def status(**data: Any) -> Frame:
    return {"type": "status", "data": data}


def audit(event: str, summary: str = "") -> Frame:
    return {"type": "audit_log", "entry": {"eventType": event, "summary": summary}}


def init(*, busy: bool = False, queued: int = 0) -> Frame:
    return {"type": "init", "data": {"runnerBusy": busy, "promptsQueued": queued}}


def echo(message: str = "m-1", text: str = "Hi", author: str = "u-1", **channel: str) -> Frame:
    return {"type": "message", "data": {"id": message, "role": "user", "content": text, "authorId": author, **channel}}


def begin(turn: str = "t-1", channel: str = "web:default") -> Frame:
    kind, _, name = channel.partition(":")
    data: Frame = {"id": turn, "role": "assistant", "content": "", "parts": [], "channelType": kind, "channelId": name}
    return {"type": "message", "data": data}


def sent(*before: Frame, **options: Any) -> PromptTracker:
    tracker = PromptTracker("Hi", user_id="u-1", **options)
    for frame in before:
        tracker.see(frame)
    tracker.mark_sent()
    return tracker


def kinds(tracker: PromptTracker, *frames: Frame) -> list[str]:
    return [classify(tracker, frame)[0] for frame in frames]


def seen(tracker: PromptTracker, frame: Frame) -> tuple[str, Frame | None]:
    kind, shown = classify(tracker, frame)
    return kind, None if shown is None else shown.raw


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith("ws_")])
def test_the_turn_of_a_recorded_prompt_is_found(name: str) -> None:
    frames = [line["frame"] for line in LOGS[name] if line["dir"] == "recv"]
    [text] = [line["frame"].get("content", "") for line in LOGS[name] if line.get("frame", {}).get("type") == "prompt"]
    tracker = PromptTracker(text, user_id="u-1")
    tracker.mark_sent()
    all_kinds = kinds(tracker, *frames)
    began = [] if name == "ws_03f_protocol_errors" else ["began"]
    assert [kind for kind in all_kinds if kind in ("began", "ended")] == [*began, "ended"]
    assert set(all_kinds[: all_kinds.index("ended")]) <= {"other", "queued", "began", "ours"}


def test_a_prompt_that_runs_at_once_may_be_aborted_from_its_first_sign_on() -> None:
    tracker = sent(init())
    assert kinds(tracker, echo(), audit("user.prompt"), IDLE) == ["other"] * 3
    assert (tracker.running, tracker.echo_id, tracker.position) == (False, "m-1", None)
    assert kinds(tracker, THINKING, begin(), IDLE) == ["began", "ours", "ours"]
    assert tracker.running
    assert kinds(tracker, COMPLETE, status(runnerBusy=False)) == ["ended", "other"]
    assert not tracker.running


def test_a_turn_of_v2_is_ours_where_no_prompt_is_echoed() -> None:
    tracker = sent()
    said = {"type": "message.part.text-delta", "turnId": "t-1", "delta": "Hello"}
    assert kinds(tracker, {"type": "message.create", "turnId": "t-1"}, said) == ["began", "ours"]
    assert kinds(tracker, {"type": "complete", "turnId": "t-1"}) == ["ended"]


def test_what_a_lost_runner_still_says_is_not_ours_before_our_echo() -> None:
    tracker = sent(init(queued=1))
    assert kinds(tracker, audit("user.abort"), {"type": "aborted"}, {"type": "complete"}, COMPLETE) == ["other"] * 4
    assert kinds(tracker, echo(), THINKING, begin(), COMPLETE) == ["other", "began", "ours", "ended"]


def test_an_error_before_any_echo_is_ours_unless_the_socket_greeted() -> None:
    error = {"type": "error", "messageId": "e-1", "error": "boom"}
    assert kinds(sent(), error) == ["ended"]
    assert kinds(sent(init()), error) == ["other"]


def test_a_socket_that_greets_again_changes_nothing_of_a_prompt_that_runs() -> None:
    tracker = sent(init())
    assert kinds(tracker, echo(), THINKING, init(busy=True), begin()) == ["other", "began", "other", "ours"]
    assert tracker.running


def test_a_prompt_that_waits_is_told_its_position() -> None:
    tracker = sent(init(busy=True, queued=1))
    busy = audit("prompt.queued", "Queued: runner busy (…)")
    assert kinds(tracker, echo(), busy, status(promptQueued=True, queuePosition=2)) == ["other", "other", "queued"]
    assert kinds(tracker, THINKING, begin("t-0"), status(promptQueued=True, queuePosition=2)) == ["other"] * 3
    assert kinds(tracker, echo("m-2", "Hi"), status(promptQueued=True, queuePosition=3)) == ["other"] * 2
    assert (tracker.running, tracker.position) == (False, 2)
    assert kinds(tracker, COMPLETE) == ["other"]
    moved = seen(tracker, status(promptDequeued=True, remaining=2))
    assert moved == ("queued", status(promptQueued=True, queuePosition=1))
    assert kinds(tracker, IDLE, THINKING, COMPLETE, status(promptDequeued=True, remaining=1), IDLE, THINKING) == [
        *("other", "other", "other", "began", "other", "ours")
    ]
    assert tracker.running


@pytest.mark.parametrize(
    ("queue", "remaining", "begins"), [(3, 2, False), (3, 0, True), (3, None, False), (0, 0, True), (0, None, True)]
)
def test_what_is_left_in_the_queue_corrects_the_position(queue: int, remaining: int | None, *, begins: bool) -> None:
    tracker = sent(init(busy=True, queued=max(0, queue - 1)))
    kinds(tracker, echo(), status(promptQueued=True, queuePosition=queue), COMPLETE)
    tracker.see(status(promptDequeued=True, remaining=remaining))
    assert tracker.running is begins


def test_a_prompt_that_waited_without_a_word_runs_when_it_is_taken() -> None:
    tracker = sent(init(busy=True))
    assert kinds(tracker, echo(), THINKING, COMPLETE) == ["other"] * 3
    assert kinds(tracker, status(promptDequeued=True, remaining=0)) == ["began"]


def test_several_equal_prompts_of_one_user_get_a_turn_each() -> None:
    claimed: set[str] = set()
    trackers = [sent(init(), claimed=claimed) for _ in range(3)]
    for number in range(3):
        for tracker in trackers:
            tracker.see(echo(f"m-{number}"))
    assert sorted(tracker.echo_id for tracker in trackers) == ["m-0", "m-1", "m-2"]


QUESTION: Frame = {"type": "question", "questionId": "q-0", "text": "?"}
STRAY: list[list[Frame]] = [
    [QUESTION],
    [QUESTION, status(questionAnswered="q-0", answer="yes")],
    [QUESTION, status(questionExpired="q-0")],
    [{**QUESTION, "channelType": "slack", "channelId": "C1"}],
    [{"type": "interactive_prompt", "prompt": {"id": "q-0", "title": "?"}}],
    [THINKING],
    [{"type": "agentStatus", "status": "error"}],
    [{**THINKING, "channelType": "slack", "channelId": "C1"}],
    [{"type": "model-switched", "fromModel": "a", "toModel": "b"}],
    [begin("t-0")],
    [begin("t-0", "slack:C1")],
]


@pytest.mark.parametrize("stray", STRAY)
def test_what_comes_before_our_echo_does_not_take_our_turn_away(stray: list[Frame]) -> None:
    for tracker in (sent(init(), *stray), sent(init())):
        kinds(tracker, *stray)
        assert (tracker.running, tracker.echo_id) == (False, "")
        assert kinds(tracker, echo(), audit("user.prompt")) == ["other"] * 2
        kinds(tracker, THINKING)
        tracker.see(begin())
        assert tracker.running
        said: Frame = {"type": "chunk", "content": "Hello", "messageId": "t-1"}
        assert kinds(tracker, said, COMPLETE) == ["ours", "ended"]


@pytest.mark.parametrize("stray", [stray for stray in STRAY if stray[0]["type"] != "message"])
def test_what_another_channel_says_before_our_turn_begins_does_not_take_it_away(stray: list[Frame]) -> None:
    slack = [{**frame, "channelType": "slack", "channelId": "C1"} for frame in stray]
    at_once, waited, behind = sent(init()), sent(init(busy=True)), sent(init(busy=True))
    kinds(at_once, echo(), THINKING)
    kinds(waited, echo(), status(promptQueued=True, queuePosition=1), COMPLETE)
    kinds(waited, status(promptDequeued=True, remaining=0))
    kinds(behind, echo(), status(promptQueued=True, queuePosition=1))
    kinds(behind, echo("m-2", "Else", channelType="slack", channelId="C1"))
    kinds(behind, status(promptQueued=True, queuePosition=2), COMPLETE, status(promptDequeued=True, remaining=1))
    for tracker in (at_once, waited, behind):
        kinds(tracker, *slack)
        tracker.see(begin())
        assert (tracker.running, tracker.position) == (True, None)
        assert kinds(tracker, begin("t-9", "slack:C1"), COMPLETE) == ["other", "ended"]


@pytest.mark.parametrize(
    "frame",
    [
        echo(author="u-2"),
        echo(text="Hello"),
        echo(channelType="slack", channelId="C1"),
        {"type": "message", "data": {"id": "m-1", "role": "system", "content": "Hi", "authorId": "u-1"}},
    ],
)
def test_an_echo_of_somebody_else_is_not_ours(frame: Frame) -> None:
    tracker = sent(init())
    assert kinds(tracker, frame, THINKING, begin()) == ["other"] * 3
    assert tracker.echo_id == ""


def test_a_very_long_prompt_of_somebody_else_is_not_kept() -> None:
    text = "x" * 1_000_001
    frame = echo("m-2", text, author="u-2")
    tracker, references = sent(init()), sys.getrefcount(text)
    assert kinds(tracker, frame) == ["other"]
    assert sys.getrefcount(text) == references


def test_an_echo_before_our_prompt_was_sent_is_not_ours() -> None:
    tracker = sent(init(), echo())
    assert kinds(tracker, THINKING, begin()) == ["other"] * 2


def test_a_prompt_of_another_channel_is_never_shown_as_ours() -> None:
    slack = {"channelType": "slack", "channelId": "C1"}
    tracker = sent(init(busy=True), channel="slack:C1")
    kinds(tracker, echo(**slack), status(promptQueued=True, queuePosition=1))
    # Both were asked within one second, and the other one comes first.
    kinds(tracker, echo("m-2", channelType="web", channelId="default"))
    kinds(tracker, status(promptQueued=True, queuePosition=2), COMPLETE)
    assert kinds(tracker, status(promptDequeued=True, remaining=1)) == ["began"]
    assert kinds(tracker, begin("t-2")) == ["queued"]
    assert kinds(tracker, {"type": "chunk", "content": "x", "messageId": "t-2"}, COMPLETE) == ["other"] * 2
    assert kinds(tracker, status(promptDequeued=True, remaining=0), begin("t-3", "slack:C1")) == ["began", "ours"]
    assert kinds(tracker, begin("t-4", "web:default"), {"type": "question", "questionId": "q", **slack}) == [
        *("other", "ours")
    ]
    unknown = sent(init(busy=True, queued=1), channel="slack:C1")
    kinds(unknown, echo(**slack), status(promptQueued=True, queuePosition=1), status(promptDequeued=True, remaining=0))
    assert (kinds(unknown, begin("t-2")), unknown.position) == (["queued"], 1)


def test_a_question_of_our_turn_is_open_until_it_is_answered() -> None:
    tracker = sent(init(), {"type": "question", "questionId": "q-0", "text": "?"})
    kinds(tracker, COMPLETE, echo(), THINKING)
    assert not tracker.question_open
    kinds(tracker, {"type": "question", "questionId": "q-1", "text": "?"}, IDLE)
    assert (tracker.question_open, tracker.running) == (True, True)
    assert (tracker.asks("q-0"), tracker.asks("q-1")) == (False, True)
    kinds(tracker, status(questionExpired="q-1"))
    assert (tracker.question_open, tracker.asks("q-1")) == (False, False)


def test_a_lost_runner_sends_our_prompt_back_to_the_queue() -> None:
    tracker = sent(init())
    kinds(tracker, echo(), THINKING, begin())
    lost = status(runnerConnected=False, queuedPrompts=1, runnerDisconnected=True)
    assert (seen(tracker, lost)[1], tracker.running, tracker.position) == (lost, False, 1)
    assert kinds(tracker, begin("t-9"), IDLE, status(promptDequeued=True, remaining=0)) == ["other", "other", "began"]
    assert kinds(tracker, THINKING, {"type": "chunk", "content": "x", "messageId": "t-1"}, begin("t-2")) == [
        *("ours", "other", "ours")
    ]
    assert kinds(sent(init()), lost, audit("prompt.dispatch_failed")) == ["other"] * 2


def test_another_model_begins_another_turn_of_ours() -> None:
    tracker = sent(init())
    kinds(tracker, echo(), THINKING, begin())
    switched: Frame = {"type": "model-switched", "fromModel": "a", "toModel": "b"}
    ended = {"type": "message.finalize", "turnId": "t-1", "reason": "end_turn"}
    assert kinds(tracker, switched, ended, begin("t-2"), begin("t-1"), ended) == [
        "ours",
        "other",
        "ours",
        "ours",
        "other",
    ]
    assert kinds(tracker, {**ended, "turnId": "t-2"}) == ["ended"]


@pytest.mark.parametrize(
    ("dropped", "ends"),
    [
        (status(queueCleared=True, cleared=1), True),
        (audit("user.abort", "User aborted agent"), True),
        (audit("user.abort", "User aborted agent (channel: web:default)"), True),
        (audit("user.abort", "User aborted agent (channel: slack:C1)"), False),
    ],
)
def test_a_prompt_that_waits_ends_when_it_is_dropped(dropped: Frame, *, ends: bool) -> None:
    tracker = sent(init(busy=True))
    kinds(tracker, echo(), status(promptQueued=True, queuePosition=1))
    cleared = status(queueCleared=True)
    assert seen(tracker, dropped) == (("ended", cleared) if ends else ("other", None))


def test_a_prompt_that_runs_outlives_the_queue() -> None:
    tracker = sent(init())
    kinds(tracker, echo(), THINKING)
    assert kinds(tracker, status(queueCleared=True), audit("user.abort")) == ["other"] * 2
    assert kinds(tracker, status(runnerBusy=False, aborted=True)) == ["ended"]


def test_a_collected_prompt_is_ours_again_as_part_of_the_whole() -> None:
    collecting = status(collectPending=True, collectCount=1)
    tracker = sent(init())
    kinds(tracker, echo(), collecting, echo("m-2", "More", "u-2"), collecting)
    kinds(tracker, echo("m-3", "Else", "u-2", channelType="slack", channelId="C1"), collecting)
    assert kinds(tracker, THINKING, COMPLETE, status(runnerBusy=False)) == ["other"] * 3
    kinds(tracker, echo("m-4", "Hi", "u-2"), status(promptQueued=True, queuePosition=1))
    assert kinds(tracker, echo("m-5", "Hi\n\n---\n\nMore", "u-2")) == ["other"]
    assert kinds(tracker, status(promptQueued=True, queuePosition=2)) == ["queued"]
    assert tracker.echo_id == "m-5"


def test_an_error_about_our_prompt_ends_it_and_a_later_one_does_not() -> None:
    wrong = {"type": "error", "message": "Missing content or attachments"}
    assert kinds(sent(init()), wrong) == ["ended"]
    assert kinds(sent(init()), echo(), THINKING, wrong) == ["other", "began", "other"]
    assert kinds(PromptTracker("Hi"), wrong) == ["other"]


def test_an_error_of_the_agent_ends_our_turn_and_nobody_elses() -> None:
    error = {"type": "error", "messageId": "e-1", "error": "boom"}
    assert kinds(sent(init()), echo(), error) == ["other", "ended"]
    tracker = sent(init())
    assert kinds(tracker, error, echo(), THINKING) == ["other", "other", "began"]
    assert kinds(sent(init(busy=True)), echo(), status(promptQueued=True), error) == ["other", "queued", "other"]


@pytest.mark.parametrize("stage", [[], [echo()], [echo(), status(promptQueued=True)], [echo(), THINKING]])
def test_the_end_of_the_session_is_the_end_of_our_prompt(stage: list[Frame]) -> None:
    over = status(status="terminated", sandboxRunning=False)
    tracker = sent(init())
    kinds(tracker, *stage)
    assert kinds(tracker, over) == ["ended"]
    assert kinds(PromptTracker("Hi"), over) == ["other"]


def test_that_the_runner_is_idle_ends_no_prompt_of_which_nothing_was_seen() -> None:
    tracker = sent(init(busy=True), COMPLETE)
    assert kinds(tracker, echo(), status(runnerBusy=False), THINKING) == ["other", "other", "began"]
    assert kinds(tracker, status(runnerBusy=False)) == ["ended"]
    waited = sent(init(busy=True))
    kinds(waited, echo(), status(promptQueued=True, queuePosition=1), COMPLETE, status(promptDequeued=True))
    assert kinds(waited, status(runnerBusy=False), status(promptDequeued=True), THINKING) == ["other", "other", "ours"]
    assert kinds(waited, status(promptDequeued=True)) == ["ended"]


def test_a_prompt_of_the_system_runs_without_a_word() -> None:
    tracker = sent(init(), {"type": "message", "data": {"id": "s-1", "role": "system", "content": "Child"}})
    kinds(
        tracker, echo(), audit("prompt.queued", "Queued: runner busy (…)"), status(promptQueued=True, queuePosition=1)
    )
    assert kinds(tracker, THINKING, begin("t-0"), COMPLETE) == ["other"] * 3
    assert kinds(tracker, status(promptDequeued=True, remaining=0)) == ["began"]


def test_a_frame_that_cannot_be_read_is_handed_on_to_be_counted() -> None:
    unknown: Frame = {"type": "totally-new"}
    assert seen(sent(init()), unknown) == ("other", unknown)


def test_without_a_prompt_the_first_turn_of_the_channel_is_ours() -> None:
    tracker = PromptTracker(None, channel="slack:C1")
    slack = {"channelType": "slack", "channelId": "C1"}
    assert kinds(tracker, init(busy=True, queued=2), {**THINKING, "channelType": "web", "channelId": "default"}) == [
        *("other", "other")
    ]
    assert kinds(tracker, begin("t-1"), COMPLETE, status(queueCleared=True), {**THINKING, **slack}) == [
        *("other", "other", "other", "began")
    ]
    assert kinds(tracker, begin("t-2", "slack:C1"), COMPLETE) == ["ours", "ended"]
    assert kinds(PromptTracker(None), {"type": "complete"}) == ["ended"]
