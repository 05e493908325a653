import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from usechat.agents.chat import Chat, Request, live_writer
from usechat.agents.plain import PlainAgent, run_plain
from usechat.errors import MappingError
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Data,
    Error,
    Finish,
    FinishStep,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolOutputError,
)
from usechat.protocol.codec import decode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.sse import SseDecoder
from usechat.protocol.writer import MessageWriter
from usechat.sources.plain import PlainEvent, Reasoning, ToolCall, ToolError, ToolResult
from usechat.stores import TurnLog
from usechat.turns import Turn, TurnLimits

pytestmark = pytest.mark.anyio

FOREVER = TurnLimits(linger=None, idle=None, total=None)


class Played:
    """One turn of an agent, with what it ended in."""

    def __init__(
        self, agent: PlainAgent, limits: TurnLimits = FOREVER, new_id: Callable[[], str] | None = None
    ) -> None:
        numbers = count(1)
        self.ends: list[tuple[str, list[dict[str, Any]]]] = []
        self.unused: list[str] = []
        self.log = TurnLog("turn", "chat", "")
        writer = MessageWriter("m", new_id=new_id or (lambda: f"id-{next(numbers)}"))
        self.turn = Turn(self.log, writer, None, limits=limits, explain=lambda error: "masked", on_end=self._end)
        self.chat = Chat(
            id="chat",
            text="hi",
            messages=[],
            request=Request({}, {}),
            user=None,
            trigger="submit-message",
            continues=None,
            tool_results=[],
            approvals=[],
            stopping=self.turn.stopping,
            client="portable",
            write=live_writer(self.turn),
        )
        self.turn.start(lambda: self._run(agent))

    async def _run(self, agent: PlainAgent) -> None:
        threads = asyncio.Semaphore(1)
        await run_plain(agent, self.chat, self.turn, threads=threads, unused=self._note)

    def _note(self, error: MappingError) -> None:
        self.unused.append(str(error))

    async def _end(self, outcome: str, message: UIMessage) -> None:
        self.ends.append((outcome, message.parts))

    @property
    def chunks(self) -> list[Chunk]:
        return chunks_in(b"".join(self.log.frames))

    async def changed(self) -> None:
        """Wait until the log has grown or has ended."""
        future = asyncio.get_running_loop().create_future()
        self.log.call_when_changed(lambda: future.set_result(None))
        await asyncio.wait_for(future, 5)

    async def ended(self) -> list[Chunk]:
        await asyncio.wait_for(self.turn.settled(), 5)
        return self.chunks


def chunks_in(body: bytes) -> list[Chunk]:
    return [decode_chunk(event.data).chunk for event in SseDecoder().feed(body)]


async def greets(chat: Chat) -> AsyncIterator[str]:
    yield "hello"


async def waits(chat: Chat) -> AsyncIterator[str]:
    yield "hello"
    await asyncio.Event().wait()


GREETING: list[Chunk] = [Start("m"), StartStep(), TextStart("id-1"), TextDelta("id-1", "hello")]
CLOSED: list[Chunk] = [TextEnd("id-1"), FinishStep()]


async def test_an_async_generator_is_a_turn() -> None:
    played = Played(greets)
    assert await played.ended() == [*GREETING, *CLOSED, Finish("stop")]
    assert played.log.outcome == "done"
    assert played.ends == [("done", [{"type": "step-start"}, {"type": "text", "text": "hello", "state": "done"}])]
    assert [frame.split(b"\n")[0] for frame in played.log.frames[:2]] == [b"id: turn.1", b"id: turn.2"]


async def test_texts_that_come_together_are_chunks_of_their_own_in_their_order() -> None:
    words = [f'{number} %d é "{number}" ' for number in range(300)]

    async def agent(chat: Chat) -> AsyncIterator[PlainEvent]:
        for number, word in enumerate(words):
            yield word
            if number == 150:
                chat.write.data("half", number)
            if number == 200:
                yield Reasoning("Hm.")
        yield ""
        yield "x" * 1000

    played = Played(agent)
    chunks = await played.ended()
    assert [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)] == [*words, "x" * 1000]
    kinds = [type(chunk) for chunk in chunks]
    assert kinds[: kinds.index(Data)].count(TextDelta) == 151
    assert kinds[: kinds.index(ReasoningStart)].count(TextDelta) == 201
    numbers = [frame.split(b"\n")[0] for frame in played.log.frames]
    assert numbers == [f"id: turn.{number}".encode() for number in range(1, len(chunks) + 1)]
    assert played.log.size == sum(map(len, played.log.frames))
    texts = [part["text"] for part in played.ends[0][1] if part["type"] == "text"]
    assert texts == ["".join(words[:201]), "".join(words[201:]) + "x" * 1000]


async def test_a_character_that_is_cut_in_two_is_whole_among_texts_that_come_together() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for text in ("a", "b", "\ud83d", "\ude00", "c"):
            yield text
        await asyncio.sleep(0)
        for text in ("d", "\ud83d", "\ude00", "e"):
            yield text

    played = Played(agent)
    await played.ended()
    assert played.ends[0][1][1]["text"] == "ab😀cd😀e"


async def test_a_text_is_in_the_log_when_its_agent_waits_fails_or_is_stopped() -> None:
    async def fails(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise RuntimeError

    played = Played(waits)
    await played.changed()
    assert played.chunks == GREETING
    played.turn.stop()
    await played.ended()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        played.turn.stop()
        yield "never"

    played = Played(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]
    assert await Played(fails).ended() == [*GREETING, *CLOSED, Error("masked")]


async def test_a_thread_that_writes_comes_after_the_texts_before_it() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for number in range(20):
            yield f"{number} "
            thread = threading.Thread(target=chat.write.data, args=("n", number))
            thread.start()
            thread.join()

    played = Played(agent)
    said = [chunk for chunk in await played.ended() if isinstance(chunk, TextDelta | Data)]
    assert [chunk.delta if isinstance(chunk, TextDelta) else chunk.data for chunk in said] == [
        value for number in range(20) for value in (f"{number} ", number)
    ]


async def test_a_text_that_cannot_be_written_fails_the_turn() -> None:
    def new_id() -> str:
        raise RuntimeError("no more ids")

    played = Played(waits, new_id=new_id)
    assert await played.ended() == [Start("m"), StartStep(), FinishStep(), Error("masked")]


async def test_a_sync_generator_works_in_a_thread_of_its_own() -> None:
    seen: list[int] = []

    def agent(chat: Chat) -> Iterator[str]:
        seen.append(threading.get_ident())
        yield "hello"

    played = Played(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Finish("stop")]
    assert seen != [threading.get_ident()]


async def test_a_coroutine_may_write_and_return_the_last_word() -> None:
    async def agent(chat: Chat) -> str:
        await asyncio.to_thread(chat.write.reasoning, "hm")
        return "hello"

    assert await Played(agent).ended() == [
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
    async def agent(chat: Chat) -> AsyncIterator[Any]:
        yield Reasoning("hm")
        yield ToolCall("a", "search", {})
        yield ToolResult("a", 1)
        yield ToolCall("b", "search", {})
        yield ToolError("b", "no")
        yield object()
        yield Error("my own words")
        yield "never sent"

    played = Played(agent)
    chunks = await played.ended()
    assert chunks[-1] == Error("my own words")
    assert ToolOutputError("b", "no") in chunks
    assert (played.unused, played.log.outcome) == (["An agent cannot yield a value of type object."], "error")


async def test_a_call_without_a_result_waits_for_the_browser() -> None:
    async def agent(chat: Chat) -> AsyncIterator[ToolCall]:
        yield ToolCall("a", "locate", {})

    assert (await Played(agent).ended())[-3:] == [
        ToolInputAvailable("a", "locate", {}),
        FinishStep(),
        Finish("tool-calls"),
    ]


async def test_a_failing_agent_ends_with_a_masked_error() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise ValueError("secret")

    played = Played(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]
    assert b"secret" not in b"".join(played.log.frames)
    assert [outcome for outcome, _ in played.ends] == ["error"]


async def test_a_failing_thread_ends_with_a_masked_error() -> None:
    def agent(chat: Chat) -> Iterator[str]:
        yield "hello"
        raise ValueError("secret")

    assert await Played(agent).ended() == [*GREETING, *CLOSED, Error("masked")]


async def test_what_is_no_agent_ends_with_a_masked_error() -> None:
    def agent(chat: Chat) -> Any:
        return 7

    assert await Played(agent).ended() == [Start("m"), Error("masked")]


async def test_a_stop_is_immediate_and_keeps_what_was_said() -> None:
    cancelled = asyncio.Event()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        try:
            yield "hello"
            await asyncio.Event().wait()
        finally:
            chat.write.text("too late")
            cancelled.set()

    played = Played(agent)
    await played.changed()
    played.turn.stop()
    assert played.chunks == [*GREETING, *CLOSED, Abort()]
    await asyncio.wait_for(cancelled.wait(), 5)
    played.turn.stop()
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]
    assert played.turn.stopping.is_set()
    assert [outcome for outcome, _ in played.ends] == ["stopped"]


async def test_a_thread_that_blocks_is_left_behind() -> None:
    release = threading.Event()
    over = threading.Event()

    def agent(chat: Chat) -> Iterator[str]:
        yield "hello"
        release.wait(5)
        chat.write.text("too late")
        over.set()
        yield "too late"

    played = Played(agent)
    await played.changed()
    played.turn.stop()
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]
    release.set()
    await asyncio.to_thread(over.wait, 5)
    assert played.chunks == [*GREETING, *CLOSED, Abort()]


async def test_the_turn_is_stopped_when_its_task_is_cancelled_from_outside() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise asyncio.CancelledError

    assert await Played(agent).ended() == [*GREETING, *CLOSED, Abort()]


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_the_turn_stops_when_nobody_comes_back(linger: float) -> None:
    played = Played(waits, TurnLimits(linger=linger))
    played.turn.attach()
    played.turn.attach()
    played.turn.detach()
    await played.changed()
    assert played.log.outcome is None
    played.turn.detach()
    assert (await played.ended())[-1] == Abort()


async def test_the_turn_goes_on_when_somebody_comes_back_or_linger_is_none() -> None:
    for limits in (TurnLimits(linger=60), FOREVER):
        release = asyncio.Event()

        async def agent(chat: Chat, release: asyncio.Event = release) -> AsyncIterator[str]:
            await release.wait()
            yield "hello"

        played = Played(agent, limits)
        played.turn.attach()
        played.turn.detach()
        played.turn.attach()
        release.set()
        assert (await played.ended())[-1] == Finish("stop")


async def test_a_silent_agent_meets_its_deadline() -> None:
    played = Played(waits, TurnLimits(linger=None, idle=0.02))
    assert await played.ended() == [*GREETING, *CLOSED, Error("The agent did not answer in time.")]


async def test_the_idle_clock_counts_from_the_last_chunk_and_stands_still_for_an_approval() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        chat.write.tool_input("a", "rm", {})
        chat.write.approval_request("a", approval_id="p")
        yield ""
        await asyncio.Event().wait()

    played = Played(agent, TurnLimits(linger=None, idle=0.01, total=0.2))
    chunks = await played.ended()
    assert ToolApprovalRequest("p", "a") in chunks
    assert chunks[-1] == Error("The answer took too long.")


async def test_an_answer_that_is_too_large_ends_with_an_error() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        while True:
            yield "x" * 100_000

    played = Played(agent, TurnLimits(linger=None))
    chunks = await played.ended()
    assert chunks[-1] == Error("The answer became too large.")
    assert 16 * 1024 * 1024 < played.log.size < 16 * 1024 * 1024 + 200_000


async def test_a_fast_agent_lets_others_run() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for _ in range(100):
            yield "x" * 1000

    played = Played(agent)
    turns = 0
    while played.log.outcome is None:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_turn_that_is_over_is_gone_without_the_garbage_collector(stopped: bool) -> None:
    async def ignore(_outcome: str, _message: UIMessage) -> None:
        pass

    async def work() -> None:
        if stopped:
            await asyncio.Event().wait()

    gc.collect()
    gc.disable()
    try:
        log = TurnLog("turn", "chat", "")
        turn = Turn(log, MessageWriter("m", new_id=str), None, limits=FOREVER, explain=str, on_end=ignore)
        turn.start(work)
        if stopped:
            await asyncio.sleep(0)
            turn.stop()
        await turn.settled()
        gone = weakref.ref(turn)
        del turn
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

    played = Played(agent)
    await played.changed()
    while len(played.log.frames) < 7:
        await played.changed()
    folded = [
        Start("m"),
        StartStep(),
        ReasoningStart("id-1"),
        ReasoningDelta("id-1", "ab"),
        ReasoningEnd("id-1"),
        TextStart("id-2"),
        TextDelta("id-2", "he"),
    ]
    body, index = played.turn.replayed()
    assert (chunks_in(body), index) == (folded, 8)
    assert played.turn.replayed() == (body, index)
    step.set()
    await played.ended()
    assert chunks_in(b"".join(played.log.frames[index:]))[0] == TextDelta("id-2", "llo")
