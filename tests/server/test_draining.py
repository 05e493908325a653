import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import FrameType

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio import to_thread

from support.hang import HANG_SECONDS
from support.loopback import (
    ABORTED,
    STEP,
    asking,
    free_port,
    last_two,
    parts,
    read_until,
    running,
    text_part,
    until,
)
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.draining import drain_on_signals
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Chat

HOST_APP = """\
from contextlib import asynccontextmanager

from fastapi import FastAPI
from usechat.server.draining import drain_on_signals
from usechat.server.endpoint import ChatEndpoint

async def agent(chat):
    yield "I begin"
    await chat.stopping.wait()

endpoint = ChatEndpoint(agent)

@asynccontextmanager
async def lifespan(app):
    with drain_on_signals(endpoint.chats, grace=0.2):
        yield

app = FastAPI(lifespan=lifespan)
app.include_router(endpoint.router())
"""

REQUEST = ChatRequest(id="chat", last=UIMessage("m1", "user", [{"type": "text", "text": "Hello"}]))


async def until_stopped(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    await chat.stopping.wait()


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture
def arrived() -> Generator[list[int], None, None]:
    """The signals that reach the server's own handler."""
    numbers: list[int] = []

    def server(number: int, _frame: FrameType | None) -> None:
        numbers.append(number)

    previous = signal.signal(signal.SIGTERM, server)
    yield numbers
    signal.signal(signal.SIGTERM, previous)


def test_an_app_that_hosts_the_chat_drains_it_before_its_server_ends(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(HOST_APP)
    port = free_port()
    chat = f"http://127.0.0.1:{port}/api/chat"
    with running([sys.executable, "-m", "uvicorn", "--port", str(port), "main:app"], tmp_path) as process:
        until(lambda: httpx.get(f"{chat}/chat/stream", timeout=HANG_SECONDS).status_code == 204, process)
        with asking(chat) as lines:
            first = read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin")]
        assert last_two(rest) == ABORTED
        assert process.wait()[0] == -signal.SIGTERM


@pytest.mark.anyio
async def test_a_signal_reaches_the_server_only_after_the_turns_have_ended(arrived: list[int]) -> None:
    chats = ChatEndpoint(until_stopped).chats
    reader = await chats.begin(REQUEST, None, {})
    with drain_on_signals(chats, grace=3600):
        signal.raise_signal(signal.SIGTERM)
        with anyio.fail_after(HANG_SECONDS):
            while chats.ready:
                await anyio.lowlevel.checkpoint()
            assert (arrived, reader.log.outcome) == ([], None)
            signal.raise_signal(signal.SIGTERM)
            while not arrived:
                await anyio.lowlevel.checkpoint()
    assert (arrived, reader.log.outcome) == ([signal.SIGTERM], "stopped")


class Lasting:
    """An agent that keeps something beyond its turns."""

    def __init__(self) -> None:
        self.graces: list[float] = []

    def run(self, chat: Chat) -> AsyncGenerator[str, None]:
        return until_stopped(chat)

    def translator(self, _: Chat) -> None:
        pass

    async def aclose(self, grace: float) -> None:
        self.graces.append(grace)


@pytest.mark.anyio
async def test_what_outlives_the_turns_gets_what_they_leave_of_the_grace() -> None:
    agent = Lasting()
    chats = ChatEndpoint(agent).chats
    await chats.begin(REQUEST, None, {})
    await chats.drain(0.1)
    await chats.drain(100)
    used_up, left = agent.graces
    assert used_up == 0
    assert left > 0


@pytest.mark.anyio
async def test_the_handlers_that_were_there_come_back() -> None:
    chats = ChatEndpoint(until_stopped).chats
    before = handlers()
    with drain_on_signals(chats, grace=1):
        assert handlers() != before
    assert handlers() == before


@pytest.mark.anyio
async def test_another_thread_than_the_main_one_leaves_signals_alone() -> None:
    async def inside() -> list[object]:
        with drain_on_signals(ChatEndpoint(until_stopped).chats, grace=1):
            return handlers()

    assert await to_thread.run_sync(lambda: asyncio.run(inside())) == handlers()
