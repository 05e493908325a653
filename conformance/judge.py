"""The real npm clients, as a process that reads streams and tells what they made of them."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import encode_frame
from usechat.protocol.sse import DONE

HERE = Path(__file__).parent


class Judge:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", "judge.mjs"],  # noqa: S607
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self.clients: list[str] = self.ask({"op": "clients"})["clients"]

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def read(
        self,
        stream: Iterable[Chunk] | str,
        clients: Iterable[str],
        *,
        continues: Any = None,
        each: bool = False,
    ) -> dict[str, Any]:
        """What each client made of the stream: see README.md for the fields."""
        request = {"op": "read", "clients": list(clients), "sse": body_of(stream), "each": each}
        if continues is not None:
            request["continues"] = continues
        return self.ask(request)["results"]

    def parse(self, chunks: Iterable[str], clients: Iterable[str]) -> dict[str, list[Any]]:
        """For each client and chunk text: None if it takes the chunk, else the error."""
        return self.ask({"op": "parse", "clients": list(clients), "chunks": list(chunks)})["results"]

    def posts(self, stream: Iterable[Chunk] | str, clients: Iterable[str], *, continues: Any = None) -> dict[str, int]:
        """How often a page that sends automatically posts, at most five times; one is healthy."""
        request = {"op": "loop", "clients": list(clients), "sse": body_of(stream), "max": 5}
        if continues is not None:
            request["continues"] = continues
        return self.ask(request)["results"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def body_of(stream: Iterable[Chunk] | str) -> str:
    if isinstance(stream, str):
        return stream
    return (b"".join(encode_frame(chunk) for chunk in stream) + DONE).decode()
