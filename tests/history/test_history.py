"""What every history does, whatever it is kept in."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from support.histories import A1, A2, U1, U2, U3, begin, said, tail
from usechat.errors import TailChangedError
from usechat.history import HistoryStore, StoredMessages, Tail
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio


async def test_a_chat_that_never_began_is_empty_and_nobodys(history: HistoryStore):
    def look(stored: StoredMessages) -> tuple[Any, ...]:
        return stored.tail, stored.find("u1"), stored.last_user(5)

    for owner in ("ann", "bob"):
        assert await history.read("chat", owner, look) == (Tail(0), None, None)
        assert await history.load("chat", owner) == []
        assert await history.load_json("chat", owner) == []


async def test_a_chat_has_the_messages_of_its_turns(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    assert await history.load("chat", "ann") == [U1]
    assert await history.end("chat", "t1", 1, A1)
    assert await history.load("chat", "ann") == [U1, A1]
    await begin(history, "t2", 2, [U2])
    assert await history.end("chat", "t2", 1, A2)
    assert await history.load("chat", "ann") == [U1, A1, U2, A2]


async def test_chats_are_apart_whatever_their_ids_look_like(history: HistoryStore):
    ids = ["chat", "CHAT", "c%", "c_at", "chat ", "chät", "cha\u0308t", "'; DROP TABLE usechat_chats; --", "../../etc"]
    for number, chat_id in enumerate(ids):
        await begin(history, "t1", 0, [said(f"u{number}")], chat_id=chat_id, owner=f"owner {number}")
    loaded = [await history.load(chat_id, f"owner {number}") for number, chat_id in enumerate(ids)]
    assert loaded == [[said(f"u{number}")] for number in range(len(ids))]


async def test_ids_of_the_greatest_length_fit(history: HistoryStore):
    # Characters of four bytes that do not repeat, so that no index can compress them.
    chat_id = "".join(chr(0x20000 + n * 37) for n in range(512))
    question, answer = said("u" + chat_id[:511]), said("a" + chat_id[:511])
    await begin(history, "t1", 0, [question], chat_id=chat_id, owner=chat_id)
    assert await history.end(chat_id, "t1", 1, answer)
    assert await history.load(chat_id, chat_id) == [question, answer]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(UIMessage("u1", "user", U1.parts, metadata=None), id="null metadata"),
        pytest.param(UIMessage("u1", "user", U1.parts, metadata={"b": [1, {"a": None}], "a": 0.1}), id="metadata"),
        pytest.param(said("u1", "\x00 \u2028 \ufffd \U0001f600 e\u0301 \"\\' %s :x ?"), id="characters"),
        pytest.param(
            UIMessage("u1", "user", [{"type": "data-n", "data": [2**80, -(2**63), 1e300, 1.0]}]), id="numbers"
        ),
        pytest.param(UIMessage("u1", "user", [{"type": "of-a-newer-client", "z": 1, "a": {}}]), id="unknown part"),
        pytest.param(UIMessage("u1", "user", [{"type": "data-n"}] * 1_001), id="many parts"),
        pytest.param(said("u1", "ü" * 5_000_000), id="ten megabytes"),
    ],
)
async def test_a_message_is_stored_as_the_very_json_it_is_sent_as(history: HistoryStore, message: UIMessage):
    await begin(history, "t1", 0, [message])
    assert await history.load_json("chat", "ann") == [("u1", msgspec.json.encode(message))]
    assert await history.load("chat", "ann") == [message]
    assert await history.read("chat", "ann", lambda stored: stored.message(0)) == message


@pytest.mark.parametrize(
    ("before", "limit", "expected"),
    [
        (None, None, [U1, A1, U2, A2]),
        (None, 3, [A1, U2, A2]),
        (None, 9, [U1, A1, U2, A2]),
        (None, 0, []),
        ("a2", None, [U1, A1, U2]),
        ("a2", 2, [A1, U2]),
        ("u1", 2, []),
        ("nowhere", 2, []),
    ],
)
async def test_a_page_of_a_chat_is_the_last_messages_before_one(
    history: HistoryStore, before: str | None, limit: int | None, expected: list[UIMessage]
):
    await begin(history, "t1", 0, [U1, A1, U2, A2])
    pairs = [(message.id, msgspec.json.encode(message)) for message in expected]
    assert await history.load_json("chat", "ann", before=before, limit=limit) == pairs


async def test_messages_are_looked_up_by_id_and_position(history: HistoryStore):
    system = UIMessage("s1", "system", [{"type": "text", "text": "Be brief."}])
    await begin(history, "t1", 0, [system, U1, A1, A2])

    def look(stored: StoredMessages) -> tuple[Any, ...]:
        return (
            [stored.find(message_id) for message_id in ("s1", "a2", "A2", "")],
            [stored.role(position) for position in range(4)],
            stored.message(2),
            [stored.last_user(before) for before in (0, 1, 2, 4, 9)],
        )

    assert await history.read("chat", "ann", look) == (
        [0, 3, None, None],
        ["system", "user", "assistant", "assistant"],
        A1,
        [None, None, U1, U1, U1],
    )
    for position in (4, -1):
        with pytest.raises(ValueError, match=rf"^There is no stored message at position {position} of chat 'chat'\.$"):
            await history.read("chat", "ann", lambda stored, at=position: stored.message(at))
        with pytest.raises(ValueError, match=r"^There is no stored message at position"):
            await history.read("chat", "ann", lambda stored, at=position: stored.role(at))


async def test_what_somebody_does_with_a_message_is_not_stored(history: HistoryStore):
    question, answer = said("u1"), said("a1")
    await begin(history, "t1", 0, [question])
    await history.end("chat", "t1", 1, answer)
    for message in (question, answer, *await history.load("chat", "ann")):
        message.parts.clear()
    assert await history.load("chat", "ann") == [U1, A1]


@pytest.mark.parametrize(
    ("keep", "new", "messages"),
    [
        pytest.param(3, [], [U1, A1, U2], id="regenerated answer"),
        pytest.param(1, [], [U1], id="regenerated first answer"),
        pytest.param(2, [said("u2", "Edited")], [U1, A1, said("u2", "Edited")], id="edited question"),
        pytest.param(0, [said("u1", "Edited")], [said("u1", "Edited")], id="edited first question"),
        pytest.param(2, [U3], [U1, A1, U3], id="another question"),
        pytest.param(0, [A1, U1], [A1, U1], id="another order"),
        pytest.param(3, [said("a2", "More")], [U1, A1, U2, said("a2", "More")], id="continued answer"),
        pytest.param(4, [U3], [U1, A1, U2, A2, U3], id="next question"),
    ],
)
async def test_a_turn_that_begins_elsewhere_replaces_what_came_after(
    history: HistoryStore, keep: int, new: list[UIMessage], messages: list[UIMessage]
):
    await begin(history, "t1", 0, [U1, A1, U2])
    await history.end("chat", "t1", 1, A2)
    await begin(history, "t2", keep, new)
    assert await history.load("chat", "ann") == messages
    ids = [message.id for message in messages]
    found = await history.read("chat", "ann", lambda stored: [stored.find(message_id) for message_id in ids])
    assert found == list(range(len(messages)))
    # The last message is the question, whether it is new or not.
    assert await history.end("chat", "t2", 1, said("a9"))
    assert await history.load("chat", "ann") == [*messages, said("a9")]


async def test_the_tail_tells_the_last_turn_and_when_it_wrote(history: HistoryStore):
    times = [time.time()]
    tails: list[Tail] = []

    async def note() -> None:
        tails.append(await tail(history))
        times.append(time.time())

    await begin(history, "t1", 0, [U1])
    await note()
    await history.end("chat", "t1", 1, A1)
    await note()
    await begin(history, "t9", 0, [U1], chat_id="another")
    await begin(history, "t2", 1, [said("a1", "With a tool's result")])
    await note()
    await history.end("chat", "t2", 1, said("a1", "With a tool's result and more"))
    await note()
    await begin(history, "t3", 1, [])
    await note()
    assert [(seen.length, seen.turn) for seen in tails] == [(1, "t1"), (2, "t1"), (2, "t2"), (2, "t2"), (1, "t3")]
    assert [first < seen.written < then for first, seen, then in zip(times, tails, times[1:], strict=False)] == [
        True
    ] * 5


async def test_a_turn_does_not_begin_after_another_tail_than_the_one_it_saw(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    seen = await tail(history)
    await history.end("chat", "t1", 1, A1)
    now = await tail(history)
    others = [seen, Tail(0), Tail(2, "t2", now.written), Tail(2, "t1", now.written - 1), Tail(3, "t1", now.written)]
    for after in others:
        for keep, new in [(0, [U2]), (after.length, [U2]), (min(1, after.length), [U3])]:
            with pytest.raises(TailChangedError, match=r"^Another process wrote to the chat since it was read\."):
                await history.begin("chat", "ann", "t2", after=after, keep=keep, new=new, epoch=2)
    with pytest.raises(TailChangedError):
        await history.begin("new chat", "ann", "t2", after=now, keep=2, new=[U2], epoch=2)
    assert [await history.load("chat", "ann"), await tail(history)] == [[U1, A1], now]
    assert await tail(history, "new chat", "bob") == Tail(0)


async def test_of_turns_that_begin_at_once_after_the_same_tail_one_does(history: HistoryStore):
    await begin(history, "t0", 0, [U1])
    after = await tail(history)
    turns = [history.begin("chat", "ann", f"t{n}", after=after, keep=n % 2, new=[U2], epoch=1) for n in range(1, 9)]
    begun = await asyncio.gather(*turns, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in begun) == ["NoneType", *["TailChangedError"] * 7]
    assert (await tail(history)).turn == f"t{begun.index(None) + 1}"


async def test_a_chat_stays_its_owners(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t1", 0, [U1], chat_id="nobody's", owner="")
    for chat_id, owner in [("chat", "bob"), ("chat", ""), ("chat", "Ann"), ("nobody's", "ann")]:
        for call in (
            history.begin(chat_id, owner, "t2", after=Tail(0), keep=0, new=[U2], epoch=1),
            history.read(chat_id, owner, lambda _: pytest.fail("must not be looked at")),
            history.load(chat_id, owner),
            history.load_json(chat_id, owner, limit=0),
        ):
            with pytest.raises(PermissionError, match=r"^The chat belongs to another user\.$"):
                await call
    assert await history.load("chat", "ann") == [U1]
    assert await history.load("nobody's", "") == [U1]


async def test_of_owners_who_begin_a_chat_at_once_one_gets_it(history: HistoryStore):
    owners = [f"owner {n}" for n in range(20)]
    begins = [
        history.begin("chat", owner, f"turn of {owner}", after=Tail(0), keep=0, new=[said("u1", owner)], epoch=1)
        for owner in owners
    ]
    begun = await asyncio.gather(*begins, return_exceptions=True)
    [winner] = [owner for owner, outcome in zip(owners, begun, strict=True) if outcome is None]
    assert [type(outcome) for outcome in begun].count(PermissionError) == 19
    assert await history.load("chat", winner) == [said("u1", winner)]


@pytest.mark.parametrize(
    ("keep", "new"),
    [
        (1, [U2, U2]),
        (0, [U1, A1, said("u1", "Edited")]),
        (0, [said("u1"), UIMessage("", "user", [])]),
        (1, [U1]),
        (1, [U2, said("u1", "Edited")]),
    ],
)
async def test_messages_need_ids_of_their_own(history: HistoryStore, keep: int, new: list[UIMessage]):
    await begin(history, "t1", 0, [U1, A1])
    with pytest.raises(ValueError, match=r"^Each message of a chat must have an id of its own\.$"):
        await begin(history, "t2", keep, new)
    assert await history.load("chat", "ann") == [U1, A1]


async def test_a_turn_needs_a_message(history: HistoryStore):
    with pytest.raises(ValueError, match=r"^A turn must begin with a message\.$"):
        await begin(history, "t1", 0, [])
    with pytest.raises(ValueError, match=r"^A chat of 0 messages cannot keep 1\.$"):
        await begin(history, "t1", 1, [])
    with pytest.raises(ValueError, match=r"^A chat of 0 messages cannot keep -1\.$"):
        await begin(history, "t1", -1, [U1, U2])
    assert await tail(history) == Tail(0)


NOTHING = UIMessage("a1", "assistant", [])


@pytest.mark.parametrize("message", [None, NOTHING])
async def test_a_turn_that_said_nothing_stores_nothing(history: HistoryStore, message: UIMessage | None):
    await begin(history, "t1", 0, [U1])
    before = await tail(history)
    assert not await history.end("chat", "t1", 1, message)
    assert [await history.load("chat", "ann"), await tail(history)] == [[U1], before]


async def test_the_end_of_a_turn_that_never_began_stores_nothing(history: HistoryStore):
    assert not await history.end("chat", "t1", 1, A1)
    assert await tail(history) == Tail(0)
    await begin(history, "t1", 0, [U1])
    assert not await history.end("chat", "t2", 1, A1)
    assert await history.load("chat", "ann") == [U1]


async def test_a_turn_may_end_twice(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    assert [await history.end("chat", "t1", 1, A1), await history.end("chat", "t1", 1, A1)] == [True, True]
    assert await history.load("chat", "ann") == [U1, A1]


@pytest.mark.parametrize(("taken_over", "kept"), [(A1, [U1, A1]), (None, [U1]), (NOTHING, [U1])])
async def test_a_worker_whose_turn_was_taken_over_and_ended_writes_nothing(
    history: HistoryStore, taken_over: UIMessage | None, kept: list[UIMessage]
):
    await begin(history, "t1", 0, [U1], epoch=4)
    assert await history.end("chat", "t1", 5, taken_over) is (taken_over is A1)
    for message in (said("a1", "Stale"), said("a9", "Stale")):
        assert not await history.end("chat", "t1", 4, message)
    assert await history.load("chat", "ann") == kept
    again = said("a1", "Taken over again")
    assert await history.has_ended("chat", "t1") is (taken_over is A1)
    assert await history.end("chat", "t1", 6, again)
    assert await history.load("chat", "ann") == [U1, A1 if taken_over is A1 else again]
    assert await history.has_ended("chat", "t1")


async def test_a_turn_that_goes_on_with_an_answer_has_not_ended_with_it(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await history.end("chat", "t1", 1, A1)
    for turn, new in (("t2", [said("a1", "With a tool's result")]), ("t3", list[UIMessage]())):
        await begin(history, turn, 1 if new else 2, new)
        assert not await history.has_ended("chat", turn)
        longer = said("a1", f"More of {turn}")
        assert await history.end("chat", turn, 1, longer)
        assert (await history.has_ended("chat", turn), await history.load("chat", "ann")) == (True, [U1, longer])


async def test_a_turn_of_which_nothing_is_there_any_more_has_ended(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await history.end("chat", "t1", 1, A1)
    # Its question is answered again, edited, and deleted.
    for turn, keep, new in (("t2", 1, list[UIMessage]()), ("t3", 0, [U2])):
        await begin(history, turn, keep, new)
        assert [await history.has_ended("chat", other) for other in ("t1", turn)] == [True, False]
    await history.delete("chat", "ann")
    assert await history.has_ended("chat", "t3")


async def test_epochs_of_different_turns_have_nothing_to_do_with_each_other(history: HistoryStore):
    await begin(history, "t1", 0, [U1], epoch=9)
    await history.end("chat", "t1", 9, A1)
    await begin(history, "t2", 2, [U2], epoch=1)
    assert await history.end("chat", "t2", 1, A2)
    assert await history.load("chat", "ann") == [U1, A1, U2, A2]


async def test_a_continued_answer_takes_the_place_of_what_it_continues(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await history.end("chat", "t1", 1, A1)
    await begin(history, "t2", 1, [said("a1", "With a tool's result")])
    longer = said("a1", "With a tool's result and more")
    assert [await history.end("chat", "t2", 1, longer), await history.end("chat", "t2", 1, longer)] == [True, True]
    assert not await history.end("chat", "t1", 1, A1)
    assert await history.load("chat", "ann") == [U1, longer]


async def test_an_answer_that_comes_late_goes_to_its_question(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t2", 1, [U2])
    await begin(history, "t3", 2, [U3])
    assert [await history.end("chat", "t1", 1, A1), await history.end("chat", "t1", 1, A1)] == [True, True]
    assert await history.load("chat", "ann") == [U1, A1, U2, U3]
    assert await history.end("chat", "t3", 1, said("a3"))
    assert await history.end("chat", "t2", 1, A2)
    assert await history.load("chat", "ann") == [U1, A1, U2, A2, U3, said("a3")]
    ids = ("u1", "a1", "u2", "a2", "u3", "a3")
    found = await history.read("chat", "ann", lambda stored: [stored.find(message_id) for message_id in ids])
    assert found == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("keep", "new", "messages"),
    [
        pytest.param(1, [], [U1], id="the question is asked again"),
        pytest.param(0, [said("u1", "Edited")], [said("u1", "Edited")], id="the question is another"),
        pytest.param(0, [U2], [U2], id="the question is gone"),
        pytest.param(1, [said("a1", "Half"), U2], [U1, said("a1", "Half"), U2], id="the newer turn has the answer"),
    ],
)
async def test_an_answer_that_comes_late_changes_nothing_that_a_newer_turn_decided(
    history: HistoryStore, keep: int, new: list[UIMessage], messages: list[UIMessage]
):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t2", keep, new)
    assert not await history.end("chat", "t1", 1, A1)
    assert await history.load("chat", "ann") == messages


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (UIMessage("", "assistant", A1.parts), "The answer of a turn must have an id."),
        (
            UIMessage("a1", "assistant", [{"type": "tool-x", "toolCallId": "a\nb", "state": "input-available"}]),
            "The answer of a turn is broken: message.parts[0].toolCallId must be a string of 1 to 8192 characters "
            "without control characters.",
        ),
    ],
)
async def test_an_answer_that_could_not_be_read_again_is_refused(
    history: HistoryStore, message: UIMessage, sentence: str
):
    await begin(history, "t1", 0, [U1])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        await history.end("chat", "t1", 1, message)
    assert str(caught.value) == sentence
    assert await history.load("chat", "ann") == [U1]


async def listed(history: HistoryStore, owner: str = "ann", limit: int = 50) -> list[tuple[str, str]]:
    """The ids and titles of all chats, read in pages."""
    found = list[tuple[str, str]]()
    after = None
    while page := await history.chats(owner, after=after, limit=limit):
        found += [(chat.id, chat.title) for chat in page]
        after = page[-1].place
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_chats_are_listed_by_when_their_owner_last_wrote(history: HistoryStore, limit: int):
    before = time.time()
    for chat_id in ("one", "two", "three", "four"):
        await begin(history, f"turn of {chat_id}", 0, [said(f"u of {chat_id}", f"About {chat_id}")], chat_id=chat_id)
    await begin(history, "t", 0, [said("u", "Not Ann's")], chat_id="five", owner="bob")
    await history.end("two", "turn of two", 1, A1)
    assert await listed(history, limit=limit) == [
        ("four", "About four"),
        ("three", "About three"),
        ("two", "About two"),
        ("one", "About one"),
    ]
    await begin(history, "again", 2, [U2], chat_id="two")
    assert [chat_id for chat_id, _ in await listed(history, limit=limit)] == ["two", "four", "three", "one"]
    assert await listed(history, "bob") == [("five", "Not Ann's")]
    assert await listed(history, "nobody") == []
    for chat in await history.chats("ann"):
        assert before <= chat.created <= chat.updated <= time.time()


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ([{"type": "text", "text": "  Two\n\tlines "}], "Two lines"),
        ([{"type": "text", "text": "x" * 1_000}], "x" * 80),
        ([{"type": "text", "text": "a\x00b\u2028\u202e"}], "ab"),
        ([{"type": "text", "text": "\U0001f468\u200d\U0001f469"}], "\U0001f468\u200d\U0001f469"),
        ([{"type": "file", "mediaType": "image/png", "url": "data:,"}], ""),
        ([{"type": "file", "mediaType": "image/png", "url": "data:,"}, {"type": "text", "text": "This?"}], "This?"),
    ],
)
async def test_the_title_of_a_chat_is_its_first_words(history: HistoryStore, parts: list[Any], title: str):
    await begin(history, "t1", 0, [UIMessage("u1", "user", parts)])
    await begin(history, "t2", 1, [U2])
    assert await listed(history) == [("chat", title)]
    await begin(history, "t3", 0, [said("u3", "Written again")])
    assert await listed(history) == [("chat", "Written again")]


@pytest.mark.parametrize(
    "place", ["", "x", "1", "1.0", "1.0-", "-1", "1.0-1; DROP", "nan-1", "1e5-1", "1.0-" + "9" * 30]
)
async def test_a_place_that_no_list_has_given_is_refused(history: HistoryStore, place: str):
    with pytest.raises(ValueError, match="not a place"):
        await history.chats("ann", after=place)


async def test_a_chat_that_is_deleted_leaves_nothing(history: HistoryStore):
    await begin(history, "t1", 0, [U1])
    await begin(history, "t2", 0, [U1], chat_id="other")
    with pytest.raises(PermissionError):
        await history.delete("chat", "bob")
    await history.delete("chat", "ann")
    assert await history.load("chat", "ann") == []
    assert await listed(history) == [("other", U1.text)]
    assert not await history.end("chat", "t1", 1, A1)
    assert await history.load("chat", "ann") == []
    await history.delete("chat", "ann")
    await begin(history, "t3", 0, [U2], owner="bob")
    assert await history.load("chat", "bob") == [U2]
