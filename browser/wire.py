"""A way to a server that can be cut."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from support.hang import HANG_SECONDS

__all__ = ["Wire", "wire"]


_REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\nconnection: close\r\n\r\nNo."


class Wire:
    """The connections through it; while it `refuses`, each new one gets 400."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener = listener
        self._port = port
        self._ends: list[socket.socket] = []
        self._last: bytes | None = None
        self.refuses = False

    def cut_at(self, text: bytes) -> None:
        """Cut everything, once, when this comes from the server."""
        self._last = text

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if self.refuses:
                    near.recv(65_536)
                    near.sendall(_REFUSAL)
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends).start()

    def cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def _pass(self, start: socket.socket, end: socket.socket) -> None:
        with suppress(OSError):
            while piece := start.recv(65_536):
                if self._last is not None and self._last in piece:
                    self._last = None
                    self.cut()
                    break
                end.sendall(piece)
        for side in (start, end):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire(url: str) -> Generator[tuple[str, Wire], None, None]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        laid = Wire(listener, int(url.rpartition(":")[2]))
        thread = threading.Thread(target=laid.serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", laid
        listener.shutdown(socket.SHUT_RDWR)
        laid.cut()
        thread.join(HANG_SECONDS)
