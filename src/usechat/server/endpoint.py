"""One agent at one address: the routes of a chat."""

import inspect
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType, structs
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from usechat.database import Database
from usechat.errors import RequestError
from usechat.extras import missing
from usechat.history import History, HistoryStore, MemoryHistory
from usechat.integrations import AnyAgent
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import Limits, decode_request
from usechat.server.admission import ApprovalSigner
from usechat.server.auth import USER, Authenticate, authenticated
from usechat.server.chat_history import ClientHistory, ServerHistory
from usechat.server.chats import Chats
from usechat.server.metrics import Metrics
from usechat.server.origins import check_origin, check_origins
from usechat.server.requests import (
    Endpoint,
    VisibleHeaders,
    address_of,
    check_body,
    check_id,
    guarded,
    json_body,
    last_seen,
    plain_error,
)
from usechat.server.responses import SlowReaders, StreamLimits, TurnResponse
from usechat.server.startup import check_arguments, check_path, listed, say_where_kept
from usechat.server.websocket import ChatSockets
from usechat.stores import Reader, TurnStore
from usechat.stores.urls import LEASE, open_store
from usechat.turns.settings import ChatSettings

if TYPE_CHECKING:
    from fastapi import APIRouter
    from fastapi.params import Depends

__all__ = ["ChatEndpoint", "Found", "TurnEndpoint"]

_log = logging.getLogger("usechat")

_MOST_MESSAGES: Final = 10_000
_PAGE: Final = 50
# Seconds after its expiry for which an approval is still known to be answered.
_LATE: Final = 3600.0
_PRIVATE: Final = {"cache-control": "no-store"}
_SETTINGS: Final = ChatSettings()
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()

Found: TypeAlias = Response | Reader | None
"""What a route finds: a response, a turn to read, or nothing, which is 204."""


class TurnEndpoint:
    """Serves chats: it lets their store and database work, and answers requests with what routes find.

    `kept` are the places of chats and turns that the log names. `refusal` makes the response of an error. `slow` bounds
    what all clients together have left to read.
    """

    def __init__(
        self,
        chats: Chats,
        kept: tuple[object, TurnStore],
        database: Database | None,
        stream: StreamLimits,
        refusal: Callable[[RequestError], Response] = plain_error,
        slow: SlowReaders | None = None,
    ) -> None:
        self.chats = chats
        self._kept = kept
        self._database = database
        self._stream = stream
        self._refusal = refusal
        self._slow = slow
        self._has_said_where = False
        self._is_served = False

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None, None]:
        """Let the endpoint work for as long as the app runs, and close what it has opened: for the app's lifespan.

        Inside itself it does nothing.
        """
        if self._is_served:
            yield
            return
        self._is_served = True
        try:
            async with self.chats.serve(self._database):
                self._say_where_kept()
                yield
        finally:
            self._is_served = False

    async def _respond(self, route: Callable[[Request], Awaitable[Found]], request: Request) -> Response:
        """Call the route; whatever it raises becomes a refusal."""
        arrived = time.monotonic()

        async def endpoint(request: Request) -> Response:
            found = await route(request)
            if isinstance(found, Reader):
                return TurnResponse(found, self._stream, self.chats.metrics, arrived, self._slow)
            return Response(status_code=204) if found is None else found

        return await guarded(endpoint, request, self._refused)

    def _refused(self, error: RequestError) -> Response:
        self.chats.metrics.request_refused(error.status)
        return self._refusal(error)

    def _say_where_kept(self) -> None:
        if not self._has_said_where:
            self._has_said_where = True
            say_where_kept(*self._kept)


class ChatEndpoint(TurnEndpoint):
    """Serves one agent: `respond` inside a route of your own, or `routes` for all of a chat's addresses.

    `history` is where chats are kept: in memory, at a database URL, or in a History that you close yourself. With
    `"client"` the pages keep them: the messages of each request are believed, except for approvals, which are signed
    with `approval_secret`. Without that secret, an approval counts only in the process that asked for it.
    `store` is where turns are kept: in this process, or at the URL of a Redis, which needs the `approval_secret`, too.
    Different endpoints on one Redis need different `scope`s. If you give a URL, enter `serve()` in the lifespan of your
    app; `router()` does that itself. `client` overrides the one in `settings`. `origins` are other sites whose pages
    may stop turns and open sockets; CORS is up to the app. With `lists_all`, everybody gets the list of all chats where
    nobody signs in.
    `user` is for FastAPI, in place of `authenticate`: `Depends(…)` of a dependency that gives the user's id. None says
    that chats belong to nobody, in an app that has dependencies all the same.

    Raises:
        TypeError: What is given is no agent, or an argument cannot be what it is for.
        ValueError: An origin or a URL is not one, or the secret is missing or too short.
        ImportError: The package that the database or the store needs is not installed.
    """

    def __init__(
        self,
        agent: AnyAgent,
        *,
        authenticate: Authenticate | None = None,
        user: object = UNSET,
        store: TurnStore | str | None = None,
        lease: float = LEASE,
        scope: str = "",
        history: HistoryStore | str | None = None,
        approval_secret: str | None = None,
        client: ClientName | None = None,
        settings: ChatSettings = _SETTINGS,
        limits: Limits = _LIMITS,
        stream: StreamLimits = _STREAM,
        origins: Collection[str] | str = (),
        lists_all: bool = False,
    ) -> None:
        check_arguments(
            authenticate=authenticate,
            store=store,
            lease=lease,
            scope=scope,
            history=history,
            approval_secret=approval_secret,
            settings=settings,
            limits=limits,
            stream=stream,
            origins=origins,
            lists_all=lists_all,
        )
        self._depends = _dependency(user, authenticate)
        self._names_user = authenticate is not None or user is not UNSET
        settings = settings if client is None else structs.replace(settings, client=client)
        self._origins = listed(origins)
        check_origins(self._origins)
        if history is None and store not in (None, "memory"):
            _log.warning(
                "turns are shared, but chats are kept in memory, which other workers do not see: give a history"
            )
        metrics = Metrics()
        kept, database = _open_history(history)
        if kept == "client":
            chat_history = ClientHistory(ApprovalSigner(approval_secret, settings.approval_ttl))
        else:
            chat_history = ServerHistory(kept, settings.approval_ttl, metrics.answer_late)
        turns = open_store(
            store, secret=approval_secret, lease=lease, keep_used=settings.approval_ttl + _LATE, scope=scope
        )
        super().__init__(Chats(agent, turns, chat_history, settings, metrics), (kept, turns), database, stream)
        self._authenticate = authenticate
        self._limits = limits
        self._lists_all = lists_all

    async def respond(self, request: Request, *, user: str | UnsetType | None = UNSET) -> Response:
        """Answer a POST with a turn as server-sent events. `user` is the user's id, and None gets 401.

        Without `user` the endpoint finds out who asks.
        """
        if user is not UNSET:
            request.scope[USER] = user
        return await self._respond(self._post, request)

    # FastAPI makes a parameter of the query of each one that it sees, and then anybody could name the user.
    vars()["respond"].__signature__ = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request),
        ]
    )

    def routes(self, path: str = "/api/chat") -> list[BaseRoute]:
        """All routes of a chat, for a Starlette app.

        Raises:
            ValueError: It is not a path, or only FastAPI could find the user.
        """
        if self._depends is not None:
            raise ValueError("user=Depends(...) is for router(), in a FastAPI app: give routes() an authenticate.")
        return self._routes(path)

    def _routes(self, path: str) -> list[BaseRoute]:
        check_arguments(path=path)
        check_path(path)
        sockets = ChatSockets(self.chats, self._user, self._limits, self._stream, origins=self._origins)
        return [
            _Route(path, partial(self._respond, self._post), methods=["POST"]),
            WebSocketRoute(f"{path}/ws", sockets.serve),
            _Route(f"{path}/{{chat_id:path}}/stream", partial(self._respond, self._resume), methods=["GET"]),
            _Route(f"{path}/{{chat_id:path}}/stop", partial(self._respond, self._stop), methods=["POST"]),
            _Route(f"{path}/{{chat_id:path}}/messages", partial(self._respond, self._messages), methods=["GET"]),
            _Route(f"{path}/{{chat_id:path}}", partial(self._respond, self._delete), methods=["DELETE"]),
            _Route(f"{path}s", partial(self._respond, self._list), methods=["GET"]),
        ]

    def router(self, path: str = "/api/chat") -> "APIRouter":
        """All routes of a chat, for a FastAPI app, with their documentation and with `serve`.

        Raises:
            ImportError: FastAPI is not installed.
            ValueError: It is not a path.
        """
        try:
            from usechat.server.fastapi import chat_router
        except ModuleNotFoundError as error:
            raise ImportError(missing("ChatEndpoint.router()", error, "fastapi")) from error
        return chat_router(self._routes(path), path, self.serve, self._depends, names_user=self._names_user)

    async def _post(self, request: Request) -> Found:
        user = await self._user(request)
        body = await json_body(request, limit=self._limits.body)
        await check_body(body, self._limits)
        asked, headers = decode_request(body, self._limits, checked=True), VisibleHeaders(request.scope["headers"])
        return await self.chats.begin(asked, user, headers, address=address_of(request))

    async def _resume(self, request: Request) -> Found:
        user = await self._user(request)
        return await self.chats.follow(check_id(request.path_params["chat_id"]), user, *last_seen(request))

    async def _stop(self, request: Request) -> Found:
        check_origin(request, self._origins)
        user = await self._user(request)
        await self.chats.stop(check_id(request.path_params["chat_id"]), user, request.query_params.get("turn"))

    async def _messages(self, request: Request) -> Found:
        user = await self._user(request)
        chat_id, query = check_id(request.path_params["chat_id"]), request.query_params
        messages = await self.chats.messages(chat_id, user, query.get("before"), _limit(query.get("limit")))
        return Response(b"[%b]" % b",".join(messages), headers=_PRIVATE, media_type="application/json")

    async def _delete(self, request: Request) -> Found:
        check_origin(request, self._origins)
        user = await self._user(request)
        await self.chats.delete(check_id(request.path_params["chat_id"]), user)

    async def _list(self, request: Request) -> Found:
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
        # Where no lifespan did.
        self._say_where_kept()
        if USER in connection.scope:
            user = connection.scope[USER]
            if not isinstance(user, str | None):
                raise TypeError(f"The user must be the user's id, a str, and is of the type {type(user).__name__}.")
        elif self._depends is not None:
            raise RuntimeError("This route does not say who asks: write respond(request, user=user), or use router().")
        elif self._authenticate is None:
            return None
        else:
            user = await authenticated(self._authenticate, connection)
        if user is None or IDENTIFIER(user):
            raise RequestError("You are not signed in.", status=401)
        return user


class _Route(Route):
    """A route without what Starlette puts around a response, which an open stream would keep to its end."""

    def __init__(self, path: str, endpoint: Endpoint, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def _dependency(user: object, authenticate: Authenticate | None) -> "Depends | None":
    if user is UNSET or user is None:
        return None
    if authenticate is not None:
        raise ValueError("Either user or authenticate says who is asking.")
    if type(user).__module__ != "fastapi.params":
        raise TypeError(
            f"user must be FastAPI's Depends(...) or None, and is a {type(user).__name__}; a function that takes the "
            "connection is authenticate."
        )
    return cast("Depends", user)


def _open_history(history: HistoryStore | str | None) -> tuple[HistoryStore | Literal["client"], Database | None]:
    if history is None:
        return MemoryHistory(), None
    if history == "client" or not isinstance(history, str):
        return history, None
    database = Database(history)
    return History(database), database


def _limit(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 5 and 0 < int(value) <= _MOST_MESSAGES):
        raise RequestError(f"limit must be a number from 1 to {_MOST_MESSAGES:,}.")
    return int(value)
