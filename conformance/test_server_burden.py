"""What many turns and many readers leave behind in a server that keeps no logs of turns that have ended: nothing."""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pages import Message, Server
from usechat.protocol.sse import KEEP_ALIVE

PATH: Final = "/portable/brief"
MANY: Final = 1_000
LINES: Final = 128


@pytest.fixture(scope="module")
def quiet() -> Iterator[Server]:
    """A server that nobody else talks to."""
    server = Server()
    yield server
    server.close()


def question(text: str) -> Message:
    return {"id": "question", "role": "user", "parts": [{"type": "text", "text": text}]}


def first_chunk(sse: str) -> Any:
    return json.loads(next(line for line in sse.splitlines() if line.startswith("data: "))[6:])


def ask_often(server: Server, chat: str, times: int) -> None:
    """Ask the same question again and again, so that the chat does not grow."""
    wire = ""
    for _ in range(times):
        response = server.http.post(PATH, json={"id": chat, "messages": [question("hello")]})
        assert response.status_code == 200
        wire = response.text
    # A stream ends before the app's own hook was called.
    assert server.ends(first_chunk(wire)["messageId"]) == ["done"]


def test_a_thousand_turns_leave_nothing_behind(quiet: Server):
    chat = secrets.token_hex(8)
    ask_often(quiet, chat, 200)
    before = quiet.burden()
    ask_often(quiet, chat, MANY)
    after = quiet.burden()

    for what in ("tasks", "threads", "files"):
        assert after[what] == before[what]
    assert after["objects"] - before["objects"] < MANY
    assert after["resident"] - before["resident"] < MANY * 1024


class Tab:
    """A reader of a turn over a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._body = b""

    async def resume(self, chat: str) -> None:
        """Read as far as the turn has come."""
        self._writer.write(
            f"GET {PATH}/{chat}/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        assert (await self._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        self._body = await self._reader.readuntil(b'"text-end"')

    async def read_on(self) -> bytes:
        self._body += await self._reader.read()
        self._writer.close()
        await self._writer.wait_closed()
        # A tab that waits for long hears that the server is there.
        return without_sizes(self._body).replace(KEEP_ALIVE, b"")


def without_sizes(wire: bytes) -> bytes:
    """The body of a response that was sent in pieces, each with its size before it."""
    body = b""
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        body += wire[: int(size, 16)]
        wire = wire[int(size, 16) + 2 :]
    return body


async def open_tab(port: int, chat: str) -> Tab:
    tab = Tab(*await asyncio.open_connection("127.0.0.1", port, limit=2 * LINES * 1024))
    await tab.resume(chat)
    return tab


async def read_in_tabs(server: Server, chat: str) -> tuple[Counter[bytes], float]:
    """What the tabs read, and the memory that each of them takes when it has read what there is."""
    before = server.burden()["resident"]
    tabs = [await open_tab(server.port, chat) for _ in range(MANY)]
    cost = (server.burden()["resident"] - before) / MANY
    server.let_go(chat)
    return Counter([await tab.read_on() for tab in tabs]), cost


def test_a_thousand_tabs_read_one_copy_of_a_turn(quiet: Server):
    chat = secrets.token_hex(8)
    body = {"id": chat, "messages": [question("long")], "lines": LINES}
    with quiet.http.stream("POST", PATH, json=body) as stream:
        lines = stream.iter_lines()
        assert any("text-end" in line for line in lines)
        bodies, cost = asyncio.run(read_in_tabs(quiet, chat))
        assert list(lines)[-2:] == ["data: [DONE]", ""]

    ((wire, tabs),) = bodies.items()
    assert tabs == MANY
    assert wire.endswith(b'"finishReason":"stop"}\n\ndata: [DONE]\n\n')
    assert len(wire) > LINES * 1024
    assert cost < LINES * 1024 / 4
