"""A real nginx before the workers, without sticky sessions."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

__all__ = ["Balancer"]

_CONFIG: Final = """
daemon off;
pid nginx.pid;
error_log error.log crit;
worker_processes 1;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; scgi_temp_path temp; uwsgi_temp_path temp;
  {servers}
}}
"""
# Without max_fails=0 a worker that was restarted would be left alone for 10 seconds.
_SERVER: Final = """
  upstream {name} {{ {workers} }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://{name};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      add_header x-worker $upstream_addr always;
    }}
  }}
"""
# It ends with the test run, however that ends.
_RUN: Final = 'nginx -p "$0" -e error.log -c nginx.conf & cat; kill $!; wait'


class Balancer:
    """An nginx that listens at three ports: requests take turns at `port`, and go to one worker first at `first[it]`.

    A worker that refuses the connection is passed over for the other one.
    """

    def __init__(self, workers: tuple[int, int]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="usechat-"))
        # The workers of root's nginx are nobody's, and write what they cannot keep in memory there.
        self._folder.chmod(0o755)
        with ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048)) for _ in range(3)]
            ports = [listener.getsockname()[1] for listener in listeners]
            self.port: int = ports[0]
            self.first: dict[int, int] = dict(zip(workers, ports[1:], strict=True))
            one, two = workers
            servers = [
                _server("turns", ports[0], _worker(one), _worker(two)),
                _server("one", ports[1], _worker(one), _worker(two, " backup")),
                _server("two", ports[2], _worker(two), _worker(one, " backup")),
            ]
            (self._folder / "nginx.conf").write_text(_CONFIG.format(servers="".join(servers)), "utf-8")
            self._process = self._start(listeners)

    def _start(self, listeners: list[socket.socket]) -> subprocess.Popen[bytes]:
        for listener in listeners:
            listener.setblocking(False)
        numbers = [listener.fileno() for listener in listeners]
        return subprocess.Popen(
            ["sh", "-c", _RUN, str(self._folder)],  # noqa: S607
            stdin=subprocess.PIPE,
            pass_fds=numbers,
            env={
                "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin",
                # So an nginx tells its successor which sockets listen already; nobody has to wait until it is ready.
                "NGINX": "".join(f"{number};" for number in numbers),
            },
            start_new_session=True,
        )

    def close(self) -> None:
        self._process.communicate()
        shutil.rmtree(self._folder)


def _server(name: str, port: int, *workers: str) -> str:
    return _SERVER.format(name=name, port=port, workers=" ".join(workers))


def _worker(port: int, role: str = "") -> str:
    return f"server 127.0.0.1:{port} max_fails=0{role};"
