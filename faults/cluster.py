"""Two real workers, an nginx before them, the Redis behind them, and the pages that talk to them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from balancer import Balancer
from node import HERE as CONFORMANCE
from node import Node
from nursery import WorkerSettings
from pages import Browser, Message, Page, ReactTransport
from speaker import Notes
from support.hang import HANG_SECONDS
from support.loopback import free_port
from support.redis_server import PROGRAMS, RedisServer

__all__ = ["PATH", "Cluster", "Worker"]

PATH = "/api/chat"
_HERE = Path(__file__).parent
_TESTS = _HERE.parent / "tests"
_TSC = CONFORMANCE.parent / "browser" / "node_modules" / ".bin" / "tsc"
_REACT = CONFORMANCE.parent / "src" / "usechat" / "react" / "usechat.ts"

Given = TypeVar("Given")


class Worker:
    """A process that serves chats, as seen from outside."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def runs(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    async def gone(self) -> None:
        while self.runs:
            await asyncio.sleep(0.005)

    @property
    def memory(self) -> int:
        """The bytes of memory that are the worker's own."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text("ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


class Cluster:
    """Everything of one test run; what a row of the table needs otherwise it starts anew.

    Turns are kept by the Redis or Valkey that the program is, chats in the database, or in an SQLite file.
    """

    def __init__(self, program: str = PROGRAMS[0], history: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="usechat-"))
        self.notes = Notes(self.folder / "notes.jsonl")
        self._program = program
        self.redis = RedisServer(program=program)
        self.ports = (free_port(), free_port())
        self.balancer = Balancer(self.ports)
        self.workers: dict[int, Worker] = {}
        self.history = history or f"sqlite:///{self.folder / 'chats.db'}"
        self._nursery = subprocess.Popen(
            [sys.executable, "nursery.py"],
            cwd=_HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )
        self._browser: Browser | None = None
        # Node answers one question after the other, so that one thread is enough.
        self._thread = ThreadPoolExecutor(1)
        self._react: ReactTransport | None = None

    def worker(self, port: int, **settings: Any) -> Worker:
        """Start the worker of this port; connections wait until it serves."""
        usual = WorkerSettings(
            port=port,
            store=self.redis.url,
            history=self.history,
            notes=str(self.notes.path),
            errors=str(self.errors),
        )
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(msgspec.json.encode(msgspec.structs.replace(usual, **settings)) + b"\n")
        self._nursery.stdin.flush()
        worker = self.workers[port] = Worker(int(self._nursery.stdout.readline()), port)
        return worker

    async def start(self, **settings: Any) -> None:
        """Start both workers with these settings, in place of those that run, and wait until they serve."""
        await self.end_workers()
        for port in self.ports:
            self.worker(port, **settings)
        await self.ready()

    async def replace_redis(self, *, aof: bool) -> None:
        """End the workers, and have an empty Redis for the next ones."""
        await self.end_workers()
        self.redis.close()
        self.redis = RedisServer(aof=aof, program=self._program)

    async def ready(self) -> None:
        """Wait until both workers take turns."""
        async with asyncio.timeout(HANG_SECONDS):
            for port in self.ports:
                while not await self._is_ready(port):
                    await asyncio.sleep(0.01)

    async def end_workers(self) -> None:
        for worker in self.workers.values():
            worker.send(signal.SIGKILL)
            await worker.gone()
        self.workers.clear()

    @property
    def errors(self) -> Path:
        """What the workers complained about."""
        return self.folder / "errors.log"

    async def _is_ready(self, port: int) -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def ask_page(self, call: Callable[[], Given]) -> Given:
        """Ask the pages' process something without keeping the readers of this one waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def open_page(
        self, client: str, chat: str, port: int, *, react: bool, messages: list[Message] | None = None
    ) -> Page:
        """Open a chat in a page of this client, with the transport of `usechat react` or the stock one."""

        def opened() -> Page:
            browser = self._browser = self._browser or Browser(Node("browser.mjs"))
            return browser.open(
                client, PATH, chat, port=port, messages=messages, react=self._compiled() if react else None
            )

        return await self.ask_page(opened)

    async def close_pages(self) -> None:
        browser = self._browser
        if browser is not None:
            await self.ask_page(browser.close_pages)

    def _compiled(self) -> ReactTransport:
        if self._react is None:
            options = ["--noCheck", "--ignoreConfig", "--target", "es2022", "--module", "esnext", "--outDir"]
            subprocess.run([str(_TSC), str(_REACT), *options, str(self.folder)], check=True)
            module = (self.folder / "usechat.js").rename(self.folder / "usechat.mjs")
            self._react = ReactTransport(module.as_uri())
        return self._react

    async def close(self) -> None:
        await self.end_workers()
        self._nursery.communicate()
        if self._browser is not None:
            await self.ask_page(self._browser.node.close)
        self._thread.shutdown()
        self.balancer.close()
        self.redis.close()
        shutil.rmtree(self.folder)
