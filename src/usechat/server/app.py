"""A whole app: the chat, its page, and the routes for health checks and metrics."""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from usechat.history import HistoryStore
from usechat.integrations import AnyAgent
from usechat.protocol.clients import ClientName
from usechat.protocol.requests import Limits
from usechat.server.auth import Authenticate
from usechat.server.chats import Chats
from usechat.server.draining import drain_on_signals
from usechat.server.endpoint import ChatEndpoint
from usechat.server.origins import cors as cors_middleware
from usechat.server.origins import host_check, no_cors
from usechat.server.page import PageAgent, page_routes
from usechat.server.responses import StreamLimits
from usechat.server.startup import check_arguments, check_path, listed
from usechat.stores import TurnStore
from usechat.stores.urls import LEASE
from usechat.turns.settings import ChatSettings

__all__ = ["app_lifespan", "create_app", "how_to_connect", "service_routes"]

_SETTINGS: Final = ChatSettings()
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()

_HOW_TO_CONNECT: Final = """\
  curl -N {url} -H 'content-type: application/json' \\
    {curl}-d '{{"id": "1", "message": {{"id": "1", "role": "user", "parts": [{{"type": "text", "text": "Hello"}}]}}}}'

  const chat = useChat({{ transport: new DefaultChatTransport({{ api: '{url}'{page} }}) }})
"""


def how_to_connect(url: str, *, token: bool = False) -> str:
    """How to call the chat at this URL from a terminal and from a page; `token` says that it needs one."""
    curl = '-H "authorization: Bearer $TOKEN" \\\n    ' if token else ""
    page = ", headers: { Authorization: `Bearer ${token}` }" if token else ""
    return _HOW_TO_CONNECT.format(url=url, curl=curl, page=page)


def create_app(
    agent: AnyAgent,
    *,
    path: str = "/api/chat",
    authenticate: Authenticate | None = None,
    store: TurnStore | str | None = None,
    lease: float = LEASE,
    history: HistoryStore | str | None = None,
    approval_secret: str | None = None,
    client: ClientName | None = None,
    settings: ChatSettings = _SETTINGS,
    limits: Limits = _LIMITS,
    stream: StreamLimits = _STREAM,
    cors: Collection[str] | str = (),
    cors_credentials: bool = False,
    allowed_hosts: Collection[str] | str | None = None,
    grace: float | None = 10.0,
    lists_all: bool = False,
    page: bool = False,
    page_images: Collection[str] | str = (),
) -> Starlette:
    """Make the app that serves an agent to `useChat()` at `path`, with `/`, `/healthz`, `/readyz` and `/metrics`.

    `store` keeps running turns: in this process, or at the URL of a Redis that all workers share, such as
    `redis://localhost` or `rediss://user:password@host`. There another worker ends a turn whose own worker is silent
    for `lease` seconds, and the `approval_secret` is needed, too.
    `history` keeps chats: in memory, at a database URL, or in a History that you close yourself. With `"client"` the
    page keeps them, and approvals are signed with `approval_secret`, of 32 bytes or more.
    `client` overrides the one in `settings`. `cors` lists the origins whose pages may call the chat, `allowed_hosts`
    the names of the server. When the server ends, running turns get `grace` seconds; with None the app leaves signals
    alone. Only users who are signed in get a list of their chats; where nobody signs in, `lists_all` gives everybody
    the list of all chats. With `page`, a chat page for this agent is served at `/`; its text may show images of this
    server below the paths `page_images`, such as `/charts/`.

    Raises:
        TypeError: The agent is not one, or an argument has the wrong type.
        ValueError: A path, an origin, a host or a URL is not one, or the secret is missing or too short.
        ImportError: The package for the database or the store is not installed.
    """
    check_arguments(
        path=path,
        cors=cors,
        cors_credentials=cors_credentials,
        allowed_hosts=allowed_hosts,
        grace=grace,
        page=page,
        page_images=page_images,
    )
    check_path(path)
    origins = listed(cors)
    middleware = [] if allowed_hosts is None else [host_check(listed(allowed_hosts))]
    middleware.append(cors_middleware(origins, credentials=cors_credentials) if origins else no_cors())
    endpoint = ChatEndpoint(
        agent,
        authenticate=authenticate,
        store=store,
        lease=lease,
        scope=path,
        history=history,
        approval_secret=approval_secret,
        client=client,
        settings=settings,
        limits=limits,
        stream=stream,
        origins=origins,
        lists_all=lists_all,
    )
    keeps = history != "client"
    shown = PageAgent(
        path=path,
        client=client or settings.client,
        keeps=keeps,
        lists=keeps and (lists_all or authenticate is not None),
        socket=f"{path}/ws",
        images=tuple(listed(page_images)),
    )

    async def about(request: Request) -> Response:
        url = str(request.url.replace(path=request.scope.get("root_path", "") + path, query=""))
        return PlainTextResponse(f"usechat serves an agent to useChat() at {url}\n\n{how_to_connect(url)}")

    front = page_routes([shown], authenticate) if page else [Route("/", about)]
    app = Starlette(
        routes=[*endpoint.routes(path), *front, *service_routes(endpoint.chats)],
        middleware=middleware,
        lifespan=partial(app_lifespan, endpoint.chats, endpoint.serve, grace),
    )
    app.state.endpoint = endpoint
    return app


@asynccontextmanager
async def app_lifespan(
    chats: Chats, serve: Callable[[], AbstractAsyncContextManager[None]], grace: float | None, app: Starlette
) -> AsyncGenerator[None, None]:
    """Serve the chats, and drain them when a signal comes."""
    async with serve():
        if grace is None:
            yield
            return
        with drain_on_signals(chats, grace=grace, exit_hard=getattr(app.state, "exit_hard", False)):
            yield


def service_routes(chats: Chats) -> list[Route]:
    """`/healthz`, `/readyz` (whether it takes new turns) and `/metrics`."""

    async def healthy(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        problem = await chats.problem()
        return PlainTextResponse("ok\n") if problem is None else PlainTextResponse(f"{problem}\n", status_code=503)

    async def metrics(_request: Request) -> Response:
        text, media_type = chats.metrics.render()
        return Response(text, media_type=media_type)

    return [Route("/healthz", healthy), Route("/readyz", ready), Route("/metrics", metrics)]
