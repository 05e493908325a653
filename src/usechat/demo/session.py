"""A session of Agent Ops: the development SessionAgent on a real WebSocket, behind the real gateway."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from usechat.database import Database
from usechat.demo import pieces
from usechat.gateway.directory import SessionDirectory
from usechat.gateway.gateway import sessions_gateway
from usechat.gateway.settings import GatewaySettings
from usechat.integrations.agent_ops.options import AgentOpsOptions
from usechat.server.auth import Authenticate
from usechat.server.page import PageAgent, PagePrompt
from usechat.session_agent import SessionAgent, SessionSettings, Turn, TurnPlay

__all__ = ["PAGE", "DemoSession"]

_SESSION: Final = "demo"
_LINES: Final = 2_000


class DemoSession:
    """The gateway as an ASGI app, which works inside `serving`.

    The session belongs to `user`, whom `authenticate` signs in. Only the gateway and the SessionAgent know the token of
    the socket.
    """

    def __init__(self, user: str, authenticate: Authenticate, pace: float) -> None:
        self._user = user
        self._authenticate = authenticate
        self._pace = pace
        self._gateway: ASGIApp | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None, None]:
        token, database = secrets.token_urlsafe(32), Database("sqlite://")
        plays = {prompt.text: play for prompt, play in _PLAYS.items()}
        agent = SessionAgent(SessionSettings(pace=self._pace), token=token, plays=plays)
        try:
            directory = SessionDirectory(database)
            await directory.add_user(self._user)
            await directory.add_session(_SESSION, self._user)
            async with agent.serving():
                gateway = sessions_gateway(
                    upstream=agent.url,
                    directory=directory,
                    authenticate=self._authenticate,
                    settings=GatewaySettings(
                        enabled=True, upstream_token=token, options=AgentOpsOptions(transient_status=True)
                    ),
                    grace=0,
                )
                async with gateway.router.lifespan_context(gateway):
                    self._gateway = gateway
                    yield
        finally:
            await database.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._gateway is not None, "A server sends no request before its app has started."  # noqa: S101
        await self._gateway(scope, receive, send)


async def _fix(turn: Turn) -> None:
    """Tools, one of which fails at first."""
    await turn.text(*pieces("I run the tests first. "))
    await turn.tool("t1", "bash", "running", {"command": "pytest -q"})
    await turn.pause(12 * turn.session.settings.pace)
    await turn.tool("t1", "bash", "error", {"command": "pytest -q"}, error="1 failed: test_tides: 7.1 != 71")
    await turn.text(*pieces("A decimal point is missing. "))
    edit = {"filePath": "tides.py", "oldString": "return 71", "newString": "return 7.1"}
    await turn.tool("t2", "edit", "running", edit)
    await turn.tool("t2", "edit", "completed", edit, result="1 replacement in tides.py")
    await turn.tool("t3", "bash", "running", {"command": "pytest -q"})
    await turn.pause(12 * turn.session.settings.pace)
    await turn.tool("t3", "bash", "completed", {"command": "pytest -q"}, result="14 passed in 0.31s")
    await turn.text(*pieces("All 14 tests pass now."))
    turn.finish()


async def _deploy(turn: Turn) -> None:
    """A question with options. Everybody in the session may answer it."""
    await turn.text(*pieces("There are two places to deploy to. "))
    answer = await turn.ask("Where shall I deploy it?", ["staging", "production"])
    said = "Nobody answered, so I deploy nothing." if answer is None else f"I deploy it to {answer}. It is up."
    await turn.text(*pieces(said))
    turn.finish()


async def _watch(turn: Turn) -> None:
    """A turn that goes on until the user stops it."""
    for number in range(1, _LINES):
        await turn.text(f"`{number:04} GET /tides 200`\n\n")
    turn.finish()


async def _overload(turn: Turn) -> None:
    """A model that fails in the middle of its answer."""
    await turn.text(*pieces("I begin to think"))
    turn.finish("error", error="The model is overloaded.")


_PLAYS: Final[Mapping[PagePrompt, TurnPlay]] = {
    PagePrompt("Fix the failing test", "Status and tools"): _fix,
    PagePrompt("Deploy the app", "A question with options"): _deploy,
    PagePrompt("Watch the log", "A turn to stop"): _watch,
    PagePrompt("Ask an overloaded model", "An error in mid-answer"): _overload,
}
PAGE: Final = PageAgent(
    path=f"/api/sessions/{_SESSION}/chat",
    name="Agent Ops session",
    about="A session of Agent Ops on a WebSocket, behind the gateway that asks whose session it is.",
    prompts=tuple(_PLAYS),
    keeps=False,
    lists=False,
    answers=f"/api/sessions/{_SESSION}/answer",
)
