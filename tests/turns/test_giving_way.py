"""Which turn of a chat gives way to which, and how all turns end with their process."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from support.fast_loop import run_jumping
from turns.begin import Asks, FarStore, Host, NearStore, read_to_the_end
from usechat.errors import RequestError
from usechat.protocol.chunks import Abort, Finish, Start
from usechat.turns.chat import Chat
from usechat.turns.settings import Conflict

stores = pytest.mark.parametrize("new_store", [NearStore, FarStore])
NewStore = Callable[[], NearStore | FarStore]


def sleeps(seconds: float) -> Callable[[Chat], asyncio.Future[None]]:
    def drive(_: Chat) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    return drive


@stores
def test_the_newer_turn_replaces_the_older(new_store: NewStore) -> None:
    async def main() -> None:
        host, first, second = Host(new_store()), Asks(), Asks()
        async with host.turns.serve():
            reader = await host.begin(first)
            await host.begin(second)
            assert await read_to_the_end(reader) == [Start(first.head.message_id), Abort()]
            assert first.chat is not None
            assert (first.chat.stopped, second.checked) == ("replaced", [first.head.message_id])
            assert (await host.store.live("a"), host.ends) == (second.head, [(first.head.turn, "stopped")])

    run_jumping(main())


@stores
def test_a_turn_that_must_not_be_replaced_goes_on_and_the_newer_one_is_refused(new_store: NewStore) -> None:
    async def main() -> None:
        host, first = Host(new_store()), Asks()
        async with host.turns.serve():
            await host.begin(first)
            refused = Asks(may_replace=False)
            with pytest.raises(RequestError, match=r"An answer is still being written in this chat\.") as error:
                await host.begin(refused)
            assert (error.value.status, refused.checked) == (409, [first.head.message_id])
            assert (await host.store.live("a"), host.ends) == (first.head, [])
            # To regenerate its answer ends it all the same.
            again = Asks(regenerates=first.head.message_id, may_replace=False)
            await host.begin(again)
            assert (await host.store.live("a"), host.ends) == (again.head, [(first.head.turn, "stopped")])

    run_jumping(main())


@stores
def test_a_turn_that_waits_in_line_does_so_whether_it_may_replace_or_not(new_store: NewStore) -> None:
    async def main() -> None:
        host, first, second = Host(new_store(), conflict="queue"), Asks(drive=sleeps(2)), Asks(may_replace=False)
        async with host.turns.serve():
            await host.begin(first)
            await host.begin(second)
            assert (await host.store.live("a"), host.ends) == (second.head, [(first.head.turn, "done")])

    run_jumping(main())


@stores
@pytest.mark.parametrize("conflict", ["queue", "reject"])
def test_a_turn_that_waits_for_the_next_one_ends_for_it(new_store: NewStore, conflict: Conflict) -> None:
    async def main() -> None:
        host, first, second = Host(new_store(), conflict=conflict), Asks(), Asks(may_replace=False, is_awaited=True)
        async with host.turns.serve():
            await host.begin(first)
            await host.begin(second)
            assert first.chat is not None
            assert (await host.store.live("a"), first.chat.stopped) == (second.head, "replaced")

    run_jumping(main())


@stores
def test_a_turn_that_has_ended_and_is_being_stored_refuses_nobody(new_store: NewStore) -> None:
    async def main() -> None:
        host, first, second = Host(new_store()), Asks(drive=sleeps(1)), Asks(may_replace=False)
        async with host.turns.serve():
            host.store_it = partial(asyncio.sleep, 2)
            await host.begin(first)
            await asyncio.sleep(2)
            await host.begin(second)
            assert (await host.store.live("a"), host.ends) == (second.head, [(first.head.turn, "done")])

    run_jumping(main())


@stores
def test_a_turn_that_runs_may_keep_the_chat(new_store: NewStore) -> None:
    async def main() -> None:
        host, first = Host(new_store(), conflict="reject"), Asks()
        async with host.turns.serve():
            await host.begin(first)
            with pytest.raises(RequestError, match=r"An answer is still being written in this chat\.") as refused:
                await host.begin(Asks())
            assert refused.value.status == 409
            assert (await host.store.live("a"), host.ends) == (first.head, [])
            await host.stop_all(first)
            await host.begin(Asks())

    run_jumping(main())


@stores
def test_turns_that_queue_begin_one_after_the_other_in_their_order(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store(), conflict="queue")
        asked = [Asks(drive=sleeps(5)) for _ in range(5)]
        async with host.turns.serve():
            begins = [asyncio.create_task(host.begin(asks)) for asks in asked]
            readers = await asyncio.gather(*begins)
            assert [(await read_to_the_end(reader))[-1] for reader in readers] == [Finish("stop")] * 5
            await asyncio.sleep(1)
            assert host.ends == [(asks.head.turn, "done") for asks in asked]

    run_jumping(main())


@stores
def test_whoever_queues_waits_for_thirty_seconds_at_most(new_store: NewStore) -> None:
    async def main() -> None:
        host, first = Host(new_store(), conflict="queue"), Asks()
        loop = asyncio.get_running_loop()
        async with host.turns.serve():
            await host.begin(first)
            began = loop.time()
            with pytest.raises(RequestError) as refused:
                await host.begin(Asks())
            assert (refused.value.status, loop.time() - began) == (409, pytest.approx(30, abs=0.1))
            assert await host.store.live("a") == first.head

    run_jumping(main())


@stores
def test_sixteen_wait_in_a_chat_and_the_next_is_refused(new_store: NewStore) -> None:
    async def main() -> None:
        host, first = Host(new_store(), conflict="queue"), Asks(drive=sleeps(10))
        async with host.turns.serve():
            await host.begin(first)
            asked = [Asks(drive=sleeps(0)) for _ in range(16)]
            begins = [asyncio.create_task(host.begin(asks)) for asks in asked]
            await asyncio.sleep(1)
            with pytest.raises(RequestError, match=r"Too many messages wait in this chat\.") as refused:
                await host.begin(Asks())
            assert (refused.value.status, refused.value.retry_after) == (429, 5)
            # Another chat has a queue of its own.
            await host.begin(Asks("b"))
            await asyncio.gather(*begins)
            await asyncio.sleep(1)
            assert [turn for turn, _ in host.ends] == [asks.head.turn for asks in (first, *asked)]
            await host.begin(Asks())

    run_jumping(main())


@stores
@pytest.mark.parametrize("conflict", ["replace", "queue", "reject"])
def test_to_write_the_running_message_again_replaces_it_under_every_policy(
    new_store: NewStore, conflict: Conflict
) -> None:
    async def main() -> None:
        host, first = Host(new_store(), conflict=conflict), Asks()
        async with host.turns.serve():
            await host.begin(first)
            again = Asks(regenerates=first.head.message_id)
            await host.begin(again)
            assert (await host.store.live("a"), host.ends) == (again.head, [(first.head.turn, "stopped")])
            # Another message is written again when its time has come.
            other = asyncio.create_task(host.begin(Asks(regenerates="another")))
            await asyncio.sleep(1)
            is_running = await host.store.live("a") == again.head
            assert is_running == (conflict != "replace")
            await asyncio.gather(other, host.stop_all(again), return_exceptions=True)

    run_jumping(main())


@stores
def test_a_turn_whose_answer_is_not_stored_in_time_gives_way_all_the_same(new_store: NewStore) -> None:
    async def main() -> None:
        host, first, second = Host(new_store(), per_owner=1), Asks(), Asks()
        loop = asyncio.get_running_loop()

        async def hang_once() -> None:
            host.store_it = partial(asyncio.sleep, 0)
            await asyncio.sleep(100)

        async with host.turns.serve():
            reader = await host.begin(first)
            host.store_it = hang_once
            began = loop.time()
            await host.begin(second)
            assert loop.time() - began == pytest.approx(8, abs=0.2)
            # It was sealed by its owner, so that its end is what the owner said.
            assert await read_to_the_end(reader) == [Start(first.head.message_id), Abort()]
            assert (host.stored, await host.store.live("a")) == ([first.head.turn], second.head)
            assert host.ends == [(first.head.turn, "stopped")]
            await asyncio.sleep(200)
            # When the owner is back, nobody is told again, and the chat is its successor's.
            assert (host.ends, await host.store.live("a")) == ([(first.head.turn, "stopped")], second.head)
            await host.stop_all(second)
            await asyncio.sleep(1)
            await host.begin(Asks("b"))

    run_jumping(main())


@stores
def test_a_process_that_ends_gives_its_turns_time_and_then_stops_them(new_store: NewStore) -> None:
    async def main() -> None:
        host, quick, slow = Host(new_store()), Asks("a", drive=sleeps(5)), Asks("b")
        loop = asyncio.get_running_loop()
        async with host.turns.serve():
            for asks in (quick, slow):
                await host.begin(asks)
            began = loop.time()
            drains = asyncio.create_task(host.turns.drain(20))
            await asyncio.sleep(0)
            assert not host.turns.ready
            with pytest.raises(RequestError) as refused:
                await host.begin(Asks("c"))
            assert refused.value.status == 503
            await drains
            assert loop.time() - began == pytest.approx(20, abs=0.2)
            assert host.ends == [(quick.head.turn, "done"), (slow.head.turn, "stopped")]
            assert slow.chat is not None
            assert slow.chat.stopped == "shutdown"

    run_jumping(main())


def test_a_process_without_turns_ends_at_once() -> None:
    async def main() -> None:
        await Host().turns.drain(20)
        assert asyncio.get_running_loop().time() == 0

    run_jumping(main())


@pytest.mark.parametrize("moment", [0.005, 0.015, 0.5, 1.025, 1.035, 1.045])
def test_a_turn_that_begins_while_its_process_ends_is_refused_or_ended(moment: float) -> None:
    async def main() -> None:
        host, asks = Host(FarStore()), Asks()
        asks.prepare_it = partial(asyncio.sleep, 1)
        async with host.turns.serve():
            begins = asyncio.create_task(host.begin(asks))
            await asyncio.sleep(moment)
            await host.turns.drain(0)
            await asyncio.wait([begins])
            error = begins.exception()
            ends = [] if error is not None else [(asks.head.turn, "stopped")]
            assert error is None or isinstance(error, RequestError)
            await asyncio.sleep(1)
            assert (host.ends, await host.store.live("a")) == (ends, None)

    run_jumping(main())


@stores
def test_an_answer_that_cannot_be_stored_keeps_no_process_from_ending(new_store: NewStore) -> None:
    async def main() -> None:
        host = Host(new_store())
        loop = asyncio.get_running_loop()
        async with host.turns.serve():
            await host.begin(Asks())
            host.store_it = partial(asyncio.sleep, 1000)
            began = loop.time()
            await host.turns.drain(3)
            assert loop.time() - began == pytest.approx(9.5, abs=0.2)

    run_jumping(main())
