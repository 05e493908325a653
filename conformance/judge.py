"""The real npm clients, as a process that reads streams and tells what they made of them."""

from collections.abc import Iterable
from typing import Any

from node import Node
from usechat.protocol.chunks import Chunk
from usechat.protocol.frames import encode_frame
from usechat.protocol.sse import DONE


class Judge(Node):
    def __init__(self) -> None:
        super().__init__("judge.mjs", quiet=True)
        self.clients: list[str] = self.request("clients")["clients"]

    def read(
        self,
        stream: Iterable[Chunk] | str,
        clients: Iterable[str],
        *,
        continues: Any = None,
        each: bool = False,
    ) -> dict[str, Any]:
        """What each client made of the stream: see README.md for the fields."""
        more = {} if continues is None else {"continues": continues}
        return self.request("read", clients=list(clients), sse=body_of(stream), each=each, **more)["results"]

    def parse(self, chunks: Iterable[str], clients: Iterable[str]) -> dict[str, list[Any]]:
        """For each client and chunk text: None if it takes the chunk, else the error."""
        return self.request("parse", clients=list(clients), chunks=list(chunks))["results"]

    def posts(
        self, stream: Iterable[Chunk] | str, clients: Iterable[str], *, continues: Any = None, most: int = 5
    ) -> dict[str, int]:
        """How often a page that sends automatically posts, as long as it may; one is healthy."""
        more = {} if continues is None else {"continues": continues}
        return self.request("loop", clients=list(clients), sse=body_of(stream), max=most, **more)["results"]

    def posts_after(
        self, readings: dict[str, Any], stream: Iterable[Chunk] | str, *, continues: Any = None, most: int = 5
    ) -> dict[str, int]:
        """The same of clients that have read the stream; only those that would post again need to do it."""
        # A client that crashed tells nothing.
        those = [client for client, reading in readings.items() if reading.get("mayPost", True)]
        posts = self.posts(stream, those, continues=continues, most=most) if those else {}
        return {client: posts.get(client, 1) for client in readings}

    def model_messages(self, messages: Any, clients: Iterable[str]) -> dict[str, Any]:
        """What `convertToModelMessages` of each client gives, in `messages`."""
        return self.request("model", clients=list(clients), messages=messages)["results"]


def body_of(stream: Iterable[Chunk] | str) -> str:
    if isinstance(stream, str):
        return stream
    return (b"".join(encode_frame(chunk) for chunk in stream) + DONE).decode()
