"""Whatever numbers, names and texts a session sends: little of it is kept, and nothing of it raises."""

import tracemalloc
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest

from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops.frames import (
    Answered,
    Cleared,
    Dequeued,
    FrameType,
    Opened,
    Prompted,
    Question,
    Queued,
    channel_of,
    read_frame,
)
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.integrations.agent_ops.turns import PromptTracker
from usechat.protocol.writer import MessageWriter

Frame = dict[str, Any]

HUGE = 10**400
MANY = 30_000_000
LONG = "x" * 10_000
BEGUN: Frame = {"type": "message.create", "turnId": "t-1"}


def status(**data: Any) -> Frame:
    return {"type": "status", "data": data}


def echo(text: str = "Hi", message: str = "m-1", **fields: Any) -> Frame:
    return {"type": "message", "data": {"id": message, "role": "user", "content": text, **fields}}


def init(queued: object) -> Frame:
    return {"type": "init", "data": {"runnerBusy": True, "promptsQueued": queued}}


def sent(*frames: Frame) -> PromptTracker:
    tracker = PromptTracker("Hi")
    tracker.mark_sent()
    for frame in frames:
        tracker.see(frame)
    return tracker


@contextmanager
def taking(most: int) -> Generator[None]:
    """Hold that so many bytes at most are taken at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "frames",
    [
        [init(MANY)],
        [init(0), echo(), status(promptQueued=True, queuePosition=MANY)],
        [init(0), echo(), status(promptQueued=True, queuePosition=1), status(promptDequeued=True, remaining=MANY)],
    ],
)
def test_a_number_of_prompts_costs_no_memory(frames: list[Frame]) -> None:
    with taking(1_000_000):
        sent(*frames)


def test_a_queue_of_which_too_much_is_told_has_ours_last() -> None:
    tracker = sent(init(HUGE), echo(), status(promptQueued=True, queuePosition=HUGE))
    assert tracker.position == 1
    assert not tracker.running
    tracker.see(status(promptDequeued=True, remaining=0))
    assert tracker.running


def others(count: int, *after: Frame) -> Iterable[Frame]:
    for number in range(count):
        yield echo(LONG, f"o-{number}", channelType="slack", channelId=f"{number}{LONG}")
        yield from after


@pytest.mark.parametrize(
    "after",
    [
        [status(promptQueued=True)],
        [status(collectPending=True)],
        [BEGUN, status(runnerDisconnected=True)],
        [{"type": "question", "questionId": LONG, "text": "?"}],
    ],
)
def test_a_session_that_goes_on_for_ever_fills_no_memory(after: list[Frame]) -> None:
    frames = list(others(2_000, *after))
    with taking(4_000_000):
        tracker = sent(init(0), echo(), status(promptQueued=True, queuePosition=1), *frames)
    assert tracker.position is not None


def test_prompts_that_are_collected_with_ours_fill_no_memory() -> None:
    collecting = status(collectPending=True)
    with taking(4_000_000):
        sent(init(0), echo(), collecting)
        tracker = sent(init(0), echo(), collecting)
        for number in range(2_000):
            tracker.see(echo(f"{number}{LONG}", f"o-{number}"))
            tracker.see(collecting)


def test_a_question_is_kept_as_it_is_shown() -> None:
    mapper = TranslatingMapper(AgentOpsTranslator(), MessageWriter("m", new_id=lambda: "p"))
    list(mapper.map(read_frame(BEGUN)))
    tracemalloc.start()
    for number in range(3):
        options = [f"{option}" * 1_000_000 for option in range(9)]
        asked = {"type": "question", "questionId": f"q-{number}", "text": "?", "options": options}
        list(mapper.map(read_frame(asked)))
        del options, asked
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 6_000_000


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (init(HUGE), Opened(busy=True, queued=0)),
        (init(1.5), Opened(busy=True, queued=0)),
        (status(promptQueued=True, queuePosition=HUGE), Queued(0)),
        (status(promptQueued=True, queuePosition=-1), Queued(0)),
        (status(promptDequeued=True, remaining=HUGE), Dequeued(None)),
        (status(questionAnswered=HUGE, answer="yes"), Answered("", "yes")),
        (status(questionExpired={"a": 1}), Answered("", None)),
        (echo("Hi", LONG, authorId=LONG), Prompted("", "Hi", "")),
        (
            {"type": "interactive_prompt", "prompt": {"id": "q", "title": "?", "expiresAt": HUGE}},
            Question("q", {"text": "?"}),
        ),
        ({"type": "question", "questionId": "q", "text": "?", "expiresAt": float("inf")}, Question("q", {"text": "?"})),
        (
            {"type": "audit_log", "entry": {"eventType": "user.abort", "summary": "(channel: " * 100_000}},
            Cleared(None, "abort"),
        ),
    ],
)
def test_what_nobody_can_mean_is_taken_as_not_told(frame: Frame, says: FrameType) -> None:
    assert read_frame(frame).says == says


def test_a_channel_with_a_long_name_is_another_one() -> None:
    named = channel_of({"type": "chunk", "channelType": "web", "channelId": LONG})
    assert named == "web:" + "x" * 513
