import asyncio

import pytest

from support.hang import HANG_SECONDS
from usechat.integrations.event_queue import EventQueue

pytestmark = pytest.mark.anyio


async def test_events_are_read_in_their_order_up_to_the_end() -> None:
    pushed = EventQueue[int]()
    assert [pushed.push(number) for number in range(3)] == [True, True, True]
    pushed.end()
    assert pushed.push(3)
    pushed.end(ValueError())
    assert [number async for number in pushed] == [0, 1, 2]


async def test_an_error_comes_after_the_events_before_it() -> None:
    pushed = EventQueue[int]()
    pushed.push(1)
    pushed.end(ValueError("gone"))
    assert await anext(pushed) == 1
    with pytest.raises(ValueError, match="gone"):
        await anext(pushed)


async def test_too_many_are_not_taken() -> None:
    pushed = EventQueue[int]()
    assert [pushed.push(number) for number in range(10_001)].index(False) == 10_000


@pytest.mark.parametrize("how", ["reading", "the end"])
async def test_whoever_waits_for_room_gets_it_by_reading_or_the_end(how: str) -> None:
    pushed = EventQueue[int]()
    for number in range(1_001):
        await pushed.drain()
        pushed.push(number)
    waiting = asyncio.create_task(pushed.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    if how == "reading":
        await anext(pushed)
    else:
        pushed.end()
    await asyncio.wait_for(waiting, HANG_SECONDS)
