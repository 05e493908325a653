"""Serves an app with uvicorn: its socket, its log, its signals and its settings."""

import errno
import json
import logging
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.config import LOGGING_CONFIG

from usechat.cli.options import ListenSettings, LogFormat, ServeError

__all__ = ["JsonFormatter", "Server", "configure", "listen", "serve"]

# Seconds that responses get to end. A client that does not read would keep its response open for ever.
_LAST_SENDS: Final = 3
# Bytes that the system buffers for a client before it has sent them.
_UNSENT: Final = 128 * 1024
# uvicorn ticks every 0.1 s, so this is 10 s.
_SWEEP_TICKS: Final = 100
_LOGGERS: Final = {**LOGGING_CONFIG["loggers"], "usechat": {"handlers": ["default"], "level": "INFO"}}


class Server(uvicorn.Server):
    """Aborts connections that it has closed and whose clients have read nothing for 10 to 20 seconds.

    uvicorn alone keeps such a connection and its unsent bytes for as long as the client keeps it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # How many bytes each closed connection had left to send at the last sweep.
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
    """Open the socket.

    Raises:
        ServeError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServeError(
                f"Port {settings.port} of {settings.host} is in use. Choose another with --port or USECHAT_PORT."
            ) from error
        raise ServeError(f"The server cannot listen at {settings.host}: {error.strerror}.") from error
    # Connections inherit it. asyncio, unlike uvloop, does not set it for them, and without it a small frame waits up to
    # 40 ms for the client to acknowledge the frame before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Without it the system buffers megabytes for a slow client, and reports progress only when a third is gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
    return listener


def serve(app: ASGIApp, listener: socket.socket, log_format: LogFormat = "text", *, root_path: str = "") -> None:
    """Serve the app until a signal comes."""
    server = Server(configure(app, log_format, root_path=root_path))
    # uvicorn sets this handler only when its loop runs. One that raised until then would lose the signal whenever it
    # interrupts a finalizer or the callback of a weak reference, as there are many while the loop is imported.
    previous = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def configure(app: ASGIApp | Callable[[], ASGIApp], log_format: LogFormat, **options: Any) -> Config:
    """The settings of uvicorn: ours, and these options."""
    if log_format == "json":
        logging.captureWarnings(capture=True)
    return Config(
        app,
        http="httptools",
        # To compress each small frame costs more than it saves.
        ws_per_message_deflate=False,
        # Proxies cut connections that are silent for 20 seconds or more.
        ws_ping_interval=15.0,
        log_config=_logging_config(log_format),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_LAST_SENDS,
        **options,
    )


def _logging_config(form: LogFormat) -> dict[str, Any]:
    if form == "text":
        return {**LOGGING_CONFIG, "loggers": _LOGGERS}
    formatters = {name: {"()": JsonFormatter} for name in LOGGING_CONFIG["formatters"]}
    # Other packages log to the root, and their lines must be JSON as well.
    root = {"handlers": ["default"], "level": "WARNING"}
    loggers = {name: {**logger, "propagate": False} for name, logger in _LOGGERS.items()}
    return {**LOGGING_CONFIG, "formatters": formatters, "loggers": loggers, "root": root}


class JsonFormatter(logging.Formatter):
    """One JSON object per line. The `fields` of a record stand beside its message."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII only: some readers take other characters, such as U+2028, for the end of a line.
        return json.dumps(line)
