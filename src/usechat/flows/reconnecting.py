"""A WebSocket to somewhere else that comes back when it is lost."""

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.uri import parse_uri

from usechat.errors import FlowError

__all__ = ["ReconnectingSocket", "pauses"]

_log = logging.getLogger("usechat")

# A larger frame costs the connection. The runtime ignores much smaller ones, since no single output is worth a run.
_MAX_FRAME: Final = 64 * 1024 * 1024
_MAX_UNSENT: Final = 1000
_CLOSE_SECONDS: Final = 2.0
_FACTOR: Final = 2.0


def pauses(first: float, longest: float) -> Iterator[float]:
    """The seconds to wait before each next attempt: twice as long each time, and never the same for two of us."""
    pause = min(first, longest)
    while True:
        yield pause * secrets.SystemRandom().uniform(0.5, 1)
        pause = min(pause * _FACTOR, longest)


class ReconnectingSocket:
    """One socket at a time. `hear` gets each frame, `lost` is called when the socket is gone, for whatever reason.

    As long as `lasting` is set, a socket that is lost is opened again. `address` is the same for all URLs of one place,
    as far as they show it.
    """

    def __init__(
        self,
        url: str,
        *,
        hear: Callable[[bytes], None],
        lost: Callable[[], None],
        first_pause: float,
        longest_pause: float,
    ) -> None:
        """Prepare the socket.

        Raises:
            FlowError: the URL is not one of a WebSocket.
        """
        try:
            self.address = _address(url)
        except (InvalidURI, ValueError):
            # Without the URL and its cause, since it may have a password.
            raise FlowError("The URL of a remote runtime is wrong.", remedy="Write ws://host:port/ws.") from None
        self.lasting = False
        self._url = url
        self._hear = hear
        self._lost = lost
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._opening = asyncio.Lock()
        self._unsent: asyncio.Queue[bytes] | None = None
        self._headers: Mapping[str, str] = {}
        self._keeper: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._unsent is not None

    def header(self, name: str) -> str | None:
        """What the other side said of itself when it was connected last."""
        return self._headers.get(name)

    async def open(self) -> None:
        """Connect now, unless it is connected.

        Raises:
            FlowError: there is nobody, or not one who speaks WebSocket.
        """
        async with self._opening:
            if self.connected:
                return
            # It would wait for its next attempt.
            await self._end_keeper()
            connection = None
            try:
                connection = await self._connect()
            finally:
                if connection is not None or self.lasting:
                    self._keeper = asyncio.create_task(self._keep(connection))
            if connection is None:
                raise FlowError("The remote runtime cannot be reached.", remedy="Start it, or correct its URL.")
            # A task that has not begun could be cancelled without closing the connection.
            await asyncio.sleep(0)

    def send(self, frame: bytes) -> None:
        """Send a frame after those before it.

        Raises:
            FlowError: there is no connection, or the other side has not taken the last thousand frames.
        """
        if self._unsent is None:
            raise FlowError("The remote runtime is not connected.", remedy="Try again when it is.")
        try:
            self._unsent.put_nowait(frame)
        except asyncio.QueueFull:
            raise FlowError("The remote runtime takes no commands.", remedy="Try again later.") from None

    def leave(self) -> None:
        """Close the socket soon, and open no other."""
        self.lasting = False
        self._unsent = None
        if self._keeper is not None:
            # Not at once, since it may be the keeper that hears why.
            asyncio.get_running_loop().call_soon(self._keeper.cancel)

    async def close(self) -> None:
        self.lasting = False
        async with self._opening:
            await self._end_keeper()

    async def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _connect(self) -> ClientConnection | None:
        try:
            return await connect(self._url, max_size=_MAX_FRAME, compression=None, close_timeout=_CLOSE_SECONDS)
        except (OSError, WebSocketException, UnicodeError) as error:
            _log.info("a remote runtime cannot be reached: %s", type(error).__name__)
            return None

    async def _keep(self, connection: ClientConnection | None) -> None:
        clock = asyncio.get_running_loop().time
        waits = pauses(self._first_pause, self._longest_pause)
        while True:
            if connection is not None:
                began = clock()
                await self._use(connection)
                # One that is lost at once is no better than one that was never made.
                if clock() - began >= self._longest_pause:
                    waits = pauses(self._first_pause, self._longest_pause)
            if not self.lasting:
                return
            await asyncio.sleep(next(waits))
            connection = await self._connect()

    async def _use(self, connection: ClientConnection) -> None:
        self._headers = {} if connection.response is None else connection.response.headers
        self._unsent = unsent = asyncio.Queue[bytes](_MAX_UNSENT)
        writing = asyncio.create_task(_write(connection, unsent))
        try:
            while True:
                self._hear(await connection.recv(decode=False))
        except ConnectionClosed as closed:
            _log.info("the connection to a remote runtime was lost: %s", type(closed).__name__)
        finally:
            self._unsent = None
            writing.cancel()
            self._lost()
            await _close(connection)


def _address(url: str) -> str:
    uri = parse_uri(url)
    host = uri.host.casefold()
    with suppress(ValueError):
        host = "localhost" if ipaddress.ip_address(host).is_loopback else host
    return f"{host} {uri.port} {uri.path}"


async def _write(connection: ClientConnection, unsent: asyncio.Queue[bytes]) -> None:
    # The reader finds that it is closed, too.
    with suppress(ConnectionClosed):
        while True:
            await connection.send(await unsent.get(), text=True)


async def _close(connection: ClientConnection) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS * 2):
            await connection.close()
    # The closing handshake has no end of its own if the other side takes nothing.
    except TimeoutError:
        connection.transport.abort()
