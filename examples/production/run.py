"""The example without Docker: a Redis, two workers and an nginx on this computer, until Ctrl-C.

    python examples/production/run.py --port 8080

It needs the programs redis-server and nginx, and usechat with its extras cli and redis. The chats are in an SQLite
file. The script deletes all files at the end.
"""

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

HERE: Final = Path(__file__).resolve().parent
USECHAT: Final = (sys.executable, "-c", "from usechat.cli import main; main()")
# The permissions that the store of turns needs, and no more.
ACL: Final = (
    "~usechat:* &usechat:* +del +eval +evalsha +exists +hdel +hget +hgetall +hmget +hset +pexpire +ping "
    "+publish +sadd +sismember +subscribe +time +unsubscribe +xadd +xrange +zadd +zrange "
    "+zrangebyscore +zrem"
)
WORKERS: Final = ("worker-1", "worker-2")
# Seconds for a worker to stop: 20 of grace, 8 to end the remaining turns, and 2 to spare.
GRACE: Final = 30.0
START: Final = 60.0
# A program ends when the input of its shell ends: this script closed it, or was killed.
RUN: Final = '"$@" < /dev/null & echo $! > "$0.pid"; cat > /dev/null; kill $! 2> /dev/null; wait $!'
NGINX: Final = """\
daemon off;
pid nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; scgi_temp_path temp; uwsgi_temp_path temp;
  include chat.conf;
}
"""


class Programs:
    """Programs that run in a folder. Each has a file for its output and one for its process id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shells: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **environ: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._shells[name] = subprocess.Popen(
                ["sh", "-c", RUN, name, *command],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin", **environ},
                # Ctrl-C is for this script, which stops the programs in order.
                start_new_session=True,
            )

    def wait_for(self, name: str, port: int, path: str = "") -> None:
        """Wait until a program listens, and with a path until it answers there with 200."""
        deadline = time.monotonic() + START
        while not _answers(port, path):
            if time.monotonic() > deadline:
                sys.exit(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text('utf-8')}")
            time.sleep(0.05)

    def pid(self, name: str) -> str:
        return (self._folder / f"{name}.pid").read_text("ascii").strip()

    def stop(self, *names: str) -> None:
        shells = [self._shells.pop(name) for name in names if name in self._shells]
        for shell in shells:
            if shell.stdin is not None:
                shell.stdin.close()
        for shell in shells:
            shell.wait(GRACE)


def _answers(port: int, path: str) -> bool:
    with suppress(OSError):
        if not path:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status == 200
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _start(programs: Programs, folder: Path, port: int) -> str:
    """Start everything, and return the lines to print about it."""
    password, token = secrets.token_hex(16), secrets.token_hex(16)
    redis, workers = _free_port(), {name: _free_port() for name in WORKERS}
    programs.start(
        "redis",
        *("redis-server", str(HERE / "redis.conf"), "--bind", "127.0.0.1", "--port", str(redis), "--dir", str(folder)),
        *("--user", "default", "off", "--user", "usechat", "on", f">{password}", *ACL.split()),
    )
    programs.wait_for("redis", redis)
    environ = {
        "REDIS_URL": f"redis://usechat:{password}@127.0.0.1:{redis}/0",
        "DATABASE_URL": "sqlite:///chats.db",
        "CHAT_SECRET": secrets.token_hex(32),
        "CHAT_TOKEN": token,
    }
    shutil.copy(HERE / "app.py", folder)
    for name, number in workers.items():
        programs.start(name, *USECHAT, "serve", "app:app", "--port", str(number), **environ)
    for name, number in workers.items():
        programs.wait_for(name, number, "/readyz")
    (folder / "nginx.conf").write_text(NGINX, "utf-8")
    (folder / "chat.conf").write_text(_nginx(port, workers), "utf-8")
    programs.start("nginx", "nginx", "-p", str(folder), "-c", "nginx.conf")
    programs.wait_for("nginx", port, "/readyz")
    lines = [f"{name} is http://127.0.0.1:{number}, process {programs.pid(name)}" for name, number in workers.items()]
    return "\n".join([f"The chat is at http://127.0.0.1:{port}/, for the token {token}", *lines, "Ctrl-C stops all."])


def _nginx(port: int, workers: dict[str, int]) -> str:
    """The nginx.conf of this folder with the addresses on this computer."""
    config = (HERE / "nginx.conf").read_text("utf-8").replace("listen 80;", f"listen 127.0.0.1:{port};")
    for name, number in workers.items():
        config = config.replace(f"{name}:8000", f"127.0.0.1:{number}")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a Redis, two workers and an nginx on this computer.")
    parser.add_argument("--port", type=int, default=8080, help="the port of nginx; 0 takes a free one")
    port = parser.parse_args().port or _free_port()
    # Ctrl-C, and what a service manager sends.
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="usechat-") as name:
        folder = Path(name)
        # When root runs nginx, its workers run as nobody and write their temporary files here.
        folder.chmod(0o755)
        programs = Programs(folder)
        try:
            print(_start(programs, folder, port), flush=True)
            signal.pause()
        finally:
            # The workers end their turns while Redis still runs, and nginx still passes their last frames on.
            programs.stop(*WORKERS)
            programs.stop("nginx", "redis")


if __name__ == "__main__":
    main()
