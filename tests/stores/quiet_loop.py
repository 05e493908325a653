"""A loop whose clock stands still while Redis has something to say, and jumps to the next timer when all is quiet."""

import asyncio
import selectors
import socket

from support.redis_server import RedisServer

__all__ = ["QuietLoop", "let_pass"]

# Time in Redis is that of its keys: what lives for a time has lived for longer.
_PASSED = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


def let_pass(server: RedisServer, seconds: float) -> None:
    """Let the time of Redis pass, too."""
    with server.client() as client:
        client.eval(_PASSED, 0, int(seconds * 1000))


class _QuietSelector(selectors.DefaultSelector):
    def __init__(self, port: int) -> None:
        super().__init__()
        self._redis = socket.create_connection(("127.0.0.1", port))
        self._redis.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout is None or timeout > 0:
            if not ready:
                self._settle()
                ready = super().select(0 if timeout is not None else 60)
            if not ready and timeout is not None:
                self.now += timeout
        return ready

    def close(self) -> None:
        self._redis.close()
        super().close()

    def _settle(self) -> None:
        """Wait until Redis has answered all that was sent to it."""
        # What it writes in the round that takes the first PING is written before it takes the second.
        for _ in range(2):
            self._redis.sendall(b"PING\r\n")
            answer = b""
            while not answer.endswith(b"\r\n"):
                answer += self._redis.recv(64)


class QuietLoop(asyncio.SelectorEventLoop):
    """Its deadlines cost no time and come in their order, however long Redis takes."""

    def __init__(self, port: int) -> None:
        self._quiet = _QuietSelector(port)
        super().__init__(self._quiet)

    def time(self) -> float:
        return self._quiet.now
