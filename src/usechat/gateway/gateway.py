"""The Agent Ops gateway: sessions of Agent Ops as chats for `useChat()`, for those who may use them.

A request takes these steps, and the first one that fails answers it:

    the switch ─► route and method ─► who asks ─► `check_access` ─► chat | stream | stop | answer | channels

Everything runs in the event loop of the app, except that a body of more than 1 MiB is decoded in a thread.

- `chat` begins a turn in `Chats`, whose agent is the gateway's one `AgentOpsAgent`. The turn is a task of its own. The
  response only reads its log: when the last reader leaves, the turn goes on for `linger` seconds and is then stopped.
- `stream` and `stop` find a turn by its chat, in this process or, with a store on Redis, in any other. The key of a
  chat holds the session and the user, so that nobody can name a turn of another session or of another user.
- `answer` and `channels` begin no turn. `answer` is sent on the socket of the user's turn that asks the question. If
  this process has none, it opens a socket for as long as the request takes, as `channels` always does.

A worker that dies leaves its prompts to their sessions. Another worker ends its turns with an error, and sends the
sessions nothing. Sessions keep what is said in them; the gateway keeps no messages, and no token leaves its process.
"""

import asyncio
import re
import secrets
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, get_args
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct, field, structs
from prometheus_client import Counter, Gauge
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from usechat.database import Database
from usechat.errors import AgentError, DatabaseBusyError, RequestError
from usechat.gateway.access import Endpoint
from usechat.gateway.directory import DirectoryAuth, SessionDirectory
from usechat.gateway.settings import GatewaySettings
from usechat.history import Tail
from usechat.ids import new_id
from usechat.integrations.agent_ops.agent import AgentOpsAgent, Prompt, SessionCall
from usechat.integrations.agent_ops.socket import TOO_MANY, AbortedBy, SessionAddress
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import ChatRequest, Limits, check_cost, decode_json, decode_request
from usechat.server.admission import ApprovalSigner
from usechat.server.app import app_lifespan, service_routes
from usechat.server.auth import Authenticate, JwtAuth, authenticated, bearer_token, is_token
from usechat.server.chat_history import ClientHistory
from usechat.server.chats import Chats
from usechat.server.endpoint import Found, TurnEndpoint
from usechat.server.metrics import Metrics
from usechat.server.origins import check_origin
from usechat.server.origins import cors as cors_middleware
from usechat.server.requests import VisibleHeaders, check_id, json_body, json_error, last_seen
from usechat.server.responses import SlowReaders
from usechat.server.startup import check_arguments, check_path, listed
from usechat.stores import TurnHead, TurnStore
from usechat.stores.urls import LEASE, open_store
from usechat.turns.failures import explain
from usechat.turns.pending import Admission, PendingTurn

__all__ = ["prompt_of", "sessions_gateway"]

_SETTINGS: Final = GatewaySettings()
_NO_ROUTE: Final = "There is nothing here."
_PING_SECONDS: Final = 2.0
# A message may have 25 million characters of files. The messages before it are not looked at.
_BODY: Final = Limits(body=40 * 1024 * 1024, messages=20_000, values=150_000)
_LARGE_BODY: Final = 1024 * 1024
_ANSWER_SIZE: Final = 64 * 1024

# What a session takes of a prompt. It drops the rest without a word.
_MOST_FILES: Final = 8
_MOST_CHARACTERS: Final = 12_000_000
_MOST_IN_ALL: Final = 25_000_000
_TAKEN: Final = re.compile(r"data:(?:image|audio)/[^;,\s]+(?:;[^;,\s]+)*;base64,", re.IGNORECASE)
# The expression takes time and memory for each character, so it sees only the first 1,000 of a data URL.
_LONGEST_HEAD: Final = 1_000


def sessions_gateway(
    *,
    upstream: str,
    directory: SessionDirectory | str,
    authenticate: Authenticate | None = None,
    jwt: JwtAuth | None = None,
    store: TurnStore | str | None = None,
    lease: float = LEASE,
    secret: str | None = None,
    settings: GatewaySettings = _SETTINGS,
    path: str = "/api/sessions",
    cors: Collection[str] | str = (),
    grace: float | None = 10.0,
) -> Starlette:
    """Make the app that serves the sessions of an Agent Ops upstream, with `/healthz`, `/readyz` and `/metrics`.

    `directory` says who may use which session: one of your own, or the URL of its database. `authenticate` says who is
    asking. Without it, users of the directory sign in by its tokens and, with a `jwt`, by JWTs. `store` keeps running
    turns: in this process, or at the URL of a Redis that all workers share. There a worker that is silent for `lease`
    seconds loses its turns, and the names of keys are hashed with the `secret`, of 32 bytes or more. `cors` are the
    origins whose pages may call. A server that shuts down gives running turns `grace` seconds; with None the app leaves
    signals alone.

    Raises:
        TypeError: The store or the lease has the wrong type.
        ValueError: The path, the upstream or its token, an origin or a URL is not one, the secret is missing or too
            short, or both `authenticate` and `jwt` are given.
        ImportError: The package that the database or the store needs is not installed.
    """
    check_arguments(path=path, store=store, lease=lease)
    check_path(path)
    _check_upstream(upstream, settings.upstream_token)
    if authenticate is not None and jwt is not None:
        raise ValueError("authenticate says who is asking, so that it has to look at JWTs itself.")
    origins, turns = listed(cors), open_store(store, secret=secret, lease=lease, scope=path)
    database = None
    if isinstance(directory, str):
        database = Database(directory)
        directory = SessionDirectory(database)
    who = authenticate or DirectoryAuth(directory, jwt)
    gateway = _Gateway(path, upstream, directory, who, settings, origins, turns, database)
    app = Starlette(
        routes=[Mount(path, gateway), *service_routes(gateway.chats)],
        middleware=[cors_middleware(origins, credentials=False)] if origins else [],
        exception_handlers={HTTPException: _no_route},
        lifespan=partial(app_lifespan, gateway.chats, gateway.serve, grace),
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


class _Gateway(TurnEndpoint):
    """The routes of sessions, as one ASGI app below their common path."""

    def __init__(
        self,
        path: str,
        upstream: str,
        directory: SessionDirectory,
        authenticate: Authenticate,
        settings: GatewaySettings,
        origins: Collection[str],
        store: TurnStore,
        database: Database | None,
    ) -> None:
        metrics, history = _GatewayMetrics(), _SessionHistory(directory)
        agent = AgentOpsAgent(upstream, settings.upstream_token, settings.options, settings.sockets, metrics)
        super().__init__(
            Chats(agent, store, history, settings.chats, metrics),
            (history, store),
            database,
            settings.stream,
            json_error,
            SlowReaders(settings.behind_in_all, lambda: agent.sockets.is_crowded),
        )
        self._agent = agent
        self._path = path
        self._directory = directory
        self._authenticate = authenticate
        self._origins = origins
        self._is_on = settings.is_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        response = await self._respond(self._route, Request(scope, receive, send))
        await response(scope, receive, send)

    async def _route(self, request: Request) -> Found:
        found = _find_route(request.scope, self._path) if self._is_on else None
        if found is None:
            raise RequestError(_NO_ROUTE, status=404)
        endpoint, method, session, chat_id = found
        if request.method != method:
            refusal = self._refused(RequestError(f"This takes {method}.", status=405))
            refusal.headers["allow"] = method
            return refusal
        user = await authenticated(self._authenticate, request)
        if user is None or IDENTIFIER(user):
            raise RequestError("Missing or invalid authentication.", status=401)
        await self._directory.check_access(session, user, endpoint)
        match endpoint:
            case "chat":
                return await self._begin(request, _address(request, session, user))
            case "stream":
                return await self.chats.follow(_scoped(session, check_id(chat_id)), user, *last_seen(request))
            case "stop":
                if bearer_token(request) is None:
                    # Any page could make a user stop a turn who signs in by a cookie.
                    check_origin(request, self._origins)
                await self.chats.stop(_scoped(session, check_id(chat_id)), user, request.query_params.get("turn"))
                return None
            case "answer":
                return await self._answer(request, _address(request, session, user))
            case "channels":
                return await self._channels(_address(request, session, user))

    async def _begin(self, request: Request, address: SessionAddress) -> Found:
        body = await json_body(request, limit=_BODY.body)
        # A large one would hold up everybody else.
        asked = await asyncio.to_thread(_read, body) if len(body) > _LARGE_BODY else _read(body)
        call = SessionCall(address, asked.id, prompt_of(asked))
        self._check_room(address)
        # The session is asked for the last message, whatever is wanted with it; nothing that runs gives way.
        chat_id = _scoped(address.session, asked.id)
        scoped_request = structs.replace(asked, id=chat_id, trigger="submit-message", message_id=None)
        return await self.chats.begin(scoped_request, address.user, VisibleHeaders(request.scope["headers"]), call)

    async def _answer(self, request: Request, address: SessionAddress) -> Found:
        body = await json_body(request, limit=_ANSWER_SIZE)
        given = decode_json(
            _ANSWER, body, "The body", "must be an object with a questionId and a text or boolean answer"
        )
        with self._reaching(address):
            is_open = await self._agent.answer(address, given.question_id, answer=given.answer)
        if not is_open:
            raise RequestError("There is no such question open.", status=404)

    async def _channels(self, address: SessionAddress) -> Found:
        with self._reaching(address):
            channels = await self._agent.channels(address)
        named = [{"channelType": kind, "channelId": name} for kind, name in channels]
        return JSONResponse({"channels": named}, headers={"cache-control": "no-store"})

    @contextmanager
    def _reaching(self, address: SessionAddress) -> Generator[None]:
        self._check_room(address)
        try:
            yield
        except AgentError as error:
            raise RequestError(explain(error), status=502) from error

    def _check_room(self, address: SessionAddress) -> None:
        if not self._agent.sockets.has_room(address):
            raise RequestError(TOO_MANY, status=503, retry_after=5)


def _find_route(scope: Scope, mounted_at: str) -> tuple[Endpoint, str, str, str] | None:
    """The endpoint that a path names, its method, the session and the chat.

    The path is looked at as it was sent, since a session's id may hold slashes, which are escaped in it.
    """
    whole, root = scope["path"], scope["root_path"]
    # Some servers leave their root path out of the path, and some do not say how the path was sent.
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


def _address(request: Request, session: str, user: str) -> SessionAddress:
    query = request.query_params
    channel = query.get("channelType") or "web", query.get("channelId") or "default"
    for name, value in zip(("channelType", "channelId"), channel, strict=True):
        if problem := IDENTIFIER(value):
            raise RequestError(f"{name}{problem}.")
    # A session tells its channels apart as type:id.
    if ":" in channel[0]:
        raise RequestError("channelType must not have a colon.")
    return SessionAddress(session, user, bearer_token(request) or "", channel)


def _read(body: bytes) -> ChatRequest:
    check_cost(body, _BODY)
    return decode_request(body, _BODY, checked=True, new_id=new_id)


async def _no_route(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return json_error(RequestError(_NO_ROUTE, status=status))


def prompt_of(request: ChatRequest) -> Prompt | None:
    """The prompt that a request asks for; None if it ends with a message of the assistant, which asks for nothing.

    Raises:
        RequestError: The message is from the system, or says nothing (400), has too much (413) or a file of a kind that
            no session takes (415).
    """
    message = request.last
    if message.role == "assistant":
        return None
    if message.role != "user":
        raise RequestError("The last message must be from the user or the assistant.")
    text = "\n".join(part["text"] for part in message.parts if part["type"] == "text")
    attachments, total = list[dict[str, str]](), 0
    for number, file in enumerate((part for part in message.parts if part["type"] == "file"), 1):
        total += len(file["url"])
        attachments.append(_attachment(file, number, total))
    if not text.strip() and not attachments:
        raise RequestError("The message has neither text nor files.")
    return Prompt(message.id or new_id(), text, tuple(attachments))


def _attachment(file: dict[str, Any], number: int, total: int) -> dict[str, str]:
    """The file as a session takes it; `total` is how many characters the files have up to this one."""
    mime, url, name, status = file["mediaType"], file["url"], file.get("filename"), 413
    if number > _MOST_FILES:
        problem = f"is one too many: a message may have {_MOST_FILES} files"
    elif len(url) > _MOST_CHARACTERS:
        problem = f"is larger than {_MOST_CHARACTERS:,} characters"
    elif total > _MOST_IN_ALL:
        problem = f"makes the files together larger than {_MOST_IN_ALL:,} characters"
    elif not _TAKEN.match(url, 0, _LONGEST_HEAD) or not mime.lower().startswith(("image/", "audio/")):
        problem, status = "cannot be sent: sessions take images and audio, as base64 data URLs", 415
    else:
        attachment = {"type": "file", "mime": mime, "url": url}
        return {**attachment, "filename": name} if isinstance(name, str) else attachment
    called = f"The file {name!r:.80}" if isinstance(name, str) and name else f"File {number}, {mime!r:.60},"
    raise RequestError(f"{called} {problem}.", status=status)


def _scoped(session: str, chat_id: str) -> str:
    """The id of a chat of this session; neither id has line breaks."""
    return f"{session}\n{chat_id}"


class _SessionHistory(ClientHistory):
    """Takes the last message of a request and nothing else, and keeps none of it."""

    name: Final = "the sessions"

    def __init__(self, directory: SessionDirectory) -> None:
        # No session asks for an approval.
        super().__init__(ApprovalSigner(secrets.token_hex(), 0.0))
        self._directory = directory

    def names(self, head: TurnHead) -> Mapping[str, str]:
        user, session, chat = head.chat.split("\n")
        return {"session": session, "chat": chat, "user": user}

    async def admit(self, pending: PendingTurn) -> Admission:
        last = pending.asked.last
        return Admission(Tail(0), 0, [last], last, last.text, messages=[last])

    async def ping(self) -> bool:
        try:
            await self._directory.ping(within=_PING_SECONDS)
        except DatabaseBusyError:
            return False
        return True


class _GatewayMetrics(Metrics):
    """What every server counts, and what happens to the sockets to sessions."""

    def __init__(self) -> None:
        super().__init__()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self._open_failures = counter("adapter_ws_open_failures", "Sockets to sessions that could not be opened.")
        ended = "Streams that ended before their turn did, by the client or by the gateway."
        aborts = counter("adapter_stream_aborts", ended, ["by"])
        self._aborts = {by: aborts.labels(by) for by in get_args(AbortedBy)}
        self._open = gauge("adapter_ws_open", "Sockets to sessions that are open.", multiprocess_mode="livesum")
        most = "The most that one process has open to one session."
        self._most = gauge("adapter_ws_open_most_of_a_session", most, multiprocess_mode="livemax")

    def sockets_changed(self, count: int, most_of_a_session: int) -> None:
        self._open.set(count)
        self._most.set(most_of_a_session)

    def open_failed(self) -> None:
        self._open_failures.inc()

    def aborted(self, by: AbortedBy) -> None:
        self._aborts[by].inc()
