"""What a request is answered with: a stream that reads a turn's log, or one plain sentence."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from usechat.alarms import alarm_at
from usechat.errors import RequestError
from usechat.protocol.sse import DONE, KEEP_ALIVE
from usechat.server.metrics import Metrics
from usechat.server.slow_readers import SlowReaders
from usechat.server.stream_limits import StreamLimits
from usechat.stores import Reader

__all__ = ["STREAM_HEADERS", "StreamLimits", "TurnResponse", "json_error", "plain_error"]

STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
_RAW_HEADERS: Final = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
_BATCH: Final = 64 * 1024
_STATUS_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    # Else the server would keep the connection for whoever goes on dripping.
    408: {"connection": "close"},
}
_CODES: Final = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "TOO_MANY_REQUESTS",
    500: "INTERNAL_ERROR",
    502: "BAD_GATEWAY",
    503: "SERVICE_UNAVAILABLE",
}


class TurnResponse(Response):
    """Sends what a reader of a turn has to read, and follows the turn to its end; the request `arrived` before.

    `slow` counts what is held for it and for others.
    """

    def __init__(
        self,
        reader: Reader,
        limits: StreamLimits,
        metrics: Metrics,
        arrived: float | None = None,
        slow: SlowReaders | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            *_RAW_HEADERS,
            (b"x-usechat-turn", reader.log.turn.encode()),
            (b"x-usechat-keep-alive", f"{limits.keep_alive:g}".encode()),
        ]
        self._reader = reader
        self._limits = limits
        self._metrics = metrics
        self._slow = slow
        self._arrived = time.monotonic() if arrived is None else arrived

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, metrics, sent, is_cut = self._reader, self._metrics, 0, False
        first = reader.cursor
        metrics.stream_opened()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            stream = _Stream(reader, self._limits, send, self._slow)
            gone = asyncio.create_task(_wait_for_disconnect(receive, stream))
            try:
                await stream.run(self._began)
                if stream.is_cut:
                    await stream.tell_cut()
            except asyncio.CancelledError:
                if not stream.is_cut:
                    raise
            finally:
                sent, is_cut = stream.sent, stream.is_cut
                gone.cancel()
                stream.close()
        finally:
            reader.leave(is_cut=is_cut)
            metrics.stream_closed()
            metrics.sent(chunks=reader.cursor - first, size=sent)

    def _began(self) -> None:
        self._metrics.first_byte_sent(time.monotonic() - self._arrived)


class _Stream:
    """What a response sends, and its one timer.

    It is *sending* while the server takes bytes, *waiting* while the log has none, and *over* when the turn has ended,
    the client has left, or a client that does not read was cut.
    """

    __slots__ = (
        "_is_awake",
        "_is_held",
        "_limits",
        "_loop",
        "_reader",
        "_send",
        "_slow",
        "_task",
        "_timer",
        "_waiter",
        "is_cut",
        "is_over",
        "sent",
        "since",
    )

    def __init__(self, reader: Reader, limits: StreamLimits, send: Send, slow: SlowReaders | None) -> None:
        self.is_over = False
        self.is_cut = False
        self.sent = 0
        self._reader = reader
        self._limits = limits
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        # When the server was given any bytes the last time; those that it has not taken are the reader's `in_flight`.
        self.since = self._loop.time()
        self._slow = slow
        self._is_held = False
        self._is_awake = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer = alarm_at(self._loop, self.since + min(limits.keep_alive, limits.patience), self._tick)
        reader.log.watch(self._wake)

    async def run(self, began: Callable[[], None] | None) -> None:
        """Send all that is there and all that comes, until it is over; `began` is called after the first bytes.

        Every chunk of every client takes this way: where nothing else is to be done it calls `take` and `send` only.
        """
        reader, log, send, now = self._reader, self._reader.log, self._send, self._loop.time
        while not self.is_over:
            # Whatever comes after it was asked wakes the stream again.
            self._is_awake = False
            body = reader.take(_BATCH)
            if log.outcome is not None and reader.ended:
                await self._send_all(body + DONE, more=False)
                self.leave()
            elif not body:
                await self._break_silence()
            elif (size := len(body)) < _BATCH:
                reader.in_flight, self.since = size, now()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                reader.in_flight = 0
                self.sent += size
                if self._is_held or log.crowd:
                    self._took_all()
            else:
                self._is_awake = True
                await self._send_all(body, more=True)
            if began is not None:
                began()
                began = None
            if not self._is_awake:
                # It is not kept while nothing comes.
                del body
                self._waiter = self._loop.create_future()
                await self._waiter

    async def tell_cut(self) -> None:
        """Tell a client that reads again that it was cut off, if its turn ends by that."""
        log = self._reader.log
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.farewell):
                while log.outcome is None:
                    await log.changed()
        if log.outcome == "error":
            await self._send_piece(last := log.frames[-1] + DONE, len(last), more=False)

    def leave(self) -> None:
        self.is_over = True
        self._wake()

    def give_up(self) -> None:
        """End it at once, without a word."""
        self.is_cut = True
        self.leave()
        self._reader.leave(is_cut=True)
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        self._took_all()
        self._timer.cancel()
        self._reader.log.unwatch(self._wake)

    async def _send_all(self, body: bytes, *, more: bool) -> None:
        # A server takes in what one send gives it, however much, and only the next one waits for the client.
        begin, end = 0, len(body)
        while end - begin > 2 * _BATCH and not self.is_over:
            await self._send_piece(body[begin : begin + _BATCH], end - begin, more=True)
            begin += _BATCH
        if not self.is_over:
            await self._send_piece(body[begin:], end - begin, more=more)
        self._took_all()

    async def _send_piece(self, piece: bytes, in_flight: int, *, more: bool) -> None:
        self._reader.in_flight, self.since = in_flight, self._loop.time()
        if in_flight > self._limits.behind:
            self._hold()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        self._reader.in_flight = in_flight - len(piece)
        self.sent += len(piece)
        if len(piece) >= _BATCH:
            # A send that does not wait would keep the neighbours waiting.
            await asyncio.sleep(0)

    async def _break_silence(self) -> None:
        if self._loop.time() >= self.since + self._limits.keep_alive:
            await self._send_piece(KEEP_ALIVE, len(KEEP_ALIVE), more=True)

    def _hold(self) -> None:
        if self._slow is not None:
            self._is_held = True
            self._slow.hold(self, self._reader.in_flight + self._reader.unread)

    def _took_all(self) -> None:
        self._reader.in_flight = 0
        self._reader.log.made_room()
        if self._is_held and self._slow is not None:
            self._is_held = False
            self._slow.release(self)

    def _wake(self) -> None:
        self._is_awake = True
        if self._reader.in_flight:
            self._hold()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _tick(self) -> None:
        now, limits = self._loop.time(), self._limits
        due = self.since + limits.keep_alive
        if self._reader.in_flight:
            self._check_progress(now)
            due = self.since + self._patience
            if due <= now:
                due = now + min(limits.keep_alive, limits.patience)
        elif now >= due:
            self._wake()
            due = now + limits.keep_alive
        # It comes when the silence has lasted so long, not at fixed times, between which it could last twice as long.
        self._timer = alarm_at(self._loop, due, self._tick)

    @property
    def _patience(self) -> float:
        return self._limits.farewell if self.is_cut else self._limits.patience

    def _check_progress(self, now: float) -> None:
        reader = self._reader
        # Of a turn that has ended nothing more can come, so that there is nothing to wait for but the client.
        is_late = reader.in_flight + reader.unread > self._limits.behind or reader.log.outcome is not None
        if is_late and not self.is_cut and now >= self.since + self._patience:
            self.is_cut, self.since = True, now
            self.leave()
            reader.leave(is_cut=True)
        if self.is_cut and now >= self.since + self._patience and self._task is not None:
            self._task.cancel()


async def _wait_for_disconnect(receive: Receive, stream: _Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.leave()


def plain_error(error: RequestError) -> Response:
    """Make the response that says what was wrong, in the sentence that the client shows to its user."""
    return PlainTextResponse(str(error), status_code=error.status, headers=_error_headers(error))


def json_error(error: RequestError) -> Response:
    """The same as JSON, with a code for programs."""
    content = {"error": str(error), "code": _CODES.get(error.status, "ERROR")}
    return JSONResponse(content, status_code=error.status, headers=_error_headers(error))


def _error_headers(error: RequestError) -> dict[str, str]:
    headers = {"cache-control": "no-store", **_STATUS_HEADERS.get(error.status, {})}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers
