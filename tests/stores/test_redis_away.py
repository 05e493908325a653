"""What turns do while Redis is away, and when it is back."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from stores.redis_workers import LIVING, Worker, frames, head, opened, read_all, sent, until, without_patience, worker
from support.hang import HANG_SECONDS
from support.redis_server import RedisServer
from tcp_proxy import TcpProxy
from usechat.stores import Reader, StoreAwayError, TurnRunningError
from usechat.stores.redis import store
from usechat.stores.redis import worker as worker_module
from usechat.stores.redis.channels import Channels
from usechat.stores.redis.claim import RedisClaim
from usechat.stores.redis.driver import Wire

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["forgets", "aof"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = RedisServer(aof=request.param == "aof")
    yield server
    server.close()


@pytest.fixture
def forgetful() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def _no_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a call that has waited is not taken for a clock that was set forward, as with a lease of usual length.
    monkeypatch.setattr(worker_module, "_SLACK", 100.0)


@pytest.fixture
def _soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no other turn may be missing, nothing is gained by the time in which its owner could give it back.
    for module in (worker_module, store):
        monkeypatch.setattr(module, "GIVEN_BACK", 0.1)


@asynccontextmanager
async def cuttable(server: RedisServer) -> AsyncGenerator[tuple[TcpProxy, str], None]:
    """A way to the server that can be cut, and its URL."""
    proxy = TcpProxy(server.port)
    proxy.start()
    try:
        yield proxy, f"redis://127.0.0.1:{proxy.port}/0"
    finally:
        await proxy.close()


async def reading_elsewhere(at: Worker, claim: RedisClaim) -> asyncio.Task[Sequence[bytes]]:
    """Read the turn at another worker, which has its first frame."""
    claim.append(frames("1"))
    there = await at.store.follow(claim.head)
    assert there is not None
    reading = asyncio.create_task(read_all(there))
    await until(lambda: there.cursor == 1)
    return reading


async def test_a_turn_whose_redis_is_killed_and_started_again_is_whole_for_all_readers(server: RedisServer) -> None:
    async with worker(server) as a, worker(server) as b:
        claim, producer = await opened(a)
        claim.append(frames("1", "2"))
        here, there = claim.reader(), await b.store.follow(claim.head)
        assert there is not None
        reading = asyncio.gather(read_all(here), read_all(there))
        await sent(claim)
        server.kill()
        claim.append(frames("3"))
        server.start()
        claim.append(frames("4"))
        assert await claim.seal(frames("5"), "done")
        await claim.release()
        assert await reading == [frames("1", "2", "3", "4", "5")] * 2
        assert (producer.stops, producer.fences, b.lost) == ([], 0, [])
        assert await b.store.live(claim.head.chat) is None


async def test_a_redis_that_was_emptied_gets_the_turn_back(forgetful: RedisServer) -> None:
    async with worker(forgetful) as a, worker(forgetful) as b:
        claim, _ = await opened(a)
        reading = await reading_elsewhere(b, claim)
        forgetful.empty()
        claim.append(frames("2"))
        await sent(claim)
        assert await b.store.live(claim.head.chat) == claim.head
        forgetful.empty()
        # Also in the moment between its end and its release.
        assert await claim.seal(frames("3"), "done")
        forgetful.empty()
        await claim.release()
        assert await reading == frames("1", "2", "3")
        late = await b.store.follow(claim.head)
        assert late is not None
        assert await read_all(late) == frames("1", "2", "3")


async def test_readers_elsewhere_wait_for_an_owner_who_cannot_give_a_turn_back_before_redis_is_killed_again(
    forgetful: RedisServer,
) -> None:
    async with (
        cuttable(forgetful) as (proxy, far),
        worker(forgetful, url=far, lease=LIVING) as a,
        worker(forgetful, lease=LIVING) as b,
    ):
        claim, _ = await opened(a)
        reading = await reading_elsewhere(b, claim)
        # In neither of these times alone, but in both together, a mirror would give the turn up.
        forgetful.restart()
        await proxy.poison("drop", 1.5 * LIVING)
        forgetful.restart()
        await proxy.poison("drop", 0.75 * LIVING)
        assert await claim.seal(frames("2"), "done")
        await claim.release()
        assert await reading == frames("1", "2")


async def test_readers_elsewhere_who_hear_again_later_see_the_end_although_redis_is_killed_again(
    forgetful: RedisServer,
) -> None:
    async with (
        cuttable(forgetful) as (proxy, far),
        worker(forgetful, lease=LIVING) as a,
        worker(forgetful, url=far, lease=LIVING) as b,
    ):
        claim, _ = await opened(a)
        reading = await reading_elsewhere(b, claim)
        forgetful.restart()

        async def end() -> bool:
            return await claim.seal(frames("2"), "done") and await claim.release()

        ending = asyncio.create_task(end())
        await proxy.poison("drop", store.GIVEN_BACK / 2)
        forgetful.restart()
        assert await ending
        assert await reading == frames("1", "2")


async def test_a_chat_does_not_look_free_before_its_owner_has_given_redis_back_what_it_forgot(
    forgetful: RedisServer,
) -> None:
    async with worker(forgetful) as a, worker(forgetful) as b:
        claim, _ = await opened(a)
        assert await b.store.live("chat") == claim.head
        forgetful.restart()
        reader, refused = await asyncio.gather(
            b.store.follow(claim.head), b.store.claim(head()), return_exceptions=True
        )
        assert isinstance(reader, Reader)
        assert isinstance(refused, TurnRunningError)
        assert await b.store.live("chat") == refused.head == claim.head


async def test_a_turn_is_found_elsewhere_also_before_its_owner_has_noticed_that_redis_was_emptied(
    forgetful: RedisServer,
) -> None:
    async with worker(forgetful) as a, worker(forgetful) as b:
        claim, _ = await opened(a)
        assert await b.store.live("chat") == claim.head
        for _ in range(2):
            forgetful.empty()
            assert await b.store.live("chat") == claim.head
        assert await b.store.live("another chat") is None


async def test_an_emptied_redis_does_not_let_an_older_turn_have_the_chat_again(forgetful: RedisServer) -> None:
    async with worker(forgetful) as a, worker(forgetful) as b:
        old, producer = await opened(a)
        forgetful.empty()
        new, _ = await opened(b)
        old.append(frames("old"))
        await until(lambda: producer.fences == 1)
        new.append(frames("new"))
        await sent(new)
        assert await a.store.live("chat") == new.head
        # Nor does a turn of which Redis forgot only that there is a newer one.
        forgetful.empty()
        assert not await old.seal((), "done")
        new.append(frames("newer"))
        await sent(new)
        assert await a.store.live("chat") == new.head


@pytest.mark.usefixtures("_soon_settled")
async def test_while_redis_is_away_new_turns_are_refused_and_those_that_run_are_found_here(
    forgetful: RedisServer,
) -> None:
    async with worker(forgetful) as a:
        claim, producer = await opened(a)
        assert await a.store.ping()
        forgetful.kill()
        with pytest.raises(StoreAwayError) as refused, without_patience(a):
            await a.store.claim(head("other"))
        assert (refused.value.status, refused.value.retry_after) == (503, 5)
        assert not await a.store.ping()
        assert await a.store.live("chat") == claim.head
        reader = await a.store.follow(claim.head)
        assert reader is not None
        reader.leave()
        # Nobody knows who reads elsewhere.
        assert producer.counts == [0, None, 1, None]
        forgetful.start()
        await until(lambda: producer.counts[-1] == 0)
        assert await a.store.ping()
        await a.store.claim(head("other"))


def is_known_to_be_away(at: Worker) -> bool:
    try:
        # New turns wait the longest.
        at.store.served.worker.pipeline.patience(at.store.settings.patience + store.GIVEN_BACK)
    except StoreAwayError:
        return True
    return False


@pytest.mark.usefixtures("_soon_settled")
async def test_once_redis_is_known_to_be_away_everything_fails_at_once_until_it_is_back(
    forgetful: RedisServer,
) -> None:
    async with worker(forgetful) as a:
        kept = a.store
        forgetful.kill()
        with without_patience(a):
            with pytest.raises(StoreAwayError):
                await kept.claim(head())
            await until(lambda: is_known_to_be_away(a))
            # None of them waits for anything, so the first step of each is its last.
            for asked in (
                kept.claim(head()),
                kept.live("chat"),
                kept.find("chat", "mark"),
                kept.stop(head(), "stopped", 1.0),
                kept.forget("chat"),
                kept.are_used("chat", ["id"]),
            ):
                with pytest.raises(StoreAwayError):
                    asked.send(None)
            with pytest.raises(StopIteration) as answered:
                kept.ping().send(None)
            assert answered.value.value is False
        forgetful.start()
        # Nobody has asked for anything that could tell.
        await until(lambda: not kept.served.worker.pipeline.is_away)
        assert await kept.live("chat") is None
        await kept.claim(head())


@pytest.mark.usefixtures("_soon_settled")
@pytest.mark.parametrize("how", ["paused", "full", "read-only", "cut"])
async def test_a_redis_that_does_nothing_for_a_while_gets_everything_later(forgetful: RedisServer, how: str) -> None:
    async with worker(forgetful) as a, worker(forgetful) as b:
        claim, _ = await opened(a)
        there = await b.store.follow(claim.head)
        assert there is not None
        reading = asyncio.create_task(read_all(there))
        here = claim.reader()
        with forgetful.client() as client:
            if how == "paused":
                with forgetful.paused():
                    claim.append(frames("1"))
                    await until(lambda: a.store.served.worker.pipeline.is_away)
                    assert here.unread == 0
            elif how == "full":
                client.config_set("maxmemory", 1)
                claim.append(frames("1"))
                await until(lambda: a.store.served.worker.pipeline.is_away)
                with pytest.raises(StoreAwayError), without_patience(b):
                    await b.store.claim(head("other"))
                client.config_set("maxmemory", 0)
            elif how == "read-only":
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                claim.append(frames("1"))
                await until(lambda: a.store.served.worker.pipeline.is_away)
                client.execute_command("REPLICAOF", "NO", "ONE")
            else:
                client.script_flush()
                client.client_kill_filter(_type="normal")
                client.client_kill_filter(_type="pubsub")
                claim.append(frames("1"))
        assert await claim.seal(frames("2"), "done")
        await claim.release()
        assert await reading == frames("1", "2")


@pytest.mark.usefixtures("_no_clock_was_set")
async def test_a_turn_lives_whose_redis_was_read_and_took_no_writes_for_longer_than_its_lease(
    forgetful: RedisServer,
) -> None:
    async with (
        cuttable(forgetful) as (proxy, far),
        worker(forgetful, lease=LIVING) as b,
        worker(forgetful, url=far, lease=LIVING) as a,
    ):
        claim, producer = await opened(a)
        assert await b.store.follow(claim.head) is not None
        # Until leases count.
        await asyncio.sleep(1.2 * LIVING)
        with forgetful.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            # One who looks before the lease has ended, and one who does when it ended long ago, are both too early.
            b.store.served.reaper.reap(claim.head)
            await asyncio.sleep(2.6 * LIVING)
            async with asyncio.TaskGroup() as group:
                # Its owner can renew its lease only after Redis is back, and has the time of one lease for it.
                cut = group.create_task(proxy.poison("drop", 60.0))
                b.store.served.reaper.reap(claim.head)
                await asyncio.sleep(0)
                client.execute_command("REPLICAOF", "NO", "ONE")
                await until(lambda: not b.store.served.worker.pipeline.is_away)
                assert await b.store.live("chat") == claim.head
                cut.cancel()
        assert await claim.seal(frames("1"), "done")
        assert (b.lost, producer.fences) == ([], 0)


@pytest.mark.usefixtures("_no_clock_was_set")
async def test_a_turn_lives_whose_redis_has_refused_to_renew_its_lease_and_to_look_for_lost_turns(
    forgetful: RedisServer,
) -> None:
    async with (
        cuttable(forgetful) as (proxy, far),
        worker(forgetful, lease=LIVING) as b,
        worker(forgetful, url=far, lease=LIVING) as a,
    ):
        claim, producer = await opened(a)
        # Until leases count.
        await asyncio.sleep(1.2 * LIVING)
        with forgetful.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-evalsha")
            await asyncio.sleep(1.5 * LIVING)
            async with asyncio.TaskGroup() as group:
                cut = group.create_task(proxy.poison("drop", 60.0))
                await asyncio.sleep(0)
                client.execute_command("ACL", "SETUSER", "default", "+evalsha")
                b.store.served.reaper.reap(claim.head)
                assert await b.store.live("chat") == claim.head
                cut.cancel()
        assert await claim.seal(frames("1"), "done")
        assert (b.lost, producer.fences) == ([], 0)


async def test_a_turn_can_end_in_a_memory_that_is_full(forgetful: RedisServer) -> None:
    async with worker(forgetful) as a:
        claim, _ = await opened(a)
        claim.append(frames("1"))
        await sent(claim)
        with forgetful.client() as client:
            client.config_set("maxmemory", 1)
            assert await claim.seal(frames("2"), "done")
            await claim.release()
            client.config_set("maxmemory", 0)
        assert await a.store.live("chat") is None


async def test_an_agent_waits_when_too_much_is_not_in_redis_yet(forgetful: RedisServer) -> None:
    async with worker(forgetful) as a:
        claim, _ = await opened(a)
        await claim.drain()
        with forgetful.paused():
            claim.append(frames("x" * 5_000_000))
            waiting = asyncio.create_task(claim.drain())
            await until(lambda: a.store.served.worker.pipeline.is_away)
            assert not waiting.done()
        await waiting


async def test_channels_end_although_their_connection_breaks_at_the_same_moment(forgetful: RedisServer) -> None:
    async with cuttable(forgetful) as (proxy, far):
        # It takes some rounds of the loop until the break is noticed.
        for rounds in range(12):
            channels = Channels(lambda: Wire(far, HANG_SECONDS), HANG_SECONDS, lambda: None)
            running = asyncio.create_task(channels.run())
            await channels.join(b"channel", lambda _: None)
            cutting = asyncio.create_task(proxy.poison("drop", HANG_SECONDS))
            for _ in range(rounds):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running], timeout=HANG_SECONDS)
            cutting.cancel()
            assert running.cancelled(), rounds
