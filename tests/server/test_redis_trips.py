"""How many round trips to Redis a request costs, as a proxy in between counts them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import serving_here
from support.redis_server import SECRET, RedisServer
from tcp_proxy import TcpProxy
from usechat import Chat, create_app

pytestmark = pytest.mark.anyio

# No lease is renewed, and no connection is asked for a sign of life, while trips are counted.
_LONG = 86_400.0


class Served:
    def __init__(self, proxy: TcpProxy, client: httpx.AsyncClient, ends: asyncio.Event) -> None:
        self.ends = ends
        self._proxy = proxy
        self._client = client

    async def load_page(self) -> int:
        """Load a page on an idle chat, and give the trips since the last one was loaded."""
        before = self._proxy.trips
        assert (await self._client.get("/api/chat/1/messages")).status_code == 200
        assert (await self._client.get("/api/chat/1/stream")).status_code == 204
        return self._proxy.trips - before

    async def end_turn(self, how: str) -> int:
        """Begin a turn, and give the trips from its last words to its end."""
        self.ends.clear()
        message = {"id": how, "role": "user", "parts": [{"type": "text", "text": "Hello."}]}
        async with self._client.stream("POST", "/api/chat", json={"id": "1", "message": message}) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if "Hello" in line:
                    break
            before = self._proxy.trips
            if how == "stops":
                assert (await self._client.post("/api/chat/1/stop")).status_code < 300
            else:
                self.ends.set()
            async for _ in lines:
                pass
        # It comes after all that the turn has sent.
        await self.load_page()
        return self._proxy.trips - before


@asynccontextmanager
async def served(server: RedisServer, folder: Path) -> AsyncGenerator[Served, None]:
    proxy, ends = TcpProxy(server.port), asyncio.Event()

    async def agent(_: Chat) -> AsyncIterator[str]:
        yield "Hello."
        await ends.wait()

    proxy.start()
    store, history = f"redis://127.0.0.1:{proxy.port}/0", f"sqlite:///{folder}/chats.db"
    app = create_app(agent, store=store, lease=_LONG, approval_secret=SECRET, history=history, grace=None)
    try:
        async with (
            serving_here(app) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS) as client,
        ):
            yield Served(proxy, client, ends)
    finally:
        await proxy.close()


async def test_a_page_on_an_idle_chat_costs_three_trips(redis_server: RedisServer, tmp_path: Path) -> None:
    async with served(redis_server, tmp_path) as chat:
        # The first one connects, and loads the scripts.
        await chat.load_page()
        assert await chat.load_page() == 3


async def test_a_stop_at_the_worker_of_a_turn_costs_no_trip_more_than_its_end(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    async with served(redis_server, tmp_path) as chat:
        await chat.end_turn("ends")
        assert await chat.end_turn("stops") == await chat.end_turn("ends")
