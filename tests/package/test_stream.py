import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from support.hang import HANG_SECONDS
from support.open_harness_table import BEGUN, FLOW, agent
from usechat.errors import MappingError
from usechat.events import AgentEvent
from usechat.events.mapper import EventMapper, TranslatingMapper
from usechat.integrations.open_harness.translator import OpenHarnessTranslator
from usechat.protocol.chunks import Chunk, Error, Finish, FinishStep, Start, TextEnd, ToolOutputError
from usechat.protocol.state import StreamState
from usechat.protocol.writer import MessageWriter
from usechat.stream import Unused, map_events
from usechat.turns.failures import explain

pytestmark = pytest.mark.anyio

SECRET = "postgres://app:hunter2@db"  # noqa: S105
DONE = {"type": "flow:complete", "flowName": "story", "status": "complete"}


class Source:
    """Events that come one by one, then perhaps a failure; `closed` tells that it was closed."""

    def __init__(self, *events: dict[str, Any], error: Exception | None = None) -> None:
        self._events = events
        self._error = error
        self.given = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for event in self._events:
                self.given += 1
                yield event
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


class Plain:
    """An iterator that is no generator, and so has nothing to close."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> "Plain":
        return self

    async def __anext__(self) -> dict[str, Any]:
        for event in self._events:
            return event
        raise StopAsyncIteration


def new_mapper() -> tuple[TranslatingMapper[dict[str, Any]], MessageWriter]:
    numbers = count(1)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}")
    return TranslatingMapper(OpenHarnessTranslator(), writer), writer


async def collect(source: Source | Plain, **options: Any) -> list[Chunk]:
    chunks = [chunk async for chunk in map_events(aiter(source), *new_mapper(), **options)]
    state = StreamState()
    for chunk in chunks:
        state.apply(chunk)
    assert state.phase in ("ended", "failed")
    return chunks


async def test_a_stream_begins_before_the_first_event_and_ends_with_the_run() -> None:
    source = Source(FLOW, DONE, agent("text", content="late"))
    assert await collect(source) == [Start("m"), Finish("stop")]
    assert (source.given, source.closed) == (2, True)


async def test_the_start_does_not_wait_for_an_event() -> None:
    source = Source(FLOW)
    async with aclosing(map_events(aiter(source), *new_mapper())) as stream:
        assert await anext(stream) == Start("m")
        assert source.given == 0


async def test_a_text_that_fails_while_the_source_waits_ends_the_stream() -> None:
    class Mute(MessageWriter):
        def text(self, delta: str, lane: str = "") -> list[Chunk]:
            if delta == "two":
                raise ZeroDivisionError
            return super().text(delta, lane)

        def flow(self, delta: str) -> str | None:
            return None

    async def words() -> AsyncIterator[AgentEvent]:
        yield "one"
        yield "two"
        await asyncio.Event().wait()

    writer = Mute("m", new_id=lambda: "t")
    async with asyncio.timeout(HANG_SECONDS):
        stream = map_events(words(), EventMapper(writer), writer, error_text=lambda _: "Sorry.")
        assert [chunk async for chunk in stream][-1] == Error("Sorry.")


async def test_any_async_iterator_will_do() -> None:
    assert await collect(Plain(FLOW, DONE)) == [Start("m"), Finish("stop")]


async def test_events_that_stop_without_an_end_are_an_interrupted_run() -> None:
    interrupted = Error("The run was interrupted before it was finished.")
    assert await collect(Source(FLOW)) == [Start("m"), interrupted]
    assert await collect(Plain()) == [Start("m"), interrupted]


async def test_a_source_that_fails_ends_the_stream_with_closed_parts_and_a_masked_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text, call = agent("text:delta", content="Hel"), agent("tool", toolName="search", toolInput={})
    chunks = await collect(Source(*BEGUN, text, call, error=RuntimeError(SECRET)))
    assert chunks.count(TextEnd("id-1")) == 1
    assert ToolOutputError("r-1-1", "The call was cut off by an error.") in chunks
    last = chunks[-1]
    assert isinstance(last, Error)
    assert last.error_text.startswith("Something went wrong. (Error ")
    assert SECRET not in repr(chunks)
    assert SECRET in caplog.text
    assert last.error_text[-9:-1] in caplog.text


async def test_an_app_may_choose_what_is_said_of_a_failure() -> None:
    def sorry(error: BaseException) -> str:
        return f"Sorry: {type(error).__name__}"

    chunks = await collect(Source(error=TimeoutError()), error_text=sorry)
    assert chunks == [Start("m"), Error("Sorry: TimeoutError")]


async def test_what_a_mapper_raises_beside_its_own_error_is_a_failure_too() -> None:
    class Broken(OpenHarnessTranslator):
        def translate(self, event: dict[str, Any]) -> list[AgentEvent]:
            raise ZeroDivisionError

    _, writer = new_mapper()
    mapper = TranslatingMapper(Broken(), writer)
    stream = map_events(aiter(Source(FLOW)), mapper, writer, error_text=lambda _: "Sorry.")
    assert [chunk async for chunk in stream] == [Start("m"), Error("Sorry.")]


async def test_who_stops_reading_closes_the_source() -> None:
    source = Source(*BEGUN, agent("text", content="Hi"))
    async with aclosing(map_events(aiter(source), *new_mapper())) as stream:
        async for chunk in stream:
            if isinstance(chunk, FinishStep | TextEnd):
                break
    assert source.closed


async def test_events_that_cannot_be_used_are_counted_logged_once_a_kind_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unused = Unused()
    odd = [{"type": "phase:entered"}, {}, {"type": "phase:entered"}]
    assert await collect(Source(FLOW, *odd, DONE), unused=unused) == [Start("m"), Finish("stop")]
    kinds = ["Open Harness has no event of the type 'phase:entered'.", "An Open Harness event has no type."]
    assert unused.counts == {kinds[0]: 2, kinds[1]: 1}
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, kind) for kind in kinds
    ]


async def test_without_a_counter_they_are_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    await collect(Source(FLOW, {}, {}, DONE))
    assert [record.getMessage() for record in caplog.records] == ["An Open Harness event has no type."]


async def test_a_stranger_who_invents_types_cannot_fill_memory_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    unused = Unused()
    for number in range(1_000):
        unused(MappingError(f"no event {number}"))
    assert (len(unused.counts), unused.counts.total(), len(caplog.records)) == (101, 1_000, 101)
    assert unused.counts["others"] == 900


async def test_a_text_that_is_not_chosen_is_masked() -> None:
    assert explain(RuntimeError(SECRET), lambda _: None).startswith("Something went wrong. (Error ")
