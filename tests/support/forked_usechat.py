"""The `usechat` command in processes that are forked from one which has imported it, as that takes most of a second.

What is forked is as real as any other process: its arguments, folder, environment, output, signals and exit code.
This file is also the program that forks. It imports nothing of the tests, as the command does not.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["ForkedUsechat"]

# What the commands that serve import, and uvicorn once it serves. Nothing of it looks at the environment.
_IMPORTED: Final = (
    *("usechat.cli.app", "usechat.cli.launch", "usechat.gateway.gateway", "usechat.session_agent"),
    *("usechat.flows.runtime", "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
    *("uvicorn.protocols.websockets.websockets_sansio_impl", "sqlalchemy.dialects.sqlite.aiosqlite"),
)
_LONGEST: Final = 1024 * 1024


class ForkedUsechat:
    """As a `subprocess.Popen`, as far as `support.loopback.Process` needs it."""

    def __init__(self, arguments: Sequence[str], cwd: Path, environ: dict[str, str], errors: IO[str]) -> None:
        out, writing = os.pipe()
        told, telling = os.pipe()
        order = {"arguments": list(arguments), "cwd": str(cwd), "environ": environ}
        socket.send_fds(_forking(), [json.dumps(order).encode()], [writing, errors.fileno(), telling])
        os.close(writing)
        os.close(telling)
        self.stdout = os.fdopen(out)
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        assert code is not None, f"{self.pid} hangs"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            # It may end at this moment.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended(self, seconds: float) -> int | None:
        if self._code is None and select.select([self._told], [], [], seconds)[0]:
            self._code = int(self._told.read())
            self._told.close()
        return self._code


@cache
def _forking() -> socket.socket:
    """Where orders go to. The program ends when nobody can give it orders any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
    with theirs:
        # As `python -c`, so that workers which the command spawns look for no file of ours.
        command = [sys.executable, "-c", Path(__file__).read_text(encoding="utf-8"), str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_for(orders: socket.socket) -> Callable[[], None]:
    """Fork for each order; what is forked comes back from here with what it is to run, and the first of all never."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, files, _, _ = socket.recv_fds(orders, _LONGEST, 3)
        if not order:
            sys.exit()
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(files)
            return _become(json.loads(order), files)
        for file in files:
            os.close(file)


def _watch(files: list[int]) -> None:
    """Fork once more, and tell how the one that comes back from here ends."""
    child = os.fork()
    if child == 0:
        return
    out, errors, telling = files
    os.close(out)
    os.close(errors)
    _, status = os.waitpid(child, 0)
    os.write(telling, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(order: dict[str, Any], files: list[int]) -> Callable[[], None]:
    out, errors, telling = files
    os.setsid()
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.write(telling, f"{os.getpid()}\n".encode())
    for file in files:
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv = ["-c", *order["arguments"]]
    return import_module("usechat.cli").main


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    _fork_for(socket.socket(fileno=int(sys.argv[1])))()
