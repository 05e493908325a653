"""A real nginx between the pages and the test server."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, TypeAlias

import httpx

from pages import Server
from support.hang import HANG_SECONDS

__all__ = ["Hop", "Nginx", "Route"]

Route: TypeAlias = Literal["defaults", "gzip", "buffers"]

_ROUTES: Final[dict[Route, str]] = {
    "defaults": "",
    "gzip": "gzip on; gzip_types text/event-stream; gzip_proxied any;",
    "buffers": "proxy_ignore_headers X-Accel-Buffering; gzip on; gzip_types text/event-stream; gzip_proxied any;",
}
_CONFIG: Final = """
daemon off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; scgi_temp_path temp; uwsgi_temp_path temp;
  upstream chat {{ server 127.0.0.1:{port}; }}
  {servers}
}}
"""
# It ends with the test run, however that ends.
_RUN: Final = 'nginx -p "$0" -c nginx.conf & cat; kill $!; wait'
# A WebSocket passes no nginx without the version and the first two headers, and its Origin is compared with the Host.
_SERVER: Final = """
  server {{
    listen 127.0.0.1:{port};
    {settings}
    location / {{ proxy_pass http://chat; }}
    location ~ /ws$ {{
      proxy_pass http://chat;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade;
      proxy_set_header Host $http_host;
    }}
  }}
"""


class Hop(Server):
    """The test server as it is seen through nginx."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=HANG_SECONDS)

    def close(self) -> None:
        self.http.close()


class Nginx:
    """An nginx before the server at a port, with a port of its own for each way of passing streams on."""

    def __init__(self, port: int) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="usechat-"))
        # The workers of root's nginx are nobody's, and write what they cannot keep in memory there.
        self._directory.chmod(0o755)
        with ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in _ROUTES]
            hops = (Hop(listener.getsockname()[1]) for listener in listeners)
            self.hops: dict[Route, Hop] = dict(zip(_ROUTES, hops, strict=True))
            (self._directory / "nginx.conf").write_text(_config(port, self.hops), "utf-8")
            self._process = self._start(listeners)

    def _start(self, listeners: list[socket.socket]) -> subprocess.Popen[bytes]:
        for listener in listeners:
            listener.setblocking(False)
        numbers = [listener.fileno() for listener in listeners]
        return subprocess.Popen(  # noqa: S603
            ["sh", "-c", _RUN, str(self._directory)],  # noqa: S607
            stdin=subprocess.PIPE,
            pass_fds=numbers,
            env={
                "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin",
                # So an nginx tells its successor which sockets listen already; nobody has to wait until it is ready.
                "NGINX": "".join(f"{number};" for number in numbers),
            },
        )

    def close(self) -> None:
        for hop in self.hops.values():
            hop.close()
        self._process.communicate()
        shutil.rmtree(self._directory)


def _config(port: int, hops: dict[Route, Hop]) -> str:
    servers = (_SERVER.format(port=hop.port, settings=_ROUTES[route]) for route, hop in hops.items())
    return _CONFIG.format(port=port, servers="".join(servers))
