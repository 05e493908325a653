"""A Redis or Valkey of the tests' own, on loopback, which can be killed, paused, emptied and started again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from support.hang import HANG_SECONDS

__all__ = ["PROGRAMS", "SECRET", "RedisServer"]

PROGRAMS: Final = ("redis-server", "valkey-server")

SECRET: Final = "a secret of the tests, which is long enough"  # noqa: S105

# The shell ends the server when whoever started it ends, however it ends.
_SERVE = '"$@" > server.log 2>&1 & echo $!; cat; kill -9 $! 2> /dev/null'


class RedisServer:
    """Without `aof` it forgets everything when it ends; `options` are more settings of the server."""

    def __init__(self, *options: str, aof: bool = False, program: str = PROGRAMS[0]) -> None:
        self._program = program
        self._directory = Path(tempfile.mkdtemp(prefix="usechat-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        persistence = ["--appendonly", "yes", "--appendfsync", "everysec"] if aof else ["--appendonly", "no"]
        self._options = ["--save", "", *persistence, *options]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        # Its types say little.
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=HANG_SECONDS)

    def start(self) -> None:
        listen = ["--bind", "127.0.0.1", "--port", str(self.port), "--enable-debug-command", "local"]
        self._process = subprocess.Popen(
            ["sh", "-c", _SERVE, "sh", self._program, *listen, *self._options],  # noqa: S607
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        self._wait()

    def kill(self) -> None:
        """End it at once, as `kill -9` does; what it kept on disk stays."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.communicate()

    def restart(self) -> None:
        self.kill()
        self.start()

    def empty(self) -> None:
        with self.client() as client:
            client.flushall()

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory)

    def _wait(self) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except RedisError:
                    if time.monotonic() > deadline:
                        raise RuntimeError((self._directory / "server.log").read_text("utf-8")) from None
                    time.sleep(0.01)
