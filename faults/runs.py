"""One chat under a fault: its page, the raw readers of its turn, and the record that is judged afterwards."""

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, Self

import httpx
from msgspec import Struct

from cluster import PATH, Cluster
from followers import Follower, Frame, follow_once
from pages import Message, Page, View
from promises import V5, V6, V7
from speaker import Script, script_text
from support.hang import HANG_SECONDS

__all__ = ["CLIENTS", "Expected", "Record", "Run", "Shown", "Stage"]

# Of each major the newest release, and the oldest one that the default stream is made for.
CLIENTS = (V5, V6, V7, "7.0.0")
# How often somebody reloads a page before it is called hung.
_RELOADS = 8


class Expected(Struct, frozen=True):
    """How a turn may end; one that is `whole` has said everything."""

    ends: frozenset[str]
    whole: bool = False
    # Whether Redis may forget a turn that has ended, so that who comes later has its message only.
    forgets: bool = False

    @classmethod
    def of(cls, *ends: str, whole: bool = False, forgets: bool = False) -> Self:
        return cls(frozenset(ends), whole, forgets)


class Shown(Struct, frozen=True):
    """What a page showed in the end, and how often its user had to reload it for that."""

    client: str
    react: bool
    view: View
    reloads: int


class Record(Struct, kw_only=True):
    """What was seen of one turn, for whoever judges it."""

    chat: str
    turn: str
    script: Script
    expected: Expected
    # What each raw reader read, over all of its connections, and when it saw the end.
    read: list[list[Frame]]
    ends: list[float | None]
    # When it was told that there is no such turn, and what it did last.
    gone: list[float | None]
    doing: list[str]
    # The log and the messages as each worker has them in the end.
    logs: list[list[bytes] | None]
    kept: list[list[Message]]
    pages: list[Shown]
    # Whether the chat has more than its pages know of.
    shared: bool


class Stage:
    """The clients of one batch of runs, which the same faults happen to."""

    def __init__(
        self, cluster: Cluster, draw: random.Random, http: httpx.AsyncClient, lease: float, *, short: bool
    ) -> None:
        self.cluster = cluster
        self.lease = lease
        self.short = short
        self.draw = draw
        self.http = http
        self.runs: list[Run] = []

    async def begin(
        self,
        script: Script,
        port: int,
        expected: Expected,
        readers: Sequence[Sequence[int]] | None = None,
        chat: str | None = None,
    ) -> "Run":
        """Send the script from a page that talks to this port, and read the turn at these ports besides."""
        one, two = self.cluster.ports
        run = Run(self, script, port, expected, chat or f"{script.seed}-{secrets.token_hex(4)}")
        self.runs.append(run)
        await run.send(kept=[] if chat is None else await run.messages(port))
        for ports in readers if readers is not None else ((one, two), (two, one), (self.cluster.balancer.port,)):
            run.follow(ports)
        return run

    async def end(self) -> list[Record]:
        """Wait until all have seen the end, and record what they saw."""
        await asyncio.gather(*(run.followed() for run in self.runs))
        return [await run.record() for run in self.runs]


class _Tab:
    """A page of the run's chat; without the transport of `usechat react`, its user reloads it as often as it takes."""

    def __init__(self, run: "Run", page: Page, client: str, *, react: bool) -> None:
        self.page = page
        self._run = run
        self._client = client
        self._react = react

    async def settled(self) -> Shown:
        cluster, run, reloads = self._run.stage.cluster, self._run, 0
        port = cluster.balancer.port
        view = await cluster.ask_page(self.page.settle)
        while not self._react and reloads < _RELOADS and not await self._is_shown(view):
            reloads += 1
            page = await cluster.open_page(self._client, run.chat, port, react=False, messages=await run.messages(port))
            view = await cluster.ask_page(lambda page=page: page.resume().settle())
        return Shown(self._client, self._react, view, reloads)

    async def _is_shown(self, view: View) -> bool:
        """Whether its user sees nothing that is missing."""
        if self._run.shared:
            # To reload it would show the other's answer.
            return True
        kept = await self._run.messages(self._run.stage.cluster.balancer.port)
        ids, wanted = ([message["id"] for message in some] for some in (view.messages, kept))
        is_cut = view.error == "network error" or any(part.get("state") == "streaming" for part in view.answer)
        return ids == wanted and not is_cut and len(view.answer) == len(kept[-1]["parts"])


class Run:
    """One turn, its pages and its raw readers."""

    def __init__(self, stage: Stage, script: Script, port: int, expected: Expected, chat: str) -> None:
        self.expected = expected
        self.stage = stage
        self.script = script
        self.port = port
        self.chat = chat
        self.turn = ""
        self.shared = False
        self.followers: list[Follower] = []
        self.reading: list[asyncio.Task[None]] = []
        self._tabs: list[_Tab] = []

    async def send(self, kept: list[Message]) -> None:
        """Let a page send the script, and wait until its turn is known."""
        page = await self.open(self.port, kept)
        await self.stage.cluster.ask_page(lambda: page.send(script_text(self.script)))
        status, self.turn = await self.answered(page)
        assert status == 200, status

    async def resume(self, port: int) -> None:
        """Open the chat in one more page, which talks to this port, and wait until it has come to the turn."""
        page = await self.open(port, await self.messages(port))
        await self.stage.cluster.ask_page(page.resume)
        await self.answered(page)

    def let_go(self) -> None:
        """Let its answer end, if that waits for it."""
        self.stage.cluster.notes.let_go(self.script)

    def follow(self, ports: Sequence[int]) -> Follower:
        """Read the turn at these ports."""
        follower = Follower(self.stage.http, self.chat, self.turn, ports)
        self.followers.append(follower)
        self.reading.append(asyncio.create_task(follower.run()))
        return follower

    async def followed(self) -> None:
        """Wait until all raw readers have seen the end; one that hangs is recorded without one."""
        _, hung = await asyncio.wait(self.reading, timeout=HANG_SECONDS)
        for task in hung:
            task.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)

    async def record(self) -> Record:
        """What was seen. What is stored is stored before the end can be read, so that there is nothing to wait for."""
        ports = self.stage.cluster.ports
        return Record(
            chat=self.chat,
            turn=self.turn,
            script=self.script,
            expected=self.expected,
            read=[follower.frames for follower in self.followers],
            ends=[follower.ended_at for follower in self.followers],
            gone=[follower.gone_at for follower in self.followers],
            doing=[f"{follower.doing}, {follower.breaks}, {follower.refused}" for follower in self.followers],
            logs=[await follow_once(self.stage.http, self.chat, self.turn, port) for port in ports],
            kept=[await self.messages(port) for port in ports],
            pages=[await tab.settled() for tab in self._tabs],
            shared=self.shared,
        )

    async def messages(self, port: int) -> list[Message]:
        """The messages of the chat, as this worker has them."""
        answer = await self._patiently("GET", port, "/messages")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def open(self, port: int, kept: list[Message]) -> Page:
        """Open the chat in a page that talks to this port."""
        draw = self.stage.draw
        client, react = draw.choice(CLIENTS), draw.random() < 0.5
        page = await self.stage.cluster.open_page(client, self.chat, port, react=react, messages=kept)
        self._tabs.append(_Tab(self, page, client, react=react))
        return page

    async def stop(self, port: int, turn: str | None = None) -> tuple[float, float]:
        """Stop the turn from this worker; when it was asked, and when it had answered."""
        asked = time.monotonic()
        answer = await self._request("POST", port, "/stop", params={} if turn is None else {"turn": turn})
        assert answer.status_code == 204, answer.text
        return asked, time.monotonic()

    async def answered(self, page: Page) -> tuple[int, str]:
        """The status of the answer to the page's first request, as soon as it is there, and the turn if it has one."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                view = await self.stage.cluster.ask_page(page.look)
                if view.requests and view.requests[0].status is not None:
                    return view.requests[0].status, view.requests[0].turn or ""
                await asyncio.sleep(0.002)

    async def _request(self, method: str, port: int, path: str, **options: Any) -> httpx.Response:
        url = f"http://127.0.0.1:{port}{PATH}/{self.chat}{path}"
        return await self.stage.http.request(method, url, **options)

    async def _patiently(self, method: str, port: int, path: str) -> httpx.Response:
        """The same, again while the worker is not there or asks to come back later."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                try:
                    answer = await self._request(method, port, path)
                    if answer.status_code < 500:
                        return answer
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
