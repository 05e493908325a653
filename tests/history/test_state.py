"""What every history that keeps `chat.state` does with it."""

import pytest

from support.histories import A1, A2, U1, U2, U3, begin, said, tail
from usechat.history import StateStore
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

NOTHING = UIMessage("a1", "assistant", [])
ONE, TWO = b'{"n":1}', b'"\xc3\xbc \\u0000"'


async def state(history: StateStore, before: int | None = None, chat_id: str = "chat") -> bytes | None:
    end = (await tail(history, chat_id)).length if before is None else before
    return await history.read(chat_id, "ann", lambda stored: stored.state(end))


async def answered(history: StateStore) -> None:
    """A chat of two turns, each of which has left a state."""
    await begin(history, "t1", 0, [U1])
    assert await history.end("chat", "t1", 1, A1, ONE)
    await begin(history, "t2", 2, [U2])
    assert await history.end("chat", "t2", 1, A2, TWO)


async def test_a_chat_has_no_state_until_a_turn_leaves_one(history: StateStore):
    assert await state(history) is None
    await begin(history, "t1", 0, [U1])
    await history.end("chat", "t1", 1, A1)
    assert await state(history) is None


async def test_a_state_stays_until_a_later_turn_leaves_another(history: StateStore):
    await answered(history)
    await begin(history, "t3", 4, [U3])
    await history.end("chat", "t3", 1, said("a3"))
    assert [await state(history, before) for before in range(7)] == [None, None, ONE, ONE, TWO, TWO, TWO]
    assert await history.load("chat", "ann") == [U1, A1, U2, A2, U3, said("a3")]


@pytest.mark.parametrize(("keep", "new"), [(3, []), (2, [said("u2", "Edited")]), (2, [U3])])
async def test_cutting_a_chat_back_brings_back_the_state_of_that_time(
    history: StateStore, keep: int, new: list[UIMessage]
):
    await answered(history)
    await begin(history, "t3", keep, new)
    assert await state(history) == ONE
    await history.end("chat", "t3", 1, said("a3"))
    assert await state(history) == ONE
    await begin(history, "t4", 0, [U1])
    assert await state(history) is None


async def test_a_continued_message_keeps_its_state_until_it_gets_another(history: StateStore):
    await answered(history)
    await begin(history, "t3", 3, [said("a2", "With a tool's result")])
    assert await state(history) == TWO
    assert await history.end("chat", "t3", 1, said("a2", "And more"))
    assert await state(history) == TWO
    await begin(history, "t4", 3, [said("a2", "With another result"), U3])
    assert await history.end("chat", "t4", 1, said("a3"), b"4")
    assert [await state(history, before) for before in (3, 4, 5, 6)] == [ONE, TWO, TWO, b"4"]
    await begin(history, "t5", 3, [said("a9", "No continuation")])
    assert await state(history) == ONE


async def test_a_turn_that_goes_on_with_an_answer_in_its_place_keeps_its_state(history: StateStore):
    await answered(history)
    await begin(history, "t3", 4, [])
    assert await state(history) == TWO


@pytest.mark.parametrize("message", [None, NOTHING])
async def test_the_state_of_a_turn_that_said_nothing_stays_with_its_question(
    history: StateStore, message: UIMessage | None
):
    await begin(history, "t1", 0, [U1])
    before = await tail(history)
    assert await history.end("chat", "t1", 1, message, ONE)
    assert [await state(history), await tail(history), await history.load("chat", "ann")] == [ONE, before, [U1]]
    await begin(history, "t2", 1, [U2])
    assert await state(history, 1) == ONE
    # Whoever asks again, edits the question or deletes it does not see what the turn left.
    await begin(history, "t3", 1, [])
    assert await state(history) is None


@pytest.mark.parametrize("message", [said("a1", "Stale"), None])
async def test_a_worker_whose_turn_was_taken_over_leaves_no_state(history: StateStore, message: UIMessage | None):
    await begin(history, "t1", 0, [U1], epoch=4)
    assert await history.end("chat", "t1", 5, A1)
    assert not await history.end("chat", "t1", 4, message, ONE)
    assert await state(history) is None


async def test_the_worker_that_takes_a_turn_over_does_not_touch_the_state_that_was_stored(history: StateStore):
    await begin(history, "t1", 0, [U1], epoch=4)
    assert await history.end("chat", "t1", 4, A1, ONE)
    assert await history.end("chat", "t1", 5, said("a1", "Interrupted"))
    assert await history.end("chat", "t1", 6, said("a1", "Interrupted"), TWO)
    await history.end("chat", "t1", 7, None, TWO)
    assert (await state(history), await history.load("chat", "ann")) == (ONE, [U1, A1])


async def test_the_state_of_an_answer_that_is_not_stored_is_not_stored(history: StateStore):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t2", 1, [])
    assert not await history.end("chat", "t1", 1, A1, ONE)
    assert not await history.end("chat", "t1", 1, None, ONE)
    await begin(history, "t3", 1, [A1, U2])
    assert not await history.end("chat", "t2", 1, A1, ONE)
    assert await state(history) is None


async def test_an_answer_that_comes_late_leaves_its_state_at_its_place(history: StateStore):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t2", 1, [U2])
    assert await history.end("chat", "t2", 1, A2, TWO)
    assert await history.end("chat", "t1", 1, A1, ONE)
    assert [await state(history, before) for before in range(5)] == [None, None, ONE, ONE, TWO]


async def test_a_state_goes_with_its_chat_and_is_its_owners(history: StateStore):
    await answered(history)
    await begin(history, "t1", 0, [U1], chat_id="other")
    assert await state(history, chat_id="other") is None
    with pytest.raises(PermissionError):
        await history.read("chat", "bob", lambda stored: stored.state(4))
    await history.delete("chat", "ann")
    assert not await history.end("chat", "t2", 1, A2, TWO)
    assert await state(history, 9) is None
    await begin(history, "t3", 0, [U1])
    assert await state(history) is None
