"""A turn as server-sent events: a response that follows the turn's log at the pace of its client.

Theory of operation
-------------------
A `TurnResponse` is *sending* while the server takes bytes, *waiting* while the log has none for it, and *over* when the
turn has ended, the client has left or the client was cut off. All of this happens in the event loop.

`_run` alternates: it takes what the log has, and sends it. The log calls `_wake` at every change. `_run` clears
`_is_awake` before it looks into the log, so it misses no change.

Backpressure. A server takes all bytes of one `send`, however many; only the next `send` waits for the client to read.
So a long body is sent in pieces of 64 KiB. `Reader.in_flight` counts the bytes that were taken from the log and not yet
taken by the server, and `since` is when the server was last given any. When it has taken all of them,
`TurnLog.wake_drain` wakes the agents that wait for their readers.

Each response has one timer, `_tick`. After `keep_alive` seconds of silence it lets `_run` send a comment. A client is
*late* if bytes are in flight and either more than `behind` bytes are left for it, or its turn has ended. A late client
that takes nothing for `patience` seconds is cut off: the response leaves the log, so that it holds nothing back and its
turn may end. The task is cancelled `farewell` seconds later. If the client reads again before that and its turn ended
with an error, the client gets the turn's last frame.

`SlowReaders` bounds what a process holds for all of its clients together. A response registers when more than `behind`
bytes are in flight, or when its log grows while bytes are in flight, until the server has taken everything. While the
total is above its bound, the responses that have stood still for longest are given up, without a farewell.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from usechat.alarms import alarm_at
from usechat.protocol.sse import DONE, KEEP_ALIVE
from usechat.server.metrics import Metrics
from usechat.stores import Reader
from usechat.turns.settings import StreamLimits

__all__ = ["STREAM_HEADERS", "SlowReaders", "StreamLimits", "TurnResponse"]

STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
_RAW_HEADERS: Final = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
_BATCH: Final = 64 * 1024
# A response whose client has taken nothing for this many seconds may be given up.
_STANDS_STILL: Final = 0.5


class TurnResponse(Response):
    """Sends what the reader of a turn has to read, and follows the turn to its end.

    `arrived` is when the request did, by the monotonic clock. `slow` counts what is held for this client and others.
    """

    def __init__(
        self,
        reader: Reader,
        limits: StreamLimits,
        metrics: Metrics,
        arrived: float | None = None,
        slow: "SlowReaders | None" = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            *_RAW_HEADERS,
            (b"x-usechat-turn", reader.log.turn.encode()),
            (b"x-usechat-keep-alive", f"{limits.keep_alive:g}".encode()),
        ]
        self.since = 0.0
        self._reader = reader
        self._limits = limits
        self._metrics = metrics
        self._slow = slow
        self._arrived = time.monotonic() if arrived is None else arrived
        self._sent = 0
        self._is_over = self._is_cut = self._is_held = self._is_awake = False
        self._waiter: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, metrics, first = self._reader, self._metrics, self._reader.cursor
        metrics.stream_opened()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # They are sent, and would be kept as long as the client reads.
            del self.raw_headers
            self._begin(send)
            disconnected = asyncio.create_task(self._wait_for_disconnect(receive))
            try:
                await self._run()
                if self._is_cut:
                    await self._send_farewell()
            except asyncio.CancelledError:
                if not self._is_cut:
                    raise
            finally:
                disconnected.cancel()
                self._took_all()
                self._timer.cancel()
                reader.log.unwatch(self._wake)
        finally:
            reader.leave(is_cut=self._is_cut)
            metrics.stream_closed()
            metrics.sent(chunks=reader.cursor - first, size=self._sent)

    def give_up(self) -> None:
        """Cut the client off at once, without a farewell."""
        self._cut()
        if self._task is not None:
            self._task.cancel()

    def _begin(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.since = self._loop.time()
        self._timer = alarm_at(self._loop, self.since + min(self._limits.keep_alive, self._limits.patience), self._tick)
        self._reader.log.watch(self._wake)

    async def _run(self) -> None:
        # Every chunk of every client passes here: where nothing else is due, it costs one `take` and one `send`.
        reader, log, send, now = self._reader, self._reader.log, self._send, self._loop.time
        is_first = True
        while not self._is_over:
            self._is_awake = False
            body = reader.take(_BATCH)
            if log.outcome is not None and reader.ended:
                await self._send_all(body + DONE, more=False)
                self._is_over = True
            elif not body:
                if now() >= self.since + self._limits.keep_alive:
                    await self._send_piece(KEEP_ALIVE, len(KEEP_ALIVE), more=True)
            elif (size := len(body)) < _BATCH:
                reader.in_flight, self.since = size, now()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                reader.in_flight = 0
                self._sent += size
                if self._is_held or log.drain_waiters:
                    self._took_all()
            else:
                self._is_awake = True
                await self._send_all(body, more=True)
            if is_first:
                is_first = False
                self._metrics.first_byte_sent(time.monotonic() - self._arrived)
            if not self._is_awake and not self._is_over:
                # It is not kept while nothing comes.
                del body
                self._waiter = self._loop.create_future()
                await self._waiter

    async def _send_all(self, body: bytes, *, more: bool) -> None:
        begin, end = 0, len(body)
        while end - begin > 2 * _BATCH and not self._is_over:
            await self._send_piece(body[begin : begin + _BATCH], end - begin, more=True)
            begin += _BATCH
        if not self._is_over:
            await self._send_piece(body[begin:], end - begin, more=more)
        self._took_all()

    async def _send_piece(self, piece: bytes, in_flight: int, *, more: bool) -> None:
        self._reader.in_flight, self.since = in_flight, self._loop.time()
        if in_flight > self._limits.behind:
            self._hold()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        self._reader.in_flight = in_flight - len(piece)
        self._sent += len(piece)
        if len(piece) >= _BATCH:
            # A send that does not wait would keep other requests waiting.
            await asyncio.sleep(0)

    async def _send_farewell(self) -> None:
        """Send a client that reads again the error by which its turn ended, if it ended by cutting the client off."""
        log = self._reader.log
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.farewell):
                while log.outcome is None:
                    await log.changed()
        if log.outcome == "error":
            await self._send_piece(last := log.frames[-1] + DONE, len(last), more=False)

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._is_over = True
        self._wake()

    def _cut(self) -> None:
        self._is_cut = True
        self._leave()
        self._reader.leave(is_cut=True)

    def _hold(self) -> None:
        if self._slow is not None:
            self._is_held = True
            self._slow.hold(self, self._reader.in_flight + self._reader.unread)

    def _took_all(self) -> None:
        self._reader.in_flight = 0
        self._reader.log.wake_drain()
        if self._is_held and self._slow is not None:
            self._is_held = False
            self._slow.release(self)

    def _wake(self) -> None:
        self._is_awake = True
        if self._reader.in_flight and not self._is_over:
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
        # It is set for the moment at which the silence is too long; at fixed times, it could last twice as long.
        self._timer = alarm_at(self._loop, due, self._tick)

    @property
    def _patience(self) -> float:
        return self._limits.farewell if self._is_cut else self._limits.patience

    def _check_progress(self, now: float) -> None:
        reader = self._reader
        is_late = reader.in_flight + reader.unread > self._limits.behind or reader.log.outcome is not None
        if is_late and not self._is_cut and now >= self.since + self._patience:
            self.since = now
            self._cut()
        if self._is_cut and now >= self.since + self._patience and self._task is not None:
            self._task.cancel()


class SlowReaders:
    """Counts the bytes that clients have left to read, and gives up those that stand still once there are too many.

    `is_crowded` says that others wait for what is held here; then one of those that stand still goes at a time, also
    below the bound.
    """

    def __init__(self, most: int, is_crowded: Callable[[], bool]) -> None:
        self._most = most
        self._is_crowded = is_crowded
        self._held: dict[TurnResponse, int] = {}
        self._total = 0
        self._check: asyncio.TimerHandle | None = None

    def hold(self, response: TurnResponse, size: int) -> None:
        """Count `size` bytes for the response, in place of what counted for it before, until `release`."""
        self._total += size - self._held.get(response, 0)
        self._held[response] = size
        self._schedule()

    def release(self, response: TurnResponse) -> None:
        self._total -= self._held.pop(response, 0)

    def _schedule(self) -> None:
        if self._held and self._check is None:
            self._check = asyncio.get_running_loop().call_later(_STANDS_STILL, self._give_up)

    def _give_up(self) -> None:
        self._check = None
        latest = asyncio.get_running_loop().time() - _STANDS_STILL
        is_crowded = self._is_crowded()
        for response in sorted(self._held, key=lambda response: response.since):
            if response.since > latest or not (is_crowded or self._total > self._most):
                break
            is_crowded = False
            self.release(response)
            response.give_up()
        self._schedule()
