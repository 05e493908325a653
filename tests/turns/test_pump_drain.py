import asyncio
from collections.abc import Callable, Iterable, Iterator

import pytest

from support.hang import HANG_SECONDS
from usechat.events import Reasoning
from usechat.events.mapper import EventMapper
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.turns.output import Output
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import Threads

pytestmark = pytest.mark.anyio


class Narrow(Output):
    """Has room for one event at a time."""

    def __init__(self, writer: MessageWriter) -> None:
        super().__init__(writer)
        self.taken = 0
        self.read = 0
        self.most = 0

    @property
    def full(self) -> Callable[[], bool]:
        return lambda: self.taken > self.read

    async def drain(self) -> None:
        await asyncio.sleep(0)
        self.most = max(self.most, self.taken - self.read)
        self.read = self.taken

    def take(self, chunks: Iterable[Chunk]) -> None:
        self.taken += len(list(chunks)) > 0


async def test_a_sync_iterator_waits_for_room_as_an_async_one_does() -> None:
    def thoughts() -> Iterator[Reasoning]:
        for number in range(100):
            yield Reasoning(str(number))

    writer = MessageWriter("m", new_id=lambda: "id")
    output = Narrow(writer)
    output.write(writer.start)
    output.read = output.taken
    await asyncio.wait_for(
        pump(thoughts(), EventMapper(writer), output, unused=Unused(), threads=Threads(1)), HANG_SECONDS
    )
    assert (output.taken, output.most) == (101, 1)
