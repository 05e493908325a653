"""Chats whose runs are kept: what goes on after a restart, and what begins anew."""

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from support.driving import Control, all_of, new_chat, until, user
from support.hang import HANG_SECONDS
from usechat.database import Database
from usechat.flows import DatabaseRunStore, Event, FlowRuntime, MemoryRunStore, NodeContext, RunSnapshot, RunStore
from usechat.integrations.open_harness.agent import ChatRun, OpenHarnessAgent
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

FLOW: dict[str, Any] = {
    "name": "asks",
    "nodes": [
        {"id": "first", "type": "note", "input": {}},
        {"id": "asks", "type": "ask", "input": {"message": "{{ flow.input.message }}"}},
    ],
    "edges": [{"from": "first", "to": "asks"}],
}


class Server:
    """A process as far as its flows go: it makes runtimes on a store, and forgets all that it did not store."""

    def __init__(self, store: RunStore, *, pauses: bool = True) -> None:
        self.made: list[FlowRuntime] = []
        self.asked_for: list[str | None] = []
        self.ran: list[str] = []
        self._store = store
        self._pauses = pauses
        self.agent = OpenHarnessAgent(self.make, store=store)

    def make(self, run_id: str | None) -> FlowRuntime:
        runtime = FlowRuntime(FLOW, {"note": self._note, "ask": self._ask}, self._store, run_id=run_id)
        self.made.append(runtime)
        self.asked_for.append(run_id)
        return runtime

    async def say(self, *messages: UIMessage, **options: Any) -> list[str]:
        """A turn to its end: the texts of its events."""
        async with asyncio.timeout(HANG_SECONDS):
            events = [event async for event in self.agent.run(new_chat(*messages, **options))]
        return [event["content"] for event in events if event["type"] == "agent:text"]

    async def _note(self, context: NodeContext, _value: dict[str, Any]) -> None:
        self.ran.append(context.node_id)

    async def _ask(self, context: NodeContext, value: dict[str, Any]) -> None:
        self.ran.append(context.node_id)
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": f"{value['message']}?"})
            if self._pauses:
                self.made[-1].dispatch({"type": "pause"})
            await asyncio.Event().wait()
        context.emit({"type": "agent:text", "content": f"So {value['message']} and {context.resume_message}."})


def answer(message_id: str = "a1") -> UIMessage:
    return UIMessage(message_id, "assistant", [{"type": "text", "text": "x"}])


ONE, TWO, THREE = user("one", "u1"), user("two", "u2"), user("three", "u3")


@pytest.fixture(params=["memory", "database"])
def store(request: pytest.FixtureRequest) -> RunStore:
    return MemoryRunStore() if request.param == "memory" else DatabaseRunStore(Database())


async def test_a_paused_chat_goes_on_in_another_process_and_what_was_done_is_not_done_again(store: RunStore) -> None:
    before, after = Server(store), Server(store)
    assert await before.say(ONE) == ["one?"]
    assert await after.say(ONE, answer(), TWO) == ["So one and two."]
    assert (before.ran, after.ran) == (["first", "asks"], ["asks"])
    assert (before.asked_for, after.asked_for) == ([None], [before.made[0].snapshot().run_id])
    # What is over begins anew, here as there.
    assert await before.say(ONE, answer(), TWO, answer("a2"), THREE) == ["three?"]


async def test_a_paused_chat_is_kept_by_the_store_alone(store: RunStore) -> None:
    server = Server(store)
    assert await server.say(ONE) == ["one?"]
    assert await server.say(ONE, answer(), TWO) == ["So one and two."]
    # It was loaded again, so the first runtime was let go.
    assert server.asked_for == [None, server.made[0].snapshot().run_id]


async def test_a_paused_runtime_that_cannot_be_loaded_stays_with_its_chat() -> None:
    class Elsewhere:
        """Runs where no store of ours is."""

        def __init__(self, inner: FlowRuntime) -> None:
            self.run, self.dispatch, self.on_event = inner.run, inner.dispatch, inner.on_event
            self.snapshot, self._inner = inner.snapshot, inner

        @property
        def waiting(self) -> list[str]:
            return self._inner.waiting

    server = Server(MemoryRunStore())
    server.agent = OpenHarnessAgent(lambda _: Elsewhere(server.make(None)), store=MemoryRunStore())
    assert await server.say(ONE) == ["one?"]
    assert await server.say(ONE, answer(), TWO) == ["So one and two."]


async def test_the_runs_of_two_users_with_one_chat_id_are_kept_apart(store: RunStore) -> None:
    before, after = Server(store), Server(store)
    for name in ("ann", "bob", None):
        assert await before.say(user(f"{name}"), user=name) == [f"{name}?"]
    # Whoever has no run of that id has none of somebody else's.
    assert await after.say(user("x"), answer(), TWO, user="eve") == ["two?"]
    for name in ("bob", None, "ann"):
        assert await after.say(user("x"), answer(), TWO, user=name) == [f"So {name} and two."]


async def test_a_chat_whose_process_died_in_a_run_goes_on_with_the_next_message(store: RunStore) -> None:
    before, after = Server(store, pauses=False), Server(store)
    events = before.agent.run(new_chat(ONE))
    await until(events, "agent:text")
    # Nothing is told to the first process any more.
    # A message that came before the question was asked again is no answer to it.
    assert await after.say(ONE, answer(), TWO) == ["one?"]
    assert await after.say(ONE, answer(), TWO, answer("a2"), THREE) == ["So one and three."]
    assert (after.ran, after.made[-1].snapshot().status) == (["asks", "asks"], "complete")
    await before.agent.aclose(0)
    await all_of(events)


@pytest.mark.parametrize("how", ["a drain", "a close"])
async def test_a_server_that_ends_pauses_its_flows_and_they_go_on_in_the_next(store: RunStore, how: str) -> None:
    before, after, control = Server(store, pauses=False), Server(store), Control()
    events = before.agent.run(new_chat(ONE, control=control))
    await until(events, "agent:text")
    control.stopped = "shutdown" if how == "a drain" else "replaced"
    control.stopping.set()
    await events.aclose()
    await before.agent.aclose(0)
    assert before.made[0].snapshot().status == "paused"
    assert await after.say(ONE, answer(), TWO) == ["one?"]
    assert await after.say(ONE, answer(), TWO, answer("a2"), THREE) == ["So one and three."]


async def test_to_stop_means_to_stop_with_a_store_too(store: RunStore) -> None:
    before, after, control = Server(store, pauses=False), Server(store), Control()
    events = before.agent.run(new_chat(ONE, control=control))
    await until(events, "agent:text")
    control.stopped = "stopped"
    control.stopping.set()
    await events.aclose()
    await before.agent.aclose(1)
    assert await after.say(ONE, answer(), TWO) == ["two?"]


@pytest.mark.parametrize("how", ["regenerate", "edit"])
async def test_regenerating_and_editing_begin_anew_after_a_restart(store: RunStore, how: str) -> None:
    before, after = Server(store), Server(store)
    assert await before.say(ONE) == ["one?"]
    if how == "regenerate":
        assert await after.say(ONE, trigger="regenerate-message") == ["one?"]
    else:
        assert await after.say(TWO) == ["two?"]
    assert [runtime.snapshot().status for runtime in after.made] == ["aborted", "paused"]


async def test_the_message_that_a_run_was_given_last_is_kept(store: RunStore) -> None:
    class Twice(Server):
        async def _ask(self, context: NodeContext, value: dict[str, Any]) -> None:
            context.emit({"type": "agent:text", "content": f"{context.resume_message}?"})
            self.made[-1].dispatch({"type": "pause"})
            await asyncio.Event().wait()

    assert await Twice(store).say(ONE) == ["None?"]
    assert await Twice(store).say(ONE, answer(), TWO) == ["two?"]
    # An edit of the second message begins anew, although the first one is still there.
    assert await Twice(store).say(ONE, answer(), THREE) == ["None?"]


async def test_a_run_that_was_never_stored_or_cannot_be_read_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryRunStore):
        async def chat_run(self, chat: str) -> ChatRun | None:
            return ChatRun(run_id, "u1")

        async def load_snapshot(self, run_id: str) -> RunSnapshot | None:
            if run_id == "broken":
                raise ValueError("The stored snapshot is broken.")
            return await super().load_snapshot(run_id)

    store = Broken()
    for run_id in ("gone", "broken"):
        assert await Server(store).say(ONE, answer(), TWO) == ["two?"]
        assert f"run {run_id} of a chat cannot continue" in caplog.text


async def test_a_request_without_a_message_does_not_wait_for_a_paused_run() -> None:
    for store in (None, MemoryRunStore()):
        server = Server(MemoryRunStore())
        server.agent = OpenHarnessAgent(server.make, store=store)
        await server.say(ONE)
        assert await server.say(ONE, answer()) == []


@pytest.mark.parametrize("make", [lambda: None, FlowRuntime({"name": "f", "nodes": [], "edges": []}, {})])
async def test_a_store_needs_a_function_of_the_run_id(make: Any) -> None:
    with pytest.raises(TypeError, match="a function that takes the id of a run"):
        OpenHarnessAgent(make, store=MemoryRunStore())


async def test_without_a_store_a_function_need_not_take_the_run_id() -> None:
    def with_default(flow: Any = FLOW) -> FlowRuntime:
        return FlowRuntime(flow, {"note": note, "ask": note})

    def with_id(run_id: str | None) -> FlowRuntime:
        assert run_id is None
        return with_default()

    async def note(_context: NodeContext, _value: dict[str, Any]) -> None:
        pass

    for make in (with_default, with_id):
        events: list[Event] = [event async for event in OpenHarnessAgent(make).run(new_chat(ONE))]
        assert events[-1]["type"] == "flow:complete"


async def test_a_chat_that_is_forgotten_leaves_none_of_its_runs() -> None:
    database = Database()
    for store in (MemoryRunStore(), DatabaseRunStore(database)):
        server = Server(store)
        for message in (ONE, THREE):
            # An edit leaves the run of before behind.
            await server.say(message)
        await server.say(ONE, user="bob")
        runs = list(dict.fromkeys(runtime.snapshot().run_id for runtime in server.made))
        assert [await store.load_snapshot(run) is None for run in runs] == [False] * 3
        await server.agent.forget("c", None)
        assert [await store.load_snapshot(run) is None for run in runs] == [True, True, False]
        assert [await store.load_events(run) == [] for run in runs] == [True, True, False]
        assert await server.say(ONE, answer(), TWO) == ["two?"]
    await database.aclose()


async def test_a_run_at_work_ends_when_its_chat_is_forgotten() -> None:
    store = MemoryRunStore()
    server = Server(store, pauses=False)
    events = server.agent.run(new_chat(ONE))
    await until(events, "agent:text")
    await server.agent.forget("c", None)
    (runtime,) = server.made
    assert (runtime.snapshot().status, await store.load_snapshot(runtime.snapshot().run_id)) == ("aborted", None)
    await events.aclose()
    assert await store.load_events(runtime.snapshot().run_id) == []


async def test_a_stop_ends_a_run_that_is_paused_and_the_next_message_begins_another_one(store: RunStore) -> None:
    before, after = Server(store), Server(store)
    for name in ("ann", "bob"):
        assert await before.say(ONE, user=name) == ["one?"]
    await before.agent.stop("c", "ann")
    await before.agent.stop("c", "eve")
    stopped, other = (runtime.snapshot().run_id for runtime in before.made[:2])
    stored = [await store.load_snapshot(run) for run in (stopped, other)]
    assert [run and run.status for run in stored] == ["aborted", "paused"]
    assert await after.say(ONE, answer(), TWO, user="ann") == ["two?"]
    assert await after.say(ONE, answer(), TWO, user="bob") == ["So one and two."]


async def test_a_message_that_comes_with_a_stop_begins_another_run(store: RunStore) -> None:
    server = Server(store)
    assert await server.say(ONE) == ["one?"]
    _, said = await asyncio.gather(server.agent.stop("c", None), server.say(ONE, answer(), TWO))
    assert said == ["two?"]
    assert await server.say(ONE, answer(), TWO, answer("a2"), THREE) == ["So two and three."]


@pytest.mark.parametrize("how", ["stop", "forget"])
async def test_without_a_store_nothing_is_left_of_a_paused_run_that_is_stopped(how: str) -> None:
    server = Server(MemoryRunStore())
    server.agent = OpenHarnessAgent(lambda: server.make(None))
    assert await server.say(ONE) == ["one?"]
    await getattr(server.agent, how)("c", None)
    assert server.made[0].snapshot().status == "aborted"
    left = weakref.ref(server.made.pop())
    gc.collect()
    assert left() is None
    assert await server.say(ONE, answer(), TWO) == ["two?"]


async def test_a_turn_that_runs_is_not_ended_by_a_stop_between_turns() -> None:
    server = Server(MemoryRunStore(), pauses=False)
    events = server.agent.run(new_chat(ONE))
    await until(events, "agent:text")
    await server.agent.stop("c", None)
    assert server.made[0].snapshot().status == "running"
    await server.agent.aclose(0)
    await events.aclose()


async def test_an_agent_that_is_let_go_with_its_runs_refuses_nobody() -> None:
    # Runtimes that are gone leave their ids as objects to others.
    for _ in range(50):
        server = Server(MemoryRunStore())
        server.agent = OpenHarnessAgent(partial(server.make, None))
        assert await server.say(ONE) == ["one?"]
        del server
        gc.collect()
