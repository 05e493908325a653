"""Sessions that end before what was begun in them, and sockets that nobody signs in on."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.requests import HTTPConnection
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close
from websockets.typing import Subprotocol

from support.fast_loop import hurrying, run_fast
from support.loopback import message
from usechat.server.app import create_app
from usechat.server.auth import Authenticate, bearer_token
from usechat.turns.chat import Chat

JSON = dict[str, Any]
NOT_SIGNED_IN = "You are not signed in."


class Sessions:
    """Knows the users of tokens until they are signed out."""

    def __init__(self, **users: str) -> None:
        self.users = users

    def __call__(self, connection: HTTPConnection) -> str | None:
        return self.users.get(bearer_token(connection) or "")


class House:
    def __init__(self, authenticate: Authenticate | None) -> None:
        self.gate = asyncio.Event()
        self.asked: list[str | None] = []
        self.app = create_app(self.agent, authenticate=authenticate, grace=None)
        self.http = httpx.AsyncClient(timeout=1_000, trust_env=False)
        self.address = ""

    async def agent(self, chat: Chat) -> AsyncGenerator[str, None]:
        self.asked.append(chat.user)
        yield "One, "
        if chat.text == "hold":
            await self.gate.wait()
        yield "two."

    @asynccontextmanager
    async def socket(self, *subprotocols: str) -> AsyncGenerator[ClientConnection, None]:
        url, names = f"ws://{self.address}/api/chat/ws", [Subprotocol(name) for name in subprotocols]
        options: JSON = {"subprotocols": names or None, "ping_interval": None, "open_timeout": None, "proxy": None}
        async with connect(url, **options) as connection:
            yield connection


@asynccontextmanager
async def serving(authenticate: Authenticate | None) -> AsyncGenerator[House, None]:
    house = House(authenticate)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(house.app, log_config=None, ws="websockets-sansio", ws_ping_interval=None)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        house.address = f"127.0.0.1:{listener.getsockname()[1]}"
        house.http.base_url = f"http://{house.address}"
        try:
            async with house.http, asyncio.timeout(600):
                yield house
        finally:
            house.gate.set()
            server.should_exit = True
            await running


async def send(page: ClientConnection, request_id: str, text: str, *, chat: str = "chat", bearer: str = "") -> None:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    frame = {"type": "send", "requestId": request_id, "trigger": "submit-message", **message(text, chat)}
    await page.send(json.dumps({**frame, "headers": headers, "body": {}}))


async def until(page: ClientConnection, request_id: str, *kinds: str) -> JSON:
    while True:
        frame: JSON = json.loads(await page.recv())
        if frame["requestId"] == request_id and frame["type"] in kinds:
            return frame


async def ask(page: ClientConnection, request_id: str, **options: str) -> str:
    await send(page, request_id, "Hello", **options)
    frame = await until(page, request_id, "end", "error")
    return frame.get("errorText", "answered")


async def closed(page: ClientConnection) -> tuple[int | None, str | None]:
    with suppress(ConnectionClosed):
        while True:
            await page.recv()
    return page.close_code, page.close_reason


async def read_until(lines: AsyncIterator[str], wanted: str) -> None:
    async for line in lines:
        if wanted in line:
            return


def test_an_answer_goes_on_when_its_session_ends_but_nobody_comes_back_to_it() -> None:
    async def main() -> None:
        sessions = Sessions(first="ada", second="ada")
        async with serving(sessions) as house:
            old, new = ({"authorization": f"Bearer {token}"} for token in ("first", "second"))
            async with house.http.stream("POST", "/api/chat", json=message("hold"), headers=old) as response:
                lines = response.aiter_lines()
                await read_until(lines, "One, ")
                del sessions.users["first"]
                for method, path in (("GET", "stream"), ("POST", "stop"), ("GET", "messages")):
                    answer = await house.http.request(method, f"/api/chat/chat/{path}", headers=old)
                    assert (answer.status_code, answer.text) == (401, NOT_SIGNED_IN)
                async with house.http.stream("GET", "/api/chat/chat/stream", headers=new) as resumed:
                    assert resumed.status_code == 200
                house.gate.set()
                await read_until(lines, "two.")
                await read_until(lines, "[DONE]")

    asyncio.run(main())


def test_a_socket_that_outlives_its_session_makes_no_more_requests() -> None:
    async def main() -> None:
        sessions = Sessions(first="ada")
        async with serving(sessions) as house, house.socket("bearer.first", "chat") as page:
            await send(page, "r1", "hold")
            await until(page, "r1", "chunk")
            del sessions.users["first"]
            assert await ask(page, "r2", chat="other") == NOT_SIGNED_IN
            await page.send(json.dumps({"type": "resume", "requestId": "r3", "id": "chat", "headers": {}, "body": {}}))
            assert (await until(page, "r3", "error"))["errorText"] == NOT_SIGNED_IN
            house.gate.set()
            await until(page, "r1", "end")
            assert house.asked == ["ada"]

    asyncio.run(main())


def test_a_socket_that_outlives_its_session_goes_on_with_the_token_of_a_frame() -> None:
    async def main() -> None:
        sessions = Sessions(first="ada")
        async with serving(sessions) as house, house.socket("bearer.first", "chat") as page:
            assert await ask(page, "r1", bearer="none") == "answered"
            sessions.users = {"second": "ada"}
            assert await ask(page, "r2", bearer="none") == NOT_SIGNED_IN
            assert await ask(page, "r3", bearer="second") == "answered"
            assert house.asked == ["ada", "ada"]

    asyncio.run(main())


TOO_LATE = (1008, "No request came within 30 seconds.")


def test_a_socket_that_says_nothing_is_closed_after_30_seconds() -> None:
    async def main() -> None:
        for authenticate in (None, Sessions(first="ada")):
            async with serving(authenticate) as house:
                began = asyncio.get_running_loop().time()
                async with house.socket() as page:
                    assert await closed(page) == TOO_LATE
                assert asyncio.get_running_loop().time() - began >= 30

    run_fast(main(), 30)


def test_a_socket_on_which_nobody_signs_in_is_closed_whatever_it_says() -> None:
    async def main() -> None:
        async with serving(Sessions(first="ada")) as house, house.socket("bearer.wrong", "chat") as page:

            async def talk() -> None:
                while True:
                    assert await ask(page, "r1", bearer="wrong") == NOT_SIGNED_IN
                    await page.send(json.dumps({"type": "abort", "requestId": "r1"}))
                    await asyncio.sleep(1)

            with pytest.raises(ConnectionClosed) as caught:
                await talk()
            assert caught.value.rcvd == Close(*TOO_LATE)
            assert house.asked == []

    run_fast(main(), 30)


def test_a_socket_that_has_a_user_or_made_a_request_stays_open() -> None:
    async def main() -> None:
        async with (
            serving(Sessions(first="ada")) as house,
            house.socket("bearer.first", "chat") as known,
            house.socket() as asking,
        ):
            assert await ask(asking, "r1", bearer="first") == "answered"
            with hurrying(40):
                await asyncio.sleep(40)
            assert await ask(asking, "r2", bearer="first") == "answered"
            assert await ask(known, "r1") == "answered"

    run_fast(main())
