"""Who may begin a turn, and what is left of one that could not begin."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.fast_loop import run_jumping
from turns.begin import Asks, FarStore, Host, NearStore, read_to_the_end
from usechat.errors import RequestError, UsechatError
from usechat.protocol.chunks import Abort, Finish, Start
from usechat.stores import Reader
from usechat.turns.chat import Chat
from usechat.turns.settings import TurnLimits
from usechat.turns.turn import Turn

stores = pytest.mark.parametrize("new_store", [NearStore, FarStore])
NewStore = Callable[[], NearStore | FarStore]


async def status(work: Coroutine[Any, Any, Any]) -> int:
    """200, or how it was refused."""
    try:
        await work
    except RequestError as error:
        return error.status
    return 200


async def statuses(host: Host, asked: list[Asks]) -> list[int]:
    return await asyncio.gather(*(status(host.begin(asks)) for asks in asked))


@stores
@pytest.mark.parametrize(
    ("owner", "address", "most", "refused"),
    [
        ("owner", "", {"per_owner": 7}, 429),
        ("owner", "here", {"per_owner": 7, "per_address": 1}, 429),
        ("owner", "", {"per_process": 7}, 503),
        ("", "here", {"per_address": 7, "per_owner": 1}, 429),
        ("", "here", {"per_process": 7}, 503),
        ("", "", {"per_owner": 1, "per_address": 1, "per_process": 7}, 503),
    ],
)
def test_exactly_as_many_turns_begin_as_may(
    new_store: NewStore, owner: str, address: str, most: dict[str, Any], refused: int
) -> None:
    async def main() -> None:
        host = Host(new_store(), **most)
        async with host.turns.serve():
            for _ in range(2):
                asked = [Asks(f"chat-{number}", owner, address=address) for number in range(50)]
                assert sorted(await statuses(host, asked)) == sorted([200] * 7 + [refused] * 43)
                await host.stop_all(*asked)
                await asyncio.sleep(1)

    run_jumping(main())


@stores
def test_a_place_is_free_when_the_answer_is_readable(new_store: NewStore) -> None:
    async def main() -> None:
        async def done(_: Chat) -> None:
            pass

        host = Host(new_store(), per_owner=1)
        async with host.turns.serve():
            for number in range(5):
                reader = await host.begin(Asks(f"chat-{number}", drive=done))
                assert (await read_to_the_end(reader))[-1] == Finish("stop")
                await asyncio.sleep(1)

    run_jumping(main())


@stores
def test_a_turn_inherits_the_place_of_the_one_that_it_replaces(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store(), per_owner=1, per_process=1)
        async with host.turns.serve():
            asked = [Asks("a") for _ in range(5)]
            assert [await status(host.begin(asks)) for asks in asked] == [200] * 5
            assert await status(host.begin(Asks("b"))) == 503
            await host.stop_all(asked[-1])
            await asyncio.sleep(1)
            assert await status(host.begin(Asks("b"))) == 200
            assert [turn for turn, _ in host.ends] == [asks.head.turn for asks in asked]

    run_jumping(main())


async def refuse() -> None:
    raise RequestError("No.", status=422)


async def never() -> None:
    await asyncio.Event().wait()


@stores
@pytest.mark.parametrize("fails", ["prepare", "late", "spent"])
def test_an_opening_that_fails_leaves_no_trace(new_store: NewStore, fails: str) -> None:
    async def main() -> None:
        host = Host(new_store(), limits=TurnLimits(), per_process=1)
        async with host.turns.serve():
            asks = Asks(uses=["once"] if fails == "spent" else ())
            if fails == "spent":
                first = Asks(uses=["once"])
                await host.begin(first)
                await host.stop_all(first)
                await asyncio.sleep(1)
            asks.prepare_it = {"prepare": refuse, "late": never}.get(fails, asks.prepare_it)
            with pytest.raises(RequestError) as refused:
                await host.turns.begin(asks)
            assert refused.value.status == {"prepare": 422, "late": 503, "spent": 409}[fails]
            assert await host.store.live("a") is None
            assert (await host.store.find("a", asks.head.turn)).named is None
            assert await host.store.follow(asks.head) is None
            assert not host.store.claims[asks.head.turn].log.readers
            # Neither the place nor the queue is taken.
            assert await status(host.begin(Asks("a"))) == 200
            assert asks.head.turn not in [turn for turn, _ in host.ends]

    run_jumping(main())


@stores
def test_no_timer_or_reader_holds_a_turn_that_could_not_be_opened(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store(), limits=TurnLimits())
        async with host.turns.serve():
            first = Asks(uses=["once"])
            await host.begin(first)
            await host.stop_all(first)
            before = {id(thing) for thing in gc.get_objects() if type(thing) is Turn}
            try:
                await host.turns.begin(Asks(uses=["once"]))
            # What is raised holds its frames, and must be gone first.
            except RequestError:
                refused = True
            else:
                refused = False
            await asyncio.sleep(1)
            gc.collect()
            assert refused
            turns = [thing for thing in gc.get_objects() if type(thing) is Turn and id(thing) not in before]
            assert turns == []

    run_jumping(main())


@stores
def test_a_refusal_leaves_the_running_turn_alone(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store(), per_owner=1)
        async with host.turns.serve():
            running, asks, stranger = Asks(), Asks(), Asks(owner="stranger")
            reader = await host.begin(running)
            asks.check_it = refuse
            assert await status(host.begin(asks)) == 422
            assert await status(host.begin(stranger)) == 404
            assert (asks.checked, await host.store.live("a")) == ([running.head.message_id], running.head)
            # Its place is its own again: when it ends, it is free.
            assert await status(host.begin(Asks("b"))) == 429
            await host.stop_all(running)
            await asyncio.sleep(1)
            assert (await read_to_the_end(reader))[-1] == Abort()
            assert await status(host.begin(Asks("b"))) == 200

    run_jumping(main())


@pytest.mark.parametrize(
    ("new_store", "after"),
    [(NearStore, 0), (NearStore, 0.5), (FarStore, 0.015), (FarStore, 0.5), (FarStore, 1.03)],
)
def test_who_is_cancelled_leaves_a_whole_turn_and_its_reader_leaves(new_store: NewStore, after: float) -> None:
    async def main() -> None:
        host, asks = Host(new_store(), limits=TurnLimits(linger=5, idle=None, total=None)), Asks()

        async def takes_a_second() -> None:
            await asyncio.sleep(1)

        asks.prepare_it = takes_a_second
        async with host.turns.serve():
            begins = asyncio.create_task(host.turns.begin(asks))
            await asyncio.sleep(after)
            begins.cancel()
            await asyncio.wait([begins])
            await asyncio.sleep(3)
            assert (begins.cancelled(), await host.store.live("a")) == (True, asks.head)
            assert asks.chat is not None
            assert not host.store.claims[asks.head.turn].log.readers
            await asyncio.sleep(4)
            assert (host.ends, asks.chat.stopped) == ([(asks.head.turn, "stopped")], "left")
            assert await host.store.live("a") is None

    run_jumping(main())


@stores
def test_a_reader_that_nobody_takes_leaves_after_ten_seconds(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store(), limits=TurnLimits(linger=0, idle=None, total=None))
        async with host.turns.serve():
            untaken, taken = Asks("a"), Asks("b")
            readers = [await host.turns.begin(untaken), await host.turns.begin(taken)]
            readers[1].take_frame()
            await asyncio.sleep(9)
            assert host.ends == []
            await asyncio.sleep(2)
            assert host.ends == [(untaken.head.turn, "stopped")]
            readers[1].leave()
            await asyncio.sleep(1)
            assert host.ends == [(untaken.head.turn, "stopped"), (taken.head.turn, "stopped")]

    run_jumping(main())


def test_a_stop_before_the_turn_is_open_begins_and_aborts_it() -> None:
    async def main() -> None:
        host, asks = Host(FarStore()), Asks()

        async def takes_a_second() -> None:
            await asyncio.sleep(1)

        asks.prepare_it = takes_a_second
        async with host.turns.serve():
            begins = asyncio.create_task(host.turns.begin(asks))
            await asyncio.sleep(0.5)
            await host.turns.stop(asks.head)
            reader: Reader = await begins
            assert await read_to_the_end(reader) == [Start(asks.head.message_id), Abort()]
            assert (host.stored, host.ends) == ([asks.head.turn], [(asks.head.turn, "stopped")])
            assert asks.chat is None

    run_jumping(main())


@stores
def test_a_turn_that_is_stopped_before_it_begins_never_runs_its_agent(new_store: NewStore) -> None:
    async def main() -> None:
        host, asks = Host(new_store()), Asks()
        asks.stopped = "stopped"
        async with host.turns.serve():
            reader = await host.turns.begin(asks)
            assert await read_to_the_end(reader) == [Start(asks.head.message_id), Abort()]
            await asyncio.sleep(1)
            assert (host.ends, asks.chat) == ([(asks.head.turn, "stopped")], None)

    run_jumping(main())


def test_whoever_hangs_in_its_opening_loses_the_chat_to_the_next() -> None:
    async def main() -> None:
        # As if it were another process: its own bound is not the one that ends it.
        store = NearStore()
        slow, quick = Host(store), Host(store)
        asks, later = Asks(), Asks()

        async def takes_long() -> None:
            await asyncio.sleep(8.5)

        asks.prepare_it = takes_long
        async with quick.turns.serve():
            begins = asyncio.create_task(slow.turns.begin(asks))
            await asyncio.sleep(0)
            await quick.begin(later)
            with pytest.raises(UsechatError):
                await begins
            assert (await store.live("a"), slow.ends) == (later.head, [])
            assert await status(slow.begin(Asks("b"))) == 200

    run_jumping(main())
