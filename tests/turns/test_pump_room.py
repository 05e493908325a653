import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from support.hang import HANG_SECONDS
from usechat.protocol.chunks import Chunk, TextDelta
from usechat.protocol.writer import MessageWriter
from usechat.sources.plain import PlainMapper, Reasoning
from usechat.turns.output import Output
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import Threads

pytestmark = pytest.mark.anyio


class Narrow:
    """A sink that has room for one event at a time."""

    def __init__(self) -> None:
        self.taken = 0
        self.read = 0
        self.most = 0

    @property
    def full(self) -> Callable[[], bool]:
        return lambda: self.taken > self.read

    async def room(self) -> None:
        await asyncio.sleep(0)
        self.most = max(self.most, self.taken - self.read)
        self.read = self.taken

    def take(self, chunks: Iterable[Chunk]) -> None:
        self.taken += len(list(chunks)) > 0

    def take_texts(self, part: str, texts: Sequence[str]) -> None:
        self.take(TextDelta(part, text) for text in texts)

    def fail(self, error: BaseException) -> None:
        raise error


async def test_a_sync_iterator_waits_for_room_as_an_async_one_does() -> None:
    def thoughts() -> Iterator[Reasoning]:
        for number in range(100):
            yield Reasoning(str(number))

    sink, writer = Narrow(), MessageWriter("m", new_id=lambda: "id")
    output = Output(writer, sink)
    output.say(writer.start)
    sink.read = sink.taken
    await asyncio.wait_for(
        pump(thoughts(), PlainMapper(writer), output, unused=Unused(), threads=Threads(1)), HANG_SECONDS
    )
    assert (sink.taken, sink.most) == (101, 1)
