"""Each bound that is a time, reached by a real server at its default, in a loop whose clock runs fast."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from support.fast_loop import run_fast
from support.hang import HANG_SECONDS
from support.loopback import message
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import decode_request
from usechat.server.app import create_app
from usechat.stores import Outcome
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

MEGABYTE = 1024 * 1024


def now() -> float:
    return asyncio.get_running_loop().time()


def is_about(seconds: float, took: float) -> bool:
    """Whether it took so long, and no longer than that by what a machine may lose that is busy."""
    return seconds <= took < seconds + HANG_SECONDS


class House:
    """A server with an agent that does what it is told, and how its turns ended."""

    def __init__(self) -> None:
        self.url = ""
        self.gate = asyncio.Event()
        self.ends: asyncio.Queue[tuple[Outcome, str]] = asyncio.Queue()
        self.app = create_app(self.agent, settings=ChatSettings(on_end=self.on_end), grace=None)
        self.http = httpx.AsyncClient(timeout=10_000, trust_env=False)

    async def agent(self, chat: Chat) -> AsyncGenerator[str, None]:
        yield "One, "
        if chat.text == "ask":
            chat.write.tool_input("call", "delete", {})
            chat.write.approval_request("call")
        if chat.text == "write":
            for _ in range(8 * 1024):
                yield "x" * 1024
        await self.gate.wait()
        yield "two."

    async def on_end(self, outcome: Outcome, message: UIMessage) -> None:
        await self.ends.put((outcome, message.text))

    @asynccontextmanager
    async def asking(self, text: str) -> AsyncGenerator[AsyncIterator[str], None]:
        async with self.http.stream("POST", f"{self.url}/api/chat", json=message(text)) as response:
            assert response.status_code == 200
            yield response.aiter_lines()

    @property
    def open_streams(self) -> float:
        text, _ = self.app.state.endpoint.chats.metrics.render()
        line = next(line for line in text.decode().splitlines() if line.startswith("usechat_streams_open "))
        return float(line.split()[-1])


@asynccontextmanager
async def serving() -> AsyncGenerator[House, None]:
    house = House()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Without pings, which would cut a WebSocket that does not read before we do.
        config = uvicorn.Config(house.app, log_config=None, timeout_graceful_shutdown=5, ws_ping_interval=None)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        house.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with house.http:
                yield house
        finally:
            await house.app.state.endpoint.chats.drain(0)
            server.should_exit = True
            await running


async def until(condition: Callable[[], bool]) -> None:
    # A gauge tells nobody that it changed.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(1)


async def until_line(lines: AsyncIterator[str], wanted: str) -> None:
    async for line in lines:
        if wanted in line:
            return


async def last_chunk(lines: AsyncIterator[str]) -> str:
    return [line async for line in lines if line.startswith("data: {")][-1]


def test_an_agent_that_is_silent_for_120_seconds_has_failed_and_its_client_hears_of_it_meanwhile() -> None:
    async def main() -> None:
        began = now()
        async with serving() as house, house.asking("wait") as lines:
            times: list[float] = []
            rest: list[str] = []
            async for line in lines:
                if "One, " in line or line.startswith(":"):
                    times.append(now())
                elif line.startswith("data: {"):
                    rest.append(line)
            # Every 2 seconds, or later where the machine is busy.
            assert 2 < len(times) <= 61
            assert rest[-1] == 'data: {"type":"error","errorText":"The agent did not answer in time."}'
            assert is_about(120, now() - began)
            assert await house.ends.get() == ("error", "One, ")

    run_fast(main(), 60)


def test_a_turn_ends_after_an_hour_also_while_it_waits_for_an_approval() -> None:
    async def main() -> None:
        began = now()
        async with serving() as house, house.asking("ask") as lines:
            assert await last_chunk(lines) == 'data: {"type":"error","errorText":"The answer took too long."}'
            assert is_about(3600, now() - began)
            assert await house.ends.get() == ("error", "One, ")

    run_fast(main(), 3000)


def test_a_turn_lingers_for_30_seconds_after_its_last_reader_has_left() -> None:
    async def main() -> None:
        async with serving() as house:
            async with house.asking("wait") as lines:
                await until_line(lines, "One, ")
                left = now()
            assert await house.ends.get() == ("stopped", "One, ")
            assert is_about(30, now() - left)

    run_fast(main(), 30)


async def read_to_end(connection: socket.socket) -> bytes:
    loop, read = asyncio.get_running_loop(), b""
    while piece := await loop.sock_recv(connection, MEGABYTE):
        read += piece
    return read


@asynccontextmanager
async def sending(house: House, body: bytes, length: int) -> AsyncGenerator[socket.socket, None]:
    """A client that posts so much of its body, and reads no more than its test does."""
    loop = asyncio.get_running_loop()
    host, _, port = house.url.removeprefix("http://").partition(":")
    head = "POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.setblocking(False)
        await loop.sock_connect(connection, (host, int(port)))
        await loop.sock_sendall(connection, f"{head}content-length: {length}\r\n\r\n".encode() + body)
        yield connection


def test_a_reader_that_does_not_read_is_cut_after_30_seconds_and_the_turn_goes_on() -> None:
    async def main() -> None:
        body = json.dumps(message("write")).encode()
        began = now()
        async with serving() as house, sending(house, body, len(body)) as stuck:
            await until(lambda: house.open_streams == 1)
            await until(lambda: house.open_streams == 0)
            assert is_about(30, now() - began)
            async with house.http.stream("GET", f"{house.url}/api/chat/chat/stream") as resumed:
                house.gate.set()
                assert b'"delta":"two."' in await resumed.aread()
            assert await house.ends.get() == ("done", "One, " + "x" * 8 * MEGABYTE + "two.")
            assert b"[DONE]" not in await read_to_end(stuck)

    run_fast(main(), 30)


def test_a_body_that_has_not_come_after_30_seconds_is_given_up() -> None:
    async def main() -> None:
        async with serving() as house:
            began = now()
            async with sending(house, b'{"id": ', 999) as connection:
                head, _, text = (await read_to_end(connection)).partition(b"\r\n\r\n")
            assert (head[:13], text) == (b"HTTP/1.1 408 ", b"The body did not arrive within 30 seconds.")
            assert is_about(30, now() - began)

    run_fast(main(), 30)


@asynccontextmanager
async def connecting(house: House) -> AsyncGenerator[ClientConnection, None]:
    """A page on a WebSocket, which holds no more than what its test reads."""
    host, _, port = house.url.removeprefix("http://").partition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        uri = f"ws://{host}:{port}/api/chat/ws"
        async with connect(uri, sock=connection, max_queue=1, compression=None, ping_interval=None) as page:
            yield page


async def send_frame(page: ClientConnection, kind: str, **fields: Any) -> None:
    await page.send(json.dumps({"type": kind, "requestId": kind, "headers": {}, "body": {}, **fields}))


def test_a_socket_that_does_not_read_is_cut_after_30_seconds_and_the_turn_lingers() -> None:
    async def main() -> None:
        began = now()
        async with serving() as house, connecting(house) as page:
            await send_frame(page, "send", **message("write"))
            await until(lambda: house.open_streams == 1)
            await until(lambda: house.open_streams == 0)
            cut = now()
            assert is_about(30, cut - began)
            assert await house.ends.get() == ("stopped", "One, " + "x" * 8 * MEGABYTE)
            assert now() - cut < 30 + HANG_SECONDS

    run_fast(main(), 30)


def test_a_page_has_a_second_to_resume_anew_before_its_abort_of_a_resume_stops_the_turn() -> None:
    async def main() -> None:
        async with serving() as house, house.asking("wait") as lines, connecting(house) as page:
            await until_line(lines, "One, ")
            await send_frame(page, "resume", id="chat")
            assert json.loads(await page.recv())["type"] == "start"
            aborted = now()
            await page.send(json.dumps({"type": "abort", "requestId": "resume"}))
            assert await house.ends.get() == ("stopped", "One, ")
            assert is_about(1, now() - aborted)

    run_fast(main(), 5)


def test_turns_get_10_seconds_of_grace_when_the_server_is_told_to_end() -> None:
    async def main() -> None:
        house = House()
        app = create_app(house.agent, settings=ChatSettings(on_end=house.on_end))
        async with app.router.lifespan_context(app):
            request = decode_request(json.dumps(message("wait")).encode())
            await app.state.endpoint.chats.begin(request, None, {})
            began = now()
            signal.raise_signal(signal.SIGTERM)
            assert await house.ends.get() == ("stopped", "One, ")
            assert is_about(10, now() - began)
            await until(lambda: arrived == [signal.SIGTERM])
        await house.http.aclose()

    arrived: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))
    try:
        run_fast(main(), 20)
    finally:
        signal.signal(signal.SIGTERM, previous)
