"""The demo as an app: each agent at its address, and one page before all of them."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from usechat.demo import generator, models, session
from usechat.demo.session import DemoSession
from usechat.demo.sign_in import SignIn, SignInMiddleware
from usechat.server.app import app_lifespan
from usechat.server.endpoint import ChatEndpoint
from usechat.server.origins import LOOPBACK_HOSTS, host_check
from usechat.server.page import PageAgent, page_routes

__all__ = ["PACE", "Demo", "make_demo"]

PACE: Final = 0.03
"""Seconds for a word, as with a quick model."""

_USER: Final = "you"


class Demo(Struct, frozen=True):
    """The app, the agents behind its page, and what is `missing`, in a sentence each."""

    app: Starlette
    agents: tuple[PageAgent, ...]
    missing: tuple[str, ...]


class _Served(Struct, frozen=True):
    """An agent of the page; that of the session is the gateway's."""

    page: PageAgent
    agent: Any = None


_SESSION: Final = _Served(
    PageAgent(
        path=session.PATH,
        name="Agent Ops session",
        about=session.ABOUT,
        prompts=session.PROMPTS,
        keeps=False,
        lists=False,
        answers=session.ANSWERS,
    )
)


def make_demo(
    *, pace: float = PACE, hosts: Sequence[str] = LOOPBACK_HOSTS, environ: Mapping[str, str] | None = None
) -> Demo:
    """Make the demo: a generator, a flow, a session and a graph, and the models that `environ` has keys for.

    What needs a package that is not installed is left out. Chats are kept in memory. `hosts` are the names that the
    server goes by. Whoever opens the page is signed in, so that it must listen on loopback only.
    """
    served, missing = _find_agents(pace, environ or {})
    sign_in = SignIn(_USER)
    gateway = DemoSession(_USER, sign_in, pace)
    endpoints = {one.page.path: ChatEndpoint(one.agent, authenticate=sign_in) for one in served if one != _SESSION}
    pages = tuple(one.page for one in served)
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
        # What has no address here is the gateway's.
        routes=[*routes, Mount("/", gateway)],
        middleware=[host_check(hosts), Middleware(SignInMiddleware, sign_in)],
        lifespan=lifespan,
    )
    return Demo(app, pages, missing)


def _find_agents(pace: float, environ: Mapping[str, str]) -> tuple[list[_Served], tuple[str, ...]]:
    page = PageAgent(path="/api/generator", name="Python generator", about=generator.ABOUT, prompts=generator.PROMPTS)
    served, missing = [_Served(page, generator.make_agent(pace))], list[str]()

    def offer(make: Callable[[], _Served], name: str, package: str) -> None:
        try:
            served.append(make())
        except ModuleNotFoundError as error:
            missing.append(f"{name} needs {error.name}. Install it with: pip install '{package}'")

    offer(lambda: _make_flow(pace), "The Open Harness flow", "usechat[flows]")
    served.append(_SESSION)
    offer(lambda: _make_deep_agent(pace), "The deep agent", "usechat[deepagents]")
    for model in models.find_models(environ):
        page = PageAgent(path=f"/api/{model.package}", name=model.name, about=models.ABOUT, prompts=models.PROMPTS)
        offer(lambda page=page, model=model: _Served(page, model.make()), model.name, model.package)
    return served, tuple(missing)


def _make_flow(pace: float) -> _Served:
    from usechat.demo import flow

    page = PageAgent(path="/api/flow", name="Open Harness flow", about=flow.ABOUT, prompts=flow.PROMPTS)
    return _Served(page, flow.make_agent(pace))


def _make_deep_agent(pace: float) -> _Served:
    from usechat.demo import deep_agent

    page = PageAgent(path="/api/deep-agent", name="Deep agent", about=deep_agent.ABOUT, prompts=deep_agent.PROMPTS)
    return _Served(page, deep_agent.make_agent(pace))
