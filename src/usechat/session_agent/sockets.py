"""A client's socket as its SessionAgent sees it, and what can go wrong with it on request."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct, ValidationError, convert
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosed

__all__ = [
    "DEFAULT_CHANNEL",
    "FAULTS",
    "Connection",
    "Fault",
    "FaultName",
    "Frame",
    "Socket",
    "User",
    "present",
    "read_fault",
]

Frame: TypeAlias = dict[str, Any]
FaultName: TypeAlias = Literal["drop", "close", "stall", "deaf", "flood", "die", "duplicate", "garbage"]

FAULTS: Final[tuple[FaultName, ...]] = get_args(FaultName)
DEFAULT_CHANNEL: Final = {"channelType": "web", "channelId": "default"}

_GARBAGE: Final[tuple[str | bytes, ...]] = (
    "",
    "not JSON",
    '{"type": "chunk", "content": "cut of',
    "null",
    "[1, 2]",
    '"text"',
    "{}",
    '{"type": 5}',
    '{"type": "chunk"}',
    '{"type": "chunk", "content": 5, "messageId": {}}',
    '{"type": "message", "data": null}',
    '{"type": "message.updated", "data": {"parts": [null, 5, {"type": "tool-call"}]}}',
    '{"type": "status", "data": []}',
    '{"type": "audit_log"}',
    '{"type": "question", "options": "yes"}',
    '{"type": "never-heard-of", "data": {"deep": [[[[[]]]]]}}',
    b"\x00\xff\xfe",
)


def present(**fields: Any) -> Frame:
    """The fields that have a value: Agent Ops leaves the others out."""
    return {name: value for name, value in fields.items() if value is not None}


class Fault(Struct, frozen=True):
    """What goes wrong with each socket after this many frames; `init` is the first."""

    name: FaultName
    after: Annotated[int, Meta(ge=1)] = 1


def read_fault(text: str) -> Fault:
    """Read `name` or `name:frames`.

    Raises:
        ValueError: it is of another form.
    """
    name, _, after = text.partition(":")
    try:
        return convert({"name": name, "after": int(after or 1)}, Fault)
    except (ValueError, ValidationError):
        raise ValueError(f"The fault {text!r:.60} must be one of {', '.join(FAULTS)}, as name:frames.") from None


class User(Struct, frozen=True):
    """Somebody with a socket; `id` is the `authorId` of what they say."""

    id: str

    @property
    def details(self) -> Frame:
        return {"name": self.id, "email": f"{self.id}@example.com"}

    @property
    def author(self) -> Frame:
        """The fields of a message of theirs."""
        return {"authorId": self.id, "authorEmail": f"{self.id}@example.com", "authorName": self.id}


class Connection(ServerConnection):
    """The connection of a user to a session; a deaf one answers nothing that comes, neither pings nor a close."""

    session: str
    user: User
    deaf = False

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            super().data_received(data)


class Socket:
    """An open client socket: sends frames in order and without waiting, and suffers faults.

    It is healthy, stalled (it sends only pongs, and what it hears counts for nothing) or deaf (it sends nothing). No
    fault leads back.
    """

    def __init__(self, connection: Connection, faults: Sequence[Fault], die: Callable[[], None]) -> None:
        self.session = connection.session
        self.user = connection.user
        self.stalled = False
        self._connection = connection
        self._faults = faults
        self._die = die
        self._frames = 0
        self._duplicates = False
        self._task: asyncio.Task[None] | None = None

    def send(self, frame: Frame) -> None:
        self.post(msgspec.json.encode(frame))

    def post(self, frame: bytes) -> None:
        """Send an encoded frame, and let go wrong what is due after it."""
        if self.stalled:
            return
        self._frames += 1
        broadcast([self._connection] * (2 if self._duplicates else 1), frame, text=True)
        for fault in self._faults:
            if fault.after == self._frames:
                self.strike(fault.name)

    def pong(self) -> None:
        broadcast([self._connection], b'{"type":"pong"}', text=True)

    async def drain(self) -> None:
        """Wait while more than the limit of the connection is unsent."""
        with suppress(OSError):
            await self._connection.drain()

    def strike(self, fault: FaultName) -> None:
        """Let this go wrong now."""
        match fault:
            case "drop":
                self.abort()
            case "close":
                self.stalled = True
                self._task = asyncio.create_task(self._connection.close(1011, "Asked for"))
            case "stall":
                self.stalled = True
            case "deaf":
                self.stalled = self._connection.deaf = True
            case "flood":
                self.stalled = True
                self._task = asyncio.create_task(self._send_noise())
            case "die":
                self._die()
            case "duplicate":
                self._duplicates = True
            case "garbage":
                for frame in _GARBAGE:
                    broadcast([self._connection], frame)

    def abort(self) -> None:
        """Cut the connection, without a close frame."""
        self.stalled = True
        self._connection.transport.abort()

    async def aclose(self) -> None:
        """End what the socket does by itself; its connection is closed already."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _send_noise(self) -> None:
        """Send frames of a turn that nobody asked for, as many as the client takes."""
        noise = {"type": "chunk", "content": "x" * 4096, "messageId": "flood", **DEFAULT_CHANNEL}
        text = msgspec.json.encode(noise).decode()
        with suppress(ConnectionClosed):
            while True:
                await self._connection.send(text)
