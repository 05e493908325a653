"""What agents say, as calls of the writer: one file for each world of agents."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from usechat.protocol.chunks import Chunk

__all__ = ["Mapper"]

_Event = TypeVar("_Event", contravariant=True)


class Mapper(Protocol[_Event]):
    """Turns events into chunks, by a writer that it was made with; it waits for nothing."""

    def map(self, event: _Event) -> Iterable[Chunk]: ...
