import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from starlette.types import Message

from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from usechat.protocol.chunks import TextDelta
from usechat.protocol.frames import Frames
from usechat.protocol.sse import DONE, KEEP_ALIVE
from usechat.server.metrics import Metrics
from usechat.server.responses import STREAM_HEADERS, SlowReaders, StreamLimits, TurnResponse
from usechat.stores import Reader, TurnLog
from usechat.stores.log import Snapshot

pytestmark = pytest.mark.anyio

BATCH = 64 * 1024


def reader_of(log: TurnLog, *, on_leave: Callable[[], None] | None = None) -> Reader:
    log.counts = on_leave
    return Reader(log)


def ended_log(*texts: str) -> TurnLog:
    """The log of a turn that has said these texts, each as one chunk."""
    log, frames = TurnLog("turn"), Frames("turn")
    log.extend([frames.frame(index, TextDelta("text", text)) for index, text in enumerate(texts, 1)])
    log.close("done")
    return log


async def sent(response: TurnResponse) -> list[MutableMapping[str, Any]]:
    """All messages of a response whose client reads them at once and stays."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    await response({}, receive, send)
    return messages


async def test_chunks_that_are_ready_are_sent_together() -> None:
    log = ended_log("a", "b", "c")
    _, body = await sent(TurnResponse(reader_of(log), StreamLimits(), Metrics()))
    assert body == {"type": "http.response.body", "body": b"".join(log.frames) + DONE, "more_body": False}


async def test_a_long_log_is_sent_in_batches_and_whole() -> None:
    log = ended_log(*["x" * 1000] * 300)
    _, *bodies = await sent(TurnResponse(reader_of(log), StreamLimits(), Metrics()))
    assert b"".join(message["body"] for message in bodies) == b"".join(log.frames) + DONE
    assert len(bodies) == 5
    assert all(BATCH <= len(message["body"]) < BATCH + 2000 for message in bodies[:-1])


async def test_who_counts_gets_what_follows_of_a_long_log() -> None:
    log = ended_log(*["x" * 1000] * 300)
    reader = reader_of(log)
    reader.seek(290)
    _, *bodies = await sent(TurnResponse(reader, StreamLimits(), Metrics()))
    assert [message["body"] for message in bodies] == [b"".join(log.frames[290:]) + DONE]


def test_a_silent_stream_says_in_time_that_the_server_is_there() -> None:
    """A page takes a longer silence for a lost connection, and so do proxies, after 20 seconds or more."""

    async def listen() -> list[tuple[float, bytes]]:
        log, loop, heard = TurnLog("turn"), asyncio.get_running_loop(), list[tuple[float, bytes]]()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and message["body"]:
                heard.append((loop.time(), message["body"]))
            if len(heard) == 3:
                log.close("done")

        async def receive() -> Message:
            return await loop.create_future()

        await TurnResponse(reader_of(log), StreamLimits(), Metrics())({}, receive, send)
        return heard

    *comments, (_, end) = run_jumping(listen())
    assert [(round(at), said) for at, said in comments] == [(2, KEEP_ALIVE), (4, KEEP_ALIVE), (6, KEEP_ALIVE)]
    assert end == DONE


@pytest.mark.parametrize(("seconds", "told"), [(3.0, "3"), (0.25, "0.25"), (86_400, "86400")])
async def test_the_headers_name_the_turn_and_the_longest_silence(seconds: float, told: str) -> None:
    response = TurnResponse(reader_of(ended_log("a")), StreamLimits(keep_alive=seconds), Metrics())
    start, _ = await sent(response)
    assert {name.decode(): value.decode() for name, value in start["headers"]} == {
        **STREAM_HEADERS,
        "x-usechat-turn": "turn",
        "x-usechat-keep-alive": told,
    }


async def test_whoever_leaves_while_something_is_sent_is_gone_at_once() -> None:
    log, gone, left = TurnLog("turn"), asyncio.Event(), list[str]()
    log.extend([b"data: {}\n\n"])

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            gone.set()
            for _ in range(5):
                await asyncio.sleep(0)

    reader = reader_of(log, on_leave=lambda: left.append("left"))
    await asyncio.wait_for(TurnResponse(reader, StreamLimits(), Metrics())({}, receive, send), HANG_SECONDS)
    assert left == ["left"]


@pytest.mark.parametrize("over", [True, False])
async def test_a_reader_that_does_not_read_is_cut_also_one_of_a_replay(over: bool) -> None:
    log, left = TurnLog("turn"), list[str]()
    log.extend([b"data: {}\n\n"])
    if over:
        log.close("done")
    reader = reader_of(log, on_leave=lambda: left.append("left"))
    piece = b"data: 1\n\n" * 50_000
    reader.begin_with(Snapshot([piece], 1, len(piece), log.size))

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.get_running_loop().create_future()

    limits = StreamLimits(behind=100_000, patience=0.01)
    await asyncio.wait_for(TurnResponse(reader, limits, Metrics())({}, receive, send), HANG_SECONDS)
    assert left == ["left"]


def test_of_clients_that_stand_still_no_more_are_given_up_than_the_bound_asks_for() -> None:
    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.get_running_loop().create_future()

    async def give_up() -> list[bool]:
        slow, tasks = SlowReaders(250_000, lambda: False), list[asyncio.Task[None]]()
        for _ in range(3):
            log = TurnLog("turn")
            log.extend([b"data: %b\n\n" % (b"x" * 100_000)])
            response = TurnResponse(reader_of(log), StreamLimits(behind=1), Metrics(), slow=slow)
            tasks.append(asyncio.create_task(response({}, receive, send)))
            await asyncio.sleep(5)
        given_up = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        return given_up

    assert run_jumping(give_up()) == [True, False, False]
