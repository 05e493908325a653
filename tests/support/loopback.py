"""Real servers on free loopback ports, and the little that a client of theirs needs."""

import asyncio
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from support.forked_usechat import ForkedUsechat
from support.hang import HANG_SECONDS
from usechat.protocol.verdict import judge, recorded_events

STEP = {"type": "step-start"}
ABORTED = ['{"type":"abort"}', "[DONE]"]
FINISHED = ['{"type":"finish","finishReason":"stop"}', "[DONE]"]
# A command that begins with this is forked from a process that has imported it.
USECHAT = ("usechat",)
INSTALLED_USECHAT = str(Path(sys.executable).with_name("usechat"))


@contextmanager
def serving(app: ASGIApp) -> Generator[str, None, None]:
    """Serve the app in a thread; its connections wait in the socket until it is up."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


@asynccontextmanager
async def serving_here(app: ASGIApp, *, send_buffer: int | None = None) -> AsyncGenerator[int]:
    """Serve the app on a loopback port and in this loop, as `usechat serve` does it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        # As uvloop does it; the loop of a test would hold small answers back for 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app, http="httptools", ws="websockets-sansio", log_level="critical", timeout_keep_alive=600
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield listening.getsockname()[1]
        except BaseException:
            # Nobody reads what is still open.
            server.force_exit = True
            raise
        finally:
            server.should_exit = True
            await task


async def all_ended(before: set[asyncio.Task[Any]]) -> bool:
    """Whether no task is left beside those that were there before."""
    deadline = time.monotonic() + HANG_SECONDS
    while asyncio.all_tasks() - before:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


class Process:
    """A server in a process of its own."""

    def __init__(self, command: Iterable[str], cwd: Path, environ: dict[str, str], errors: IO[str]) -> None:
        self._errors = errors
        self._process = _start(tuple(command), cwd, {**os.environ, **environ}, errors)

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_line(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], HANG_SECONDS)[0], self.errors()
        return self._process.stdout.readline()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """The exit code, and what is left of the output."""
        assert self._process.stdout is not None
        code = self._process.wait(timeout=HANG_SECONDS)
        return code, self._process.stdout.read()

    def read_all(self) -> bytes:
        """The rest of the output, which ends when the last process ends that the server has started."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        read: list[bytes] = []
        while not read or read[-1]:
            assert select.select([output], [], [], HANG_SECONDS)[0], self.errors()
            read.append(os.read(output, 65_536))
        return b"".join(read)

    def runs(self) -> bool:
        return self._process.poll() is None

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=HANG_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _start(
    command: tuple[str, ...], cwd: Path, environ: dict[str, str], errors: IO[str]
) -> "subprocess.Popen[str] | ForkedUsechat":
    """Start it in a group of its own, since some servers have workers that outlive them."""
    if command[: len(USECHAT)] == USECHAT:
        return ForkedUsechat(command[len(USECHAT) :], cwd, environ, errors)
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, start_new_session=True
    )


@contextmanager
def running(command: Iterable[str], cwd: Path, **environ: str) -> Generator[Process, None, None]:
    with tempfile.TemporaryFile("w+") as errors:
        process = Process(command, cwd, environ, errors)
        try:
            yield process
        finally:
            process.close()


def free_port() -> int:
    """A port that nobody listens on, from below those that the system gives to clients."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until(check: Callable[[], bool], process: Process) -> None:
    """Wait until the check of a running process holds; one that cannot connect does not."""
    deadline = time.monotonic() + HANG_SECONDS
    while not _holds(check):
        assert process.runs(), process.errors()
        assert time.monotonic() < deadline, process.errors()
        time.sleep(0.02)


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except httpx.TransportError:
        return False


def message(text: str, chat: str = "chat") -> dict[str, Any]:
    """What a client posts."""
    return {"id": chat, "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}]}


def ask(url: str, text: str = "Hello", *, chat: str = "chat", **options: Any) -> httpx.Response:
    return httpx.post(url, json=message(text, chat), timeout=HANG_SECONDS, **options)


@contextmanager
def asking(
    url: str, text: str = "Hello", *, chat: str = "chat", **options: Any
) -> Generator[Iterator[str], None, None]:
    """Ask, and give the lines of the answer as they come."""
    with httpx.stream("POST", url, json=message(text, chat), timeout=HANG_SECONDS, **options) as response:
        yield response.iter_lines()


def answer_status(url: str, *, chat: str) -> int:
    """Ask and leave at once."""
    with httpx.stream("POST", url, json=message("Hello", chat), timeout=HANG_SECONDS) as response:
        return response.status_code


def read_until(lines: Iterator[str], wanted: str) -> str:
    """Read to the line that holds what is wanted, and give all that was read."""
    read: list[str] = []
    for line in lines:
        read.append(line)
        if wanted in line:
            return "\n".join(read)
    raise AssertionError(f"{wanted!r} did not come: {read}")


def last_two(body: str) -> list[str]:
    """The data of the last two events."""
    return [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")][-2:]


def parts(body: str) -> list[dict[str, Any]]:
    """The parts of the message that a client builds of a legal stream."""
    verdict = judge(recorded_events(body.encode()), "portable")
    assert verdict.violation is None
    return verdict.message.parts


def text_part(text: str, state: str = "done") -> dict[str, Any]:
    return {"type": "text", "text": text, "state": state}
