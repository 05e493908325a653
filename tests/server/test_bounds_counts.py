"""Each bound that is a number, reached by a real server at its default."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from support.hang import HANG_SECONDS
from support.loopback import message
from usechat.protocol.requests import decode_request
from usechat.server.app import create_app
from usechat.server.auth import BearerTokens
from usechat.server.chats import Chats
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

pytestmark = pytest.mark.anyio

BUSY = "The server is busy. Try again in a moment."
TOO_MANY = "Too many answers are being written for you at once."


@asynccontextmanager
async def serving(app: Starlette) -> AsyncGenerator[httpx.AsyncClient, None]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        limits = httpx.Limits(max_connections=None)
        try:
            async with (
                asyncio.timeout(HANG_SECONDS),
                httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, trust_env=False, limits=limits) as http,
            ):
                yield http
        finally:
            await app.state.endpoint.chats.drain(0)
            server.should_exit = True
            await running


async def forever(chat: Chat) -> AsyncGenerator[str, None]:
    await asyncio.Event().wait()
    yield "never"


async def begin(http: httpx.AsyncClient, chat: str, user: str = "nobody") -> tuple[int, str, str | None]:
    """Ask, leave a turn that has begun to linger, and give what else came."""
    headers = {"authorization": f"Bearer {user}"}
    async with http.stream("POST", "/api/chat", json=message("Hello", chat), headers=headers) as response:
        text = "" if response.status_code == 200 else (await response.aread()).decode()
        return response.status_code, text, response.headers.get("retry-after")


TOKENS = BearerTokens({"a": "ann", "b": "bob"})


async def test_a_user_has_16_turns_at_once_and_no_more() -> None:
    async with serving(create_app(forever, authenticate=TOKENS, grace=None)) as http:
        for number in range(16):
            assert await begin(http, f"chat-{number}", "a") == (200, "", None)
        assert await begin(http, "one-more", "a") == (429, TOO_MANY, "5")
        assert await begin(http, "of-another", "b") == (200, "", None)
        assert await begin(http, "chat-0", "a") == (200, "", None)


async def test_a_process_has_2000_turns_at_once_and_no_more() -> None:
    app = create_app(forever, grace=None)
    async with serving(app) as http:
        chats: Chats = app.state.endpoint.chats
        for number in range(2000):
            body = json.dumps(message("Hello", f"chat-{number}")).encode()
            await chats.begin(decode_request(body), None, {})
        assert await begin(http, "one-more") == (503, BUSY, "5")
        assert await begin(http, "chat-0") == (200, "", None)
        await http.post("/api/chat/chat-1/stop")
        assert await begin(http, "one-more") == (200, "", None)


async def test_64_agents_have_threads_and_the_next_one_waits_for_a_place() -> None:
    began = threading.Semaphore(0)
    release = threading.Event()

    def agent(chat: Chat) -> Generator[str, None, None]:
        yield "I work."
        began.release()
        release.wait(HANG_SECONDS)

    def all_begin() -> bool:
        return all(began.acquire(timeout=HANG_SECONDS) for _ in range(64))

    async with serving(create_app(agent, settings=ChatSettings(turns_per_address=65), grace=None)) as http:
        for number in range(65):
            assert await begin(http, f"chat-{number}") == (200, "", None)
        assert await asyncio.to_thread(all_begin)
        assert len([thread for thread in threading.enumerate() if thread.name == "usechat agent"]) == 64
        async with http.stream("GET", "/api/chat/chat-64/stream") as waiting:
            release.set()
            assert "I work." in (await waiting.aread()).decode()
