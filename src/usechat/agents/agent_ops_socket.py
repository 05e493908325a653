"""A session's WebSocket: how it is opened, read, spoken to and closed, and how many of them there may be."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConcurrencyError, ConnectionClosed

from usechat.agents.agent_ops_limits import SocketLimits
from usechat.errors import AgentError
from usechat.protocol.codec import parse_json
from usechat.protocol.json_scan import scan_json
from usechat.sources.agent_ops_frames import Frame

__all__ = ["Greeting", "SessionAddress", "SessionSocket", "SessionSockets", "SocketEvents", "SocketLimits"]

CONNECTION_FAILED: Final = "Connection failed"
TOO_MANY: Final = "Too many connections to sessions are open. Try again in a moment."

# A larger frame is looked at before it is decoded as a whole: the first one has all that was ever said in the session.
_LARGE: Final = 64 * 1024
# Frames of more bytes are few at a time, in all sockets together; so many of those that wait go on at once.
_HUGE: Final = 1024 * 1024
_AT_ONCE: Final = 16
# A frame with more JSON values is not decoded, and neither are the messages of a session: each takes 50 bytes or more.
_MOST_VALUES: Final = 500_000
# The channels of a session, and how long the names of one may be.
_MOST_CHANNELS: Final = 1_000
_LONGEST_NAME: Final = 512
# How long the other side may take to close. One that we do not read would take for ever.
_CLOSES: Final = 1.0


class SessionAddress(Struct, frozen=True):
    """Whose socket to which session; `token` is what the upstream knows the user by, `channel` a type and an id."""

    session: str
    user: str
    token: str
    channel: tuple[str, str] = ("web", "default")


class SocketEvents(Protocol):
    """Who counts what happens to sockets."""

    def open_failed(self) -> None: ...


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
    """The frame without the messages, which few want to know and which may be many."""

    data: _State = field(default_factory=_State)


class _Kind(Struct):
    type: str = ""


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
        try:
            return msgspec.convert(await _parse_aside(raw), kind)
        except msgspec.ValidationError:
            return kind()


async def _parse_aside(raw: bytes) -> Frame:
    return await asyncio.to_thread(_parse, raw) if len(raw) > _LARGE else _parse(raw)


class _Connection(ClientConnection):
    """Tells how many bytes have come in, also of a frame that is not complete."""

    hear: Callable[[int], None] | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.hear is not None:
            self.hear(len(data))


class SessionSocket:
    """One open WebSocket. `greeting` is what its `init` said, once that was asked for and read."""

    def __init__(self, connection: ClientConnection, large: "_LargeFrames") -> None:
        self.greeting: Greeting | None = None
        self._connection = connection
        self._large = large
        # How many bytes have come in and belong to frames that nobody has read yet.
        self._unread = 0
        self._is_wanted = False
        self._is_paused = False
        if isinstance(connection, _Connection):
            connection.hear = self._hear

    async def next(self, *, wants_greeting: bool = False) -> Frame:
        """The next frame; one that is no JSON object, or holds too much, is an empty one.

        Raises:
            ConnectionClosed: there is none.
        """
        raw = await self._receive()
        if len(raw) > _LARGE:
            if (await _read_as(_Kind, raw)).type == "init":
                return await self._greet(raw, wants_greeting=wants_greeting)
            if _holds_too_much(raw):
                return {}
        try:
            frame = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            frame = await _parse_aside(raw)
        return await self._greet(raw, wants_greeting=wants_greeting) if frame.get("type") == "init" else frame

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
            # Whoever is cancelled would leave it open.
            self.cut()

    async def _discard(self) -> None:
        # Where somebody still reads, nothing is held up.
        with suppress(ConnectionClosed, ConcurrencyError):
            while True:
                await self._connection.recv(decode=False)

    def cut(self) -> None:
        """Let go of an upstream that is gone; whoever reads learns that the socket is closed."""
        self._large.release(self)
        if isinstance(self._connection, _Connection):
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

    async def _greet(self, raw: bytes, *, wants_greeting: bool) -> Frame:
        if wants_greeting:
            self.greeting = Greeting() if _holds_too_much(raw) else await _read_as(Greeting, raw)
        state = (await _read_as(_Init, raw)).data
        return {"type": "init", "data": {"runnerBusy": state.busy, "promptsQueued": state.queued}}


class _LargeFrames:
    """The large frames of all sockets, from their first bytes until their client has them: together they have a bound.

    Where all that is there beyond it is still coming in, the one that has been doing so for longest goes on.
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
        """So much of a frame has come in."""
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
    # The reason goes to the log, in the one line that tells of the failure: a traceback would say no more.
    failure = AgentError(CONNECTION_FAILED)
    failure.add_note(f"{type(error).__name__}: {error}")
    return failure


class SessionSockets:
    """Opens the sockets of all sessions of one upstream, and counts them. With a `token`, it is given for all users."""

    def __init__(self, upstream: str, token: str | None, limits: SocketLimits, events: SocketEvents | None) -> None:
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
    def most_of_a_session(self) -> int:
        return max(self._open.values(), default=0)

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
        """Open a socket, which counts until `closed` is called.

        Raises:
            AgentError: there are too many, or it cannot be opened.
        """
        if not self.has_room(address):
            raise AgentError(TOO_MANY)
        self._open[address.session] += 1
        self._users[address.user] += 1
        self.count += 1
        try:
            return SessionSocket(await self._connect(address), self._large)
        except BaseException as error:
            self.closed(address)
            # An upstream that breaks HTTP makes the library raise anything.
            if not isinstance(error, Exception):
                raise
            if self._events is not None:
                self._events.open_failed()
            raise _failed(error) from None

    def closed(self, address: SessionAddress) -> None:
        self.count -= 1
        for counter, key in ((self._open, address.session), (self._users, address.user)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]

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
            try:
                await socket.close()
            finally:
                self.closed(address)

    async def _connect(self, address: SessionAddress) -> ClientConnection:
        # An id may hold anything; the upstream takes the user from the token, and a token of ours names none.
        path = f"/api/sessions/{quote(address.session, safe='')}/ws?role=client&userId={quote(address.user, safe='')}"
        return await connect(
            self._upstream + path,
            additional_headers={"Authorization": f"Bearer {self._token or address.token}"},
            user_agent_header="usechat",
            compression=None,
            proxy=None,
            open_timeout=self._limits.open_seconds,
            # Whoever is not read cannot be heard to be alive, either; the idle clock is there for the rest.
            ping_interval=None,
            close_timeout=_CLOSES,
            max_size=self._limits.frame,
            # Frames may be large, and by default seventeen of them would wait for a slow client. Here it is one.
            max_queue=0,
            create_connection=_Connection,
        )
