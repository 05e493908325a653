"""What a store on Redis needs, keeps and forgets."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stores.contract import Producer
from stores.redis_workers import LIVING, Worker, frames, head, opened, read_all, sent, until, worker
from support.hang import HANG_SECONDS
from support.redis_server import SECRET, RedisServer
from usechat.stores import IdUsedError, StoreAwayError, TurnHead
from usechat.stores.redis import RedisTurnStore
from usechat.stores.redis import claim as redis_claim
from usechat.stores.urls import open_store

pytestmark = pytest.mark.anyio


TURNS = Path(__file__).parents[2] / "docs" / "concepts" / "turns.md"


@pytest.fixture(autouse=True)
def _empty(redis_server: RedisServer) -> None:
    redis_server.empty()


@asynccontextmanager
async def deaf_worker(
    server: RedisServer, lease: float = 60.0
) -> AsyncGenerator[tuple[Worker, Callable[[], None]], None]:
    """A worker, and what makes it deaf: it keeps its other connections, and cannot subscribe again."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "reset", "on", "nopass", "~*", "&*", "+@all")

        def deafen() -> None:
            client.execute_command("ACL", "SETUSER", "deaf", "off")
            client.execute_command("CLIENT", "KILL", "USER", "deaf", "TYPE", "pubsub")

        async with worker(server, url=server.url.replace("redis://", "redis://deaf:@"), lease=lease) as deaf:
            yield deaf, deafen


async def test_under_the_documented_user_of_redis_a_turn_is_written_read_stopped_and_taken_over(
    redis_server: RedisServer,
) -> None:
    rules = re.search(r"ACL SETUSER (\w+) (on >\S+ .*)", TURNS.read_text("utf-8"))
    assert rules is not None
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", rules[1], "reset", *rules[2].split())
        client.acl_log_reset()
    password = rules[2].split()[1].removeprefix(">")
    url = redis_server.url.replace("redis://", f"redis://{rules[1]}:{password}@")
    async with worker(redis_server, url=url, lease=LIVING) as b:
        async with worker(redis_server, url=url, lease=LIVING) as a:
            claim, producer = await opened(a)
            assert await a.store.ping()
            there = await b.store.follow(claim.head)
            assert there is not None
            claim.append(frames("1"))
            await until(lambda: there.cursor < there.log.end)
            stopping = asyncio.create_task(b.store.stop(claim.head, "stopped", 60))
            await until(lambda: producer.stops == ["stopped"])
            assert await claim.seal(frames("2"), "stopped")
            await claim.release()
            await stopping
            assert (await b.store.find("chat", claim.head.turn)).named == claim.head
            await b.store.forget("chat")
            died, _ = await opened(a)
        await b.store.wait_released(died.head)
        assert [taken.head for taken, _ in b.lost] == [died.head]
    with redis_server.client() as client:
        # The driver tells its name, where it may.
        assert {entry["object"] for entry in client.acl_log()} <= {"client|setinfo", "client"}


async def test_no_id_of_a_user_or_a_chat_is_in_a_key_or_a_channel_and_no_key_is_looked_for(
    redis_server: RedisServer,
) -> None:
    of = TurnHead("turn-1", "secret{chat}\n", "secret owner", "m")
    with redis_server.client() as client:
        client.config_resetstat()
        async with worker(redis_server) as a, worker(redis_server) as b:
            claim = await a.store.claim(of)
            await claim.open(Producer(), None, ["secret id"])
            claim.append(frames("1"))
            reader = await b.store.follow(of)
            assert reader is not None
            await sent(claim)
            names = [name.decode() for name in (*client.keys("*"), *client.pubsub_channels())]
            assert {re.sub(r"[0-9a-f]{12,}", "#", name) for name in names} == {
                "usechat:#:identity",
                "usechat:#:running",
                "usechat:#:w:",
                "usechat:#:w:#",
                "usechat:#:{#}",
                "usechat:#:{#}:s",
                "usechat:#:{#}:turn-1",
                "usechat:#:{#}:turn-1:l",
                "usechat:#:{#}:turn-1:r",
            }
            calls = client.info("commandstats")
        assert "cmdstat_scan" not in calls
        assert calls["cmdstat_keys"]["calls"] == 1


async def test_an_id_is_spent_once_by_all_workers(redis_server: RedisServer) -> None:
    async with worker(redis_server) as a, worker(redis_server) as b:
        claim = await a.store.claim(head())
        await claim.open(Producer(), None, ["once"])
        assert await claim.seal((), "done")
        await claim.release()
        again = await b.store.claim(head())
        with pytest.raises(IdUsedError):
            await again.open(Producer(), None, ["other", "once"])
        await again.open(Producer(), None, ["other"])


@pytest.mark.parametrize(("keep_turns", "keep_bytes"), [(2, 10**9), (64, 2 * len(frames("12345678-turn")[0]))])
async def test_of_the_turns_that_have_ended_in_a_chat_the_last_ones_are_kept_until_they_are_forgotten(
    redis_server: RedisServer, keep_turns: int, keep_bytes: int
) -> None:
    store = RedisTurnStore(redis_server.url, secret=SECRET, keep_turns=keep_turns, keep_bytes=keep_bytes)

    async def nobody(*_: object) -> None:
        pass

    async with store.serve(nobody):
        heads = [head(), head(), head()]
        for of in heads:
            claim = await store.claim(of)
            await claim.open(Producer(), None, ())
            claim.append(frames(of.turn))
            assert await claim.seal((), "done")
            await claim.release()
        assert [(await store.find("chat", of.turn)).named for of in heads] == [None, *heads[1:]]
        reader = await store.follow(heads[1])
        assert reader is not None
        assert await read_all(reader) == frames(heads[1].turn)
        await store.forget("chat")
        assert [(await store.find("chat", of.turn)).named for of in heads] == [None] * 3
        with redis_server.client() as client:
            # Those of all chats.
            assert client.dbsize() == 2


async def test_an_ended_turn_whose_log_was_lost_is_gone(redis_server: RedisServer) -> None:
    async with worker(redis_server) as a, worker(redis_server) as b:
        claim, _ = await opened(a)
        claim.append(frames("1"))
        assert await claim.seal(frames("2"), "done")
        assert await claim.release()
        with redis_server.client() as client:
            client.delete(claim.keys.log)
        assert [await at.store.follow(claim.head) for at in (a, b)] == [None, None]
        assert b.store.served.turns.mirrors == {}


async def test_mirrors_have_a_bound_and_go_with_their_readers(redis_server: RedisServer) -> None:
    async with worker(redis_server) as a, worker(redis_server) as b:
        first, _ = await opened(a, head("first"))
        second, _ = await opened(a, head("second"))
        first.append(frames("x" * 1000))
        await sent(first)
        b.store.settings.most_mirrored = 9
        reader = await b.store.follow(first.head)
        assert reader is not None
        with pytest.raises(StoreAwayError):
            await b.store.follow(second.head)
        reader.leave()
        assert b.store.served.turns.mirrors == {}
        assert await b.store.follow(second.head) is not None


@pytest.mark.parametrize(
    ("url", "secret", "sentence"),
    [
        ("redis://localhost", None, "Turns on Redis need a secret of at least 32 bytes that all workers share"),
        ("redis://localhost", "x" * 31, "Turns on Redis need a secret of at least 32 bytes that all workers share"),
        ("http://localhost", SECRET, "The store of turns must be memory, or the URL of a Redis such as"),
        ("redis://localhost?what=1", SECRET, "The store of turns must be memory, or the URL of a Redis such as"),
    ],
)
async def test_a_store_that_cannot_be_is_refused_in_one_sentence(url: str, secret: str | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        open_store(url, secret=secret)


async def test_a_store_that_is_not_served_says_so() -> None:
    with pytest.raises(RuntimeError, match=re.escape("enter endpoint.serve() in the lifespan")):
        await open_store("redis://localhost", secret=SECRET).live("chat")


async def test_who_joins_the_readers_of_a_mirror_finds_all_that_redis_has_although_the_mirror_has_missed_it(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server) as a, deaf_worker(redis_server) as (b, deafen):
        claim, _ = await opened(a)
        claim.append(frames("1"))
        await sent(claim)
        first = await b.store.follow(claim.head)
        assert first is not None
        deafen()
        claim.append(frames("2", "3"))
        await sent(claim)
        second = await b.store.follow(claim.head)
        assert second is not None
        assert (second.log is first.log, second.log.end) == (True, 3)


async def test_a_reader_elsewhere_sees_the_end_although_its_worker_hears_nothing_any_more(
    redis_server: RedisServer,
) -> None:
    async with worker(redis_server, lease=LIVING) as a, deaf_worker(redis_server, lease=LIVING) as (b, deafen):
        claim, _ = await opened(a)
        claim.append(frames("1"))
        there = await b.store.follow(claim.head)
        assert there is not None
        deafen()
        claim.append(frames("2"))
        assert await claim.seal(frames("3"), "done")
        await claim.release()
        assert (await read_all(there), there.log.outcome) == (frames("1", "2", "3"), "done")


@pytest.mark.parametrize("rules", [("hset", "hset", "hset"), ("xadd", "hset", "xadd"), ("publish", "hset", "zadd")])
async def test_a_turn_that_redis_refuses_for_a_while_is_whole_all_the_same(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, rules: tuple[str, str, str]
) -> None:
    monkeypatch.setattr(redis_claim, "_REFUSED", 0.01)
    url = redis_server.url.replace("redis://", "redis://refused:@")
    with redis_server.client() as client:

        def allow(*rules: str) -> None:
            client.execute_command("ACL", "SETUSER", "refused", *rules)

        async def refused(rule: str, work: Coroutine[None, None, object]) -> None:
            client.execute_command("ACL", "LOG", "RESET")
            allow(f"-{rule}")
            doing = asyncio.create_task(work)
            await until(
                lambda: any(entry["username"] == "refused" and entry["object"] == rule for entry in client.acl_log())
            )
            allow(f"+{rule}")
            await doing

        async def append() -> None:
            claim.append(frames("2"))
            await sent(claim)

        allow("reset", "on", "nopass", "~*", "&*", "+@all")
        async with worker(redis_server, url=url, lease=LIVING) as a, worker(redis_server, lease=LIVING) as b:
            claim, producer = await opened(a)
            here, there = claim.reader(), await b.store.follow(claim.head)
            assert there is not None
            claim.append(frames("1"))
            await sent(claim)
            for rule, work in zip(rules, (append(), claim.seal(frames("3"), "done"), claim.release()), strict=True):
                await refused(rule, work)
            assert [await read_all(here), await read_all(there)] == [frames("1", "2", "3")] * 2
            assert (producer.fences, await a.store.live(claim.head.chat)) == (0, None)
            late = await b.store.follow(claim.head)
            assert late is not None
            assert await read_all(late) == frames("1", "2", "3")


@pytest.mark.parametrize("unsent", [[], frames("2")])
async def test_a_turn_whose_end_redis_refuses_for_long_is_given_up_and_keeps_nobody_waiting(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, unsent: list[bytes]
) -> None:
    monkeypatch.setattr(redis_claim, "_REFUSED_FOR", 0.0)
    url = redis_server.url.replace("redis://", "redis://refused:@")
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "refused", "reset", "on", "nopass", "~*", "&*", "+@all")
        async with worker(redis_server, url=url) as a:
            claim, producer = await opened(a)
            claim.append(frames("1"))
            await sent(claim)
            client.execute_command("ACL", "SETUSER", "refused", "-hset", "-xadd")
            claim.append(unsent)
            async with asyncio.timeout(HANG_SECONDS):
                assert not await claim.seal(frames("3"), "done")
            assert producer.fences == 1


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
def test_a_lease_that_no_turn_could_have_is_refused(lease: float) -> None:
    with pytest.raises(ValueError, match=r"^The lease of turns must be a number of seconds up to a day, and is "):
        open_store("redis://localhost", secret=SECRET, lease=lease)
