"""What the driver of flows does beside what its transport shows; see tests/transports/test_open_harness.py."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from support.driving import Control, all_of, new_chat, until, user
from support.hang import HANG_SECONDS
from usechat import Reasoning
from usechat.errors import AgentError, MappingError
from usechat.flows import Command, Event, FlowRuntime, NodeContext, NodeFunction, RunSnapshot, agent_node
from usechat.integrations import mapper_of
from usechat.integrations.open_harness.agent import OpenHarnessAgent
from usechat.protocol.chunks import ReasoningDelta, TextDelta
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import StopReason
from usechat.turns.chat import Chat
from usechat.turns.pump import Unused

pytestmark = pytest.mark.anyio

ASKED = {"prompt": "{{ flow.input.message }}"}


class Runtimes:
    """Makes flows of one node, and keeps them."""

    def __init__(self, node: NodeFunction, value: Mapping[str, str] = ASKED) -> None:
        self.made: list[FlowRuntime] = []
        self._flow = {"name": "one", "nodes": [{"id": "a", "type": "talk", "input": value}], "edges": []}
        self._node = node

    def __call__(self) -> FlowRuntime:
        self.made.append(FlowRuntime(self._flow, {"talk": self._node}))
        return self.made[-1]

    @property
    def statuses(self) -> list[str]:
        return [runtime.snapshot().status for runtime in self.made]


async def hangs(context: NodeContext, value: dict[str, Any]) -> None:
    context.emit({"type": "agent:text", "content": value["prompt"]})
    await asyncio.Event().wait()


async def test_the_events_of_a_turn_are_those_of_the_run() -> None:
    async def greets(context: NodeContext, _value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": "Hi"})

    kinds = await all_of(OpenHarnessAgent(Runtimes(greets)).run(new_chat(user("one"))))
    assert kinds == ["flow:start", "node:start", "agent:text", "node:complete", "flow:complete"]


async def test_two_users_with_one_chat_id_have_two_runs() -> None:
    runtimes = Runtimes(hangs)
    agent = OpenHarnessAgent(runtimes)
    ann, bob = agent.run(new_chat(user("ann"), user="ann")), agent.run(new_chat(user("bob"), user="bob"))
    texts = [(await until(events, "agent:text"))["content"] for events in (ann, bob)]
    assert (texts, runtimes.statuses) == (["ann", "bob"], ["running", "running"])
    await agent.aclose(0)
    assert await all_of(ann) == await all_of(bob) == ["command:received", "flow:aborted"]


async def test_a_flow_gets_the_messages_that_were_not_loaded() -> None:
    given: list[Any] = []

    async def keeps(_context: NodeContext, value: dict[str, Any]) -> None:
        given.append(value["all"])

    async def load() -> list[UIMessage]:
        return [user("one"), UIMessage("a1", "assistant", [{"type": "text", "text": "x"}]), last]

    last = user("two", "u2")
    await all_of(OpenHarnessAgent(Runtimes(keeps, {"all": "{{ flow.input.messages }}"})).run(new_chat(last, load=load)))
    texts = [{"role": "user", "text": "one"}, {"role": "assistant", "text": "x"}, {"role": "user", "text": "two"}]
    assert given == [texts]


@pytest.mark.parametrize(("why", "status"), [("stopped", "aborted"), ("replaced", "running"), ("left", "aborted")])
@pytest.mark.parametrize("waits", [True, False])
async def test_a_stop_aborts_the_flow_and_a_newer_message_does_not(why: StopReason, status: str, waits: bool) -> None:
    control, runtimes = Control(), Runtimes(hangs)
    agent = OpenHarnessAgent(runtimes)
    events = agent.run(new_chat(user("one"), control=control))
    await until(events, "agent:text")
    reading = asyncio.create_task(anext(events)) if waits else None
    await asyncio.sleep(0)
    control.stopped = why
    control.stopping.set()
    if reading is not None:
        reading.cancel()
        await asyncio.wait([reading])
    await events.aclose()
    assert runtimes.statuses == [status]
    await agent.aclose(0)


async def test_a_turn_that_ends_before_its_flow_does_aborts_it() -> None:
    runtimes = Runtimes(hangs)
    async with aclosing(OpenHarnessAgent(runtimes).run(new_chat(user("one")))) as events:
        await until(events, "agent:text")
    assert runtimes.statuses == ["aborted"]


async def test_a_stop_while_the_messages_are_loaded_aborts_the_run_of_the_chat() -> None:
    async def load() -> list[UIMessage]:
        await asyncio.Event().wait()
        return []

    runtimes = Runtimes(hangs)
    agent = OpenHarnessAgent(runtimes)
    replaced = Control()
    events = agent.run(new_chat(user("one"), control=replaced))
    await until(events, "agent:text")
    replaced.stopped = "replaced"
    await events.aclose()
    assert runtimes.statuses == ["running"]
    loading = asyncio.create_task(anext(agent.run(new_chat(user("two", "u2"), load=load))))
    await asyncio.sleep(0)
    loading.cancel()
    await asyncio.wait([loading])
    assert runtimes.statuses == ["aborted"]


async def test_a_flow_that_says_more_than_is_read_is_aborted_and_ends_its_turn() -> None:
    async def bursts(context: NodeContext, _value: dict[str, Any]) -> None:
        for _ in range(20_000):
            context.emit({"type": "agent:text:delta", "content": "."})
        await asyncio.Event().wait()

    runtimes = Runtimes(bursts)
    with pytest.raises(AgentError, match="The flow was faster than the page could read"):
        await all_of(OpenHarnessAgent(runtimes).run(new_chat(user("one"))))
    assert runtimes.statuses == ["aborted"]


@pytest.mark.parametrize("in_threads", [False, True])
async def test_agents_of_a_flow_that_never_wait_say_no_more_than_is_read(in_threads: bool) -> None:
    async def never_waits(_chat: Chat) -> AsyncGenerator[str]:
        for _ in range(3_000):
            yield "."

    def never_waits_in_a_thread(_chat: Chat) -> Iterator[str]:
        yield from ["."] * 3_000

    node = agent_node(never_waits_in_a_thread if in_threads else never_waits)
    flow = {"name": "f", "nodes": [{"id": f"n{i}", "type": "talk", "input": ASKED} for i in range(8)], "edges": []}
    agent = OpenHarnessAgent(lambda: FlowRuntime(flow, {"talk": node}, concurrency=8))
    events = agent.run(new_chat(user("one")))
    await until(events, "agent:text:delta")
    # They cannot go on until they are read.
    for _ in range(1_000):
        await asyncio.sleep(0)
    async with asyncio.timeout(HANG_SECONDS):
        kinds = [event["type"] async for event in events]
    assert (kinds.count("agent:text:delta"), kinds[-1]) == (8 * 3_000 - 1, "flow:complete")


async def test_a_runtime_counts_in_the_counter_of_the_agent() -> None:
    class Numbers:
        async def run(self, _chat: Chat) -> AsyncGenerator[int]:
            yield 1

        def translator(self, _chat: Chat) -> "Numbers":
            return self

        def translate(self, event: int) -> list[str]:
            raise MappingError("There is no such event.")

        def end(self) -> list[str]:
            return []

    agent = OpenHarnessAgent(Runtimes(agent_node(Numbers())))
    agent.unused = Unused()
    await all_of(agent.run(new_chat(user("one"))))
    assert agent.unused.counts == {"There is no such event.": 1}


class Leaver:
    """A runtime that wants to leave the process."""

    waiting = ()

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        raise self._error

    def dispatch(self, command: Command) -> None:
        pass

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        return lambda: None

    def snapshot(self) -> RunSnapshot:
        return RunSnapshot(run_id="r")


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), RuntimeError("secret")])
async def test_whatever_a_runtime_raises_ends_the_turn_and_nothing_else(error: BaseException) -> None:
    with pytest.raises(type(error)):
        await all_of(OpenHarnessAgent(lambda: Leaver(error)).run(new_chat(user("one"))))


async def test_at_the_end_flows_that_run_are_aborted_and_those_that_are_paused_are_let_go() -> None:
    async def pauses(context: NodeContext, value: dict[str, Any]) -> None:
        if value["prompt"] == "pause":
            runtimes.made[-1].dispatch({"type": "pause"})
        await hangs(context, value)

    runtimes = Runtimes(pauses)
    agent, gone = OpenHarnessAgent(runtimes), Control()
    running = agent.run(new_chat(user("run"), control=gone, user="ann"))
    await until(running, "agent:text")
    gone.stopped = "replaced"
    await running.aclose()
    paused = agent.run(new_chat(user("pause"), user="bob"))
    await until(paused, "flow:paused")
    await paused.aclose()
    assert runtimes.statuses == ["running", "paused"]
    await agent.aclose(0)
    assert runtimes.statuses == ["aborted", "paused"]


@pytest.mark.parametrize("kind", ["text", "thinking"])
async def test_a_turn_that_takes_over_a_stream_does_not_repeat_what_was_said_before(kind: str) -> None:
    async def talks(chat: Chat) -> AsyncGenerator[str | Reasoning]:
        number = len([message for message in chat.messages if message.role == "user"])
        for letter in "abc":
            said = f"{number}{letter} "
            yield said if kind == "text" else Reasoning(said)
            if said == "1b ":
                await goes_on.wait()

    def said(events: list[Event]) -> str:
        numbers = count()
        mapper = mapper_of(agent, answering, MessageWriter("m", new_id=lambda: f"id-{next(numbers)}"))
        chunks = [chunk for event in events for chunk in mapper.map(event)]
        return "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta | ReasoningDelta))

    goes_on = asyncio.Event()
    agent, control = OpenHarnessAgent(Runtimes(agent_node(talks))), Control()
    first = agent.run(new_chat(user("one"), control=control))
    for _ in range(2):
        await until(first, f"agent:{kind}:delta")
    control.stopped = "replaced"
    control.stopping.set()
    await first.aclose()
    answer = UIMessage("a1", "assistant", [{"type": "text", "text": "x"}])
    answering = new_chat(user("one"), answer, user("two", "u2"))
    second = agent.run(answering)
    events = [await anext(second)]
    goes_on.set()
    async with asyncio.timeout(HANG_SECONDS):
        events += [event async for event in second]
    assert said(events) == "1c 2a 2b 2c "
