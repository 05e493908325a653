import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest

from support.hang import HANG_SECONDS
from usechat.errors import RequestError
from usechat.flows import Command, Event, FlowRuntime, NodeContext, NodeFunction, RunSnapshot, Runtime, agent_node
from usechat.integrations.open_harness.translator import TransportOptions
from usechat.protocol.chunks import Abort, Chunk, Data, Error, Finish, Start, TextDelta
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import Trigger, decode_request
from usechat.transports import AgentTransport, OpenHarnessChatTransport
from usechat.turns.chat import Chat
from usechat.turns.settings import TurnLimits

pytestmark = pytest.mark.anyio

FLOW: dict[str, Any] = {
    "name": "one",
    "nodes": [{"id": "a", "type": "talk", "input": {"message": "{{ flow.input.message }}"}}],
    "edges": [],
}


async def parrot(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    context.emit({"type": "agent:text", "content": f"You said: {value['message']}"})
    return value


async def talker(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    """Repeats what comes into its inbox until it is told to end."""
    context.emit({"type": "agent:start", "sessionId": "s", "prompt": value["message"]})
    context.emit({"type": "agent:text", "content": f"[{value['message']}]"})
    while (command := await context.inbox.next())["message"] != "end":
        context.emit({"type": "agent:text", "content": f"[{command['message']}]"})
    return {}


def flows(node: NodeFunction, flow: Mapping[str, Any] = FLOW) -> Callable[[], FlowRuntime]:
    return lambda: FlowRuntime(flow, {"talk": node})


def user(text: str, message_id: str = "u1") -> UIMessage:
    return UIMessage(id=message_id, role="user", parts=[{"type": "text", "text": text}])


def answer(message_id: str = "a1") -> UIMessage:
    return UIMessage(id=message_id, role="assistant", parts=[{"type": "text", "text": "x", "state": "done"}])


class Page:
    """One chat of a transport."""

    def __init__(self, transport: AgentTransport, chat_id: str = "c") -> None:
        self.transport = transport
        self.id = chat_id
        self.messages: list[UIMessage] = []

    async def send(self, *new: UIMessage, trigger: Trigger = "submit-message") -> AsyncGenerator[Chunk, None]:
        self.messages += new
        body = msgspec.json.encode({"id": self.id, "messages": self.messages, "trigger": trigger})
        return await self.transport.send_messages(decode_request(body))

    async def ask(self, *new: UIMessage, trigger: Trigger = "submit-message") -> list[Chunk]:
        return await read(await self.send(*new, trigger=trigger))


async def read(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    async with asyncio.timeout(HANG_SECONDS):
        return [chunk async for chunk in stream]


async def read_until(stream: AsyncIterator[Chunk], text: str) -> list[Chunk]:
    chunks: list[Chunk] = []
    async with asyncio.timeout(HANG_SECONDS):
        async for chunk in stream:
            chunks.append(chunk)
            if text in said(chunks):
                return chunks
    raise AssertionError(chunks)


def said(chunks: list[Chunk]) -> str:
    return "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta))


async def test_a_message_runs_the_flow_with_all_of_its_text() -> None:
    transport = OpenHarnessChatTransport(flows(parrot), TransportOptions(generate_message_id=lambda: "mine"))
    parts = [
        {"type": "text", "text": "Hel"},
        {"type": "file", "url": "u", "mediaType": "m"},
        {"type": "text", "text": "lo"},
    ]
    chunks = await Page(transport).ask(UIMessage(id="u1", role="user", parts=parts))
    assert chunks[0] == Start("mine")
    assert said(chunks) == "You said: Hello"
    assert chunks[-1] == Finish("stop")


async def test_every_answer_has_an_id_of_its_own() -> None:
    page = Page(OpenHarnessChatTransport(flows(parrot)))
    starts = [(await page.ask(user("hi", f"u{number}")))[0] for number in range(3)]
    assert len({start.message_id for start in starts if isinstance(start, Start)}) == 3


async def test_a_flow_gets_the_whole_conversation() -> None:
    given: list[Any] = []

    async def keep(context: NodeContext, value: dict[str, Any]) -> None:
        given.append(value)

    flow = {**FLOW, "nodes": [{"id": "a", "type": "talk", "input": {"all": "{{ flow.input.messages }}"}}]}
    await Page(OpenHarnessChatTransport(flows(keep, flow))).ask(user("one"), answer(), user("two", "u2"))
    assert given[0]["all"] == [
        {"role": "user", "text": "one"},
        {"role": "assistant", "text": "x"},
        {"role": "user", "text": "two"},
    ]


async def test_the_message_after_a_run_runs_the_flow_again() -> None:
    page = Page(OpenHarnessChatTransport(flows(parrot)))
    assert said(await page.ask(user("one"))) == "You said: one"
    assert said(await page.ask(answer(), user("two", "u2"))) == "You said: two"


async def test_a_message_to_a_running_flow_goes_to_the_node_that_waits() -> None:
    page = Page(OpenHarnessChatTransport(flows(talker)))
    first = await page.send(user("one"))
    begun = await read_until(first, "[one]")
    second = await page.send(answer(), user("two", "u2"))
    assert (await read(first))[-1] == Abort()
    assert said(begun) == "[one]"
    await read_until(second, "[two]")
    third = await page.ask(answer("a2"), user("end", "u3"))
    assert third[-1] == Finish("stop")


async def test_a_message_to_a_running_flow_goes_to_the_agent_that_started_last() -> None:
    inboxes: dict[str, list[str]] = {"a": [], "b": []}
    go_on = asyncio.Event()

    async def busy(context: NodeContext, value: dict[str, Any]) -> None:
        context.emit({"type": "agent:start", "sessionId": "s", "prompt": ""})
        context.emit({"type": "agent:text", "content": context.node_id})
        await go_on.wait()
        inboxes[context.node_id] += [command["message"] for command in context.inbox.drain()]

    nodes: list[dict[str, Any]] = [{"id": name, "type": "talk", "input": {}} for name in "ab"]
    runtime = FlowRuntime({**FLOW, "nodes": nodes}, {"talk": busy}, concurrency=2)
    page = Page(OpenHarnessChatTransport(runtime))
    await read_until(await page.send(user("one")), "b")
    sent = asyncio.Event()
    runtime.on_event(lambda event: sent.set() if event["type"] == "command:received" else None)
    second = await page.send(answer(), user("two", "u2"))
    await asyncio.wait_for(sent.wait(), HANG_SECONDS)
    go_on.set()
    assert (await read(second))[-1] == Finish("stop")
    assert inboxes == {"a": [], "b": ["two"]}


async def test_a_message_to_a_running_flow_whose_nodes_take_none_is_refused_and_the_flow_goes_on() -> None:
    go_on = asyncio.Event()

    async def deaf(context: NodeContext, value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text:delta", "content": "busy "})
        await go_on.wait()
        context.emit({"type": "agent:text:delta", "content": "and done"})

    page = Page(OpenHarnessChatTransport(flows(deaf)))
    first = await page.send(user("one"))
    for number in range(3):
        # At once, before the flow has even begun, and while it runs.
        with pytest.raises(RequestError, match="An answer is still being written") as refused:
            await page.send(answer(f"a{number}"), user("two", f"u2{number}"))
        assert refused.value.status == 409
        if number == 0:
            await read_until(first, "busy ")
    go_on.set()
    chunks = await read(first)
    assert (said(chunks), chunks[-1]) == ("and done", Finish("stop"))
    # With its end the next message runs the flow anew.
    assert said(await page.ask(answer("a9"), user("three", "u9"))) == "busy and done"


async def test_a_page_that_sends_no_message_follows_the_running_flow() -> None:
    go_on = asyncio.Event()

    async def deaf(context: NodeContext, value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": "busy"})
        await go_on.wait()

    page = Page(OpenHarnessChatTransport(flows(deaf)))
    await read_until(await page.send(user("one")), "busy")
    following = await page.send(answer("a2"))
    go_on.set()
    assert (await read(following))[-1] == Finish("stop")


async def test_an_edit_of_the_message_that_a_deaf_flow_answers_runs_it_anew() -> None:
    runtimes: list[FlowRuntime] = []

    async def deaf(context: NodeContext, value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": value["message"]})
        await asyncio.Event().wait()

    def make() -> FlowRuntime:
        runtimes.append(FlowRuntime(FLOW, {"talk": deaf}))
        return runtimes[-1]

    page = Page(OpenHarnessChatTransport(make))
    await read_until(await page.send(user("one")), "one")
    body = msgspec.json.encode({"id": "c", "messages": [user("two", "u2")], "messageId": "u1"})
    await read_until(await page.transport.send_messages(decode_request(body)), "two")
    assert [runtime.snapshot().status for runtime in runtimes] == ["aborted", "running"]
    await page.transport.stop("c")


async def test_a_paused_flow_is_resumed_with_the_message() -> None:
    heard: list[str | None] = []

    async def pausing(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        heard.append(context.resume_message)
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": "Which one?"})
            runtimes[0].dispatch({"type": "pause"})
            await asyncio.Event().wait()
        context.emit({"type": "agent:text", "content": f"So {context.resume_message}."})
        return {}

    runtimes: list[FlowRuntime] = []

    def make() -> FlowRuntime:
        runtimes.append(FlowRuntime(FLOW, {"talk": pausing}))
        return runtimes[-1]

    page = Page(OpenHarnessChatTransport(make))
    paused = await page.ask(user("one"))
    assert said(paused) == "Which one?"
    assert paused[-1] == Finish("other")
    resumed = await page.ask(answer(), user("red", "u2"))
    assert said(resumed) == "So red."
    assert resumed[-1] == Finish("stop")
    assert len(runtimes) == 1


@pytest.mark.parametrize("how", ["regenerate", "edit"])
async def test_regenerating_and_editing_run_the_flow_anew(how: str) -> None:
    runtimes: list[FlowRuntime] = []

    def make() -> FlowRuntime:
        runtimes.append(FlowRuntime(FLOW, {"talk": talker}))
        return runtimes[-1]

    page = Page(OpenHarnessChatTransport(make))
    await read_until(await page.send(user("one")), "[one]")
    page.messages.clear()
    again = await page.send(user("one"), trigger="regenerate-message" if how == "regenerate" else "submit-message")
    await read_until(again, "[one]")
    assert [runtime.snapshot().status for runtime in runtimes] == ["aborted", "running"]
    await page.transport.stop("c")


async def test_a_request_that_ends_in_an_assistant_message_prompts_nothing() -> None:
    made: list[Runtime] = []
    page = Page(OpenHarnessChatTransport(lambda: made.append(FlowRuntime(FLOW, {"talk": parrot})) or made[0]))
    chunks = await page.ask(user("one"), answer())
    assert chunks[0] == Start("a1")
    assert chunks[-1] == Finish("stop")
    assert said(chunks) == ""
    assert made == []


async def test_one_runtime_takes_one_run_of_one_chat() -> None:
    transport = OpenHarnessChatTransport(FlowRuntime(FLOW, {"talk": talker}))
    page = Page(transport)
    await read_until(await page.send(user("one")), "[one]")
    other = await Page(transport, "other").ask(user("two"))
    assert other[-1] == Error("The runtime is busy with another chat.")
    again = await page.ask(trigger="regenerate-message")
    assert again[-1] == Error("This runtime runs only once, so it cannot answer again.")
    ended = await page.ask(answer(), user("end", "u2"))
    assert ended[-1] == Finish("stop")
    late = await page.ask(answer("a2"), user("more", "u3"))
    assert late[-1] == Error("The run has ended, so it takes no more messages.")


async def test_a_function_that_gives_one_runtime_twice_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    runtime = FlowRuntime(FLOW, {"talk": talker})
    transports = [OpenHarnessChatTransport(lambda: runtime), OpenHarnessChatTransport(runtime)]
    page = Page(transports[0])
    first = await page.send(user("one"))
    await read_until(first, "[one]")
    for number, transport in enumerate((*transports, transports[0])):
        other = await Page(transport, f"other{number}").ask(user("two"))
        assert (said(other), other[-1]) == ("", Error("The runtime is busy with another chat."))
    assert "a function that makes a new runtime each time" in caplog.text
    # The first chat is not disturbed.
    assert (await page.ask(answer(), user("end", "u2")))[-1] == Finish("stop")
    late = await Page(transports[0], "late").ask(user("two"))
    assert late[-1] == Error("The run has ended, so it takes no more messages.")


async def test_a_message_without_text_is_refused() -> None:
    picture = UIMessage(id="u", role="user", parts=[{"type": "file", "url": "data:,", "mediaType": "image/png"}])
    chunks = await Page(OpenHarnessChatTransport(flows(parrot))).ask(picture)
    assert chunks[-1] == Error("The message has no text.")


async def test_to_regenerate_nothing_is_refused() -> None:
    chunks = await Page(OpenHarnessChatTransport(flows(parrot))).ask(answer(), trigger="regenerate-message")
    assert chunks[-1] == Error("There is no message to answer.")


async def test_a_runtime_that_was_not_begun_is_free_for_the_next_chat() -> None:
    transport = OpenHarnessChatTransport(FlowRuntime(FLOW, {"talk": parrot}))
    picture = UIMessage(id="u", role="user", parts=[{"type": "file", "url": "data:,", "mediaType": "image/png"}])
    assert (await Page(transport).ask(picture))[-1] == Error("The message has no text.")
    assert said(await Page(transport, "another").ask(user("hi"))) == "You said: hi"


async def test_stop_reaches_the_runtime() -> None:
    runtime = FlowRuntime(FLOW, {"talk": talker})
    page = Page(OpenHarnessChatTransport(runtime))
    stream = await page.send(user("one"))
    await read_until(stream, "[one]")
    await page.transport.stop("c")
    assert (await read(stream))[-1] == Abort()
    assert runtime.snapshot().status == "aborted"
    await page.transport.stop("c")


async def test_whoever_comes_back_reads_the_turn_from_its_beginning() -> None:
    page = Page(OpenHarnessChatTransport(flows(talker)))
    assert await page.transport.reconnect_to_stream("c") is None
    stream = await page.send(user("one"))
    await read_until(stream, "[one]")
    await stream.aclose()
    again = await page.transport.reconnect_to_stream("c")
    assert again is not None
    assert said(await read_until(again, "[one]")) == "[one]"
    await page.transport.stop("c")
    assert (await read(again))[-1] == Abort()
    assert await page.transport.reconnect_to_stream("c") is None


async def test_a_flow_that_cannot_go_on_ends_in_a_masked_error(caplog: pytest.LogCaptureFixture) -> None:
    loop = {**FLOW, "edges": [{"from": "a", "to": "a", "maxIterations": 2}]}
    chunks = await Page(OpenHarnessChatTransport(flows(parrot, loop))).ask(user("one"))
    assert chunks[-1] == Error("The runtime could not run the flow.")
    assert "exceeded 2" in caplog.text


async def test_an_agent_of_a_flow_that_raises_does_not_show_what_it_raised() -> None:
    async def broken(chat: Chat) -> AsyncGenerator[str, None]:
        yield "half"
        raise RuntimeError("secret")

    flow = {**FLOW, "nodes": [{"id": "a", "type": "talk", "input": {"prompt": "{{ flow.input.message }}"}}]}
    chunks = await Page(OpenHarnessChatTransport(flows(agent_node(broken), flow))).ask(user("one"))
    assert isinstance(chunks[-1], Error)
    assert any(isinstance(chunk, Data) for chunk in chunks)
    assert "secret" not in repr(chunks)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (TurnLimits(idle=0.05), "The agent did not answer in time."),
        (TurnLimits(total=0.05), "The answer took too long."),
        (TurnLimits(log=300), "The answer became too large."),
    ],
)
async def test_a_turn_that_reaches_a_limit_aborts_its_flow(limits: TurnLimits, sentence: str) -> None:
    runtime = FlowRuntime(FLOW, {"talk": talker})
    chunks = await Page(AgentTransport(runtime, limits=limits)).ask(user("one"))
    assert chunks[-1] == Error(sentence)
    assert runtime.snapshot().status == "aborted"


async def test_a_hundred_chats_at_once_do_not_mix() -> None:
    async def slow(context: NodeContext, value: dict[str, Any]) -> None:
        for letter in value["message"]:
            context.emit({"type": "agent:text:delta", "content": letter})
            await asyncio.sleep(0)

    transport = OpenHarnessChatTransport(flows(slow))
    texts = [f"chat number {number}" for number in range(100)]
    asked = [Page(transport, f"c{number}").ask(user(text)) for number, text in enumerate(texts)]
    assert [said(chunks) for chunks in await asyncio.gather(*asked)] == texts


class Elsewhere:
    """A runtime that is not ours: it is running, and tells what it is told to."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Event], None]] = []
        self.commands: list[Command] = []
        self.status: Any = "running"
        self.fault: Exception | None = None
        self.waiting = ["run-1"]
        self._prompted = asyncio.Event()
        self.left = asyncio.Event()

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        raise AssertionError("It runs already.")

    def dispatch(self, command: Command) -> None:
        if self.fault is not None:
            raise self.fault
        self.commands.append(command)
        self._prompted.set()

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self._leave(listener)

    def snapshot(self) -> RunSnapshot:
        return RunSnapshot(run_id="r", status=self.status)

    def _leave(self, listener: Callable[[Event], None]) -> None:
        self.listeners.remove(listener)
        self.left.set()

    async def prompted(self) -> None:
        await asyncio.wait_for(self._prompted.wait(), HANG_SECONDS)

    def tell(self, **event: Any) -> None:
        for listener in tuple(self.listeners):
            listener(event)


async def test_the_end_of_one_agent_is_not_the_end_of_a_flow_that_was_running() -> None:
    runtime = Elsewhere()
    stream = await Page(OpenHarnessChatTransport(runtime)).send(user("one"))
    await runtime.prompted()
    agent = {"nodeId": "a", "runId": "run-1"}
    runtime.tell(type="agent:text", content="first", **agent)
    runtime.tell(type="agent:complete", result="first", usage={"inputTokens": 1, "outputTokens": 1}, **agent)
    runtime.tell(type="agent:text", content=" second", **agent)
    runtime.status = "complete"
    runtime.tell(type="flow:complete", flowName="f", status="complete")
    runtime.tell(type="agent:text", content="late", **agent)
    chunks = await read(stream)
    assert said(chunks) == "first second"
    assert chunks[-1] == Finish("stop")
    assert runtime.commands == [{"type": "send", "message": "one", "runId": "run-1"}]
    await asyncio.wait_for(runtime.left.wait(), HANG_SECONDS)


async def test_a_runtime_that_raises_gives_one_error() -> None:
    runtime = Elsewhere()
    runtime.fault = RuntimeError("secret")
    chunks = await Page(OpenHarnessChatTransport(runtime)).ask(user("one"))
    assert chunks[-1] == Error("The runtime refused the message.")
    assert "secret" not in repr(chunks)


async def test_a_runtime_that_is_lost_ends_the_turn_with_a_clear_error() -> None:
    runtime = Elsewhere()
    stream = await Page(OpenHarnessChatTransport(runtime)).send(user("one"))
    await runtime.prompted()
    runtime.tell(type="runtime:lost")
    assert (await read(stream))[-1] == Error("The run was interrupted before it was finished.")
    assert runtime.commands == [{"type": "send", "message": "one", "runId": "run-1"}]


async def test_a_runtime_that_cannot_be_aborted_does_not_keep_the_turn() -> None:
    runtime = Elsewhere()
    page = Page(OpenHarnessChatTransport(runtime))
    stream = await page.send(user("one"))
    await runtime.prompted()
    runtime.fault = RuntimeError("gone")
    await page.transport.stop("c")
    assert (await read(stream))[-1] == Abort()


async def test_events_that_cannot_be_shown_are_counted() -> None:
    runtime = Elsewhere()
    transport = OpenHarnessChatTransport(runtime)
    stream = await Page(transport).send(user("one"))
    await runtime.prompted()
    runtime.tell(type="news")
    runtime.tell(type="news")
    runtime.tell(type="flow:complete", flowName="f", status="complete")
    assert (await read(stream))[-1] == Finish("stop")
    assert list(transport.unused.counts.values()) == [2]
