"""One agent at one address: the routes of a chat."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from usechat.errors import RequestError
from usechat.history import HistoryStore, MemoryHistory
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import Limits, check_cost, decode_request
from usechat.server.bearer import Authenticate, authenticated
from usechat.server.bodies import VisibleHeaders, address_of, breathe, check_id, json_body, last_seen
from usechat.server.chat_history import ChatHistory, ClientHistory, ServerHistory
from usechat.server.chat_settings import ChatSettings
from usechat.server.chats import Chats
from usechat.server.guard import Answer, guarded
from usechat.server.metrics import Metrics
from usechat.server.origins import check_origin
from usechat.server.responses import StreamLimits, TurnResponse, plain_error
from usechat.server.signatures import ApprovalSigner
from usechat.server.websocket import ChatSockets
from usechat.stores import TurnStore
from usechat.stores.urls import LEASE, open_store

if TYPE_CHECKING:
    from fastapi import APIRouter

__all__ = ["ChatEndpoint"]

_BODY_DEADLINE: Final = 30.0
_MOST_MESSAGES: Final = 10_000
_PAGE: Final = 50
# For so long after an approval has expired it is known that it was answered.
_LATE: Final = 3600.0
_PRIVATE: Final = {"cache-control": "no-store"}
_SETTINGS: Final = ChatSettings()
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()


class ChatEndpoint:
    """Serves one agent: `respond` inside a route of your own, or `routes` for all of a chat's addresses.

    With the history `"client"` nothing is kept and the messages of each request are believed, but for approvals, which
    are signed with `approval_secret`; without one, only the process that asked for an approval knows it again.
    `store` is where turns are kept: in this process, or at the URL of a Redis, which needs the `approval_secret`, too,
    and `chats.serve()` in the lifespan of the app. Endpoints that are not the same have different `scope`s there.
    `origins` are those of other sites whose pages may stop turns and open sockets; CORS is the app's own affair. With
    `lists_all`, everybody gets the list of all chats where nobody signs in.
    """

    def __init__(
        self,
        agent: object,
        *,
        authenticate: Authenticate | None = None,
        store: TurnStore | str | None = None,
        lease: float = LEASE,
        scope: str = "",
        history: HistoryStore | Literal["client"] | None = None,
        approval_secret: str | None = None,
        settings: ChatSettings = _SETTINGS,
        limits: Limits = _LIMITS,
        stream: StreamLimits = _STREAM,
        origins: Collection[str] = (),
        lists_all: bool = False,
    ) -> None:
        metrics = Metrics()
        chat_history = _chat_history(history, approval_secret, settings.approval_ttl, metrics)
        turns = open_store(
            store, secret=approval_secret, lease=lease, keep_spent=settings.approval_ttl + _LATE, scope=scope
        )
        self.chats = Chats(agent, turns, chat_history, settings, metrics)
        self._authenticate = authenticate
        self._limits = limits
        self._stream = stream
        self._origins = origins
        self._lists_all = lists_all

    async def respond(self, request: Request) -> Response:
        """Answer a POST with a turn as server-sent events."""
        return await guarded(self._post, request, self._refused)

    def routes(self, path: str = "/api/chat") -> list[BaseRoute]:
        """All routes of a chat, for a Starlette app."""
        sockets = ChatSockets(self.chats, self._user, self._limits, self._stream, origins=self._origins)
        return [
            _Route(path, self.respond, methods=["POST"]),
            WebSocketRoute(f"{path}/ws", sockets.serve),
            _Route(f"{path}/{{chat_id:path}}/stream", self._route(self._resume), methods=["GET"]),
            _Route(f"{path}/{{chat_id:path}}/stop", self._route(self._stop), methods=["POST"]),
            _Route(f"{path}/{{chat_id:path}}/messages", self._route(self._messages), methods=["GET"]),
            _Route(f"{path}/{{chat_id:path}}", self._route(self._delete), methods=["DELETE"]),
            _Route(f"{path}s", self._route(self._list), methods=["GET"]),
        ]

    def router(self, path: str = "/api/chat") -> "APIRouter":
        """All routes of a chat, for a FastAPI app, with their documentation."""
        from usechat.server.fastapi import chat_router

        return chat_router(self.routes(path), path)

    def _route(self, answer: Answer) -> Answer:
        async def route(request: Request) -> Response:
            return await guarded(answer, request, self._refused)

        return route

    def _refused(self, error: RequestError) -> Response:
        self.chats.metrics.request_refused(error.status)
        return plain_error(error)

    async def _post(self, request: Request) -> Response:
        arrived = time.monotonic()
        user = await self._user(request)
        body = await json_body(request, limit=self._limits.body, deadline=_BODY_DEADLINE)
        check_cost(body, self._limits)
        await breathe(body)
        asked, headers = decode_request(body, self._limits, checked=True), VisibleHeaders(request.scope["headers"])
        reader = await self.chats.begin(asked, user, headers, address=address_of(request))
        return TurnResponse(reader, self._stream, self.chats.metrics, arrived)

    async def _resume(self, request: Request) -> Response:
        arrived = time.monotonic()
        user = await self._user(request)
        reader = await self.chats.follow(check_id(request.path_params["chat_id"]), user, *last_seen(request))
        if reader is None:
            return Response(status_code=204)
        return TurnResponse(reader, self._stream, self.chats.metrics, arrived)

    async def _stop(self, request: Request) -> Response:
        check_origin(request, self._origins)
        user = await self._user(request)
        chat_id = check_id(request.path_params["chat_id"])
        await self.chats.stop(chat_id, user, request.query_params.get("turn"))
        return Response(status_code=204)

    async def _messages(self, request: Request) -> Response:
        user = await self._user(request)
        chat_id, query = check_id(request.path_params["chat_id"]), request.query_params
        messages = await self.chats.messages(chat_id, user, query.get("before"), _limit(query.get("limit")))
        return Response(b"[%b]" % b",".join(messages), headers=_PRIVATE, media_type="application/json")

    async def _delete(self, request: Request) -> Response:
        check_origin(request, self._origins)
        user = await self._user(request)
        await self.chats.delete(check_id(request.path_params["chat_id"]), user)
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        user = await self._user(request)
        if user is None and not self._lists_all:
            raise RequestError("Only a user who is signed in has a list of chats.", status=403)
        query = request.query_params
        entries = await self.chats.entries(user, query.get("after"), limit := _limit(query.get("limit")) or _PAGE)
        chats = [
            {"id": chat.id, "title": chat.title, "created": chat.created, "updated": chat.updated} for chat in entries
        ]
        # A page that is not full is the last one.
        rest = {"next": entries[-1].place} if len(entries) == limit else {}
        return Response(msgspec.json.encode({"chats": chats, **rest}), headers=_PRIVATE, media_type="application/json")

    async def _user(self, connection: HTTPConnection) -> str | None:
        if self._authenticate is None:
            return None
        user = await authenticated(self._authenticate, connection)
        if user is None or IDENTIFIER(user):
            raise RequestError("You are not signed in.", status=401)
        return user


class _Route(Route):
    """A route without what Starlette puts around a response, which an open stream would keep to its end."""

    def __init__(self, path: str, endpoint: Answer, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def _chat_history(
    history: HistoryStore | Literal["client"] | None, approval_secret: str | None, approval_ttl: float, metrics: Metrics
) -> ChatHistory:
    if history == "client":
        return ClientHistory(ApprovalSigner(approval_secret, approval_ttl))
    return ServerHistory(history or MemoryHistory(), approval_ttl, metrics.answer_late)


def _limit(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 5 and 0 < int(value) <= _MOST_MESSAGES):
        raise RequestError(f"limit must be a number from 1 to {_MOST_MESSAGES:,}.")
    return int(value)
