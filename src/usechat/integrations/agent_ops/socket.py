"""The WebSockets to sessions: how one is opened, read, written and closed, and how many there may be.

A socket counts for its session and its user from `SessionSockets.open` until it was closed. Everything runs in the
event loop, except that a frame of more than 64 KiB that msgspec refuses is parsed in a thread. One task at a time reads
a socket; any task may send on it, close it or cut it.

What a client does not read stays with the session: the library pauses the connection while one frame waits for its
reader. Frames of more than 1 MiB have a bound for all sockets together, which `_LargeFrames` keeps:

    (small) ── over 1 MiB came in while a reader waits ──► coming ── complete ──► on its way to the client
       ▲                                                      │                               │
       └──────────────── the reader asks for the next frame, or the socket is cut ────────────┘

A socket is paused while its frame is on its way, and while it is coming and `_LargeFrames` does not let it in. It
resumes when the reader asks for the next frame, when another socket releases its frame, and before it is closed: the
close of the other side comes behind all that it sent before, so `close` reads that and throws it away.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConcurrencyError, ConnectionClosed

from usechat.errors import AgentError
from usechat.integrations.agent_ops.frames import Frame
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.protocol.codec import parse_json
from usechat.protocol.requests import scan_json

__all__ = ["TOO_MANY", "AbortedBy", "Greeting", "SessionAddress", "SessionSocket", "SessionSockets", "SocketEvents"]

AbortedBy: TypeAlias = Literal["client", "server"]

_CONNECTION_FAILED: Final = "Connection failed"
TOO_MANY: Final = "Too many connections to sessions are open. Try again in a moment."

# Of a larger frame the type is read first: an `init` has all that was ever said in the session.
_LARGE: Final = 64 * 1024
# Frames of more bytes have a bound for all sockets together; 16 of those that wait go on at once.
_HUGE: Final = 1024 * 1024
_AT_ONCE: Final = 16
# A frame with more JSON values is not decoded, and neither are the messages of a session: each takes 50 bytes or more.
_MOST_VALUES: Final = 500_000
# The channels of a session, and how long the names of one may be.
_MOST_CHANNELS: Final = 1_000
_LONGEST_NAME: Final = 512
# How long the other side may take to close.
_CLOSES: Final = 1.0


class SessionAddress(Struct, frozen=True):
    """Whose socket to which session; `token` is what the upstream knows the user by, `channel` a type and an id."""

    session: str
    user: str
    token: str
    channel: tuple[str, str] = ("web", "default")


class SocketEvents(Protocol):
    """Counts what happens between the gateway and the sessions."""

    def open_failed(self) -> None: ...

    def sockets_changed(self, count: int, most_of_a_session: int) -> None:
        """`count` sockets are open now, or being opened; one session has `most_of_a_session` of them."""
        ...

    def aborted(self, by: AbortedBy) -> None:
        """A stream ended before the turn of its prompt did."""
        ...


class _Message(Struct):
    id: Any = None
    role: Any = None
    channel_type: Any = field(default=None, name="channelType")
    channel_id: Any = field(default=None, name="channelId")


class _Session(Struct):
    messages: list[_Message] | None = None


class Greeting(Struct):
    """What `init` says of the session, without the texts; `messages` is None if it does not list them."""

    session: _Session = field(default_factory=_Session)

    @property
    def messages(self) -> list[_Message] | None:
        return self.session.messages

    @property
    def channels(self) -> list[tuple[str, str]]:
        """The channels of the messages, each once, after the default one."""
        found = {("web", "default"): None}
        for message in self.messages or ():
            channel = message.channel_type, message.channel_id
            if all(isinstance(name, str) and len(name) <= _LONGEST_NAME for name in channel):
                found[channel] = None
            if len(found) == _MOST_CHANNELS:
                break
        return list(found)


class _State(Struct):
    busy: bool | float | str | None = field(default=None, name="runnerBusy")
    queued: int | float | str | None = field(default=None, name="promptsQueued")


class _Init(Struct):
    """The frame without the messages, which few want to know and which may be many; no other frame has its `type`."""

    type: str = ""
    data: _State = field(default_factory=_State)


_Read = TypeVar("_Read")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _holds_too_much(raw: bytes) -> bool:
    # Nearly all that is large is one long text, of which no scan has to make a copy.
    most = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    return most >= _MOST_VALUES and scan_json(raw, _MOST_VALUES).values > _MOST_VALUES


def _parse(raw: bytes) -> Frame:
    """A frame as JavaScript reads it, with half an emoji where a text was cut in its middle, which msgspec refuses."""
    try:
        frame = None if _holds_too_much(raw) else parse_json(raw)
    except ValueError:
        return {}
    return cast("Frame", frame) if isinstance(frame, dict) else {}


async def _read_as(kind: type[_Read], raw: bytes) -> _Read:
    """What of a frame is wanted, or nothing of it if it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        return kind()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _convert(await _parse_aside(raw), kind)


def _convert(frame: Frame, kind: type[_Read]) -> _Read:
    try:
        return msgspec.convert(frame, kind)
    except msgspec.ValidationError:
        return kind()


async def _parse_aside(raw: bytes) -> Frame:
    return await asyncio.to_thread(_parse, raw) if len(raw) > _LARGE else _parse(raw)


class _Connection(ClientConnection):
    """Calls `hear` with the number of bytes that have come in, also of a frame that is not complete."""

    hear: Callable[[int], None] | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.hear is not None:
            self.hear(len(data))


class SessionSocket:
    """One open WebSocket. `greeting` is what its `init` said, once that was asked for and read."""

    def __init__(self, connection: _Connection, large: "_LargeFrames", closed: Callable[[], None]) -> None:
        self.greeting: Greeting | None = None
        self._connection = connection
        self._large = large
        self._closed = closed
        # How many bytes have come in that belong to frames that nobody has read yet.
        self._unread = 0
        # Whether a reader waits for the next frame.
        self._is_wanted = False
        self._is_paused = False
        connection.hear = self._hear

    async def next(self, *, wants_greeting: bool = False) -> Frame:
        """The next frame; one that is no JSON object, or holds too much, is an empty one.

        Raises:
            ConnectionClosed: there is none.
        """
        raw = await self._receive()
        if len(raw) > _LARGE:
            init = await _read_as(_Init, raw)
            if init.type == "init":
                if wants_greeting:
                    self.greeting = Greeting() if _holds_too_much(raw) else await _read_as(Greeting, raw)
                return {"type": "init", "data": {"runnerBusy": init.data.busy, "promptsQueued": init.data.queued}}
            if _holds_too_much(raw):
                return {}
        try:
            frame = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            frame = await _parse_aside(raw)
        if wants_greeting and frame.get("type") == "init":
            self.greeting = _convert(frame, Greeting)
        return frame

    async def greeted(self) -> Greeting:
        """Read on to the `init`.

        Raises:
            ConnectionClosed: it did not come.
        """
        while self.greeting is None:
            await self.next(wants_greeting=True)
        return self.greeting

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message.

        Raises:
            ConnectionClosed: the socket is closed.
        """
        await self._connection.send(msgspec.json.encode({"type": kind, **fields}), text=True)

    async def close(self) -> None:
        # What nobody reads any more would hold up the close of the other side.
        self.resume()
        discarding = asyncio.create_task(self._discard())
        try:
            await self._connection.close()
        finally:
            discarding.cancel()
            # A task that is cancelled would leave it open.
            self.cut()
            self._closed()

    async def _discard(self) -> None:
        # Where another task still reads, nothing is held up.
        with suppress(ConnectionClosed, ConcurrencyError):
            while True:
                await self._connection.recv(decode=False)

    def cut(self) -> None:
        """Let go of an upstream that is gone; the task that reads gets ConnectionClosed."""
        self._large.release(self)
        # It would hold this socket, and this socket what has come in.
        self._connection.hear = None
        self._connection.transport.abort()

    def pause(self) -> None:
        """Let nothing more come in."""
        self._is_paused = True
        self._connection.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._connection.transport.resume_reading()

    async def _receive(self) -> bytes:
        # The frame before has reached its client.
        self._large.release(self)
        self.resume()
        self._is_wanted = True
        if self._unread > _HUGE:
            self._large.come(self, self._unread)
        try:
            raw = await self._connection.recv(decode=False)
        finally:
            self._is_wanted = False
        size = len(raw)
        self._unread = max(0, self._unread - size - (2 if size < 126 else 4 if size < 65_536 else 10))
        if size > _HUGE:
            self._large.arrive(self, size)
            # No other one comes in behind it while it is on its way to a client.
            self.pause()
        else:
            self._large.release(self)
        return raw

    def _hear(self, size: int) -> None:
        self._unread += size
        if self._unread > _HUGE and self._is_wanted:
            self._large.come(self, self._unread)


class _LargeFrames:
    """The large frames of all sockets, from their first bytes until their client has them: together they have a bound.

    Above the bound no more bytes are let in, and those that are coming wait for a client to take a whole one. If all of
    them are still coming, the oldest goes on, since nothing else would ever become less.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._sizes: dict[SessionSocket, int] = {}
        self._coming: dict[SessionSocket, None] = {}

    @property
    def is_full(self) -> bool:
        return self._total > self._most and bool(self._coming)

    def come(self, socket: SessionSocket, size: int) -> None:
        """`size` bytes of a frame have come in."""
        self._count(socket, size)
        self._coming.setdefault(socket)
        if socket not in self._let_in():
            socket.pause()

    def arrive(self, socket: SessionSocket, size: int) -> None:
        """A frame is complete, and goes to its client."""
        self._count(socket, size)
        self._coming.pop(socket, None)

    def release(self, socket: SessionSocket) -> None:
        if socket in self._sizes:
            self._total -= self._sizes.pop(socket)
            self._coming.pop(socket, None)
            for other in self._let_in():
                other.resume()

    def _count(self, socket: SessionSocket, size: int) -> None:
        self._total += size - self._sizes.get(socket, 0)
        self._sizes[socket] = size

    def _let_in(self) -> list[SessionSocket]:
        """The sockets whose frames may go on to come in."""
        if self._total <= self._most:
            return list(islice(self._coming, _AT_ONCE))
        return list(islice(self._coming, 1)) if len(self._coming) == len(self._sizes) else []


def _failed(error: Exception) -> AgentError:
    # The reason goes to the log, in the one line about the failure: a traceback would say no more.
    failure = AgentError(_CONNECTION_FAILED)
    failure.add_note(f"{type(error).__name__}: {error}")
    return failure


class SessionSockets:
    """Opens the sockets of all sessions of one upstream, and counts them. With a `token`, it is given for all users."""

    def __init__(self, upstream: str, token: str | None, limits: SocketLimits, events: SocketEvents) -> None:
        self._upstream = upstream.rstrip("/")
        self._token = token
        self._limits = limits
        self._events = events
        self._large = _LargeFrames(limits.frames_in_all)
        self._open: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self.count = 0
        """How many are open, or being opened."""

    @property
    def is_crowded(self) -> bool:
        """Whether large frames wait for others to reach their clients."""
        return self._large.is_full

    def has_room(self, address: SessionAddress) -> bool:
        limits = self._limits
        return (
            self._open[address.session] < limits.per_session
            and self._users[address.user] < limits.per_user
            and self.count < limits.in_all
        )

    async def open(self, address: SessionAddress) -> SessionSocket:
        """Open a socket, which counts until it was closed.

        Raises:
            AgentError: there are too many, or it cannot be opened.
        """
        if not self.has_room(address):
            raise AgentError(TOO_MANY)
        self._count(address, 1)
        try:
            return SessionSocket(await self._connect(address), self._large, partial(self._count, address, -1))
        except BaseException as error:
            self._count(address, -1)
            # An upstream that breaks HTTP makes the library raise anything.
            if not isinstance(error, Exception):
                raise
            self._events.open_failed()
            raise _failed(error) from None

    def _count(self, address: SessionAddress, change: int) -> None:
        self.count += change
        for counter, key in ((self._open, address.session), (self._users, address.user)):
            counter[key] += change
            if not counter[key]:
                del counter[key]
        self._events.sockets_changed(self.count, max(self._open.values(), default=0))

    @asynccontextmanager
    async def visit(self, address: SessionAddress) -> AsyncGenerator[SessionSocket, None]:
        """Open a socket for a moment; what is done with it has as long as it may take to open.

        Raises:
            AgentError: there are too many, or it cannot be opened, or was closed, or is too slow.
        """
        socket = await self.open(address)
        try:
            async with asyncio.timeout(self._limits.open_seconds):
                yield socket
        except (ConnectionClosed, TimeoutError) as error:
            raise _failed(error) from None
        finally:
            await socket.close()

    async def _connect(self, address: SessionAddress) -> _Connection:
        # An id may hold anything; the upstream takes the user from the token, and a token of ours names none.
        path = f"/api/sessions/{quote(address.session, safe='')}/ws?role=client&userId={quote(address.user, safe='')}"
        connection = await connect(
            self._upstream + path,
            additional_headers={"Authorization": f"Bearer {self._token or address.token}"},
            user_agent_header="usechat",
            compression=None,
            proxy=None,
            open_timeout=self._limits.open_seconds,
            # A socket that is not read could not hear a pong, either; the idle clock is there for the rest.
            ping_interval=None,
            close_timeout=_CLOSES,
            max_size=self._limits.frame,
            # Frames may be large, and by default seventeen of them would wait for a slow client. Here it is one.
            max_queue=0,
            create_connection=_Connection,
        )
        # The library makes no other.
        return cast(_Connection, connection)
