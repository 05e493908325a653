"""Turns whose owner is gone, asleep or wrong: who ends them, and what the old owner may still do."""

import asyncio
import time

import pytest

from stores.contract import Producer
from stores.redis_workers import LIVING, Worker, frames, head, opened, read_all, sent, until, worker
from support.redis_server import RedisServer
from usechat.stores import FencedError
from usechat.stores.redis import worker as worker_module

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _empty(redis_server: RedisServer) -> None:
    redis_server.empty()


def fall_asleep(at: Worker) -> None:
    """Let it renew no lease, and hear nothing."""
    served = at.store.served
    served.worker.leases.stop()
    served.worker.channels.leave(at.store.keys.workers + served.worker.id, served.turns.hear)


async def test_the_turn_of_a_worker_that_died_is_ended_by_one_other_and_read_by_all(either_server: RedisServer) -> None:
    async with worker(either_server, lease=LIVING) as b, worker(either_server, lease=LIVING) as c:
        async with worker(either_server, lease=LIVING) as a:
            claim, _ = await opened(a, head("died"))
            claim.append(frames("1", "2"))
            await sent(claim)
            there = await b.store.follow(claim.head)
            assert there is not None
        assert await read_all(there) == frames("1", "2", "last")
        [(taken, why)] = [*b.lost, *c.lost]
        assert (taken.head, taken.epoch > claim.epoch, why) == (claim.head, True, None)
        assert await c.store.live("died") is None


async def test_a_turn_that_nobody_reads_is_ended_as_well_and_one_that_was_only_claimed_leaves_no_trace(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as b:
        async with worker(redis_server, lease=LIVING) as a:
            opened_, _ = await opened(a, head("unread"))
            claimed = await a.store.claim(head("claimed"))
        await b.store.wait_released(opened_.head)
        await b.store.wait_released(claimed.head)
        assert [claim.head for claim, _ in b.lost] == [opened_.head]
        assert (await b.store.find("claimed", claimed.head.turn)).named is None
        assert (await b.store.find("unread", opened_.head.turn)).named == opened_.head


async def test_a_turn_whose_owner_died_before_it_was_released_ends_as_its_owner_had_sealed_it(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as b:
        async with worker(redis_server, lease=LIVING) as a:
            claim, _ = await opened(a, head("sealed"))
            claim.append(frames("1"))
            assert await claim.seal(frames("2"), "done")
            there = await b.store.follow(claim.head)
            assert there is not None
        assert await read_all(there) == frames("1", "2")
        [(taken, _)] = b.lost
        assert (taken.sealed, there.log.outcome) == ((frames("2"), "done"), "done")


async def test_a_clock_of_redis_that_is_set_forward_ends_no_turn_of_a_worker_that_lives(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(redis_server, lease=LIVING) as b:
        async with worker(redis_server, lease=LIVING) as a:
            claim, producer = await opened(a, head("jump"))
            # Until leases count.
            await asyncio.sleep(1.2 * LIVING)
            # An hour passes in Redis, and none here.
            monkeypatch.setattr(worker_module, "_ours", lambda: (time.monotonic() - 3600) * 1e6)
            with redis_server.client() as client:
                client.hset(claim.keys.turn, "d", "0")
            b.store.served.reaper.reap(claim.head)
            await until(lambda: "the clock of Redis was set" in caplog.text)
            claim.append(frames("1"))
            await sent(claim)
            assert (b.lost, producer.fences) == ([], 0)
        await b.store.wait_released(claim.head)
        assert [taken.head for taken, _ in b.lost] == [claim.head]


async def test_a_clock_of_redis_that_is_set_back_does_not_keep_the_turns_of_a_worker_that_died(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as b:
        async with worker(redis_server, lease=LIVING) as a:
            claims = [(await opened(a, head(chat)))[0] for chat in ("read", "unread")]
            there = await b.store.follow(claims[0].head)
            assert there is not None
        with redis_server.client() as client:
            for claim in claims:
                hour = (client.time()[0] + 3600) * 1_000_000
                client.hset(claim.keys.turn, "d", hour)
                client.zadd(b.store.keys.running, {claim.keys.member: hour})
        assert await read_all(there) == frames("last")
        await until(lambda: {taken.head.chat for taken, _ in b.lost} == {"read", "unread"})


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_a_turn_is_ended_although_redis_has_lost_what_its_owner_said_before_it_died(
    redis_server: RedisServer, is_sealed: bool
) -> None:
    async with worker(redis_server, lease=LIVING) as b:
        async with worker(redis_server, lease=LIVING) as a:
            claim, _ = await opened(a, head("evicted"))
            claim.append(frames("1"))
            await sent(claim)
            assert not is_sealed or await claim.seal(frames("2"), "done")
        with redis_server.client() as client:
            client.delete(claim.keys.log)
        await b.store.wait_released(claim.head)
        there = await b.store.follow(claim.head)
        assert there is not None
        assert (await read_all(there), there.log.outcome) == (frames("last"), "lost")


async def test_a_turn_is_not_lost_while_the_loop_of_its_worker_is_held(redis_server: RedisServer) -> None:
    async with worker(redis_server, lease=LIVING) as a:
        claim, producer = await opened(a, head("held"))
        await asyncio.sleep(0)
        # As a tool that blocks does.
        time.sleep(1.5 * LIVING)  # noqa: ASYNC251
        async with worker(redis_server, lease=LIVING) as b:
            await asyncio.sleep(1.5 * LIVING)
            assert (b.lost, producer.fences) == ([], 0)
        assert await claim.seal((), "done")
        await claim.release()


async def test_what_is_said_is_not_shown_before_redis_has_it() -> None:
    server = RedisServer()
    async with worker(server) as a:
        claim, _ = await opened(a)
        reader = claim.reader()
        with server.paused():
            claim.append(frames("1"))
            assert (reader.take_frame(), reader.take(100), reader.unread) == (b"", b"", 0)
            claim.append(frames("2"))
            assert reader.take_frame() == b""
        await sent(claim)
        assert [reader.take_frame(), reader.take_frame()] == frames("1", "2")
    server.close()


async def test_an_owner_that_was_taken_for_dead_writes_nothing_more_and_its_readers_see_the_end_that_all_see(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as b, worker(redis_server, lease=LIVING) as a:
        claim, producer = await opened(a, head("zombie"))
        claim.append(frames("1"))
        await sent(claim)
        here, there = claim.reader(), await b.store.follow(claim.head)
        assert there is not None
        fall_asleep(a)
        await until(lambda: b.lost != [])
        claim.append(frames("2", "3"))
        assert [await read_all(here), await read_all(there)] == [frames("1", "last")] * 2
        assert (producer.fences, await claim.seal(frames("4"), "done")) == (1, False)


async def test_a_claim_that_is_fenced_while_its_opening_is_on_its_way_is_not_open(redis_server: RedisServer) -> None:
    async with worker(redis_server) as a:
        claim, producer = await a.store.claim(head("late")), Producer()
        opening = asyncio.create_task(claim.open(producer, None, ()))
        await asyncio.sleep(0)
        a.store.served.turns.hear(f"fenced {claim.head.turn} {claim.epoch}".encode())
        with pytest.raises(FencedError):
            await opening
        assert (claim.phase, producer.counts) == ("claimed", [])


async def test_readers_end_with_an_error_who_have_read_what_redis_lost_before_the_turn_was_taken_over(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as b, worker(redis_server, lease=LIVING) as a:
        claim, _ = await opened(a, head("ahead"))
        claim.append(frames("1", "2"))
        await sent(claim)
        here = claim.reader()
        assert [here.take_frame(), here.take_frame()] == frames("1", "2")
        fall_asleep(a)
        with redis_server.client() as client:
            # As a crash does it to what is not on the disk yet.
            client.delete(claim.keys.log)
            client.xadd(claim.keys.log, {"d": frames("1")[0]}, id="1-0")
            client.hset(claim.keys.turn, "n", "1")
        await until(lambda: b.lost != [])
        claim.append(frames("3"))
        ended = await read_all(here)
        assert [b'"type":"error"' in frame for frame in ended] == [True]
        assert b"id:" not in ended[0]
        late = await a.store.follow(claim.head)
        assert late is not None
        assert await read_all(late) == frames("1", "last")


async def test_counts_of_readers_are_those_of_all_workers_and_expire_with_theirs(redis_server: RedisServer) -> None:
    async with worker(redis_server, lease=LIVING) as a:
        claim, producer = await opened(a, head("counted"))
        async with worker(redis_server, lease=LIVING) as b:
            readers = [await b.store.follow(claim.head) for _ in range(3)]
            await until(lambda: producer.counts[-1] == 3)
            here = claim.reader()
            assert readers[0] is not None
            readers[0].leave()
            await until(lambda: producer.counts[-1] == 3)
            here.leave()
            await until(lambda: producer.counts[-1] == 2)
        await until(lambda: producer.counts[-1] == 0)
        await claim.seal((), "done")
        await claim.release()
