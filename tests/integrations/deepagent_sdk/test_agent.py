"""Drives agents with `stream_with_events`, at the pace that was asked for."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.driving import Control, new_chat, user
from support.hang import HANG_SECONDS
from usechat.integrations import agent_of
from usechat.integrations.deepagent_sdk.agent import DeepAgent, DeepAgentError
from usechat.integrations.deepagent_sdk.pace import paced
from usechat.integrations.deepagent_sdk.side_events import SideEventBatches
from usechat.integrations.deepagent_sdk.translator import DeepAgentTranslator
from usechat.turns.chat import Approval, Chat

pytestmark = pytest.mark.anyio

Event = dict[str, Any]
LONG = 1000.0


class Scripted:
    """Yields these events, and keeps what it was called with."""

    def __init__(self, *events: Event, stay: asyncio.Event | None = None) -> None:
        self.called: list[dict[str, Any]] = []
        self.closed = False
        self._events = events
        self._stay = stay

    async def stream_with_events(
        self, *, messages: Any, state: Any, thread_id: Any, abort: asyncio.Event, max_steps: int | None = None
    ) -> AsyncIterator[Event]:
        arguments = {"messages": messages, "state": state, "thread_id": thread_id, "abort": abort}
        self.called.append({**arguments, "max_steps": max_steps})
        try:
            for event in self._events:
                yield event
            if self._stay is not None:
                await self._stay.wait()
        finally:
            self.closed = True


def said(text: str) -> Event:
    return {"type": "text", "text": text}


DONE: Event = {"type": "done", "text": ""}
SAVED: Event = {"type": "checkpoint-saved", "threadId": "t", "step": 1}


async def all_of(agent: DeepAgent, **options: Any) -> list[Any]:
    async with asyncio.timeout(HANG_SECONDS):
        return [event async for event in agent.run(new_chat(user("Hi"), **options))]


async def test_an_object_that_streams_events_is_an_agent() -> None:
    assert isinstance(agent_of(Scripted()), DeepAgent)
    with pytest.raises(TypeError, match="Scripted is not an agent"):
        agent_of(Scripted)
    for thing in (Scripted, object(), "x"):
        with pytest.raises(TypeError, match="is no DeepAgent"):
            DeepAgent(thing)


async def test_a_run_is_given_the_messages_and_what_the_app_gave() -> None:
    agent, control = Scripted(said("Hi"), DONE, SAVED), Control()
    assert await all_of(DeepAgent(agent, max_steps=7), control=control) == [said("Hi"), DONE, SAVED]
    assert agent.called == [
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "state": None,
            "thread_id": None,
            "abort": control.stopping,
            "max_steps": 7,
        }
    ]
    assert agent.closed


async def test_every_turn_has_a_state_of_its_own() -> None:
    agent = Scripted(DONE)
    served = DeepAgent(agent, initial_state={"todos": []}, thread_id="t")
    for _ in range(2):
        await all_of(served)
        agent.called[-1]["state"]["todos"].append("mine")
    assert [call["state"] for call in agent.called] == [{"todos": ["mine"]}] * 2

    async def thread(chat: Any) -> str:
        return f"thread of {chat.user}"

    served = DeepAgent(agent, initial_state=lambda chat: {"of": chat.user}, thread_id=thread)
    await all_of(served, user="ada")
    assert (agent.called[-1]["state"], agent.called[-1]["thread_id"]) == ({"of": "ada"}, "thread of ada")


async def test_a_run_that_ends_without_a_word_is_done() -> None:
    assert await all_of(DeepAgent(Scripted(said("Hi")))) == [said("Hi"), {"type": "done"}]


async def test_an_agent_that_is_done_and_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("usechat.integrations.deepagent_sdk.agent._AFTER_DONE", 0.01)
    agent = Scripted(DONE, SAVED, stay=asyncio.Event())
    with caplog.at_level(logging.WARNING, "usechat"):
        assert await all_of(DeepAgent(agent)) == [DONE, SAVED]
    assert agent.closed
    assert "was done and did not end" in caplog.text


@pytest.mark.parametrize("options", [{}, {"throttle": LONG}, {"batch": True}])
async def test_a_failure_is_raised_and_an_abort_is_an_event(options: dict[str, Any]) -> None:
    for error, raised in ((ValueError("x"), ValueError), ({"name": "E", "message": "m"}, DeepAgentError)):
        with pytest.raises(raised):
            await all_of(DeepAgent(Scripted({"type": "error", "error": error}), **options))
    abort = {"type": "error", "error": {"name": "AbortError", "message": ""}}
    assert abort in await all_of(DeepAgent(Scripted(abort), **options))


async def test_a_timeout_of_the_agents_own_is_its_failure() -> None:
    class Late:
        async def stream_with_events(self, **_: Any) -> AsyncIterator[Event]:
            yield DONE
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await all_of(DeepAgent(Late()))


async def test_an_agent_may_have_to_be_awaited_and_its_events_may_be_of_no_shape() -> None:
    class Awaited:
        async def stream_with_events(self, **_: Any) -> AsyncIterator[Any]:
            async def events() -> AsyncIterator[Any]:
                yield 7

            return events()

    for throttle in (None, 1.0):
        assert await all_of(DeepAgent(Awaited(), throttle=throttle)) == [7, {"type": "done"}]


async def test_the_answers_to_approvals_reach_an_agent_that_takes_them() -> None:
    class Resumed(Scripted):
        async def stream_with_events(self, *, resume: Any = None, **others: Any) -> AsyncIterator[Event]:
            self.called.append({"resume": resume, **others})
            yield DONE

    approvals = [
        Approval("a-1", "c-1", "rm", {}, approved=True, extra={"modifiedArgs": {"path": "/b"}, "more": 1}),
        Approval("a-2", "c-2", "rm", {}, approved=False, reason="No."),
    ]
    agent = Resumed()
    await all_of(DeepAgent(agent), approvals=approvals)
    call = {"toolName": "rm"}
    assert agent.called[0]["resume"] == {
        "decisions": [
            {"type": "approve", "approvalId": "a-1", "toolCallId": "c-1", **call, "modifiedArgs": {"path": "/b"}},
            {"type": "deny", "approvalId": "a-2", "toolCallId": "c-2", **call, "reason": "No."},
        ]
    }
    await all_of(DeepAgent(agent))
    assert agent.called[1]["resume"] is None
    plain = Scripted(DONE)
    assert await all_of(DeepAgent(plain), approvals=approvals) == [DONE]


async def test_a_translator_of_ones_own_is_made_for_the_chat() -> None:
    class Mine(DeepAgentTranslator):
        def __init__(self, chat: Chat) -> None:
            super().__init__(continues=chat.continues)

    chat = new_chat(user("Hi"))
    assert type(DeepAgent(Scripted(), translator=Mine).translator(chat)) is Mine
    assert type(DeepAgent(Scripted()).translator(chat)) is DeepAgentTranslator


@pytest.mark.parametrize("throttle", [0, -1, float("nan"), float("inf")])
async def test_a_throttle_is_a_number_of_seconds(throttle: float) -> None:
    with pytest.raises(ValueError, match="throttle is a number of seconds"):
        DeepAgent(Scripted(), throttle=throttle)


# The pace.


def read(path: str, **fields: Any) -> Event:
    return {"type": "file-read", "path": path, "lines": 1, **fields}


class Fed:
    """Events that come when the test says so."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def feed(self, *events: Event | None) -> None:
        for event in events:
            self._queue.put_nowait(event)

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._queue.get()) is not None:
            yield event


async def taken(events: AsyncIterator[Any], number: int) -> list[Any]:
    async with asyncio.timeout(HANG_SECONDS):
        return [await anext(events) for _ in range(number)]


async def rest(events: AsyncIterator[Any]) -> list[Any]:
    async with asyncio.timeout(HANG_SECONDS):
        return [event async for event in events]


async def test_of_each_kind_the_first_and_the_last_pass_and_text_waits_for_nothing() -> None:
    fed = Fed()
    events = paced(fed.events(), LONG)
    fed.feed(read("a"), read("b"), said("1"), {"type": "ls", "path": ".", "count": 1}, read("c"), said("2"))
    assert await taken(events, 4) == [read("a"), said("1"), {"type": "ls", "path": ".", "count": 1}, said("2")]
    fed.feed(DONE, None)
    assert await rest(events) == [read("c"), DONE]


async def test_what_was_held_back_passes_when_its_time_has_come() -> None:
    fed = Fed()
    events = paced(fed.events(), 0.05)
    fed.feed(read("a"), read("b"), read("c"))
    assert await taken(events, 2) == [read("a"), read("c")]
    fed.feed(None)
    assert await rest(events) == []


async def test_an_event_that_was_held_back_still_names_its_call() -> None:
    fed = Fed()
    events = paced(fed.events(), LONG)
    call: Event = {"type": "tool-call", "toolCallId": "c-1", "toolName": "read_file", "args": {}}
    result = {"type": "tool-result", "toolCallId": "c-1", "toolName": "read_file", "result": ""}
    fed.feed(read("a"), call, read("b"), result, None)
    assert await rest(events) == [read("a"), call, result, read("b", toolCallId="c-1")]


async def test_the_starts_and_finishes_of_subagents_all_pass() -> None:
    fed = Fed()
    starts = [{"type": "subagent-start", "name": "x", "task": str(number)} for number in range(3)]
    fed.feed(*starts, None)
    assert await rest(paced(fed.events(), LONG)) == starts


async def test_where_side_events_go_together_none_is_lost_and_none_waits_for_long() -> None:
    fed = Fed()
    events = paced(fed.events(), 0.05, SideEventBatches(20, ()))
    fed.feed(*(read(str(number)) for number in range(4)))
    passed: list[Any] = []
    while len(passed) < 4:
        [event] = await taken(events, 1)
        passed += event["events"] if event["type"] == "batch" else [event]
    assert passed == [read("0"), read("1"), read("2"), read("3")]
    fed.feed(None)
    assert await rest(events) == []


async def test_text_comes_after_the_side_events_that_waited_for_others() -> None:
    fed = Fed()
    fed.feed(read("a"), read("b"), said("Hi"), read("c"), None)
    batch = {"type": "batch", "events": [read("a"), read("b")]}
    assert await rest(paced(fed.events(), None, SideEventBatches(20, ()))) == [batch, said("Hi"), read("c")]


async def test_a_reader_that_leaves_ends_the_run() -> None:
    agent = Scripted(said("Hi"), stay=asyncio.Event())
    events = DeepAgent(agent, throttle=LONG).run(new_chat(user("Hi")))
    assert await taken(events, 1) == [said("Hi")]
    await events.aclose()
    assert agent.closed


async def test_what_the_agent_raises_is_raised_after_what_was_held_back() -> None:
    async def failing() -> AsyncIterator[Event]:
        yield read("a")
        yield read("b")
        raise asyncio.CancelledError

    events = paced(failing(), LONG)
    assert await taken(events, 2) == [read("a"), read("b")]
    with pytest.raises(asyncio.CancelledError):
        await anext(events)
