import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest

from flows.elsewhere import (
    ABORTED,
    COMPLETE,
    NODE,
    PAUSED,
    START,
    converse,
    hang,
    original,
    parrot,
    reaches,
    serving,
    standing,
)
from support.hang import HANG_SECONDS
from support.loopback import free_port
from usechat.flows import NodeContext, agent_node
from usechat.flows.remote import RemoteRuntime
from usechat.integrations.open_harness.agent import OpenHarnessAgent
from usechat.protocol.chunks import Abort, Chunk, Error, Finish, TextDelta
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import decode_request
from usechat.transports import AgentTransport
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio

INTERRUPTED = Error("The run was interrupted before it was finished.")


class Page:
    """A chat with runtimes elsewhere, a new one for each run."""

    def __init__(self, url: str) -> None:
        self.agent = OpenHarnessAgent(lambda: RemoteRuntime(url))
        self.transport = AgentTransport(self.agent)
        self.messages: list[UIMessage] = []

    async def send(self, text: str) -> AsyncGenerator[Chunk, None]:
        number = len(self.messages)
        if number:
            parts = [{"type": "text", "text": "x", "state": "done"}]
            self.messages.append(UIMessage(id=f"a{number}", role="assistant", parts=parts))
        self.messages.append(UIMessage(id=f"u{number}", role="user", parts=[{"type": "text", "text": text}]))
        body = msgspec.json.encode({"id": "c", "messages": self.messages})
        return await self.transport.send_messages(decode_request(body))

    async def ask(self, text: str) -> list[Chunk]:
        return await read(await self.send(text))

    async def edit(self, text: str) -> list[Chunk]:
        """Put this message in place of all others."""
        self.messages.clear()
        return await self.ask(text)


async def read(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    async with asyncio.timeout(HANG_SECONDS):
        return [chunk async for chunk in stream]


async def read_until(stream: AsyncIterator[Chunk], text: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        async for chunk in stream:
            if isinstance(chunk, TextDelta) and text in chunk.delta:
                return
    raise AssertionError(text)


def said(chunks: list[Chunk]) -> str:
    return "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta))


async def test_a_chat_runs_a_flow_elsewhere_for_each_message():
    async with serving(agent_node(parrot)) as served:
        page = Page(served.url)
        for text in ("one", "two"):
            chunks = await page.ask(text)
            assert (said(chunks), chunks[-1]) == (f"You said {text}", Finish("stop"))
        assert len(served.runtimes) == 2


async def test_a_message_reaches_the_agent_that_runs_elsewhere():
    async with serving(converse) as served:
        page = Page(served.url)
        await page.send("first")
        await reaches(lambda: page.agent.gives_way("c", None))
        await read_until(await page.send("hello"), "hello")
        assert (await page.ask("end"))[-1] == Finish("stop")
        assert served.runtimes[0].snapshot().outputs == {"a": ["hello"]}


async def test_a_stop_reaches_the_runtime_elsewhere():
    async with serving(hang) as served:
        page = Page(served.url)
        stream = await page.send("go")
        await read_until(stream, "Working")
        await page.transport.stop("c")
        assert (await read(stream))[-1] == Abort()
        await reaches(lambda: served.runtimes[0].snapshot().status == "aborted")


async def test_many_chats_at_once_on_one_address_read_their_own_answers_only():
    order = Random(8)  # noqa: S311

    async def slow(chat: Chat) -> AsyncGenerator[str, None]:
        for letter in chat.text:
            for _ in range(order.randrange(4)):
                await asyncio.sleep(0)
            yield letter

    async def chat(url: str, text: str) -> tuple[str, Chunk]:
        await asyncio.sleep(order.random() * 0.05)
        chunks = await Page(url).ask(text)
        return said(chunks), chunks[-1]

    async with serving(agent_node(slow)) as served:
        texts = [f"chat number {number}" for number in range(30)]
        answers = await asyncio.gather(*(chat(served.url, text) for text in texts))
    assert answers == [(text, Finish("stop")) for text in texts]


@pytest.mark.parametrize("refuses", [True, False])
async def test_an_original_serves_one_chat_at_a_time_and_nobody_reads_the_answer_of_another(
    refuses: bool, caplog: pytest.LogCaptureFixture
):
    order = Random(8)  # noqa: S311
    texts = [f"chat number {number}" for number in range(12)]
    refused = 0

    async def chat(url: str, text: str) -> str:
        nonlocal refused
        while True:
            await asyncio.sleep(order.random() * 0.03)
            chunks = await Page(url).ask(text)
            if chunks[-1] == Finish("stop"):
                return said(chunks)
            assert (said(chunks), chunks[-1]) == ("", Error("The runtime is busy with another chat."))
            refused += 1

    caplog.clear()
    async with original(agent_node(parrot), refuses=refuses) as url:
        # Two names of one place.
        places = (url, url.replace("127.0.0.1", "localhost"))
        asked = [chat(places[number % 2], text) for number, text in enumerate(texts)]
        assert await asyncio.gather(*asked) == [f"You said {text}" for text in texts]
    assert refused > 0
    assert "Traceback" not in caplog.text


async def test_a_lost_runtime_ends_the_turn_with_a_clear_error_and_the_next_message_runs_anew():
    async with standing() as harness:
        page = Page(harness.url)
        for _ in range(2):
            stream = await page.send("go")
            assert (await harness.command())["type"] == "run"
            text = {"type": "agent:text:delta", "nodeId": "a", "runId": "r", "content": "Working"}
            await harness.say(START, NODE, text)
            await read_until(stream, "Working")
            harness.die()
            assert (await read(stream))[-1] == INTERRUPTED


async def test_a_runtime_that_is_not_there_ends_the_turn_with_an_error_without_secrets(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, "usechat")
    page = Page(f"ws://me:hunter2@127.0.0.1:{free_port()}/ws")
    assert (await page.ask("go"))[-1] == Error("The runtime could not run the flow.")
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("how", ["stop", "delete", "edit"])
@pytest.mark.parametrize("answers", [True, False])
async def test_a_paused_run_that_is_ended_is_aborted_elsewhere_and_the_address_is_free(how: str, answers: bool):
    async with standing() as harness:
        page, other = Page(harness.url), Page(harness.url)
        asked = asyncio.create_task(page.ask("go"))
        assert (await harness.command())["type"] == "run"
        await harness.say(START, PAUSED)
        assert (await asked)[-1] == Finish("other")
        assert (await other.ask("hello"))[-1] == Error("The runtime is busy with another chat.")
        ends: dict[str, Callable[[str], Coroutine[Any, Any, Any]]]
        ends = {"stop": page.transport.stop, "delete": lambda chat: page.agent.forget(chat, None), "edit": page.edit}
        ending = asyncio.create_task(ends[how]("c"))
        assert await harness.command() == {"type": "abort", "resumable": False}
        if answers:
            await harness.say(ABORTED)
        if how != "edit":
            await ending
            await reaches(lambda: harness.sockets == [])
            ending = asyncio.create_task(other.ask("hello"))
        assert (await harness.command())["type"] == "run"
        await harness.say(START, COMPLETE)
        assert (await ending)[-1] == Finish("stop")


async def test_nothing_is_left_elsewhere_of_a_paused_run_that_is_stopped():
    async def ask(context: NodeContext, _value: object) -> None:
        context.pause()
        await asyncio.Event().wait()

    async with serving(ask) as served:
        before = asyncio.all_tasks()
        page = Page(served.url)
        assert (await page.ask("go"))[-1] == Finish("other")
        await page.transport.stop("c")
        assert served.runtimes[0].snapshot().status == "aborted"
        await reaches(lambda: asyncio.all_tasks() <= before)
        left = weakref.ref(served.runtimes.pop())
        served.events.clear()
        await reaches(lambda: not gc.collect() and left() is None)
