"""One agent at one address: the routes of a chat."""

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from usechat.agents.plain import PlainAgent
from usechat.database import Database
from usechat.errors import RequestError
from usechat.history import History
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import Limits, decode_request
from usechat.server.auth import Authenticate, authenticated
from usechat.server.bodies import check_id, json_body, without_secrets
from usechat.server.chat_history import ChatHistory, ClientHistory, ServerHistory
from usechat.server.chats import Chats, ChatSettings
from usechat.server.origins import origin_allowed
from usechat.server.responses import StreamLimits, TurnResponse, plain_error
from usechat.server.signatures import ApprovalSigner
from usechat.server.websocket import ChatSockets
from usechat.stores import TurnStore
from usechat.stores.memory import MemoryTurnStore
from usechat.stream import explain
from usechat.turns import Turn

if TYPE_CHECKING:
    from fastapi import APIRouter

__all__ = ["ChatEndpoint"]

_BODY_DEADLINE: Final = 30.0
_SETTINGS: Final = ChatSettings()
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()


class ChatEndpoint:
    """Serves one agent: `respond` inside a route of your own, or `routes` for all of a chat's addresses.

    With the history `"client"` nothing is kept and the messages of each request are believed, but for approvals, which
    are signed with `approval_secret`; without one, only the process that asked for an approval knows it again.
    `origins` are those of other sites whose pages may stop turns and open sockets; CORS is the app's own affair.
    """

    def __init__(
        self,
        agent: PlainAgent,
        *,
        authenticate: Authenticate | None = None,
        store: TurnStore | None = None,
        history: History | Literal["client"] | None = None,
        approval_secret: str | None = None,
        settings: ChatSettings = _SETTINGS,
        limits: Limits = _LIMITS,
        stream: StreamLimits = _STREAM,
        origins: Collection[str] = (),
    ) -> None:
        chat_history = _chat_history(history, approval_secret, settings.approval_ttl)
        self.chats = Chats(agent, store or MemoryTurnStore(), chat_history, settings)
        self._authenticate = authenticate
        self._limits = limits
        self._stream = stream
        self._origins = origins

    async def respond(self, request: Request) -> Response:
        """Answer a POST with a turn as server-sent events."""
        return await self._guarded(self._post, request)

    def routes(self, path: str = "/api/chat") -> list[BaseRoute]:
        """All routes of a chat, for a Starlette app."""
        sockets = ChatSockets(self.chats, self._user, self._limits, self._stream, origins=self._origins)
        return [
            Route(path, self.respond, methods=["POST"]),
            WebSocketRoute(f"{path}/ws", sockets.serve),
            Route(f"{path}/{{chat_id:path}}/stream", self._route(self._resume), methods=["GET"]),
            Route(f"{path}/{{chat_id:path}}/stop", self._route(self._stop), methods=["POST"]),
            Route(f"{path}/{{chat_id:path}}/messages", self._route(self._messages), methods=["GET"]),
        ]

    def router(self, path: str = "/api/chat") -> "APIRouter":
        """All routes of a chat, for a FastAPI app, with their documentation."""
        from usechat.server.fastapi import chat_router

        return chat_router(self.routes(path), path)

    def _route(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            return await self._guarded(answer, request)

        return route

    async def _guarded(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            return await answer(request)
        except RequestError as error:
            self.chats.metrics.request_refused(error.status)
            return plain_error(error)
        except ClientDisconnect:
            # Nobody is there to read an answer.
            return Response(status_code=400)
        # The border: the app's own hooks and the database may raise anything.
        except Exception as error:  # noqa: BLE001
            return plain_error(RequestError(explain(error), status=500))

    async def _post(self, request: Request) -> Response:
        user = await self._user(request)
        body = await json_body(request, limit=self._limits.body, deadline=_BODY_DEADLINE)
        turn = await self.chats.begin(decode_request(body, self._limits), user, without_secrets(request.headers))
        return TurnResponse(turn, self._stream, self.chats.metrics)

    async def _resume(self, request: Request) -> Response:
        user = await self._user(request)
        turn = await self.chats.live(check_id(request.path_params["chat_id"]), user)
        if turn is None or turn.ended:
            return Response(status_code=204)
        seen = _seen(request, turn)
        if seen is not None:
            return TurnResponse(turn, self._stream, self.chats.metrics, after=seen)
        first, index = turn.replayed()
        return TurnResponse(turn, self._stream, self.chats.metrics, first=first, after=index)

    async def _stop(self, request: Request) -> Response:
        if not origin_allowed(request, self._origins):
            raise RequestError("Pages of another site may not stop an answer.", status=403)
        user = await self._user(request)
        chat_id = check_id(request.path_params["chat_id"])
        await self.chats.stop(chat_id, user, request.query_params.get("turn"))
        return Response(status_code=204)

    async def _messages(self, request: Request) -> Response:
        user = await self._user(request)
        messages = await self.chats.messages(check_id(request.path_params["chat_id"]), user)
        return Response(msgspec.json.encode(messages), media_type="application/json")

    async def _user(self, connection: HTTPConnection) -> str | None:
        if self._authenticate is None:
            return None
        user = await authenticated(self._authenticate, connection)
        if user is None or IDENTIFIER(user):
            raise RequestError("You are not signed in.", status=401)
        return user


def _chat_history(
    history: History | Literal["client"] | None, approval_secret: str | None, approval_ttl: float
) -> ChatHistory:
    if history == "client":
        return ClientHistory(ApprovalSigner(approval_secret, approval_ttl))
    return ServerHistory(history or History(Database()), approval_ttl)


def _seen(request: Request, turn: Turn) -> int | None:
    """The index of the last chunk of this turn that the client has, if it counts."""
    seen = request.query_params.get("after") or request.headers.get("last-event-id") or ""
    mark, _, index = seen.rpartition(".")
    if mark != turn.mark or not (index.isascii() and index.isdecimal()) or len(index) > 9:
        return None
    return int(index) if int(index) <= len(turn.log.frames) else None
