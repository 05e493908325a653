"""The chunks that a plain agent's turn is made of."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from turns.play import CLOSED, GREETING, HEAD, Played, chunks_of, play
from usechat.events import AgentEvent, Reasoning, StructuredOutput, ToolCall, ToolError, ToolResult
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Data,
    Error,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.codec import decode_chunk, encode_chunk
from usechat.protocol.sse import SseDecoder
from usechat.turns.chat import Chat
from usechat.turns.output import Output
from usechat.turns.settings import TurnLimits

pytestmark = pytest.mark.anyio


# What keeps a page from posting the results of the last step by itself.
NOT_AGAIN: list[Chunk] = [StartStep(), MessageMetadata({}), FinishStep()]


async def greets(chat: Chat) -> AsyncIterator[str]:
    yield "hello"


async def waits(chat: Chat) -> AsyncIterator[str]:
    yield "hello"
    await asyncio.Event().wait()


async def test_an_async_generator_is_a_turn() -> None:
    played = await play(greets)
    assert await played.ended() == [*GREETING, *CLOSED, Finish("stop")]
    assert played.claim.log.outcome == "done"
    assert played.stored == [[{"type": "step-start"}, {"type": "text", "text": "hello", "state": "done"}]]
    numbers = [frame.split(b"\n")[0] for frame in played.claim.log.frames]
    assert numbers == [f"id: turn.{number}".encode() for number in range(1, 8)]


async def test_texts_that_come_together_are_chunks_of_their_own_in_their_order() -> None:
    words = [f'{number} %d é "{number}" ' for number in range(300)]

    async def agent(chat: Chat) -> AsyncIterator[AgentEvent]:
        for number, word in enumerate(words):
            yield word
            if number == 150:
                chat.write.data("half", number)
            if number == 200:
                yield Reasoning("Hm.")
        yield ""
        yield "x" * 1000

    played = await play(agent)
    chunks = await played.ended()
    log = played.claim.log
    assert [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)] == [*words, "x" * 1000]
    kinds = [type(chunk) for chunk in chunks]
    assert kinds[: kinds.index(Data)].count(TextDelta) == 151
    assert kinds[: kinds.index(ReasoningStart)].count(TextDelta) == 201
    numbers = [frame.split(b"\n")[0] for frame in log.frames]
    assert numbers == [f"id: turn.{number}".encode() for number in range(1, len(chunks) + 1)]
    assert log.size == sum(map(len, log.frames))
    texts = [part["text"] for part in played.stored[0] if part["type"] == "text"]
    assert texts == ["".join(words[:201]), "".join(words[201:]) + "x" * 1000]


async def test_a_character_that_is_cut_in_two_is_whole_among_texts_that_come_together() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for text in ("a", "b", "\ud83d", "\ude00", "c"):
            yield text
        await asyncio.sleep(0)
        for text in ("d", "\ud83d", "\ude00", "e"):
            yield text

    played = await play(agent)
    await played.ended()
    assert played.stored[0][1]["text"] == "ab😀cd😀e"


async def test_a_text_is_in_the_log_when_its_agent_waits() -> None:
    played = await play(waits)
    await played.changed()
    assert played.chunks == GREETING
    played.turn.stop("stopped")
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]


async def test_a_text_is_in_the_log_when_its_agent_stops_itself_or_fails() -> None:
    turns = list[Played]()

    async def stops(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        turns[0].turn.stop("stopped")
        yield "never"

    async def fails(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise RuntimeError

    turns.append(await play(stops))
    assert await turns[0].ended() == [*GREETING, *CLOSED, Abort()]
    assert await (await play(fails)).ended() == [*GREETING, *CLOSED, Error("masked")]


async def test_a_thread_that_writes_comes_after_the_texts_before_it() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for number in range(20):
            yield f"{number} "
            thread = threading.Thread(target=chat.write.data, args=("n", number))
            thread.start()
            thread.join()

    played = await play(agent)
    said = [chunk for chunk in await played.ended() if isinstance(chunk, TextDelta | Data)]
    assert [chunk.delta if isinstance(chunk, TextDelta) else chunk.data for chunk in said] == [
        value for number in range(20) for value in (f"{number} ", number)
    ]


async def test_a_text_that_cannot_be_written_fails_the_turn() -> None:
    def new_id() -> str:
        raise RuntimeError("no more ids")

    played = await play(waits, new_id=new_id)
    assert await played.ended() == [Start("m"), StartStep(), FinishStep(), Error("masked")]


async def test_a_sync_generator_works_in_a_thread_of_its_own() -> None:
    seen: list[int] = []

    def agent(chat: Chat) -> Iterator[str]:
        seen.append(threading.get_ident())
        yield "hello"

    played = await play(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Finish("stop")]
    assert seen != [threading.get_ident()]


async def test_a_coroutine_may_write_and_return_the_last_word() -> None:
    async def agent(chat: Chat) -> str:
        await asyncio.to_thread(chat.write.reasoning, "hm")
        return "hello"

    assert await (await play(agent)).ended() == [
        Start("m"),
        StartStep(),
        ReasoningStart("id-1"),
        ReasoningDelta("id-1", "hm"),
        ReasoningEnd("id-1"),
        TextStart("id-2"),
        TextDelta("id-2", "hello"),
        TextEnd("id-2"),
        FinishStep(),
        Finish("stop"),
    ]


async def test_an_agent_may_yield_events_and_chunks() -> None:
    async def agent(chat: Chat) -> AsyncIterator[AgentEvent]:
        yield Reasoning("hm")
        yield StructuredOutput({"n": 1})
        yield ToolCall("a", "search", {})
        yield ToolResult("a", 1)
        yield ToolCall("b", "search", {})
        yield ToolError("b", "no")
        yield Error("my own words")
        yield "never sent"

    played = await play(agent)
    assert await played.ended() == [
        Start("m"),
        StartStep(),
        ReasoningStart("id-1"),
        ReasoningDelta("id-1", "hm"),
        Data("data-structured-output", {"n": 1}),
        ReasoningEnd("id-1"),
        ToolInputAvailable("a", "search", {}),
        ToolOutputAvailable("a", 1),
        FinishStep(),
        StartStep(),
        ToolInputAvailable("b", "search", {}),
        ToolOutputError("b", "no"),
        FinishStep(),
        *NOT_AGAIN,
        Error("my own words"),
    ]
    assert (played.unused.counts, played.claim.log.outcome) == ({}, "error")


async def test_every_way_to_say_data_takes_its_name_with_or_without_the_prefix() -> None:
    async def agent(chat: Chat) -> AsyncIterator[AgentEvent]:
        yield Data("weather", 1)
        yield Data("data-weather", 2)
        yield {"type": "data-weather", "data": 3}
        chat.write.send(Data(type="weather", data=4))
        chat.write.data("weather", 5)
        chat.write.data("data-weather", 6)

    said = (await (await play(agent)).ended())[1:-1]
    assert [encode_chunk(chunk) for chunk in said] == [
        b'{"type":"data-weather","data":%d}' % number for number in range(1, 7)
    ]


class Weather(Data, frozen=True):
    town: str = "Ghent"


class Forecast(TextDelta, frozen=True, tag="forecast"):
    pass


@pytest.mark.parametrize(
    "event",
    [
        {"type": "weather", "data": 1},
        Weather("data-weather", 1),
        Forecast("t", "sunny"),
        Data(cast("str", None), 1),
        Data(cast("str", 7), 1),
    ],
)
async def test_what_is_no_chunk_of_the_protocol_ends_the_turn_before_it_is_sent(event: AgentEvent) -> None:
    async def yields(chat: Chat) -> AsyncIterator[AgentEvent]:
        yield event

    async def writes(chat: Chat) -> None:
        chat.write.send(cast("Chunk", event))

    for agent in (yields, writes):
        played = await play(agent)
        assert await played.ended() == [Start("m"), Error("masked")]
        assert played.stored == [[]]


async def test_a_call_without_a_result_waits_for_the_browser() -> None:
    async def agent(chat: Chat) -> AsyncIterator[ToolCall]:
        yield ToolCall("a", "locate", {})

    assert (await (await play(agent)).ended())[-3:] == [
        ToolInputAvailable("a", "locate", {}),
        FinishStep(),
        Finish("tool-calls"),
    ]


async def test_a_failing_agent_ends_with_a_masked_error() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise ValueError("secret")

    played = await play(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]
    assert b"secret" not in b"".join(played.claim.log.frames)


async def test_a_failing_thread_ends_with_a_masked_error() -> None:
    def agent(chat: Chat) -> Iterator[str]:
        yield "hello"
        raise ValueError("secret")

    assert await (await play(agent)).ended() == [*GREETING, *CLOSED, Error("masked")]


async def test_what_is_no_agent_ends_with_a_masked_error() -> None:
    def agent(chat: Chat) -> Any:
        return 7

    assert await (await play(agent)).ended() == [Start("m"), Error("masked")]


async def test_a_stop_is_immediate_and_keeps_what_was_said() -> None:
    cancelled = asyncio.Event()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        try:
            yield "hello"
            await asyncio.Event().wait()
        finally:
            chat.write.text("too late")
            cancelled.set()

    played = await play(agent)
    await played.changed()
    played.turn.stop("stopped")
    assert (played.turn.outcome, played.turn.stopped, played.turn.stopping.is_set()) == ("stopped", "stopped", True)
    played.turn.stop("replaced")
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]
    assert cancelled.is_set()
    assert played.turn.stopped == "stopped"


async def test_an_agent_is_closed_by_a_stop_that_comes_while_what_it_said_is_passed_on() -> None:
    closed_by = list[type[BaseException]]()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        try:
            while True:
                yield "hello"
        except BaseException as error:
            closed_by.append(type(error))
            raise

    played = await play(agent)
    await played.changed()
    played.turn.stop("stopped")
    assert (await played.ended())[-1] == Abort()
    assert closed_by == [GeneratorExit]


async def test_a_thread_that_blocks_is_left_behind() -> None:
    release, over = threading.Event(), threading.Event()

    def agent(chat: Chat) -> Iterator[str]:
        yield "hello"
        release.wait(HANG_SECONDS)
        chat.write.text("too late")
        over.set()
        yield "too late"

    played = await play(agent)
    await played.changed()
    played.turn.stop("stopped")
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]
    release.set()
    await asyncio.to_thread(over.wait, HANG_SECONDS)
    assert played.chunks == [*GREETING, *CLOSED, Abort()]


async def test_an_answer_that_is_too_large_ends_with_an_error() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        while True:
            yield "x" * 100_000

    played = await play(agent, TurnLimits(linger=None))
    chunks = await played.ended()
    assert chunks[-1] == Error("The answer became too large.")
    # What does not fit is not sent, but for the words that say so.
    assert 16 * 1024 * 1024 - 200_000 < played.claim.log.size < 16 * 1024 * 1024 + 1_000


def test_an_agent_that_writes_too_much_is_stopped_also_if_it_yields_nothing() -> None:
    async def main() -> None:
        cleaned = asyncio.Event()

        async def agent(chat: Chat) -> None:
            try:
                while True:
                    chat.write.text("x" * 100)
                    await asyncio.sleep(0.1)
            finally:
                await asyncio.sleep(0.1)
                cleaned.set()

        played = await play(agent, TurnLimits(linger=None, idle=None, total=None, log=10_000))
        assert (await played.ended())[-1] == Error("The answer became too large.")
        assert played.turn.stopping.is_set()
        await cleaned.wait()

    run_jumping(main())


async def test_a_fast_agent_lets_others_run() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for _ in range(100):
            yield "x" * 1000

    played = await play(agent)
    rounds = 0
    while played.claim.log.outcome is None:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 3


@pytest.mark.parametrize(("stopped", "runs"), [(False, True), (True, True), (True, False)])
async def test_a_turn_that_is_over_is_gone_without_the_garbage_collector(stopped: bool, runs: bool) -> None:
    async def work(_chat: Chat, _output: Output) -> None:
        if stopped:
            await asyncio.Event().wait()

    gc.collect()
    gc.disable()
    try:
        played = Played()
        await played.begin(work)
        log, gone = played.claim.log, weakref.ref(played.turn)
        if runs:
            await asyncio.sleep(0)
        if stopped:
            played.turn.stop("stopped")
        await played.over()
        del played.turn, played.chat
        for _ in range(5):
            await asyncio.sleep(0)
        assert gone() is None
        assert log.outcome == ("stopped" if stopped else "done")
    finally:
        gc.enable()


async def test_who_comes_back_gets_the_message_folded() -> None:
    step = asyncio.Event()

    async def agent(chat: Chat) -> AsyncIterator[Any]:
        yield Reasoning("a")
        yield Reasoning("b")
        yield "he"
        await step.wait()
        yield "llo"

    played = await play(agent)
    while len(played.claim.log.frames) < 8:
        await played.changed()
    folded: list[Chunk] = [
        Start("m"),
        StartStep(),
        ReasoningStart("id-1"),
        ReasoningDelta("id-1", "ab"),
        ReasoningEnd("id-1"),
        TextStart("id-2"),
        TextDelta("id-2", "he"),
    ]
    readers = [await played.store.follow(HEAD) for _ in range(2)]
    for reader in readers:
        assert reader is not None
        await reader.rewind()
        events = SseDecoder().feed(reader.take(10_000))
        assert ([decode_chunk(event.data).chunk for event in events], reader.cursor) == (folded, 8)
    step.set()
    await played.ended()
    assert chunks_of(played.claim.log.frames[8:])[0] == TextDelta("id-2", "llo")
