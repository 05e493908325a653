"""The gateway: sessions of Agent Ops as chats for `useChat()`, for those who may use them."""

import asyncio
import time
from collections.abc import Collection
from functools import partial
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct, field, structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from usechat.agents.agent_ops import AgentOpsAgent, SessionCall
from usechat.agents.agent_ops_socket import TOO_MANY, SessionAddress
from usechat.database import Database
from usechat.errors import AgentError, RequestError
from usechat.ids import new_id
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import ChatRequest, Limits, check_cost, decode_json, decode_request
from usechat.server.app import app_lifespan, service_routes
from usechat.server.arguments import check_path, listed
from usechat.server.auth import Authenticate, JwtAuth, authenticated, bearer_token, is_token
from usechat.server.bodies import VisibleHeaders, check_id, json_body, last_seen
from usechat.server.chats import Chats
from usechat.server.guard import guarded
from usechat.server.origins import check_origin
from usechat.server.origins import cors as cors_middleware
from usechat.server.responses import TurnResponse, json_error
from usechat.server.sessions.access import Endpoint
from usechat.server.sessions.auth import DirectoryAuth
from usechat.server.sessions.directory import SessionDirectory
from usechat.server.sessions.history import SessionHistory, scoped
from usechat.server.sessions.metrics import GatewayMetrics
from usechat.server.sessions.prompting import prompt_of
from usechat.server.sessions.settings import GatewaySettings
from usechat.server.slow_readers import SlowReaders
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.failures import explain

__all__ = ["sessions_gateway"]

_SETTINGS: Final = GatewaySettings()
_NO_ROUTE: Final = "There is nothing here."
_BODY_DEADLINE: Final = 30.0
# A message may have 25 million characters of files; the messages before it are not looked at.
_BODY: Final = Limits(body=40 * 1024 * 1024, messages=20_000, values=150_000)
_LARGE_BODY: Final = 1024 * 1024
_ANSWER_SIZE: Final = 64 * 1024


def sessions_gateway(
    *,
    upstream: str,
    directory: SessionDirectory | str,
    authenticate: Authenticate | None = None,
    jwt: JwtAuth | None = None,
    settings: GatewaySettings = _SETTINGS,
    path: str = "/api/sessions",
    cors: Collection[str] | str = (),
    grace: float | None = 10.0,
) -> Starlette:
    """Make the app that serves the sessions of an Agent Ops upstream, with `/healthz`, `/readyz` and `/metrics`.

    `directory` says who may use which session: one of your own, or the URL of its database. `authenticate` says who is
    asking; without it those are the users of the directory, by its tokens and, with a `jwt`, by JWTs. `cors` are the
    origins whose pages may call. A server that is told to end gives running turns `grace` seconds; with None the app
    leaves signals alone.

    Raises:
        ValueError: The path, the upstream or its token, an origin or the database URL is not one, or both
            `authenticate` and `jwt` are given.
        ImportError: The package that the database needs is not installed.
    """
    check_path(path)
    _check_upstream(upstream, settings.upstream_token)
    if authenticate is not None and jwt is not None:
        raise ValueError("authenticate says who is asking, so that it has to look at JWTs itself.")
    database = None
    if isinstance(directory, str):
        database = Database(directory)
        directory = SessionDirectory(database)
    origins = listed(cors)
    gateway = _Gateway(path, upstream, directory, authenticate or DirectoryAuth(directory, jwt), settings, origins)
    app = Starlette(
        routes=[Mount(path, gateway), *service_routes(gateway.chats)],
        middleware=[cors_middleware(origins, credentials=False)] if origins else [],
        exception_handlers={HTTPException: _no_route},
        lifespan=partial(app_lifespan, gateway.chats, partial(gateway.chats.serve, database), grace),
    )
    # What is not there is not elsewhere, either.
    app.router.redirect_slashes = False
    return app


def _check_upstream(upstream: str, token: str | None) -> None:
    try:
        parts = urlsplit(upstream)
        is_address = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0
    except ValueError:
        raise ValueError("The upstream is not an address, such as ws://localhost:8787.") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("The address of the upstream may have a host, a port and a path, and nothing else.")
    if not is_address:
        raise ValueError(f"{upstream!r:.200} is not the address of an upstream, such as ws://localhost:8787.")
    if token is not None and not is_token(token):
        raise ValueError("The upstream's token holds what no header can carry, such as a space or a line break.")


class _Answer(Struct):
    question_id: str = field(name="questionId")
    answer: str | bool


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class _Gateway:
    """The routes of sessions, as one ASGI app below their common path."""

    def __init__(
        self,
        path: str,
        upstream: str,
        directory: SessionDirectory,
        authenticate: Authenticate,
        settings: GatewaySettings,
        origins: Collection[str],
    ) -> None:
        metrics = GatewayMetrics()
        self._agent = agent = AgentOpsAgent(
            upstream,
            token=settings.upstream_token,
            options=settings.options,
            limits=settings.sockets,
            events=metrics,
        )
        metrics.watch_sockets(lambda: agent.sockets.count, lambda: agent.sockets.most_of_a_session)
        self.chats = Chats(agent, MemoryTurnStore(), SessionHistory(directory), settings.chats, metrics)
        self._path = path
        self._directory = directory
        self._authenticate = authenticate
        self._origins = origins
        self._is_on = settings.is_on
        self._stream = settings.stream
        self._slow = SlowReaders(settings.behind_in_all, lambda: agent.sockets.is_crowded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        response = await guarded(self._route, Request(scope, receive, send), self._refused)
        await response(scope, receive, send)

    async def _route(self, request: Request) -> Response:
        arrived = time.monotonic()
        if not self._is_on:
            raise RequestError(_NO_ROUTE, status=404)
        found = _find_route(request.scope, self._path)
        if found is None:
            raise RequestError(_NO_ROUTE, status=404)
        endpoint, method, session, chat_id = found
        if request.method != method:
            refusal = self._refused(RequestError(f"This takes {method}.", status=405))
            refusal.headers["allow"] = method
            return refusal
        user = await self._user(request)
        await self._directory.check_access(session, user, endpoint)
        match endpoint:
            case "chat":
                return await self._chat(request, session, user, arrived)
            case "stream":
                return await self._resume(request, scoped(session, check_id(chat_id)), user, arrived)
            case "stop":
                if bearer_token(request) is None:
                    # Who is known by a cookie could be made to stop a turn by any page.
                    check_origin(request, self._origins)
                await self.chats.stop(scoped(session, check_id(chat_id)), user, request.query_params.get("turn"))
                return Response(status_code=204)
            case "answer":
                return await self._answer(request, self._address(request, session, user))
            case "channels":
                return await self._channels(self._address(request, session, user))

    async def _chat(self, request: Request, session: str, user: str, arrived: float) -> Response:
        address = self._address(request, session, user)
        body = await json_body(request, limit=_BODY.body, deadline=_BODY_DEADLINE)
        # A large one would hold up everybody else.
        asked = await asyncio.to_thread(_read, body) if len(body) > _LARGE_BODY else _read(body)
        call = SessionCall(address, asked.id, prompt_of(asked))
        self._check_room(address)
        # The session is asked for the last message, whatever is wanted with it; nothing that runs gives way.
        scoped_request = structs.replace(asked, id=scoped(session, asked.id), trigger="submit-message", message_id=None)
        reader = await self.chats.begin(scoped_request, user, VisibleHeaders(request.scope["headers"]), call)
        return TurnResponse(reader, self._stream, self.chats.metrics, arrived, self._slow)

    async def _resume(self, request: Request, chat_id: str, user: str, arrived: float) -> Response:
        reader = await self.chats.follow(chat_id, user, *last_seen(request))
        if reader is None:
            return Response(status_code=204)
        return TurnResponse(reader, self._stream, self.chats.metrics, arrived, self._slow)

    async def _answer(self, request: Request, address: SessionAddress) -> Response:
        body = await json_body(request, limit=_ANSWER_SIZE, deadline=_BODY_DEADLINE)
        given = decode_json(
            _ANSWER, body, "The body", "must be an object with a questionId and a text or boolean answer"
        )
        self._check_room(address)
        try:
            is_open = await self._agent.answer(address, given.question_id, answer=given.answer)
        except AgentError as error:
            raise RequestError(explain(error), status=502) from error
        if not is_open:
            raise RequestError("There is no such question open.", status=404)
        return Response(status_code=204)

    async def _channels(self, address: SessionAddress) -> Response:
        self._check_room(address)
        try:
            channels = await self._agent.channels(address)
        except AgentError as error:
            raise RequestError(explain(error), status=502) from error
        named = [{"channelType": kind, "channelId": name} for kind, name in channels]
        return JSONResponse({"channels": named}, headers={"cache-control": "no-store"})

    async def _user(self, request: Request) -> str:
        user = await authenticated(self._authenticate, request)
        if user is None or IDENTIFIER(user):
            raise RequestError("Missing or invalid authentication.", status=401)
        return user

    def _address(self, request: Request, session: str, user: str) -> SessionAddress:
        query = request.query_params
        channel = query.get("channelType") or "web", query.get("channelId") or "default"
        for name, value in zip(("channelType", "channelId"), channel, strict=True):
            if problem := IDENTIFIER(value):
                raise RequestError(f"{name}{problem}.")
        # A session tells its channels apart as type:id.
        if ":" in channel[0]:
            raise RequestError("channelType must not have a colon.")
        return SessionAddress(session, user, bearer_token(request) or "", channel)

    def _check_room(self, address: SessionAddress) -> None:
        if not self._agent.sockets.has_room(address):
            raise RequestError(TOO_MANY, status=503, retry_after=5)

    def _refused(self, error: RequestError) -> Response:
        self.chats.metrics.request_refused(error.status)
        return json_error(error)


def _find_route(scope: Scope, mounted_at: str) -> tuple[Endpoint, str, str, str] | None:
    """The endpoint that a path names, its method, the session and the chat.

    The path is looked at as it was sent, since a session's id may hold slashes, which are escaped in it.
    """
    whole, root = scope["path"], scope["root_path"]
    # Not every server puts its root path before the path, and not every one tells how that was sent.
    path = whole.removeprefix(root if whole.startswith(root) else mounted_at)
    raw_path = scope.get("raw_path") or quote(whole).encode()
    raw = [unquote(segment) for segment in raw_path.decode("latin-1").split("/")]
    match raw:
        case [*_, session, "chat", chat_id, "stream"] if path == f"/{session}/chat/{chat_id}/stream":
            return "stream", "GET", session, chat_id
        case [*_, session, "chat", chat_id, "stop"] if path == f"/{session}/chat/{chat_id}/stop":
            return "stop", "POST", session, chat_id
        case [*_, session, "chat" | "answer" as endpoint] if path == f"/{session}/{endpoint}":
            return endpoint, "POST", session, ""
        case [*_, session, "channels"] if path == f"/{session}/channels":
            return "channels", "GET", session, ""
        case _:
            return None


def _read(body: bytes) -> ChatRequest:
    check_cost(body, _BODY)
    return decode_request(body, _BODY, checked=True, new_id=new_id)


async def _no_route(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return json_error(RequestError(_NO_ROUTE, status=status))
