"""How events come from an agent of any shape to those who read, one by one and in their order."""

import asyncio
import functools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from turns.play import CLOSED, FOREVER, GREETING, HEAD, Played, play
from usechat.protocol.chunks import Chunk, Data, Error, Finish, TextDelta
from usechat.protocol.frames import decode_frame
from usechat.turns.chat import Chat
from usechat.turns.settings import TurnLimits

pytestmark = pytest.mark.anyio


async def async_generator(chat: Chat) -> AsyncIterator[str]:
    yield "hello"


def generator(chat: Chat) -> Iterator[str]:
    yield "hello"


def function(chat: Chat) -> str:
    return "hello"


async def coroutine(chat: Chat) -> str:
    return "hello"


async def coroutine_that_writes(chat: Chat) -> None:
    chat.write.text("hello")


def function_that_writes(chat: Chat) -> None:
    chat.write.text("hello")


class Asked:
    """An async iterable that is no generator."""

    def __init__(self, chat: Chat) -> None:
        self._texts = iter(["hello"])

    def __aiter__(self) -> "Asked":
        return self

    async def __anext__(self) -> str:
        for text in self._texts:
            return text
        raise StopAsyncIteration


class Once:
    """An async iterable that is no iterator."""

    def __aiter__(self) -> AsyncIterator[str]:
        return async_generator(_no_chat)


_no_chat: Any = None


class CallsAsyncGenerator:
    async def __call__(self, chat: Chat) -> AsyncIterator[str]:
        yield "hello"


class CallsCoroutine:
    async def __call__(self, chat: Chat) -> str:
        return "hello"


class CallsGenerator:
    def __call__(self, chat: Chat) -> Iterator[str]:
        yield "hello"


class CallsFunction:
    def __call__(self, chat: Chat) -> str:
        return "hello"


def greet(word: str, chat: Chat) -> Iterator[str]:
    yield word


async def greet_async(word: str, chat: Chat) -> AsyncIterator[str]:
    yield word


SHAPES: dict[str, Callable[[Chat], Any]] = {
    "async generator": async_generator,
    "generator": generator,
    "function": function,
    "coroutine": coroutine,
    "coroutine that writes": coroutine_that_writes,
    "function that writes": function_that_writes,
    "def that returns an async generator": lambda chat: async_generator(chat),
    "def that returns a generator": lambda chat: generator(chat),
    "def that returns a coroutine": lambda chat: coroutine(chat),
    "def that returns a list": lambda chat: ["hello"],
    "async iterator": Asked,
    "async iterable": lambda chat: Once(),
    "object that is called as an async generator": CallsAsyncGenerator(),
    "object that is called as a coroutine": CallsCoroutine(),
    "object that is called as a generator": CallsGenerator(),
    "object that is called as a function": CallsFunction(),
    "partial of a generator": functools.partial(greet, "hello"),
    "partial of an async generator": functools.partial(greet_async, "hello"),
    "partial of an object": functools.partial(CallsAsyncGenerator()),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_agent_of_any_shape_says_the_same(shape: str) -> None:
    assert await (await play(SHAPES[shape])).ended() == [*GREETING, *CLOSED, Finish("stop")]


async def test_an_agent_may_yield_a_chunk_as_it_is_on_the_wire() -> None:
    async def agent(chat: Chat) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "text-start", "id": "id-1"}
        yield {"type": "text-delta", "id": "id-1", "delta": "hello"}

    assert await (await play(agent)).ended() == [*GREETING, *CLOSED, Finish("stop")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "An agent cannot yield a value of type object."),
        (b"hello", "An agent cannot yield a value of type bytes."),
        (["hello"], "An agent cannot yield a value of type list."),
        (None, "An agent cannot yield a value of type NoneType."),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_whatever_else_an_agent_yields_ends_its_turn(value: Any, text: str, in_thread: bool) -> None:
    async def agent(chat: Chat) -> AsyncIterator[Any]:
        yield "hello"
        yield value
        yield "never"

    def threaded(chat: Chat) -> Iterator[Any]:
        yield "hello"
        yield value
        yield "never"

    played = await play(threaded if in_thread else agent, error_text=None)
    assert await played.ended() == [*GREETING, *CLOSED, Error(text)]


async def test_a_dict_that_is_no_chunk_ends_the_turn() -> None:
    async def agent(chat: Chat) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "unheard-of"}

    chunks = await (await play(agent, error_text=None)).ended()
    assert isinstance(chunks[-1], Error)
    assert chunks[-1].error_text.startswith("An agent cannot yield a dict that is no chunk. ")


async def test_what_a_thread_yields_and_writes_keeps_its_order() -> None:
    def agent(chat: Chat) -> Iterator[Any]:
        for number in range(0, 100, 2):
            chat.write.data("n", number)
            yield Data("data-n", number + 1)

    def returns_one(chat: Chat) -> Iterator[Any]:
        return agent(chat)

    for function in (agent, returns_one):
        chunks = await (await play(function)).ended()
        assert [chunk.data for chunk in chunks if isinstance(chunk, Data)] == list(range(100))


async def test_a_generator_that_was_returned_is_closed_when_the_turn_is_over() -> None:
    closed = list[str]()

    async def inner(chat: Chat) -> AsyncIterator[str]:
        try:
            chat.write.finish()
            yield "never"
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    def outer(chat: Chat) -> AsyncIterator[str]:
        return inner(chat)

    played = await play(outer)
    await played.ended()
    for _ in range(3):
        await asyncio.sleep(0)
    assert closed == ["closed"]


async def test_what_an_agent_that_blocks_the_loop_says_is_read_before_it_says_more() -> None:
    seen_before = list[list[str]]()
    seen = list[str]()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        for number in range(6):
            seen_before.append(list(seen))
            yield f"{number}"
            time.sleep(0.02)  # noqa: ASYNC251

    async def read(played: Played) -> None:
        reader = await played.store.follow(HEAD)
        assert reader is not None
        while not reader.ended:
            seen.extend(texts(reader.take(10_000)))
            if not reader.ended and not reader.unread:
                await reader.log.changed()

    played = await play(agent)
    await asyncio.gather(read(played), played.ended())
    assert seen_before[2:] == [["0", "1", "2", "3", "4"][:number] for number in range(2, 6)]
    assert seen == ["0", "1", "2", "3", "4", "5"]


def texts(body: bytes) -> list[str]:
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    chunks: list[Chunk] = [decode_frame(frame) for frame in frames]
    return [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)]


async def test_an_agent_that_holds_the_loop_for_long_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for _ in range(2):
            yield "x"
            time.sleep(1.1)  # noqa: ASYNC251
        yield "x"

    with caplog.at_level(logging.WARNING, "usechat"):
        await (await play(agent)).ended()
    assert [re.sub(r"\d+\.\d", "…", record.getMessage()) for record in caplog.records] == [
        "an agent held the event loop for … seconds, so that nobody else was answered: use an async client, or make "
        "the agent a plain def generator, which gets a thread"
    ]


async def test_an_agent_that_waits_as_it_should_is_never_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "x"
        await asyncio.sleep(1.1)
        yield "x"
        await asyncio.to_thread(time.sleep, 0.02)
        yield "x"

    with caplog.at_level(logging.DEBUG, "usechat"):
        await (await play(agent)).ended()
    assert caplog.records == []


async def test_an_agent_that_asks_for_room_waits_for_the_furthest_reader() -> None:
    said = list[int]()

    async def agent(chat: Chat) -> None:
        for number in range(5):
            chat.write.data("n", "x" * 1000)
            said.append(number)
            await chat.drain()

    played = await play(agent, TurnLimits(linger=None, idle=None, total=None, ahead=1500))
    slow, fast = played.claim.reader(), played.claim.reader()
    seen = list[int]()
    for _ in range(5):
        await settle()
        seen.append(len(said))
        fast.take(1)
    # The first frame is small.
    assert seen == [2, 2, 3, 4, 5]
    assert slow.cursor == 0
    fast.leave()
    slow.leave()
    await played.ended()


async def test_an_agent_that_yields_faster_than_it_is_read_waits_for_the_furthest_reader() -> None:
    made = list[int]()

    async def agent(chat: Chat) -> AsyncIterator[str]:
        for number in range(5):
            made.append(number)
            yield "x" * 1000

    played = await play(agent, TurnLimits(linger=None, idle=None, total=None, ahead=500))
    reader = played.claim.reader()
    await settle()
    assert made == [0]
    reader.take(100_000)
    await settle()
    assert made == [0, 1]
    # Whoever leaves keeps nobody waiting.
    reader.leave()
    assert (await played.ended())[-1] == Finish("stop")


async def test_without_a_bound_or_a_reader_there_is_always_room() -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        for _ in range(5):
            yield "x" * 1000
            await chat.drain()

    assert (await (await play(agent, TurnLimits(linger=None, ahead=10))).ended())[-1] == Finish("stop")
    played = await play(agent, FOREVER)
    played.claim.reader()
    assert (await played.ended())[-1] == Finish("stop")


async def test_a_stop_wakes_an_agent_that_waits_for_room() -> None:
    woken = asyncio.Event()

    async def agent(chat: Chat) -> None:
        chat.write.text("x" * 1000)
        try:
            await chat.drain()
        finally:
            woken.set()

    played = await play(agent, TurnLimits(linger=None, ahead=10))
    played.claim.reader()
    await settle()
    assert not woken.is_set()
    played.turn.stop("stopped")
    await played.ended()
    assert woken.is_set()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
