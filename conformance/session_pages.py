"""Users' pages in Node, with the real clients, and the gateway to Agent Ops sessions that they talk to."""

import asyncio
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from anyio.from_thread import BlockingPortal

from pages import Browser, Message, Page
from support.gateways import Gateway, serving_gateway, two_gateways
from support.hang import HANG_SECONDS
from support.redis_server import RedisServer
from support.session_clients import joined
from usechat.gateway.settings import GatewaySettings
from usechat.session_agent import Received, Script

__all__ = ["House", "SessionVisit", "serving_house", "serving_two_houses"]


class House:
    """A gateway and a session agent in a thread of their own."""

    def __init__(self, portal: BlockingPortal, gateway: Gateway) -> None:
        self._portal = portal
        self._gateway = gateway
        self.port = int(gateway.url.rpartition(":")[2])
        self.agent = gateway.agent

    def token(self, user: str) -> str:
        headers = self._portal.call(self._gateway.headers, user)
        return headers["authorization"].removeprefix("Bearer ")

    def add_session(self, session: str, owner: str) -> None:
        self.token(owner)
        self._portal.call(self._gateway.directory.add_session, session, owner)

    def post(self, rest: str, session: str, user: str, **options: Any) -> int:
        return self._portal.call(lambda: self._gateway.post(rest, session=session, user=user, **options)).status_code

    def until(self, check: Callable[[], bool]) -> None:
        """Wait until the check holds, which is made when the session agent hears something."""
        self._portal.call(lambda: asyncio.wait_for(self.agent.until(check), HANG_SECONDS))

    def kept(self, session: str) -> list[dict[str, Any]]:
        """The messages that the session has."""
        return self._portal.call(self._kept, session)

    def release(self, session: str) -> None:
        """Let the turn that hangs go on."""
        self._portal.call(self.agent.session(session).release)

    def cut(self, session: str) -> None:
        """Cut the sockets of the session."""
        for socket in self.agent.sockets:
            if socket.session == session:
                self._portal.call(socket.abort)

    async def _kept(self, session: str) -> list[dict[str, Any]]:
        async with joined(self.agent, "somebody", session) as client:
            return client.heard[0]["session"]["messages"]


@contextmanager
def serving_house(
    portal: BlockingPortal, settings: GatewaySettings, script: Script | None = None, *, cors: str = ""
) -> Generator[House, None, None]:
    """Serve them until it is left, to pages of the origin `cors` if it is named."""
    origins = [cors] if cors else []
    serving = serving_gateway(settings, script=script, seconds=None, cors=origins)
    with portal.wrap_async_context_manager(serving) as gateway:
        yield House(portal, gateway)


@contextmanager
def serving_two_houses(
    portal: BlockingPortal, redis: RedisServer, settings: GatewaySettings
) -> Generator[tuple[House, House], None, None]:
    """Two gateways on one Redis, before one session agent."""
    with portal.wrap_async_context_manager(two_gateways(redis, settings, seconds=None)) as (first, second):
        yield House(portal, first), House(portal, second)


class SessionVisit:
    """One session, which `user` owns, in pages of one client."""

    def __init__(
        self, house: House, browser: Browser, client: str, *, hook: str | None = None, user: str = "ana"
    ) -> None:
        self.house = house
        self.client = client
        self.session = secrets.token_hex(8)
        self._browser = browser
        self._hook = hook
        self._user = user
        house.add_session(self.session, user)

    def page(
        self,
        messages: list[Message] | None = None,
        *,
        chat: str = "chat",
        token: str | None = None,
        last_only: bool = False,
        house: House | None = None,
    ) -> Page:
        """Open a chat with the session in a new tab, with these messages, at this house if it is named."""
        return self._browser.open(
            self.client,
            f"/api/sessions/{quote(self.session, safe='')}/chat",
            chat,
            messages=messages,
            token=self.house.token(self._user) if token is None else token,
            last_only=last_only,
            hook=self._hook,
            port=(house or self.house).port,
        )

    def post(self, rest: str, **options: Any) -> int:
        return self.house.post(rest, self.session, self._user, **options)

    def kept(self) -> list[dict[str, Any]]:
        """The messages that the session has."""
        return self.house.kept(self.session)

    def received(self, kind: str) -> list[Received]:
        """What the session was sent of this type."""
        return self.house.agent.received(kind, session=self.session)

    def until_received(self, kind: str) -> None:
        self.house.until(lambda: bool(self.received(kind)))
