"""How a log is read by those who come back."""

import asyncio
from itertools import count

import pytest

from usechat.protocol.chunks import Chunk, Data, Start
from usechat.protocol.frames import Frames, decode_frame
from usechat.stores import Reader, TurnLog

# So many that they are folded in several slices.
MANY = 6_000


class Said:
    """A log, and a way to say more."""

    def __init__(self) -> None:
        self.log = TurnLog("turn")
        self._frames, self._numbers = Frames("turn"), count(2)
        self.log.extend([self._frames.frame(1, Start("m"))])

    def more(self, amount: int) -> None:
        numbers = [next(self._numbers) for _ in range(amount)]
        self.log.extend([self._frames.frame(number, Data("data-n", number)) for number in numbers])

    def reader(self) -> Reader:
        return Reader(self.log)


def told(until: int) -> list[Chunk]:
    return [Start("m"), *(Data("data-n", number) for number in range(2, until + 1))]


def rest(reader: Reader) -> list[Chunk]:
    frames = list[bytes]()
    while frame := reader.take_frame():
        frames.append(frame)
    return [decode_frame(frame) for frame in frames]


@pytest.mark.anyio
async def test_who_leaves_while_a_log_is_folded_leaves_the_others_their_replay() -> None:
    said = Said()
    said.more(MANY)
    first = asyncio.create_task(said.reader().rewind())
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    said.more(MANY)
    readers = [said.reader() for _ in range(2)]
    await asyncio.gather(*(reader.rewind() for reader in readers))
    assert [rest(reader) for reader in readers] == [told(2 * MANY + 1)] * 2


@pytest.mark.anyio
async def test_who_rewinds_twice_is_told_the_message_once() -> None:
    said = Said()
    said.more(3)
    reader = said.reader()
    await reader.rewind()
    reader.take_frame()
    await reader.rewind()
    assert rest(reader) == told(4)
    assert reader.unread == 0


@pytest.mark.anyio
async def test_the_loop_runs_while_a_log_is_folded() -> None:
    said = Said()
    said.more(MANY)
    reader = said.reader()
    task = asyncio.create_task(reader.rewind())
    rounds = 0
    while not task.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rest(reader) == told(MANY + 1)
    assert rounds > 5
