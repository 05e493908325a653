"""The demo as an app: each agent at its path, and one page for all of them."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from usechat.demo import generator, models, session
from usechat.demo.sign_in import SignIn, SignInMiddleware
from usechat.server.app import app_lifespan
from usechat.server.endpoint import ChatEndpoint
from usechat.server.origins import LOOPBACK_HOSTS, host_check
from usechat.server.page import PageAgent, page_routes

__all__ = ["PACE", "Demo", "make_demo"]

PACE: Final = 0.03
"""Seconds per word, as with a quick model."""

_USER: Final = "you"
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
    sign_in = SignIn(_USER)
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
        middleware=[host_check(hosts), Middleware(SignInMiddleware, sign_in)],
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
