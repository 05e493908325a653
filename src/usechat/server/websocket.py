"""The WebSocket of a chat: many requests on one socket, each of them a reader of its turn's log."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from usechat.errors import RequestError
from usechat.protocol.requests import Limits, check_cost
from usechat.protocol.websocket import (
    ClientFrame,
    notice,
    open_frame,
    read_headers,
    read_resume,
    read_send,
)
from usechat.server.bodies import address_of, breathe
from usechat.server.chats import ChatOpening, Chats
from usechat.server.origins import origin_allowed
from usechat.server.responses import StreamLimits
from usechat.server.websocket_answer import Answer, SeenChats
from usechat.server.websocket_user import Identify, SocketUser
from usechat.stores import Reader

__all__ = ["ChatSockets", "Identify"]

_log = logging.getLogger("usechat")

# Each frame is a send of its own, which costs as much time as the one send of a whole batch of events.
_BATCH: Final = 16 * 1024
_MAX_REQUESTS: Final = 64
_MAX_NOTICES: Final = 256
# A page that resumes anew aborts the resume before it, and means to stop nothing by that.
_ABORT_DELAY: Final = 1.0
# The client opens its socket when it has something to send.
_FIRST_REQUEST: Final = 30.0


class ChatSockets:
    """Serves chats over WebSockets. `identify` gives the user of a connection, or raises the error for one without.

    The user of the handshake is the user of all its frames, as long as `identify` still finds one; if not, each frame
    is asked for its own. A socket without a user that makes no request within 30 seconds is closed. To keep silent
    sockets alive is the part of the ASGI server, by pings.
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
        """Let a stop go on, also when its socket is gone."""
        task = asyncio.create_task(stop)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def serve(self, websocket: WebSocket) -> None:
        """Answer the frames of a socket until it is closed; one from a page of another origin is refused with 403."""
        if not origin_allowed(websocket, self.origins):
            await websocket.close()
            return
        user = SocketUser(websocket, self.identify)
        await user.greet()
        # A browser gives up if none of the subprotocols that it offers is taken; a token is not sent back.
        offered: list[str] = websocket.scope.get("subprotocols", [])
        await websocket.accept(next((name for name in offered if name and not name.startswith("bearer.")), None))
        await _Socket(self, websocket, user).run()


class _Socket:
    """Reads frames, and answers them by one writer that takes turns between the requests that have something ready.

    A request is *beginning* while its turn is claimed or looked for, in a task of its own; then it is *ready* when its
    reader has something, and waits for its turn's log otherwise. It ends with its turn, or with an error. An abort
    takes it out at once, and its turn is stopped beside: at once if the request sent a message, and a moment later if
    it resumed, since a page that resumes anew aborts the resume before it and means to stop nothing. Sequences count
    within this socket: what a request has sent is remembered when it is over, so that a resume can go on after it.
    """

    def __init__(self, sockets: ChatSockets, websocket: WebSocket, user: SocketUser) -> None:
        self._sockets = sockets
        self._websocket = websocket
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, Answer] = {}
        self._stopping: set[Answer] = set()
        self._seen = SeenChats(_MAX_REQUESTS)
        self._beginning: set[asyncio.Task[None]] = set()
        self._notices: deque[str] = deque()
        self._ready: deque[Answer] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.create_task(self._write())
        self._sending: float | None = None
        self._unyielded = 0
        self._deadline = asyncio.timeout(None if user.is_known else _FIRST_REQUEST)

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        self._watch()
        try:
            await asyncio.wait((reading, self._writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            self._writing.cancel()
            self._leave()
        await asyncio.gather(*self._beginning)
        for result in await asyncio.gather(reading, self._writing, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
            if isinstance(result, tuple):
                await self._close(*result)

    def _leave(self) -> None:
        self._timer.cancel()
        for answer in self._answers.values():
            answer.close()
        for answer in self._stopping:
            self._stop(answer)

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(self._sockets.stream.patience):
                await self._websocket.close(code, reason)

    def _watch(self) -> None:
        """The one timer of a socket: it gives up a client that is far behind and does not read."""
        limits = self._sockets.stream
        is_stuck = self._sending is not None and self._loop.time() - self._sending >= limits.patience
        if is_stuck and self._is_late():
            self._writing.cancel()
        self._timer = self._loop.call_later(limits.keep_alive, self._watch)

    def _is_late(self) -> bool:
        readers = [answer.reader for answer in self._answers.values() if answer.reader is not None]
        is_over = all(reader.log.outcome is not None for reader in readers)
        return is_over or sum(reader.unread for reader in readers) > self._sockets.stream.behind

    async def _read(self) -> tuple[int, str] | None:
        try:
            async with self._deadline:
                return await self._take_frames()
        except TimeoutError:
            return 1008, f"No request came within {_FIRST_REQUEST:g} seconds."

    async def _take_frames(self) -> tuple[int, str] | None:
        """Take frames until the client leaves, or sends one that cannot be answered: give the code and the reason."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            if message.get("text") is None:
                return 1003, "Frames must be text."
            data = message["text"].encode()
            try:
                frame = open_frame(data)
            except RequestError as error:
                return 1008, str(error)
            await self._guarded(frame.request_id, self._take(frame, data))
            # A server that has more frames at hand gives them without letting anybody else run.
            await asyncio.sleep(0)
        return None

    async def _guarded(self, request_id: str, work: Awaitable[None]) -> None:
        try:
            await work
        except RequestError as error:
            self._refuse(request_id, error)
        # The border: what goes wrong with one request leaves the others of its socket alone.
        except Exception:  # noqa: BLE001
            error_id = secrets.token_hex(4)
            _log.exception("a request over a WebSocket failed, error %s", error_id)
            self._refuse(request_id, RequestError(f"Something went wrong. (Error {error_id})", status=500))

    def _refuse(self, request_id: str, error: RequestError) -> None:
        self._sockets.chats.metrics.request_refused(error.status)
        self._end(request_id, notice("error", request_id, str(error)))

    async def _take(self, frame: ClientFrame, data: bytes) -> None:
        if frame.type == "abort":
            self._abort(frame.request_id)
            return
        if frame.type not in ("send", "resume"):
            raise RequestError("type must be one of send, resume, abort.")
        if frame.request_id in self._answers:
            raise RequestError("requestId must not be that of a request that is still open.")
        if len(self._answers) >= _MAX_REQUESTS:
            raise RequestError("Too many requests are open on this socket.", status=429)
        chats, headers = self._sockets.chats, read_headers(frame)
        user = await self._user.user(headers)
        self._deadline.reschedule(None)
        if frame.type == "send":
            check_cost(data, self._sockets.limits)
            await breathe(data)
            request = read_send(data, self._sockets.limits, checked=True)
            answer = Answer(frame.request_id, request.id, user, chats.metrics, resumes=False)
            answer.opening = chats.opening(
                request, user, self._user.headers(headers), address=address_of(self._websocket)
            )
            self._spawn(answer, self._begin(answer, answer.opening, self._take_stopping(request.id)))
        else:
            chat_id, last_sequence = read_resume(frame)
            answer = Answer(frame.request_id, chat_id, user, chats.metrics, resumes=True)
            self._spawn(answer, self._resume(answer, last_sequence, self._take_stopping(chat_id)))

    def _spawn(self, answer: Answer, work: Awaitable[None]) -> None:
        self._answers[answer.request_id] = answer
        # It is never cancelled: a turn that has begun only half would not end.
        task = asyncio.create_task(self._guarded(answer.request_id, work))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, answer: Answer, opening: ChatOpening, replaced: set[Answer]) -> None:
        chats = self._sockets.chats
        for other in replaced:
            other.close()
            if other.reader is not None:
                await chats.stop(other.chat_id, other.user, other.reader.log.turn)
        answer.follow(await chats.open(opening))
        self._push(answer)

    async def _resume(self, answer: Answer, last_sequence: int | None, replaced: set[Answer]) -> None:
        try:
            found = await self._follow(answer, last_sequence)
        finally:
            for other in replaced:
                other.close()
        if not found:
            self._end(answer.request_id, notice("no-active", answer.request_id))
            return
        self._notify(notice("start", answer.request_id))
        self._push(answer)

    async def _follow(self, answer: Answer, last_sequence: int | None) -> bool:
        """Let the answer read its chat's turn: after a chunk that this very socket has sent, or from its beginning."""
        chats = self._sockets.chats
        if last_sequence is None:
            reader = await chats.follow(answer.chat_id, answer.user)
            if reader is not None:
                answer.follow(reader)
            return reader is not None
        head = await chats.live(answer.chat_id, answer.user)
        others = self._answers.values()
        seen = None if head is None else self._seen.find(head.turn, answer.chat_id, last_sequence, others)
        reader = None if seen is None else await chats.follow(answer.chat_id, answer.user, seen.turn)
        if seen is None or reader is None:
            return False
        answer.follow_after(reader, seen, last_sequence)
        return True

    def _abort(self, request_id: str) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is None:
            return
        self._seen.remember(answer)
        if answer.resumes:
            self._stopping.add(answer)
            answer.timer = self._loop.call_later(self._sockets.abort_delay, self._stop, answer)
        else:
            self._stop(answer)

    def _stop(self, answer: Answer) -> None:
        """Stop the request's turn, also one that is yet to begin; nobody waits for that here."""
        self._stopping.discard(answer)
        if answer.opening is not None:
            answer.opening.stopped = "stopped"
        reader = answer.reader
        answer.close()
        if reader is not None:
            self._sockets.spawn(self._sockets.chats.stop(answer.chat_id, answer.user, reader.log.turn))

    def _take_stopping(self, chat_id: str) -> set[Answer]:
        """Take out the requests that are about to stop the chat's turn."""
        taken = {answer for answer in self._stopping if answer.chat_id == chat_id}
        self._stopping -= taken
        return taken

    def _end(self, request_id: str, last: str) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._seen.remember(answer)
            answer.close()
        self._notify(last)

    def _notify(self, frame: str) -> None:
        self._notices.append(frame)
        self._wake.set()
        if len(self._notices) > _MAX_NOTICES:
            self._writing.cancel()

    def _push(self, answer: Answer) -> None:
        self._ready.append(answer)
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

    async def _advance(self, answer: Answer) -> None:
        reader, sent = answer.reader, 0
        while reader is not None and self._answers.get(answer.request_id) is answer:
            frame = answer.next_frame(reader) if sent < _BATCH else None
            if frame is None:
                self._rest(answer, reader)
                return
            await self._send(frame)
            sent += len(frame)

    def _rest(self, answer: Answer, reader: Reader) -> None:
        if reader.ended:
            self._end(answer.request_id, notice("end", answer.request_id))
        elif reader.unread:
            self._ready.append(answer)
        else:
            reader.log.call_when_changed(partial(self._push, answer))

    async def _send(self, frame: str) -> None:
        self._sending = self._loop.time()
        try:
            await self._websocket.send_text(frame)
        except RuntimeError:
            # uvicorn's word for a socket that it closed itself, because a ping was not answered.
            raise WebSocketDisconnect(1006) from None
        self._sending = None
        self._unyielded += len(frame)
        if self._unyielded >= _BATCH:
            self._unyielded = 0
            await asyncio.sleep(0)
