"""A server on a loopback port, and pages that talk to it over a WebSocket."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.hang import HANG_SECONDS
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import Limits
from usechat.server.auth import Authenticate
from usechat.server.endpoint import ChatEndpoint
from usechat.server.responses import StreamLimits
from usechat.server.websocket import ChatSockets
from usechat.stores import Outcome
from usechat.turns import TurnLimits
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings, Conflict

JSON = dict[str, Any]


class House:
    """A server on a loopback port, its agent, and what became of the turns."""

    def __init__(self) -> None:
        self.url = ""
        self.endpoint: ChatEndpoint
        self.chats: list[Chat] = []
        self.ends: asyncio.Queue[tuple[Outcome, str]] = asyncio.Queue()
        self.gates: dict[str, asyncio.Semaphore] = {}

    def gate(self, chat_id: str) -> asyncio.Semaphore:
        return self.gates.setdefault(chat_id, asyncio.Semaphore(0))

    async def agent(self, chat: Chat) -> AsyncGenerator[str, None]:
        self.chats.append(chat)
        match chat.text.partition(" "):
            case "hold", _, _:
                yield "One, "
                yield "two, "
                await self.gate(chat.id).acquire()
                yield "three."
            case "write", _, size:
                for _ in range(int(size)):
                    yield "x" * 1024
                await self.gate(chat.id).acquire()
            case _:
                yield f"You said {chat.text}."

    async def on_end(self, outcome: Outcome, message: UIMessage) -> None:
        await self.ends.put((outcome, message.text))

    async def kept(self, chat_id: str, user: str | None = None) -> list[str]:
        messages = await self.endpoint.chats.messages(chat_id, user)
        return [msgspec.json.decode(message, type=UIMessage).text for message in messages]


@asynccontextmanager
async def serving(
    *,
    linger: float | None = None,
    conflict: Conflict = "replace",
    authenticate: Authenticate | None = None,
    stream: StreamLimits | None = None,
    sockets: Callable[[ChatEndpoint], ChatSockets] | None = None,
    **server_options: Any,
) -> AsyncGenerator[House, None]:
    house = House()
    settings = ChatSettings(turn=TurnLimits(linger=linger), conflict=conflict, on_end=house.on_end)
    house.endpoint = ChatEndpoint(
        house.agent, authenticate=authenticate, settings=settings, stream=stream or StreamLimits()
    )
    routes = house.endpoint.routes()
    if sockets is not None:
        routes.insert(0, WebSocketRoute("/api/chat/ws", sockets(house.endpoint).serve))
    options: JSON = {"ws": "websockets-sansio", "lifespan": "off", "log_config": None, **server_options}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), **options))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        house.url = f"ws://127.0.0.1:{listener.getsockname()[1]}/api/chat/ws"
        try:
            async with asyncio.timeout(HANG_SECONDS):
                yield house
        finally:
            await house.endpoint.chats.drain(0)
            server.should_exit = True
            await running


class Page:
    """A socket of a client, which keeps the frames of each request apart."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._frames: list[JSON] = []

    async def send(self, request_id: str, text: str, chat: str = "chat", **fields: Any) -> None:
        message = {"id": f"message-{request_id}", "role": "user", "parts": [{"type": "text", "text": text}]}
        frame: JSON = {"id": chat, "trigger": "submit-message", "messages": [message], "headers": {}, "body": {}}
        await self.raw({"type": "send", "requestId": request_id, **frame, **fields})

    async def resume(self, request_id: str, chat: str = "chat", **fields: Any) -> None:
        await self.raw({"type": "resume", "requestId": request_id, "id": chat, "headers": {}, "body": {}, **fields})

    async def abort(self, request_id: str) -> None:
        await self.raw({"type": "abort", "requestId": request_id})

    async def raw(self, frame: JSON) -> None:
        await self.connection.send(json.dumps(frame))

    async def until(self, request_id: str, is_last: Callable[[JSON], bool]) -> list[JSON]:
        """The next frames of a request, up to one."""
        mine = self.unread(request_id)
        self._frames = [frame for frame in self._frames if frame["requestId"] != request_id]
        while not mine or not is_last(mine[-1]):
            frame: JSON = json.loads(await self.connection.recv())
            (mine if frame["requestId"] == request_id else self._frames).append(frame)
        return mine

    def unread(self, request_id: str) -> list[JSON]:
        return [frame for frame in self._frames if frame["requestId"] == request_id]

    async def all(self, request_id: str) -> list[JSON]:
        return await self.until(request_id, lambda frame: frame["type"] in ("end", "error", "no-active"))

    async def until_text(self, request_id: str, text: str) -> list[JSON]:
        return await self.until(request_id, lambda frame: frame.get("chunk", {}).get("delta") == text)

    async def only(self, request_id: str) -> JSON:
        [frame] = await self.all(request_id)
        return frame

    async def closed(self) -> tuple[int | None, str | None]:
        with suppress(ConnectionClosed):
            while True:
                await self.connection.recv()
        return self.connection.close_code, self.connection.close_reason


@asynccontextmanager
async def opening(house: House, **options: Any) -> AsyncGenerator[Page, None]:
    async with asyncio.timeout(HANG_SECONDS), connect(house.url, **options) as connection:
        yield Page(connection)


def error(request_id: str, text: str) -> JSON:
    return {"type": "error", "requestId": request_id, "errorText": text}


def chunks(frames: list[JSON]) -> list[JSON]:
    return [frame["chunk"] for frame in frames if frame["type"] == "chunk"]


def texts(frames: list[JSON]) -> list[str]:
    return [chunk["delta"] for chunk in chunks(frames) if chunk["type"] == "text-delta"]


def sequences(frames: list[JSON]) -> list[int]:
    return [frame["sequence"] for frame in frames if frame["type"] == "chunk"]


async def nobody(_: HTTPConnection) -> str | None:
    return None


def pondering(seconds: float) -> Callable[[ChatEndpoint], ChatSockets]:
    """Sockets that wait so long before an abort of a resume stops its turn."""
    return lambda endpoint: ChatSockets(endpoint.chats, nobody, Limits(), StreamLimits(), abort_delay=seconds)


def listing(endpoint: ChatEndpoint) -> ChatSockets:
    return ChatSockets(endpoint.chats, nobody, Limits(), StreamLimits(), origins=["https://chat.example"])


@asynccontextmanager
async def stuck(house: House) -> AsyncGenerator[Page, None]:
    """A page whose machine takes little more than what the page reads."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.setblocking(False)
        host, _, port = house.url.removeprefix("ws://").partition("/")[0].partition(":")
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        async with opening(house, sock=connection, max_queue=1, compression=None, ping_interval=None) as page:
            yield page
