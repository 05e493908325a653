from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flows.play import Play, edge, flow, node
from usechat.database import Database
from usechat.flows import DatabaseRunStore, MemoryRunStore, RunSnapshot, RunStore
from usechat.flows.scheduling import Event

pytestmark = pytest.mark.anyio

Reopen = Callable[[], Awaitable[RunStore]]

EVENTS: list[Event] = [{"type": "flow:start", "flowName": name, "timestamp": n} for n, name in enumerate("abc", 1)]
SNAPSHOT = RunSnapshot(
    run_id="r",
    status="paused",
    input={"q": "wörd \0 \U0001f600"},
    outputs={"a": {"x": None}, "b": [1, 2.5]},
    state={"n": {"deep": [{}]}},
    node_status={"a": "done", "b": "running"},
    edge_status={"a->b": "fired"},
    loop_counters={"a->b": 2},
    inbox=[{"type": "send", "runId": "x", "message": "m"}],
    agent_sessions={"a": "s"},
)


@pytest.fixture(params=["memory", "sqlite"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Reopen]:
    """Give the store, as another process would find it."""
    memory, databases = MemoryRunStore(), list[Database]()

    async def opened() -> RunStore:
        if request.param == "memory":
            return memory
        while databases:
            await databases.pop().aclose()
        databases.append(Database(f"sqlite:///{tmp_path}/runs.db"))
        return DatabaseRunStore(databases[0])

    yield opened
    while databases:
        await databases.pop().aclose()


async def test_events_are_loaded_after_a_sequence_number(reopen: Reopen):
    store = await reopen()
    await store.append_event("r", EVENTS[0])
    await store.append_event("r", EVENTS[1])
    assert await store.load_events("r", 1) == [EVENTS[1]]
    await (await reopen()).append_event("r", *EVENTS[2:])
    store = await reopen()
    assert await store.load_events("r") == EVENTS
    assert await store.load_events("r", after=2) == EVENTS[2:]
    assert await store.load_events("r", after=3) == []


async def test_runs_are_apart(reopen: Reopen):
    store = await reopen()
    await store.append_event("r", EVENTS[0])
    await store.append_event("R", EVENTS[1])
    await store.save_snapshot("R", SNAPSHOT)
    assert (await store.load_events("r"), await store.load_events("R")) == ([EVENTS[0]], [EVENTS[1]])
    assert await store.load_snapshot("r") is None
    assert await store.load_events("nobody") == []


async def test_a_snapshot_comes_back_as_it_was_and_the_last_one_counts(reopen: Reopen):
    await (await reopen()).save_snapshot("r", RunSnapshot(run_id="r"))
    await (await reopen()).save_snapshot("r", SNAPSHOT)
    assert await (await reopen()).load_snapshot("r") == SNAPSHOT


async def test_a_snapshot_and_the_events_before_it_are_kept_together(reopen: Reopen):
    await (await reopen()).save_snapshot("r", SNAPSHOT, *EVENTS[:2])
    await (await reopen()).save_snapshot("r", RunSnapshot(run_id="r"), EVENTS[2])
    store = await reopen()
    assert (await store.load_snapshot("r"), await store.load_events("r")) == (RunSnapshot(run_id="r"), EVENTS)


async def test_without_their_snapshot_events_are_not_kept(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/runs.db")
    store = DatabaseRunStore(database)
    await store.append_event("r", EVENTS[0])
    await database.run(lambda connection: connection.execute(text("DROP TABLE usechat_run_snapshots")))
    with pytest.raises(OperationalError, match="no such table"):
        await store.save_snapshot("r", SNAPSHOT, *EVENTS[1:])
    assert await store.load_events("r") == EVENTS[:1]
    await database.aclose()


async def test_to_append_nothing_changes_nothing(reopen: Reopen):
    store = await reopen()
    await store.append_event("r")
    assert await store.load_events("r") == []


async def test_a_run_that_was_paused_goes_on_from_the_store(reopen: Reopen):
    played = flow([node("a", "note"), node("b", "note")], [edge("a", "b")])
    first = Play(played, store=await reopen())
    first.on("node:complete a", lambda _: first.runtime.dispatch({"type": "pause"}))
    paused = await first.run({"x": 1})
    second = Play(played, store=await reopen(), run_id=paused.run_id)
    done = await second.run()
    assert (first.started, second.started) == (["a"], ["b"])
    store = await reopen()
    assert await store.load_snapshot(paused.run_id) == done
    assert await store.load_events(paused.run_id) == first.events + second.events


async def test_a_message_to_a_run_that_is_paused_is_kept(reopen: Reopen):
    played = flow([node("a", "note"), node("b", "note")], [edge("a", "b")])
    play = Play(played, store=await reopen())
    play.on("node:complete a", lambda _: play.runtime.dispatch({"type": "pause"}))
    paused = await play.run()
    again = Play(played, store=await reopen(), run_id=paused.run_id)
    await again.runtime.load()
    again.runtime.dispatch({"type": "send", "runId": "x", "message": "m"})
    done = await again.run()
    assert done.inbox == [{"type": "send", "runId": "x", "message": "m"}]


async def test_a_stored_snapshot_that_is_broken_says_so(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/runs.db")
    store = DatabaseRunStore(database)
    await store.save_snapshot("r", SNAPSHOT)
    broken = text("UPDATE usechat_run_snapshots SET snapshot = '{\"runId\": 1}'")
    await database.run(lambda connection: connection.execute(broken))
    with pytest.raises(ValueError, match="The stored snapshot of run 'r' is broken: Expected `str`, got `int`"):
        await store.load_snapshot("r")
    await database.aclose()


async def test_a_snapshot_of_the_original_is_read():
    stored = msgspec.json.decode(b'{"runId": "r", "status": "paused", "nodeStatus": {"a": "done"}}', type=RunSnapshot)
    assert stored == RunSnapshot(run_id="r", status="paused", node_status={"a": "done"})
