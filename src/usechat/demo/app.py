"""The demo as an app: each agent at its path, and one page for all of them.

The app signs in everybody who opens the page, with a cookie: nobody types a token on their own computer.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hmac import compare_digest
from typing import Any, Final, TypeAlias

from msgspec import Struct
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from usechat.demo import generator, models, session
from usechat.server.app import app_lifespan
from usechat.server.endpoint import ChatEndpoint
from usechat.server.origins import LOOPBACK_HOSTS, host_check
from usechat.server.page import PageAgent, page_routes

__all__ = ["PACE", "Demo", "make_demo"]

PACE: Final = 0.03
"""Seconds per word, as with a quick model."""

_USER: Final = "you"
# The page loads its settings when it opens, and again after the server has restarted.
_PATHS: Final = ("/", "/page/settings")
_Agent: TypeAlias = tuple[PageAgent, Any]
"""How the page shows an agent, and the agent. The gateway serves the session, which has None here."""


class Demo(Struct, frozen=True):
    """The app, the agents of its page, and one sentence for each agent whose package is missing."""

    app: Starlette
    agents: tuple[PageAgent, ...]
    missing: tuple[str, ...]


def make_demo(
    *, pace: float = PACE, hosts: Sequence[str] = LOOPBACK_HOSTS, environ: Mapping[str, str] | None = None
) -> Demo:
    """Make the demo: a generator, a flow, a session and a graph, and the models that `environ` has keys for.

    It leaves out agents whose package is not installed, and keeps chats in memory. `hosts` are the host names of the
    server. The demo signs in everybody who opens its page, so the server must listen on loopback only.
    """
    agents, missing = _find_agents(pace, environ or {})
    sign_in = _SignIn()
    gateway = session.DemoSession(_USER, sign_in, pace)
    endpoints = {page.path: ChatEndpoint(agent, authenticate=sign_in) for page, agent in agents if agent is not None}
    pages = tuple(page for page, _ in agents)
    routes: list[BaseRoute] = [*page_routes(pages)]
    for path, endpoint in endpoints.items():
        routes += endpoint.routes(path)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(gateway.serving())
            for endpoint in endpoints.values():
                await stack.enter_async_context(app_lifespan(endpoint.chats, endpoint.serve, 0, app))
            yield

    app = Starlette(
        # The gateway gets every other path.
        routes=[*routes, Mount("/", gateway)],
        middleware=[host_check(hosts), Middleware(_SetCookie, sign_in)],
        lifespan=lifespan,
    )
    return Demo(app, pages, missing)


def _find_agents(pace: float, environ: Mapping[str, str]) -> tuple[list[_Agent], tuple[str, ...]]:
    agents, missing = list[_Agent](), list[str]()

    def offer(make: Callable[[], _Agent], name: str, package: str) -> None:
        try:
            agents.append(make())
        except ModuleNotFoundError as error:
            missing.append(f"{name} needs {error.name}. Install it with: pip install '{package}'")

    def make_flow() -> _Agent:
        from usechat.demo import flow

        return flow.PAGE, flow.make_agent(pace)

    def make_deep_agent() -> _Agent:
        from usechat.demo import deep_agent

        return deep_agent.PAGE, deep_agent.make_agent(pace)

    agents.append((generator.PAGE, generator.make_agent(pace)))
    offer(make_flow, "The Open Harness flow", "usechat[flows]")
    agents.append((session.PAGE, None))
    offer(make_deep_agent, "The deep agent", "usechat[deepagents]")
    for model in models.find_models(environ):
        offer(lambda model=model: (model.page, model.make()), model.page.name, model.package)
    return agents, tuple(missing)


class _SignIn:
    """Recognises the one user of a process by a random cookie, which the end of the process makes worthless.

    Scripts cannot read it, and pages of other sites cannot send it. Everybody who loads the page gets it, so the server
    must listen on loopback only.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(32)

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """The user, if the connection has the cookie."""
        given = connection.cookies.get(_name(connection.scope), "")
        return _USER if compare_digest(given.encode(), self._secret.encode()) else None

    def cookie(self, scope: Scope) -> str:
        """The header that sets the cookie."""
        return f"{_name(scope)}={self._secret}; Path=/; HttpOnly; SameSite=Strict"


class _SetCookie:
    """Sets the cookie when the page loads."""

    def __init__(self, app: ASGIApp, sign_in: _SignIn) -> None:
        self._app = app
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", self._sign_in.cookie(scope))
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def _name(scope: Scope) -> str:
    """The cookie's name, with the port: a browser sends a host's cookies to all of its ports."""
    return f"usechat-demo-{(scope.get('server') or ('', 0))[1]}"
