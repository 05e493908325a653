"""Who sends the frames of a WebSocket."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from usechat.errors import RequestError
from usechat.server.bodies import VisibleHeaders

__all__ = ["Identify", "SocketUser"]

Identify: TypeAlias = Callable[[HTTPConnection], Awaitable[str | None]]

# A proxy vouches for the headers of a handshake, but it cannot see into frames: they may bring secrets, not claims.
_CREDENTIALS: Final = ("authorization", "x-api-key")


class SocketUser:
    """Who sends the frames of a socket."""

    def __init__(self, websocket: WebSocket, identify: Identify) -> None:
        self._websocket = websocket
        self._identify = identify
        self.is_known = False

    async def greet(self) -> None:
        # A page would not get to see why its handshake was refused; it does see the error of a frame.
        with suppress(RequestError):
            self.is_known = await self._identify(self._websocket) is not None

    async def user(self, headers: dict[str, str]) -> str | None:
        """The user of a frame. The handshake is asked again for each, since a session may end before its socket does.

        Raises:
            RequestError: Neither the handshake nor the frame has one.
        """
        own = {name.encode(): headers[name].encode("latin-1") for name in _CREDENTIALS if name in headers}
        try:
            return await self._identify(self._websocket)
        except RequestError:
            if not own:
                raise
        rest: list[tuple[bytes, bytes]] = self._websocket.scope["headers"]
        overlaid = [*own.items(), *(header for header in rest if header[0] not in own)]
        return await self._identify(HTTPConnection({**self._websocket.scope, "headers": overlaid}))

    def headers(self, headers: dict[str, str]) -> Mapping[str, str]:
        """What the agent gets: the headers of the handshake, and those that only the frame has."""
        own = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
        return VisibleHeaders((*own, *self._websocket.scope["headers"]))
