"""What a client can do with bytes alone: dripping, smuggling, and bodies that are made to cost much."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from support.fast_loop import hurrying, run_fast
from support.hang import HANG_SECONDS
from support.loopback import message, serving
from usechat.server.app import create_app
from usechat.turns.chat import Chat

CROWD = 500


class House:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.app = create_app(self.agent, grace=None)
        self.port = 0

    async def agent(self, chat: Chat) -> AsyncGenerator[str, None]:
        self.asked.append(chat.id)
        yield "Answered."


def body(chat: str = "chat") -> bytes:
    return json.dumps(message("Hello", chat)).encode()


def head(*headers: str, path: str = "/api/chat") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


@asynccontextmanager
async def serving_house() -> AsyncGenerator[House, None]:
    house = House()
    with socket.create_server(("127.0.0.1", 0), backlog=2 * CROWD) as listener:
        server = uvicorn.Server(
            uvicorn.Config(house.app, http="httptools", log_config=None, timeout_graceful_shutdown=1)
        )
        running = asyncio.create_task(server.serve(sockets=[listener]))
        house.port = listener.getsockname()[1]
        try:
            async with asyncio.timeout(HANG_SECONDS):
                yield house
        finally:
            server.should_exit = True
            await running


class Dripping:
    """A client that sends its body a byte at a time, and never all of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._writer.write(head("content-length: 1000"))

    async def answer(self) -> bytes:
        reading = asyncio.create_task(self._reader.readline())
        while not reading.done():
            self._writer.write(b" ")
            await asyncio.wait([reading], timeout=5)
        self._writer.close()
        return await reading


def test_500_bodies_that_drip_are_given_up_and_keep_nobody_else_waiting() -> None:
    async def main() -> None:
        async with serving_house() as house, AsyncExitStack() as stack:
            crowd = [Dripping(*await asyncio.open_connection("127.0.0.1", house.port)) for _ in range(CROWD)]
            waiting = [asyncio.create_task(dripping.answer()) for dripping in crowd]
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=600, trust_env=False))
            for number in range(10):
                content = message("Hello", f"chat {number}")
                answer = await http.post(f"http://127.0.0.1:{house.port}/api/chat", json=content)
                assert '"delta":"Answered."' in answer.text
            assert not any(task.done() for task in waiting)
            with hurrying(15):
                ends = await asyncio.gather(*waiting)
            assert set(ends) == {b"HTTP/1.1 408 Request Timeout\r\n"}

    run_fast(main())


SMUGGLED = b"POST /api/chat/x/stop HTTP/1.1\r\nhost: localhost\r\n\r\n"


def chunked(content: bytes, *, end: bytes = b"0\r\n\r\n") -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n" + end


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(
            head(f"content-length: {len(body())}", "transfer-encoding: chunked") + chunked(body()),
            id="a length and chunks",
        ),
        pytest.param(
            head("transfer-encoding: chunked", "content-length: 4") + chunked(body()), id="chunks and a length"
        ),
        pytest.param(head("content-length: 4", f"content-length: {len(body())}") + body(), id="two lengths"),
        pytest.param(head(f"content-length: {len(body())}, 4") + body(), id="a list of lengths"),
        pytest.param(head(f"content-length: +{len(body())}") + body(), id="a length with a sign"),
        pytest.param(head(f"content-length: 0x{len(body()):x}") + body(), id="a length in hexadecimal"),
        pytest.param(head("transfer-encoding: xchunked") + chunked(body()), id="another transfer encoding"),
        pytest.param(head("transfer-encoding: chunked, identity") + chunked(body()), id="chunked but not last"),
        pytest.param(head("transfer-encoding : chunked") + chunked(body()), id="a space before the colon"),
        pytest.param(head("transfer-encoding: chunked") + b"0x3\r\nabc\r\n0\r\n\r\n", id="a chunk size with a prefix"),
        pytest.param(head("transfer-encoding: chunked") + b"-1\r\n\r\n", id="a chunk size below zero"),
        pytest.param(head("a: b\nc: d", f"content-length: {len(body())}") + body(), id="a bare line feed"),
        pytest.param(head("a: b\x00", f"content-length: {len(body())}") + body(), id="a zero byte"),
        pytest.param(head(" content-length: 4") + body(), id="a folded header"),
    ],
)
def test_a_request_that_two_parsers_could_read_apart_is_not_served(request_bytes: bytes) -> None:
    house = House()
    with serving(house.app) as url:
        assert statuses(url, request_bytes + SMUGGLED) == [400]
    assert house.asked == []


def test_a_request_with_another_one_behind_it_is_served() -> None:
    house = House()
    with serving(house.app) as url:
        assert statuses(url, head("transfer-encoding: chunked") + chunked(body()) + SMUGGLED) == [200, 204]
    assert house.asked == ["chat"]


def statuses(url: str, request_bytes: bytes) -> list[int]:
    """The status of each answer on a connection that says this and no more."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_SECONDS) as connection:
        connection.sendall(request_bytes)
        answers = b""
        # One of the two ends of every answer to a bad request, and of the last one to good ones.
        while b"connection: close" not in answers and b"204 No Content" not in answers:
            answers += connection.recv(65536)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


USER = b'{"id": "m", "role": "user", "parts": [%s]}'
TEXT = b'{"type": "text", "text": "x"}'


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        pytest.param(
            b'"x": ' + b'{"a":' * 900 + b"1" + b"}" * 900,
            "'x' must not be nested deeper than 64 levels.",
            id="900 objects in each other",
        ),
        pytest.param(
            b'"x": ' + b"9" * 5_000,
            "The body must not hold a number of more than 400 digits.",
            id="a number of 5,000 digits",
        ),
        pytest.param(
            b", ".join(b'"%d": 1' % number for number in range(600_000)),
            "The body must not hold more than 50,000 values.",
            id="600,000 fields",
        ),
        pytest.param(
            b", ".join(b'"%d": 1' % number for number in range(40_000)),
            "The body must not have more than 1,000 fields.",
            id="40,000 fields",
        ),
        pytest.param(
            b'"messages": [%s]' % b", ".join([USER % TEXT] * 5_000),
            "messages must not hold more than 1,000 messages.",
            id="5,000 messages",
        ),
        pytest.param(
            b'"messages": [%s]' % (USER % b", ".join([TEXT] * 15_000)),
            "messages[0].parts must not hold more than 1,000 parts.",
            id="15,000 parts",
        ),
    ],
)
def test_a_body_that_is_made_to_cost_much_is_refused(field: bytes, sentence: str) -> None:
    check_refusal(field, sentence)


@pytest.mark.parametrize(
    ("field", "further"),
    [
        pytest.param(b'"x": ' + b"[" * 40_000, "The body is not valid JSON.", id="40,000 brackets"),
        pytest.param(
            b'"x": ' + b"[" * 5_000 + b"]" * 5_000,
            "'x' must not be nested deeper than 64 levels.",
            id="5,000 brackets, closed",
        ),
    ],
)
def test_a_body_that_is_nested_deeply_is_refused_however_deep_a_python_can_read(field: bytes, further: str) -> None:
    """Python 3.12 and later read deeper than 3.11, and come to what else is wrong."""
    check_refusal(field, "The body is nested too deeply.", further)


def check_refusal(field: bytes, *sentences: str) -> None:
    house = House()
    rest = b"" if b'"messages"' in field else b', "messages": [%s]' % (USER % TEXT)
    with serving(house.app) as url:
        content = b'{"id": "chat", ' + field + rest + b"}"
        answer = httpx.post(
            f"{url}/api/chat", content=content, headers={"content-type": "application/json"}, timeout=HANG_SECONDS
        )
        assert answer.status_code == 400
        assert answer.text in sentences
        frame = b'{"type": "send", "requestId": "r1", "headers": {}, "body": {}, ' + content[1:]
        with connect(f"{url}/api/chat/ws".replace("http", "ws", 1), proxy=None) as page:
            page.send(frame.decode(), text=True)
            assert refusal(page).replace("A frame", "The body") in sentences
    assert house.asked == []


def refusal(page: ClientConnection) -> str:
    try:
        return json.loads(page.recv(HANG_SECONDS))["errorText"]
    except ConnectionClosed:
        return page.close_reason or ""
