"""The WebSocket of a chat: many requests on one socket, each of them a reader of its turn's log.

Theory of operation
-------------------
A socket has three kinds of tasks, all in one event loop. `_read` takes frames. Only `_write` sends them. Each request
has a task that begins or finds its turn. Nothing cancels that task, because a turn that began only half would not end;
`run` waits for it after the socket is closed.

A request is

- *beginning* while its task claims a turn or looks for one;
- *ready*, in `_ready`, when its log has frames for it. `_write` sends notices first, then 16 KiB of each ready request
  in turn;
- *waiting* when it has sent everything; the next change of its log makes it ready again;
- *over* when its turn has ended, it was refused, the client aborted it or the socket is closed. It has left
  `_requests`, and leaves its turn's log, as soon as it has one.

An abort stops the turn. The turn of a *send* is stopped at once, even if it has not begun. The turn of a *resume* is
stopped after `abort_delay` seconds, because a page that resumes again aborts its earlier resume and means to stop
nothing. Until then the request reads its log and is in `_stopping`. The next request of the same chat takes it from
there: a resume cancels the stop, a send waits for it. When the socket closes, the stops in `_stopping` happen at once,
and all other turns linger. Stops outlive their socket; `ChatSockets` holds their tasks.

Chunks are numbered within a request. For each of the last 64 chats, `_seen` maps the numbers of its last request to
chunks of a turn. A resume with `lastSequence` continues after the chunk with that number. If this socket has not sent
the number for the running turn, the client gets `no-active`.

Backpressure. `_write` sends one frame at a time, and `_sending` is when the current send began. `_watch` runs every
`keep_alive` seconds. It cancels the writer, which closes the socket, if a send takes `patience` seconds or more while
more than `behind` bytes are unread or all turns have ended. More than 256 unsent notices also close the socket.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import Struct
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from usechat.errors import RequestError
from usechat.protocol.requests import Limits
from usechat.protocol.websocket import (
    ClientFrame,
    chunk_frame,
    chunk_opening,
    notice,
    open_frame,
    read_headers,
    read_resume,
    read_send,
)
from usechat.server.chats import Chats
from usechat.server.metrics import Metrics
from usechat.server.origins import origin_allowed
from usechat.server.requests import VisibleHeaders, address_of, check_body, refusal
from usechat.server.responses import StreamLimits
from usechat.stores import Reader
from usechat.turns.pending import PendingTurn

__all__ = ["ChatSockets", "Identify", "SocketRequest"]

Identify: TypeAlias = Callable[[HTTPConnection], Awaitable[str | None]]

# Each frame is a send of its own, and costs as much time as the one send of a whole batch of events.
_BATCH: Final = 16 * 1024
_MAX_REQUESTS: Final = 64
_MAX_NOTICES: Final = 256
_ABORT_DELAY: Final = 1.0
# The client opens its socket when it has something to send.
_FIRST_REQUEST: Final = 30.0
# A proxy vouches for the headers of a handshake, but it cannot see into frames: they may bring secrets, not claims.
_CREDENTIALS: Final = ("authorization", "x-api-key")


class ChatSockets:
    """Serves chats over WebSockets. `identify` returns the user of a connection, or raises if there is none.

    The user of the handshake is the user of all frames, as long as `identify` still finds one. Otherwise each frame
    brings its own. A socket without a user is closed if it makes no request within 30 seconds. The ASGI server keeps
    silent sockets alive with pings.
    """

    def __init__(
        self,
        chats: Chats,
        identify: Identify,
        limits: Limits,
        stream: StreamLimits,
        *,
        origins: Collection[str] = (),
        abort_delay: float = _ABORT_DELAY,
    ) -> None:
        self.chats = chats
        self.identify = identify
        self.limits = limits
        self.stream = stream
        self.origins = origins
        self.abort_delay = abort_delay
        self._stops: set[asyncio.Task[None]] = set()

    def spawn(self, stop: Coroutine[Any, Any, None]) -> None:
        """Let a stop go on after its socket is gone."""
        task = asyncio.create_task(stop)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve a socket until it is closed; a page of another origin gets 403."""
        if not origin_allowed(websocket, self.origins):
            await websocket.close()
            return
        is_known = False
        # A page cannot see why its handshake was refused; it does see the error of a frame.
        with suppress(RequestError):
            is_known = await self.identify(websocket) is not None
        # A browser gives up if the server takes none of the subprotocols that it offers; a token is not sent back.
        offered: list[str] = websocket.scope.get("subprotocols", [])
        await websocket.accept(next((name for name in offered if name and not name.startswith("bearer.")), None))
        await _Socket(self, websocket, None if is_known else _FIRST_REQUEST).run()


class _Seen(Struct, frozen=True):
    """The chunk with the sequence `s` is number `s + shift` of the turn's log, from the sequence `first` to `last`."""

    turn: str
    shift: int
    first: int
    last: int


class SocketRequest:
    """One request on a socket: a reader of its turn's log, and the sequence of the next chunk."""

    def __init__(self, request_id: str, chat_id: str, user: str | None, metrics: Metrics, *, resumes: bool) -> None:
        self.request_id = request_id
        self.chat_id = chat_id
        self.user = user
        self.resumes = resumes
        self.pending: PendingTurn | None = None
        self.reader: Reader | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._metrics = metrics
        self._arrived = time.monotonic()
        self._opening = chunk_opening(request_id)
        self._first = self._sequence = 0
        self._size = 0
        # How many frames of a replay come before those of the log.
        self._replayed = 0

    def follow(self, reader: Reader) -> None:
        self.reader = reader
        self._metrics.stream_opened()
        if self._is_closed:
            self._leave(reader)

    def follow_after(self, reader: Reader, seen: _Seen, last_sequence: int) -> None:
        """Go on after a chunk that the socket has sent before."""
        reader.seek(last_sequence + seen.shift)
        self._first = self._sequence = last_sequence + 1
        self.follow(reader)

    @property
    def seen(self) -> _Seen | None:
        if self.reader is None:
            return None
        last = self._sequence - 1
        return _Seen(self.reader.log.turn, self.reader.cursor - last, self._first + self._replayed, last)

    def next_frame(self, reader: Reader) -> str | None:
        """The frame to send next, or None if the log has none."""
        cursor = reader.cursor
        event = reader.take_frame()
        if not event:
            return None
        if self._size == 0:
            self._metrics.first_byte_sent(time.monotonic() - self._arrived)
        self._replayed += reader.cursor == cursor
        self._size += len(event)
        self._sequence += 1
        return chunk_frame(self._opening, self._sequence - 1, event)

    def close(self) -> None:
        """Leave the turn to its other readers, or to linger."""
        if self.timer is not None:
            self.timer.cancel()
        if self.reader is not None and not self._is_closed:
            self._leave(self.reader)
        self._is_closed = True

    def _leave(self, reader: Reader) -> None:
        reader.leave()
        self._metrics.stream_closed()
        self._metrics.sent(chunks=self._sequence - self._first, size=self._size)


class _Socket:
    def __init__(self, sockets: ChatSockets, websocket: WebSocket, first_request: float | None) -> None:
        self._sockets = sockets
        self._websocket = websocket
        self._loop = asyncio.get_running_loop()
        self._requests: dict[str, SocketRequest] = {}
        self._stopping: set[SocketRequest] = set()
        self._seen: dict[str, _Seen] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._notices: deque[str] = deque()
        self._ready: deque[SocketRequest] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.create_task(self._write())
        self._sending: float | None = None
        self._unyielded = 0
        self._deadline = asyncio.timeout(first_request)

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        self._watch()
        try:
            await asyncio.wait((reading, self._writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            self._writing.cancel()
            self._timer.cancel()
            for request in self._requests.values():
                request.close()
            for request in set(self._stopping):
                self._stop(request)
        await asyncio.gather(*self._beginning)
        for result in await asyncio.gather(reading, self._writing, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
            if isinstance(result, tuple):
                with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
                    async with asyncio.timeout(self._sockets.stream.patience):
                        await self._websocket.close(*result)

    def _watch(self) -> None:
        limits = self._sockets.stream
        is_stuck = self._sending is not None and self._loop.time() - self._sending >= limits.patience
        if is_stuck and self._is_late():
            self._writing.cancel()
        self._timer = self._loop.call_later(limits.keep_alive, self._watch)

    def _is_late(self) -> bool:
        readers = [request.reader for request in self._requests.values() if request.reader is not None]
        is_over = all(reader.log.outcome is not None for reader in readers)
        return is_over or sum(reader.unread for reader in readers) > self._sockets.stream.behind

    async def _read(self) -> tuple[int, str] | None:
        """Take frames until the client leaves. Returns the code and reason if the server should close the socket."""
        try:
            async with self._deadline:
                return await self._take_frames()
        except TimeoutError:
            return 1008, f"No request came within {_FIRST_REQUEST:g} seconds."

    async def _take_frames(self) -> tuple[int, str] | None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            if message.get("text") is None:
                return 1003, "Frames must be text."
            data = message["text"].encode()
            try:
                frame = open_frame(data)
            except RequestError as error:
                return 1008, str(error)
            await self._guarded(frame.request_id, self._take(frame, data))
            # While the ASGI server has more frames at hand, `receive` does not yield to the loop.
            await asyncio.sleep(0)
        return None

    async def _guarded(self, request_id: str, work: Awaitable[None]) -> None:
        try:
            await work
        # What goes wrong with one request must not affect the others of its socket.
        except Exception as problem:  # noqa: BLE001
            error = refusal(problem)
            self._sockets.chats.metrics.request_refused(error.status)
            self._end(request_id, notice("error", request_id, str(error)))

    async def _take(self, frame: ClientFrame, data: bytes) -> None:
        if frame.type == "abort":
            self._abort(frame.request_id)
            return
        if frame.type not in ("send", "resume"):
            raise RequestError("type must be one of send, resume, abort.")
        if frame.request_id in self._requests:
            raise RequestError("requestId must not be that of a request that is still open.")
        if len(self._requests) >= _MAX_REQUESTS:
            raise RequestError("Too many requests are open on this socket.", status=429)
        chats, limits, headers = self._sockets.chats, self._sockets.limits, read_headers(frame)
        user = await self._user(headers)
        self._deadline.reschedule(None)
        if frame.type == "send":
            await check_body(data, limits)
            asked = read_send(data, limits, checked=True)
            request = SocketRequest(frame.request_id, asked.id, user, chats.metrics, resumes=False)
            # The agent gets the headers of the handshake, and those that only the frame has.
            own = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
            visible = VisibleHeaders((*own, *self._websocket.scope["headers"]))
            request.pending = chats.pending(asked, user, visible, address=address_of(self._websocket))
            self._spawn(request, self._begin(request, request.pending, self._take_stopping(asked.id)))
        else:
            chat_id, last_sequence = read_resume(frame)
            request = SocketRequest(frame.request_id, chat_id, user, chats.metrics, resumes=True)
            self._spawn(request, self._resume(request, last_sequence, self._take_stopping(chat_id)))

    async def _user(self, headers: dict[str, str]) -> str | None:
        """The user of a frame. Each frame checks the handshake again, because a login may end before its socket.

        Raises:
            RequestError: Neither the handshake nor the frame has a user.
        """
        websocket, identify = self._websocket, self._sockets.identify
        own = {name.encode(): headers[name].encode("latin-1") for name in _CREDENTIALS if name in headers}
        try:
            return await identify(websocket)
        except RequestError:
            if not own:
                raise
        rest: list[tuple[bytes, bytes]] = websocket.scope["headers"]
        overlaid = [*own.items(), *(header for header in rest if header[0] not in own)]
        return await identify(HTTPConnection({**websocket.scope, "headers": overlaid}))

    def _spawn(self, request: SocketRequest, work: Awaitable[None]) -> None:
        self._requests[request.request_id] = request
        task = asyncio.create_task(self._guarded(request.request_id, work))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, request: SocketRequest, pending: PendingTurn, replaced: set[SocketRequest]) -> None:
        chats = self._sockets.chats
        for other in replaced:
            other.close()
            if other.reader is not None:
                await chats.stop(other.chat_id, other.user, other.reader.log.turn)
        request.follow(await chats.open(pending))
        self._push(request)

    async def _resume(self, request: SocketRequest, last_sequence: int | None, replaced: set[SocketRequest]) -> None:
        try:
            found = await self._follow(request, last_sequence)
        finally:
            for other in replaced:
                other.close()
        if not found:
            self._end(request.request_id, notice("no-active", request.request_id))
            return
        self._notify(notice("start", request.request_id))
        self._push(request)

    async def _follow(self, request: SocketRequest, last_sequence: int | None) -> bool:
        """Read the chat's turn: after a chunk that this very socket has sent, or from its beginning."""
        chats = self._sockets.chats
        if last_sequence is None:
            reader = await chats.follow(request.chat_id, request.user)
            if reader is not None:
                request.follow(reader)
            return reader is not None
        head = await chats.live(request.chat_id, request.user)
        seen = None if head is None else self._find_seen(head.turn, request.chat_id, last_sequence)
        reader = None if seen is None else await chats.follow(request.chat_id, request.user, seen.turn)
        if seen is None or reader is None:
            return False
        request.follow_after(reader, seen, last_sequence)
        return True

    def _find_seen(self, turn: str, chat_id: str, sequence: int) -> _Seen | None:
        still_open = (request.seen for request in self._requests.values() if request.chat_id == chat_id)
        for seen in (*still_open, self._seen.get(chat_id)):
            if seen is not None and seen.turn == turn and seen.first - 1 <= sequence <= seen.last:
                return seen
        return None

    def _abort(self, request_id: str) -> None:
        request = self._pop(request_id)
        if request is None:
            return
        if request.resumes:
            self._stopping.add(request)
            request.timer = self._loop.call_later(self._sockets.abort_delay, self._stop, request)
        else:
            self._stop(request)

    def _stop(self, request: SocketRequest) -> None:
        self._stopping.discard(request)
        if request.pending is not None:
            request.pending.stopped = "stopped"
        request.close()
        if request.reader is not None:
            stop = self._sockets.chats.stop(request.chat_id, request.user, request.reader.log.turn)
            self._sockets.spawn(stop)

    def _take_stopping(self, chat_id: str) -> set[SocketRequest]:
        taken = {request for request in self._stopping if request.chat_id == chat_id}
        self._stopping -= taken
        return taken

    def _end(self, request_id: str, last: str) -> None:
        request = self._pop(request_id)
        if request is not None:
            request.close()
        self._notify(last)

    def _pop(self, request_id: str) -> SocketRequest | None:
        request = self._requests.pop(request_id, None)
        if request is not None and (seen := request.seen) is not None:
            self._seen.pop(request.chat_id, None)
            self._seen[request.chat_id] = seen
            if len(self._seen) > _MAX_REQUESTS:
                del self._seen[next(iter(self._seen))]
        return request

    def _notify(self, frame: str) -> None:
        self._notices.append(frame)
        self._wake.set()
        if len(self._notices) > _MAX_NOTICES:
            self._writing.cancel()

    def _push(self, request: SocketRequest) -> None:
        self._ready.append(request)
        self._wake.set()

    async def _write(self) -> None:
        with suppress(WebSocketDisconnect):
            while await self._wake.wait():
                self._wake.clear()
                while self._notices or self._ready:
                    if self._notices:
                        await self._send(self._notices.popleft())
                    else:
                        await self._advance(self._ready.popleft())

    async def _advance(self, request: SocketRequest) -> None:
        reader, sent = request.reader, 0
        while reader is not None and self._requests.get(request.request_id) is request:
            frame = request.next_frame(reader) if sent < _BATCH else None
            if frame is None:
                self._rest(request, reader)
                return
            await self._send(frame)
            sent += len(frame)

    def _rest(self, request: SocketRequest, reader: Reader) -> None:
        if reader.ended:
            self._end(request.request_id, notice("end", request.request_id))
        elif reader.unread:
            self._ready.append(request)
        else:
            reader.log.call_when_changed(partial(self._push, request))

    async def _send(self, frame: str) -> None:
        self._sending = self._loop.time()
        try:
            await self._websocket.send_text(frame)
        except RuntimeError:
            # uvicorn raises it if it has closed the socket because the client did not respond to a ping.
            raise WebSocketDisconnect(1006) from None
        self._sending = None
        self._unyielded += len(frame)
        if self._unyielded >= _BATCH:
            self._unyielded = 0
            await asyncio.sleep(0)
