"""A gateway on a real port, in front of a session agent on a real WebSocket, with a directory of users and sessions."""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from sqlalchemy import Engine, event
from starlette.applications import Starlette
from starlette.types import ASGIApp
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from support.hang import HANG_SECONDS
from support.loopback import message, parts, serving_here
from support.redis_server import SECRET, RedisServer
from usechat.database import Database
from usechat.gateway.directory import SessionDirectory
from usechat.gateway.gateway import sessions_gateway
from usechat.gateway.settings import GatewaySettings
from usechat.session_agent import Fault, Script, SessionAgent, SessionSettings

SETTINGS = GatewaySettings(enabled=True)
FAILED = 'usechat_turns_ended_total{outcome="error"}'


class WatchedAgent(SessionAgent):
    """A session agent that notes where sockets were opened, as it was sent, and with what authorization."""

    def __init__(self, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.addresses: list[str] = []
        self.authorizations: list[str] = []

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        self.addresses.append(request.path)
        self.authorizations += request.headers.get_all("Authorization")
        return super()._admit(connection, request)


class Gateway:
    """A gateway and what stands behind it. Users are made when they are asked for; `ana` owns the session `s1`."""

    def __init__(self, url: str, agent: WatchedAgent, database: Database, http: httpx.AsyncClient) -> None:
        self.url = url
        self.agent = agent
        self.database = database
        self.directory = SessionDirectory(database)
        self.http = http
        self._tokens: dict[str, str] = {}

    async def headers(self, user: str) -> dict[str, str]:
        if user not in self._tokens:
            await self.directory.add_user(user)
            self._tokens[user] = await self.directory.add_token(user, 3600)
        return {"authorization": f"Bearer {self._tokens[user]}"}

    def at(self, port: int) -> "Gateway":
        """Another gateway, on this port, with the same users, sessions and session agent."""
        other = copy.copy(self)
        other.url = f"http://127.0.0.1:{port}"
        return other

    def path(self, rest: str, session: str = "s1") -> str:
        return f"{self.url}/api/sessions/{quote(session, safe='')}/{rest}"

    async def post(self, rest: str, *, user: str = "ana", session: str = "s1", **options: Any) -> httpx.Response:
        return await self.http.post(self.path(rest, session), headers=await self.headers(user), **options)

    async def get(self, rest: str, *, user: str = "ana", session: str = "s1") -> httpx.Response:
        return await self.http.get(self.path(rest, session), headers=await self.headers(user))

    async def ask(self, text: str, *, chat: str = "c", user: str = "ana", session: str = "s1") -> str:
        """The whole stream of an answer."""
        response = await self.post("chat", user=user, session=session, json=message(text, chat))
        assert response.status_code == 200, response.text
        return response.text

    async def parts(self, text: str, **options: Any) -> list[dict[str, Any]]:
        return parts(await self.ask(text, **options))

    @asynccontextmanager
    async def asking(
        self, text: str, *, chat: str = "c", user: str = "ana", session: str = "s1", query: str = ""
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """Ask, and give the chunks of the answer as they come; to leave it early disconnects."""
        url, headers = self.path(f"chat{query}", session), await self.headers(user)
        async with self.http.stream("POST", url, json=message(text, chat), headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield chunks(response)

    @asynccontextmanager
    async def following(self, *, chat: str = "c", user: str = "ana") -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """Follow the turn that runs, as a second tab or a page that was reloaded."""
        url, headers = self.path(f"chat/{chat}/stream"), await self.headers(user)
        async with self.http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield chunks(response)

    async def metric(self, name: str) -> float:
        """A sample by its name and labels, or the sum of all samples of that name."""
        lines = (await self.http.get(f"{self.url}/metrics")).text.splitlines()
        samples = [line.rpartition(" ") for line in lines]
        return sum(float(value) for sample, _, value in samples if name in (sample, sample.partition("{")[0]))


async def chunks(response: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield msgspec.json.decode(line.removeprefix("data: "))


async def until_chunk(stream: AsyncIterator[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Read to the chunk with these fields."""
    async for chunk in stream:
        if wanted.items() <= chunk.items():
            return chunk
    raise AssertionError(f"{wanted} did not come")


@asynccontextmanager
async def serving_gateway(
    settings: GatewaySettings = SETTINGS,
    *,
    agent: SessionSettings | None = None,
    faults: tuple[Fault, ...] = (),
    script: Script | None = None,
    token: str = "",
    upstream: str = "",
    mount: Callable[[Starlette], ASGIApp] = lambda app: app,
    send_buffer: int | None = None,
    seconds: float | None = HANG_SECONDS,
    **options: Any,
) -> AsyncGenerator[Gateway]:
    """Serve a gateway before a session agent, or another upstream; `send_buffer` is how much its sockets take in."""
    database = Database("sqlite://")
    directory = SessionDirectory(database)
    session_agent = WatchedAgent(agent or SessionSettings(pace=0), token=token, faults=list(faults), script=script)
    async with (
        session_agent.serving(),
        httpx.AsyncClient(timeout=HANG_SECONDS, limits=httpx.Limits(max_connections=None)) as http,
        asyncio.timeout(seconds),
    ):
        shown: dict[str, Any] = {"directory": directory, **options}
        app = sessions_gateway(upstream=upstream or session_agent.url, settings=settings, **shown)
        async with serving_here(mount(app), send_buffer=send_buffer) as port:
            gateway = Gateway(f"http://127.0.0.1:{port}", session_agent, database, http)
            await gateway.headers("ana")
            await directory.add_session("s1", "ana")
            yield gateway
    await database.aclose()


@asynccontextmanager
async def two_gateways(
    redis: RedisServer, settings: GatewaySettings = SETTINGS, **options: Any
) -> AsyncGenerator[tuple[Gateway, Gateway]]:
    """Two workers on one Redis, before one session agent."""
    redis.empty()
    shared: dict[str, Any] = {"store": redis.url, "secret": SECRET}
    async with serving_gateway(settings, **shared, **options) as first:
        app = sessions_gateway(upstream=first.agent.url, directory=first.directory, settings=settings, **shared)
        async with serving_here(app) as port:
            yield first, first.at(port)


@contextmanager
def statements() -> Generator[list[str]]:
    """All that is asked of any database meanwhile."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
