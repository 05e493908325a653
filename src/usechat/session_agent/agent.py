"""The server: opens sockets, finds their session, remembers what they said, and plays scripts."""

import asyncio
import hashlib
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from usechat.session_agent.prompts import play
from usechat.session_agent.session import Session, SessionSettings, Turn, TurnPlay
from usechat.session_agent.sockets import Connection, Fault, Frame, Socket, User

__all__ = ["Received", "Script", "SessionAgent", "read_script"]

_PATH: Final = re.compile(r"/api/sessions/([^/]+)/ws")
# The attachments of one prompt, in JSON.
_MESSAGE_SIZE: Final = 64 * 1024 * 1024
_UNSENT: Final = 1024 * 1024
_REMEMBERED: Final = 2_000


class ScriptLine(NamedTuple):
    """`recv` is what the client receives, `send` what it has to send before the script goes on."""

    direction: Literal["recv", "send"]
    frame: Frame


class Script(NamedTuple):
    """Either `lines`, which every socket is led through, or `frames`, which are the answer to every prompt."""

    lines: tuple[ScriptLine, ...] = ()
    frames: tuple[Frame, ...] = ()


class Received(NamedTuple):
    """A message that a client sent."""

    session: str
    user: str
    message: Frame


class SessionAgent:
    """A development SessionAgent, of which every session id has a session.

    `token`, if it is not empty, is the only bearer token that may connect. `script` is played in place of the scripted
    prompts, and `plays` are turns of your own, by the prompt that they answer. `faults` can be changed at any time and
    hold for sockets that are opened later. `die` is what the fault of that name does: by default all connections are
    cut and none is taken any more.
    """

    def __init__(
        self,
        settings: SessionSettings | None = None,
        *,
        token: str = "",
        script: Script | None = None,
        plays: Mapping[str, TurnPlay] = MappingProxyType({}),
        faults: Sequence[Fault] = (),
        die: Callable[[], None] | None = None,
    ) -> None:
        self.faults = list(faults)
        self.port = 0
        self.sockets: list[Socket] = []
        self._script = script or Script()
        self._plays = plays
        self._settings = settings or SessionSettings()
        self._token = token
        self._die = die or self._cut_all
        self._sessions: dict[str, Session] = {}
        self._received: deque[Received] = deque(maxlen=_REMEMBERED)
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """The address before `/api/sessions/{id}/ws`."""
        return f"ws://127.0.0.1:{self.port}"

    def session(self, id: str) -> Session:  # noqa: A002
        if id not in self._sessions:
            self._sessions[id] = Session(id, self._settings, self._play)
        return self._sessions[id]

    def received(self, type: str, *, session: str | None = None, user: str | None = None) -> list[Received]:  # noqa: A002
        """The messages of a type, such as `prompt` or `abort`, of a session and a user if they are named."""
        return [
            received
            for received in self._received
            if received.message.get("type") == type
            and session in (None, received.session)
            and user in (None, received.user)
        ]

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait until the check holds; it is made after each message and for each socket that comes or goes."""
        if not check():
            held = asyncio.get_running_loop().create_future()
            self._waiting.append((check, held))
            await held

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncGenerator["SessionAgent"]:
        """Serve on a port of this computer, any free one for 0, and leave neither tasks nor sockets behind.

        Raises:
            OSError: the port cannot be listened on.
        """
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            port,
            backlog=2048,
            create_connection=Connection,
            process_request=self._admit,
            compression=None,
            max_size=_MESSAGE_SIZE,
            write_limit=_UNSENT,
            # The real one sends no pings, and does not mind a client that is slow to read.
            ping_interval=None,
            close_timeout=1,
        )
        [listener] = self._server.sockets
        self.port = listener.getsockname()[1]
        try:
            yield self
        finally:
            for session in self._sessions.values():
                await session.aclose()
            for socket in self.sockets:
                if socket.stalled:
                    # It would be slow to close.
                    socket.abort()
            self._server.close()
            await self._server.wait_closed()

    async def run(self, port: int, announce: Callable[[str], None]) -> None:
        """Serve until a signal comes, and say where.

        Raises:
            OSError: the port cannot be listened on.
        """
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with self.serving(port):
            announce(f"A session agent for development is at {self.url}/api/sessions/{{id}}/ws?role=client")
            await stopped.wait()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Take down who connects to which session; refuse what has no token, no role or another address."""
        address = urlsplit(request.path)
        path, query = _PATH.fullmatch(address.path), parse_qs(address.query)
        if path is None:
            return _refusal(HTTPStatus.NOT_FOUND, "NOT_FOUND", "Route not found")
        token = _token(request.headers)
        if not token or self._token not in ("", token):
            return _refusal(HTTPStatus.UNAUTHORIZED, "UNAUTHORIZED", "Missing or invalid authentication")
        if query.get("role") != ["client"]:
            return _refusal(HTTPStatus.BAD_REQUEST, "VALIDATION_ERROR", "Missing or invalid role parameter")
        user, *_ = query.get("userId", [f"user-{hashlib.sha256(token.encode()).hexdigest()[:12]}"])
        # The server makes no others.
        admitted = cast(Connection, connection)
        admitted.session, admitted.user = unquote(path[1]), User(user)
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        # The server makes no others.
        admitted = cast(Connection, connection)
        socket = Socket(admitted, tuple(self.faults), self._die)
        messages = self._messages(admitted, socket)
        self.sockets.append(socket)
        self._changed()
        try:
            if self._script.lines:
                await _follow_script(self._script.lines, socket, messages)
                return
            session = self.session(socket.session)
            with session.joined(socket):
                async for message in messages:
                    session.take(socket, message)
        finally:
            self.sockets.remove(socket)
            self._changed()
            await socket.aclose()

    async def _play(self, turn: Turn) -> None:
        if not self._script.frames:
            await self._plays.get(turn.prompt.content, play)(turn)
            return
        turn.completes = False
        for frame in self._script.frames:
            turn.session.broadcast(frame)
            await turn.pause()

    async def _messages(self, connection: Connection, socket: Socket) -> AsyncIterator[Frame]:
        """What the client says, without its pings, until it is gone; a stalled socket hears nothing else."""
        with suppress(ConnectionClosed):
            async for raw in connection:
                try:
                    message: Any = msgspec.json.decode(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    socket.send({"type": "error", "message": "Invalid JSON"})
                    continue
                if not isinstance(message, dict):
                    continue
                said = cast(Frame, message)
                self._received.append(Received(socket.session, socket.user.id, said))
                self._changed()
                if said.get("type") == "ping":
                    socket.pong()
                elif not socket.stalled:
                    yield said

    def _changed(self) -> None:
        for waiting in tuple(self._waiting):
            check, held = waiting
            if held.done() or check():
                self._waiting.remove(waiting)
                if not held.done():
                    held.set_result(None)

    def _cut_all(self) -> None:
        for socket in tuple(self.sockets):
            socket.abort()
        if self._server is not None:
            self._server.close(close_connections=False)


def read_script(text: str) -> Script:
    """Read lines of the form `{"dir": "recv"|"send", "frame": …}`, where `note` is a remark, or bare frames.

    Raises:
        ValueError: a line is neither, or both forms are used.
    """
    lines: list[ScriptLine] = []
    frames: list[Frame] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            read: Any = msgspec.json.decode(line) if line.strip() else {"dir": "note"}
        except msgspec.DecodeError:
            read = None
        match read:
            case {"dir": "note"}:
                pass
            case {"dir": "recv" | "send" as direction, "frame": {"type": str()} as frame}:
                lines.append(ScriptLine(direction, frame))
            case {"type": str()} as frame:
                frames.append(frame)
            case _:
                raise ValueError(f"Line {number} is neither a frame nor a frame with its `dir`.")
    if bool(lines) == bool(frames):
        raise ValueError("A script has either frames with their `dir` or bare frames.")
    return Script(tuple(lines), tuple(frames))


async def _follow_script(lines: tuple[ScriptLine, ...], socket: Socket, messages: AsyncIterator[Frame]) -> None:
    """Send what the client receives; where it has to send, wait for a message of that type.

    Returns when the client is gone, or with the script, of which the last frame may still be on its way.
    """
    for direction, frame in lines:
        if direction == "recv":
            socket.send(frame)
            await socket.drain()
            continue
        async for message in messages:
            if message.get("type") == frame["type"]:
                break
    async for _ in messages:
        pass


def _token(headers: Headers) -> str:
    """The bearer token, of the header or of the subprotocols."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    offered = headers.get("Sec-WebSocket-Protocol", "").split(",")
    return next((name.strip().removeprefix("bearer.") for name in offered if name.strip().startswith("bearer.")), "")


def _refusal(status: HTTPStatus, code: str, error: str) -> Response:
    body = msgspec.json.encode({"error": error, "code": code})
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status, status.phrase, headers, body)
