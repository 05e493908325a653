"""What a request is answered with: a stream that reads a turn's log, or one plain sentence."""

import asyncio
import time
from typing import Final

from msgspec import Struct
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from usechat.errors import RequestError
from usechat.protocol.sse import DONE, KEEP_ALIVE
from usechat.server.metrics import Metrics
from usechat.stores import TurnLog
from usechat.turns import Turn

__all__ = ["STREAM_HEADERS", "StreamLimits", "TurnResponse", "plain_error"]

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


class StreamLimits(Struct, frozen=True):
    """When to keep a silent stream alive, and when to give up a reader that does not read.

    A reader that is more than `behind` bytes late and makes no progress for `patience` seconds is cut off.
    """

    keep_alive: float = 15.0
    behind: int = 1024 * 1024
    patience: float = 30.0


class TurnResponse(Response):
    """Sends `first`, then the turn's frames after `after`, and follows the turn to its end."""

    def __init__(
        self, turn: Turn, limits: StreamLimits, metrics: Metrics, *, first: bytes = b"", after: int = 0
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [*_RAW_HEADERS, (b"x-usechat-turn", turn.log.turn.encode())]
        self._turn = turn
        self._first = first
        self._after = self._cursor = after
        self._read = sum(map(len, turn.log.frames[:after]))
        self._limits = limits
        self._metrics = metrics
        self._made = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._turn.attach()
        self._metrics.stream_opened()
        pace = _Pace(self._turn.log, self._limits)
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: pace.leave())
        try:
            await self._follow(send, pace)
        except asyncio.CancelledError:
            if not pace.cut:
                raise
        finally:
            gone.cancel()
            pace.close()
            self._turn.detach()
            self._metrics.stream_closed()
            self._metrics.sent(chunks=self._cursor - self._after, size=pace.sent)

    async def _follow(self, send: Send, pace: "_Pace") -> None:
        log, body = self._turn.log, b""
        for begin in range(0, len(self._first), _BATCH):
            await self._send(send, pace, self._first[begin : begin + _BATCH], more=True)
        while not pace.left:
            body += self._next(log)
            if log.outcome is not None and self._cursor == len(log.frames):
                await self._send(send, pace, body + DONE, more=False)
                return
            if body:
                await self._send(send, pace, body, more=True)
                body = b""
            if self._cursor == len(log.frames) and await pace.changed():
                body = KEEP_ALIVE

    def _next(self, log: TurnLog) -> bytes:
        """Read on in the log: all that is there, or one batch of more."""
        is_short = log.size - self._read <= _BATCH
        end = len(log.frames) if is_short else _batch_end(log, self._cursor)
        frames = b"".join(log.frames[self._cursor : end])
        self._cursor = end
        self._read += len(frames)
        return frames

    async def _send(self, send: Send, pace: "_Pace", body: bytes, *, more: bool) -> None:
        if pace.sent == 0:
            self._metrics.first_byte_sent(time.monotonic() - self._made)
        await pace.send(send, body, more=more)


class _Pace:
    """The one timer of a stream, and what it waits for."""

    def __init__(self, log: TurnLog, limits: StreamLimits) -> None:
        self.left = False
        self.cut = False
        self._log = log
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._last = self._loop.time()
        self.sent = 0
        self._sending: float | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._subscribed = False
        self._timer = self._loop.call_later(limits.keep_alive, self._tick)

    async def send(self, send: Send, body: bytes, *, more: bool) -> None:
        self._last = self._sending = self._loop.time()
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending = None
        self.sent += len(body)
        if len(body) >= _BATCH:
            # A send that does not wait would keep the neighbours waiting.
            await asyncio.sleep(0)

    async def changed(self) -> bool:
        """Wait for the log to change; True if only time has passed."""
        if self.left:
            # Whoever left while something was sent has woken nobody.
            return False
        self._waiter = self._loop.create_future()
        if not self._subscribed:
            self._subscribed = True
            self._log.call_when_changed(self._on_change)
        silent = await self._waiter
        self._waiter = None
        return silent

    def leave(self) -> None:
        self.left = True
        self._answer(silent=False)

    def close(self) -> None:
        self._timer.cancel()

    def _on_change(self) -> None:
        self._subscribed = False
        self._answer(silent=False)

    def _answer(self, *, silent: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(silent)

    def _tick(self) -> None:
        now = self._loop.time()
        due = self._last + self._limits.keep_alive
        if self._sending is not None:
            self._check_progress(self._sending)
        elif now >= due:
            self._answer(silent=True)
        # It comes when the silence has lasted so long, not at fixed times, between which it could last twice as long.
        self._timer = self._loop.call_at(due if due > now else now + self._limits.keep_alive, self._tick)

    def _check_progress(self, since: float) -> None:
        late = self._log.size - self.sent > self._limits.behind
        if late and self._loop.time() - since >= self._limits.patience and self._task is not None:
            self.cut = True
            self._task.cancel()


def _batch_end(log: TurnLog, cursor: int) -> int:
    end, size, frames = cursor, 0, log.frames
    while end < len(frames) and size < _BATCH:
        size += len(frames[end])
        end += 1
    return end


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def plain_error(error: RequestError) -> PlainTextResponse:
    """Make the response that says what was wrong, in the sentence that the client shows to its user."""
    headers = {"cache-control": "no-store", **_STATUS_HEADERS.get(error.status, {})}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return PlainTextResponse(str(error), status_code=error.status, headers=headers)
