"""Serves an app for a command: its socket, its log, its signals and the settings of uvicorn."""

import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

import uvicorn
from starlette.types import ASGIApp
from uvicorn import Config

from usechat.cli.logs import logging_config
from usechat.cli.settings import ListenSettings, LogFormat, ServeError

__all__ = ["Server", "configure", "cors_hint", "listen", "serve"]

# A client that does not read would keep its response open for ever.
_LAST_SENDS: Final = 3
# How much the system takes in for a client before it has sent what it has.
_UNSENT: Final = 128 * 1024
# Every so many ticks of uvicorn, which are a tenth of a second apart: 10 seconds.
_SWEEP_TICKS: Final = 100


class Server(uvicorn.Server):
    """Aborts connections that it has closed and whose clients read nothing more for 10 to 20 seconds.

    uvicorn would keep such a connection, with what it has still to send, for as long as the client does.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # What each closed connection had still to send when we last looked.
        self._unsent: dict[Any, int] = {}

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            self._sweep()
        return await super().on_tick(counter)

    def _sweep(self) -> None:
        connections: set[Any] = self.server_state.connections
        closed = {each: each.transport.get_write_buffer_size() for each in connections if each.transport.is_closing()}
        for connection, unsent in closed.items():
            if self._unsent.get(connection) == unsent:
                connection.transport.abort()
        self._unsent = closed


def listen(settings: ListenSettings) -> socket.socket:
    """Listen where the settings say.

    Raises:
        ServeError: That is not possible.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServeError(
                f"The port {settings.port} of {settings.host} is taken. Choose another with --port or USECHAT_PORT."
            ) from error
        raise ServeError(f"The server cannot listen at {settings.host}: {error.strerror}.") from error
    # Its connections inherit it. asyncio, unlike uvloop, does not set it for them, and a small frame would wait until
    # the client has acknowledged the one before, which takes 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Else the system takes in megabytes for a slow client, and tells of progress only when a third of them is gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
    return listener


def serve(app: ASGIApp, settings: ListenSettings, listener: socket.socket) -> None:
    """Serve the app until a signal comes."""
    # uvicorn raises the signal that ended it once more, for whoever handled it before.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    Server(configure(app, settings.log_format, root_path=settings.root_path)).run(sockets=[listener])


def configure(app: ASGIApp | Callable[[], ASGIApp], log_format: LogFormat, **options: Any) -> Config:
    """The settings of uvicorn, with these beside ours."""
    if log_format == "json":
        logging.captureWarnings(capture=True)
    return Config(
        app,
        http="httptools",
        # Compressing each small frame costs more than it saves.
        ws_per_message_deflate=False,
        # Proxies that cut a silent connection wait 20 seconds or more.
        ws_ping_interval=15.0,
        log_config=logging_config(log_format),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_LAST_SENDS,
        **options,
    )


def cors_hint(settings: ListenSettings) -> str:
    """The line of a banner for whoever has a page of another origin and has not said so."""
    return "" if settings.cors else "Pages of another origin need --cors, such as --cors http://localhost:3000.\n"


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)
