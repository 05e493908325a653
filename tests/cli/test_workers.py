"""`usechat serve --workers`: several processes on one port and one Redis."""

import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import ABORTED, USECHAT, Process, running
from support.redis_server import SECRET, RedisServer
from support.soak import SEED, draws

RUNNING, STARTED = "usechat_turns_running", "usechat_turns_started_total"
AGENT = """
import asyncio
import os


async def agent(chat):
    yield str(os.getpid())
    if chat.text == "stay":
        await asyncio.sleep(3600)
"""


def body(chat: str, text: str) -> dict[str, Any]:
    return {"id": chat, "message": {"id": "u", "role": "user", "parts": [{"type": "text", "text": text}]}}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: int) -> list[int]:
    """The workers: those of its children that serve."""

    def serves(pid: str) -> bool:
        try:
            return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            return False

    pids = Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()
    return [int(pid) for pid in pids if serves(pid)]


def begun(url: str) -> str:
    """The address of a server that has said where it is, as soon as it answers."""

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=HANG_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    until(answers)
    return url


def serve(server: RedisServer, folder: Path, **environ: str) -> Any:
    (folder / "agents.py").write_text(AGENT, "utf-8")
    options = ["--workers", "2", "--port", "0", "--store", server.url, "--grace", "0", "--lease", "1"]
    return running([*USECHAT, "serve", "agents:agent", *options], folder, USECHAT_SECRET=SECRET, **environ)


def address(process: Process) -> str:
    return process.first_line().split()[-1].removesuffix("/api/chat")


def test_a_worker_that_dies_is_started_again_and_a_signal_to_the_parent_ends_all_turns(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.empty()
    with serve(redis_server, tmp_path) as process:
        url = begun(address(process))
        before = children(process.pid)
        assert len(before) == 2
        said = httpx.post(f"{url}/api/chat", json=body("1", "hello"), timeout=HANG_SECONDS).text
        assert sum(f'"{pid}"' in said for pid in before) == 1
        with httpx.stream("POST", f"{url}/api/chat", json=body("2", "stay"), timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            mine = next(pid for line in lines for pid in before if f'"{pid}"' in line)
            other = next(pid for pid in before if pid != mine)
            os.kill(other, signal.SIGKILL)
            until(lambda: len(now := children(process.pid)) == 2 and other not in now)
            process.send(signal.SIGTERM)
            assert [line.removeprefix("data: ") for line in lines if line.startswith("data: ")][-2:] == ABORTED
        assert process.wait()[0] == 0
        assert f"worker {other} ended by itself" in process.errors()


def test_each_worker_tells_what_all_of_them_count_and_one_that_died_has_no_turns(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.empty()

    def told() -> list[dict[str, float]]:
        """How many turns run and have begun, as whoever is asked tells it, asked so often that nobody is left out."""
        pages = [httpx.get(f"{url}/metrics", timeout=HANG_SECONDS).text for _ in range(12)]
        rows = [[line.split() for line in page.splitlines() if not line.startswith("#")] for page in pages]
        return [{name: float(value) for name, value in row if name in (RUNNING, STARTED)} for row in rows]

    with serve(redis_server, tmp_path) as process:
        url = begun(address(process))
        answers = list[str]()

        def have_all_answered() -> bool:
            answers.append(
                httpx.post(f"{url}/api/chat", json=body(str(len(answers)), "hello"), timeout=HANG_SECONDS).text
            )
            return all(any(f'"{pid}"' in answer for answer in answers) for pid in children(process.pid))

        until(have_all_answered)
        until(lambda: told() == [{RUNNING: 0, STARTED: len(answers)}] * 12)
        with httpx.stream("POST", f"{url}/api/chat", json=body("stays", "stay"), timeout=HANG_SECONDS) as response:
            pid = next(pid for line in response.iter_lines() for pid in children(process.pid) if f'"{pid}"' in line)
            until(lambda: told() == [{RUNNING: 1, STARTED: len(answers) + 1}] * 12)
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(now := children(process.pid)) == 2 and pid not in now)
        begun(url)
        until(lambda: told() == [{RUNNING: 0, STARTED: len(answers) + 1}] * 12)


def test_workers_end_with_their_parent(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.empty()
    with serve(redis_server, tmp_path) as process:
        begun(address(process))
        assert len(children(process.pid)) == 2
        process.send(signal.SIGKILL)
        process.read_all()


ORPHANED = """
import multiprocessing
import os
import signal
import socket
import sys
import threading

from usechat.cli import workers
from usechat.cli.listening import serve
from usechat.cli.workers import run_workers

workers._LAST_SECONDS = 0.5
calls = 0


def kill_parent():
    os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)


def count_calls(frame, event, argument):
    global calls
    calls += event == "call"
    if calls == float(sys.argv[2]):
        sys.setprofile(None)
        kill_parent()


def work(listener):
    sys.setprofile(count_calls)
    serve(app, listener)


async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    kill_parent()
    await receive()
    if sys.argv[1] == "hangs":
        threading.Event().wait()
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    run_workers(2, work, socket.create_server(("127.0.0.1", 0)), 0.0)
"""


@pytest.mark.parametrize("how", ["ends", "hangs"])
def test_workers_end_with_a_parent_that_is_killed_at_any_moment(tmp_path: Path, how: str) -> None:
    (tmp_path / "orphaned.py").write_text(ORPHANED, "utf-8")
    drawn = random.Random(SEED)  # noqa: S311
    # A worker kills its parent after this number of calls. It is ready, and kills it then, after some 12,000.
    for calls in (math.inf, *(drawn.randrange(12_000) for _ in range(draws(3, 40)))):
        with running([sys.executable, "orphaned.py", how, str(calls)], tmp_path) as process:
            process.read_all()
            assert process.wait()[0] == -signal.SIGKILL, process.errors()


STARTING = """
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import wait

from usechat.cli import workers
from usechat.cli.workers import run_workers

waits = 0


class Work:
    # It is pickled by whoever starts a worker, so that the signal comes in the middle of that.
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return Work, ()

    def __call__(self, listener):
        time.sleep(3600)


def work_slowly(listener):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os._exit(0)))
    os.kill(os.getppid(), getattr(signal, sys.argv[1]))
    time.sleep(3600)


def be_deaf(listener):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getppid(), signal.SIGTERM)
    while sys.argv[1] == "deaf to many":
        time.sleep(0.1)
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(3600)


def count_waits(frame, event, _):
    global waits
    waits += event == "call" and frame.f_code is wait.__code__


if __name__ == "__main__":
    # Whoever runs the tests may ignore it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.setprofile(count_waits)
    slow = 2, work_slowly, 60.0
    kinds = {"early": (2, Work(), 60.0), "deaf": (1, be_deaf, 0.0), "deaf to many": (1, be_deaf, None)}
    count, work, grace = kinds.get(sys.argv[1], slow)
    workers._LAST_SECONDS = workers._HURRIED_SECONDS = 0.5
    run_workers(count, work, socket.create_server(("127.0.0.1", 0)), grace)
    # A parent that does not pause waits many thousand times for a process whose end has begun and is not over yet.
    print("over", waits < 5_000, flush=True)
"""


@pytest.mark.parametrize("how", ["early", "SIGTERM", "SIGINT", "SIGHUP", "deaf", "deaf to many"])
def test_a_signal_ends_workers_also_while_they_start_and_the_parent_waits_for_them_in_bounds_and_without_spinning(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "starting.py").write_text(STARTING, "utf-8")
    (tmp_path / "counts").mkdir()
    with running([sys.executable, "starting.py", how], tmp_path, TMPDIR=str(tmp_path / "counts")) as process:
        assert process.first_line() == "over True\n"
        assert list((tmp_path / "counts").iterdir()) == []
