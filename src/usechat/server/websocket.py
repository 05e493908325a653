"""The WebSocket of a chat: many requests on one socket, each of them a reader of its turn's log."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from usechat.errors import RequestError
from usechat.protocol.requests import Limits
from usechat.protocol.websocket import (
    ClientFrame,
    notice,
    open_frame,
    read_headers,
    read_resume,
    read_send,
)
from usechat.server.bodies import without_secrets
from usechat.server.chats import Chats
from usechat.server.origins import origin_allowed
from usechat.server.responses import StreamLimits
from usechat.server.websocket_answer import Answer
from usechat.turns import Turn

__all__ = ["ChatSockets", "Identify"]

Identify: TypeAlias = Callable[[HTTPConnection], Awaitable[str | None]]

_log = logging.getLogger("usechat")

# Each frame is a send of its own, which costs as much time as the one send of a whole batch of events.
_BATCH: Final = 16 * 1024
_MAX_REQUESTS: Final = 64
_MAX_NOTICES: Final = 256
# A page that resumes anew aborts the resume before it, and means to stop nothing by that.
_SECOND_THOUGHTS: Final = 1.0
# A proxy vouches for the headers of a handshake, but it cannot see into frames: they may bring secrets, not claims.
_CREDENTIALS: Final = ("authorization", "x-api-key")
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
        second_thoughts: float = _SECOND_THOUGHTS,
    ) -> None:
        self.chats = chats
        self.identify = identify
        self.limits = limits
        self.stream = stream
        self.origins = origins
        self.second_thoughts = second_thoughts

    async def serve(self, websocket: WebSocket) -> None:
        """Answer the frames of a socket until it is closed; one from a page of another origin is refused with 403."""
        if not origin_allowed(websocket, self.origins):
            await websocket.close()
            return
        visitor = _Visitor(websocket, self.identify)
        await visitor.greet()
        # A browser gives up if none of the subprotocols that it offers is taken; a token is not sent back.
        offered: list[str] = websocket.scope.get("subprotocols", [])
        await websocket.accept(next((name for name in offered if name and not name.startswith("bearer.")), None))
        await _Socket(self, websocket, visitor).run()


class _Visitor:
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

    def headers(self, headers: dict[str, str]) -> dict[str, str]:
        """What the agent gets: the headers of the handshake, and those that only the frame has."""
        together = {**headers, **self._websocket.headers}
        return without_secrets(together)


class _Socket:
    """Reads frames, and answers them by one writer that takes turns between the requests that have something ready."""

    def __init__(self, sockets: ChatSockets, websocket: WebSocket, visitor: _Visitor) -> None:
        self._sockets = sockets
        self._websocket = websocket
        self._visitor = visitor
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, Answer] = {}
        self._stopping: set[Answer] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._notices: deque[str] = deque()
        self._ready: deque[Answer] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.create_task(self._write())
        self._sending: float | None = None
        self._unyielded = 0
        self._deadline = asyncio.timeout(None if visitor.is_known else _FIRST_REQUEST)

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
            answer.stop()

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(self._sockets.stream.patience):
                await self._websocket.close(code, reason)

    def _watch(self) -> None:
        """The one timer of a socket: it gives up a client that is far behind and does not read."""
        limits = self._sockets.stream
        is_stuck = self._sending is not None and self._loop.time() - self._sending >= limits.patience
        if is_stuck and sum(answer.behind() for answer in self._answers.values()) > limits.behind:
            self._writing.cancel()
        self._timer = self._loop.call_later(limits.keep_alive, self._watch)

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
        user = await self._visitor.user(headers)
        self._deadline.reschedule(None)
        if frame.type == "send":
            request = read_send(data, self._sockets.limits)
            for other in self._pardoned(request.id):
                other.stop()
            answer = Answer(frame.request_id, request.id, chats.metrics, resumes=False)
            begin = chats.begin(request, user, self._visitor.headers(headers))
            self._spawn(answer, self._begin(answer, begin))
        else:
            chat_id, last_sequence = read_resume(frame)
            answer = Answer(frame.request_id, chat_id, chats.metrics, resumes=True)
            self._spawn(answer, self._resume(answer, user, last_sequence, self._pardoned(chat_id)))

    def _spawn(self, answer: Answer, work: Awaitable[None]) -> None:
        self._answers[answer.request_id] = answer
        # It is never cancelled: a turn that has begun only half would not end.
        task = asyncio.create_task(self._guarded(answer.request_id, work))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, answer: Answer, begin: Awaitable[Turn]) -> None:
        answer.follow(await begin)
        self._push(answer)

    async def _resume(self, answer: Answer, user: str | None, last_sequence: int | None, replaced: set[Answer]) -> None:
        try:
            turn = await self._sockets.chats.live(answer.chat_id, user)
            if turn is None or turn.ended or not answer.can_resume(turn, last_sequence):
                self._end(answer.request_id, notice("no-active", answer.request_id))
                return
            answer.resume(turn, last_sequence)
        finally:
            for other in replaced:
                other.close()
        self._notify(notice("start", answer.request_id))
        self._push(answer)

    def _abort(self, request_id: str) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is not None and answer.resumes:
            self._stopping.add(answer)
            answer.timer = self._loop.call_later(self._sockets.second_thoughts, self._stop, answer)
        elif answer is not None:
            answer.stop()

    def _stop(self, answer: Answer) -> None:
        self._stopping.discard(answer)
        answer.stop()

    def _pardoned(self, chat_id: str) -> set[Answer]:
        """Take out the requests that are about to stop the chat's turn."""
        pardoned = {answer for answer in self._stopping if answer.chat_id == chat_id}
        self._stopping -= pardoned
        return pardoned

    def _end(self, request_id: str, last: str) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is not None:
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
        turn, sent = answer.turn, 0
        while turn is not None and self._answers.get(answer.request_id) is answer:
            frame = answer.next_frame(turn) if sent < _BATCH else None
            if frame is None:
                self._rest(answer, turn)
                return
            await self._send(frame)
            sent += len(frame)

    def _rest(self, answer: Answer, turn: Turn) -> None:
        # Asked first, since a thread may write the last chunks and end the turn right after.
        has_ended = turn.ended
        if answer.has_more(turn):
            self._ready.append(answer)
        elif has_ended:
            self._end(answer.request_id, notice("end", answer.request_id))
        else:
            turn.log.call_when_changed(partial(self._push, answer))

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
