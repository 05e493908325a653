"""LangGraph: any compiled graph, `create_agent` included, by its own stream."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, aclosing
from itertools import takewhile
from typing import Any, ClassVar, Final, TypeAlias, cast

import msgspec

from usechat.agents import Asked
from usechat.agents.chat import Chat, RunOptions, ToolAnswer
from usechat.agents.langgraph_answers import answer_questions, decide
from usechat.errors import AgentError, RequestError
from usechat.models import to_langchain
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.sources.langgraph import BEGINS, LangGraphMapper, LangGraphOptions, Subgraphs
from usechat.sources.langgraph_interrupts import Interrupt, read_interrupt
from usechat.sources.langgraph_messages import called_by, field

__all__ = ["GraphMaker", "LangGraphAgent", "is_graph"]

_Part: TypeAlias = Mapping[str, Any]
_Config: TypeAlias = dict[str, Any]

GraphMaker: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes a graph in the event loop, for a checkpointer that has to be opened there and closed at the end."""

_WENT_ON: Final = "This call was not carried out: the user approved nothing, and went on with another message."
_STOPPED: Final = "This call has no result, since it was stopped or failed."
_NO_CHECKPOINTER: Final = (
    "This graph asks the user, and without a checkpointer it cannot go on with the answer: compile it with "
    "`checkpointer=InMemorySaver()` of langgraph.checkpoint.memory, or with one that outlives the process."
)
_METHODS: Final = ("astream", "aget_state", "aget_state_history")


def is_graph(thing: object) -> bool:
    """Whether it is a compiled graph."""
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in _METHODS)


class LangGraphAgent:
    """Drives a graph. With a checkpointer, each chat of a user has a thread of its own, which holds its history.

    `graph` is a compiled graph, or a `GraphMaker`. `state` are the keys of its state to show, as they change.
    `subgraphs` says how sub-graphs are shown: `data`, each in a part of its own that is replaced in place; `lanes`, as
    text and tool calls beside those of the graph; or `off`. `config` is merged into the config of each run, and
    `context` makes the run's context of the chat.
    """

    modes: ClassVar[tuple[str, ...]] = ("messages", "updates", "custom", "tools", "tasks")

    def __init__(
        self,
        graph: Any,
        *,
        state: Collection[str] = (),
        subgraphs: Subgraphs = "data",
        config: Mapping[str, Any] | None = None,
        context: Callable[[Chat], Any] | None = None,
    ) -> None:
        """Prepare the threads.

        Raises:
            TypeError: it is no compiled graph, and nothing that could make one.
        """
        if not is_graph(graph) and not callable(graph):
            raise TypeError(f"{type(graph).__name__} is not a compiled graph: call its compile() first.")
        self._make = cast("GraphMaker", graph)
        self._graph: Any = graph if is_graph(graph) else None
        self._making = asyncio.Lock()
        self._closing = AsyncExitStack()
        self._options = LangGraphOptions(state=tuple(state), subgraphs=subgraphs)
        self._config = dict(config or {})
        self._context = context
        self._modes = [*self.modes, "values"] if state else list(self.modes)

    def mapper(self, writer: MessageWriter) -> Mapper[_Part]:
        return LangGraphMapper(writer, self._options)

    async def admit(self, asked: Asked) -> None:
        """Say whether the thread takes these answers.

        Raises:
            RequestError: it does not, or waits for others.
        """
        graph = await self._get_graph()
        if not graph.checkpointer or asked.trigger == "regenerate-message":
            return
        snapshot = await graph.aget_state(self._config_of(asked.chat_id, asked.user, asked.context))
        if asked.approvals:
            decide(_interrupts(snapshot), asked.approvals)
        elif asked.message.role == "user" and not _has(snapshot, asked.message.id):
            answer_questions(_interrupts(snapshot), asked.body, asked.message.text)

    async def events(self, chat: Chat) -> AsyncGenerator[_Part, None]:
        """Run the graph with the new message, or let it go on with the user's answers.

        Raises:
            AgentError: there is nothing to run it with.
            RuntimeError: it asks the user, and nothing keeps it until the answer.
        """
        graph = await self._get_graph()
        config = self._config_of(chat.id, chat.user, chat.request.context)
        try:
            given, config, snapshot = await _input(graph, config, chat)
        except RequestError as error:
            raise AgentError(str(error)) from error
        about = {"tools": _tool_names(graph), "thread": _about(snapshot), **_continued(chat.continues)}
        yield {"type": BEGINS, "ns": (), "data": about}
        options = {} if self._context is None else {"context": self._context(chat)}
        stream = graph.astream(given, config, stream_mode=self._modes, subgraphs=True, version="v2", **options)
        with _Patience(chat) as patience:
            async with aclosing(stream) as parts:
                async for part in parts:
                    if not graph.checkpointer and _asks(part):
                        raise RuntimeError(_NO_CHECKPOINTER)
                    patience.see(part)
                    yield part

    async def forget(self, chat_id: str, user: str | None) -> None:
        """Delete the thread of the chat."""
        graph = await self._get_graph()
        if graph.checkpointer:
            await graph.checkpointer.adelete_thread(_thread_id(chat_id, user))

    async def aclose(self, grace: float) -> None:
        """Let go of a graph that was made here."""
        await self._closing.aclose()

    async def _get_graph(self) -> Any:
        if self._graph is None:
            async with self._making:
                if self._graph is None:
                    self._graph = await self._closing.enter_async_context(self._make())
        return self._graph

    def _config_of(self, chat_id: str, user: str | None, context: Any) -> _Config:
        own = cast("Mapping[str, Any]", self._config.get("configurable") or {})
        chosen = context.thread_id if isinstance(context, RunOptions) else None
        return {**self._config, "configurable": {**own, "thread_id": chosen or _thread_id(chat_id, user)}}


def _asks(part: _Part) -> bool:
    return part["type"] == "updates" and field(part["data"], "__interrupt__") is not None


class _Patience(ExitStack):
    """Suspends the idle clock while tools run, since one of them may say nothing for long."""

    def __init__(self, chat: Chat) -> None:
        super().__init__()
        self._chat = chat
        self._open: set[Any] = set()

    def see(self, part: _Part) -> None:
        data = part["data"]
        if part["type"] == "tools":
            call = part["ns"], field(data, "tool_call_id")
            match field(data, "event"):
                case "tool-started":
                    self._begins(call)
                case "tool-finished" | "tool-error":
                    self._ends(call)
                case _:
                    pass
        elif part["type"] == "tasks":
            # In LangGraph 1.1 the tools themselves tell nothing.
            if field(data, "triggers") is None:
                self._ends(field(data, "id"))
            elif called_by(field(data, "input")) is not None:
                self._begins(field(data, "id"))

    def _begins(self, work: Any) -> None:
        if not self._open:
            self.enter_context(self._chat.hold())
        self._open.add(work)

    def _ends(self, work: Any) -> None:
        if work in self._open:
            self._open.discard(work)
            if not self._open:
                self.close()


def _thread_id(chat_id: str, user: str | None) -> str:
    """A thread for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return hashlib.sha256(msgspec.json.encode((user or "", chat_id))).hexdigest()


async def _input(graph: Any, config: _Config, chat: Chat) -> tuple[Any, _Config, Any]:
    """What the graph is run with, from which checkpoint, and what the thread has there."""
    if not graph.checkpointer:
        if chat.approvals:
            raise RequestError("A graph without a checkpointer cannot wait for approvals.", status=409)
        return {**_begun_with(chat), "messages": _messages(to_langchain(await chat.model_messages()))}, config, None
    snapshot = await graph.aget_state(config)
    question = chat.messages[-1]
    if chat.approvals:
        return _command(decide(_interrupts(snapshot), chat.approvals)), config, snapshot
    if chat.continues is not None:
        return {"messages": _messages(_results(snapshot, chat.tool_results))}, config, snapshot
    if question.role != "user":
        raise RequestError("There is no message to answer.", status=409)
    unsaved = _unsaved(snapshot)
    if _has(snapshot, question.id):
        # It is to be answered again, or was edited: the thread goes on from before it.
        snapshot, unsaved = await _before(graph, config, question.id), []
        config = {**config, "configurable": {**config["configurable"], **snapshot.config["configurable"]}}
    else:
        answers = answer_questions(_interrupts(snapshot), chat.request.body, chat.text)
        if answers:
            return _command(answers), config, snapshot
    # A checkpointer that was emptied, or is new, does not hold what was said before.
    is_new = not _thread(snapshot)
    asked = await chat.history() if is_new else [question]
    messages = [*_unanswered(snapshot), *(said for message in asked for said in _said(message))]
    given = {"messages": [*unsaved, *_messages(messages)]}
    return {**_begun_with(chat), **given} if is_new else given, config, snapshot


def _begun_with(chat: Chat) -> Mapping[str, Any]:
    """The state that a new thread begins with, beside its messages."""
    context = chat.request.context
    return context.state or {} if isinstance(context, RunOptions) else {}


def _said(message: UIMessage) -> list[dict[str, Any]]:
    """What LangChain has for a message; one of the user keeps its id, by which it is found when it is edited."""
    said = to_langchain(to_model_messages([message]))
    return [{**each, "id": message.id} for each in said] if message.role == "user" else said


async def _before(graph: Any, config: _Config, message_id: str) -> Any:
    """The newest state of the thread that does not have this message."""
    async with aclosing(graph.aget_state_history(config)) as snapshots:
        async for snapshot in snapshots:
            if not _has(snapshot, message_id):
                return snapshot
    raise RequestError("The thread of this chat cannot go back before the message.", status=409)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    from langchain_core.messages import convert_to_messages

    return list(convert_to_messages(cast("Any", messages)))


def _command(resume: Mapping[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=resume)


def _interrupts(snapshot: Any) -> list[Interrupt]:
    return [read_interrupt(raw) for raw in snapshot.interrupts]


def _thread(snapshot: Any) -> Sequence[Any]:
    return field(snapshot.values, "messages") or ()


def _has(snapshot: Any, message_id: str) -> bool:
    return any(field(message, "id") == message_id for message in _thread(snapshot))


def _last_results(snapshot: Any) -> list[Any]:
    """The messages of tools at the end of the thread."""
    return [*takewhile(lambda message: field(message, "type") == "tool", reversed(_thread(snapshot)))][::-1]


def _open_calls(snapshot: Any) -> list[str]:
    """The calls of the thread's last answer that have no result."""
    results, thread = _last_results(snapshot), _thread(snapshot)
    answered = {field(message, "tool_call_id") for message in results}
    calls = field(thread[-len(results) - 1], "tool_calls") if len(thread) > len(results) else None
    return [call["id"] for call in calls or () if call["id"] not in answered]


def _unsaved(snapshot: Any) -> list[Any]:
    """The last answer of the thread and its results, if they came in a step that was not finished.

    The state has them, but the next run would not. Messages that it has, too, are known by their ids.
    """
    thread = _thread(snapshot)
    return list(thread[-len(_last_results(snapshot)) - 1 :]) if snapshot.tasks and _is_answered(thread) else []


def _is_answered(thread: Sequence[Any]) -> bool:
    return bool(thread) and field(thread[-1], "type") in ("ai", "tool")


def _unanswered(snapshot: Any) -> list[dict[str, Any]]:
    """Results for the calls that have none, without which a model's provider takes no further message."""
    waits = any(interrupt.actions for interrupt in _interrupts(snapshot))
    return [_result(call_id, _WENT_ON if waits else _STOPPED, "error") for call_id in _open_calls(snapshot)]


def _results(snapshot: Any, answers: Sequence[ToolAnswer]) -> list[dict[str, Any]]:
    """What the browser answered to calls that the graph left to it."""
    given = {answer.call_id: answer for answer in answers}
    results: list[dict[str, Any]] = []
    for call_id in _open_calls(snapshot):
        answer = given.get(call_id)
        if answer is None:
            results.append(_result(call_id, _STOPPED, "error"))
        elif answer.error is not None:
            results.append(_result(call_id, answer.error, "error"))
        else:
            output = answer.output
            text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            results.append(_result(call_id, text, "success"))
    if not given.keys() & {result["tool_call_id"] for result in results}:
        raise RequestError("This answers no tool call that is open.", status=409)
    return results


def _result(call_id: str, text: str, status: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text, "status": status}


def _about(snapshot: Any) -> dict[str, Any] | None:
    """How far the thread is; None if it is new."""
    if snapshot is None or not snapshot.values:
        return None
    return {"step": field(snapshot.metadata, "step") or 0, "messagesCount": len(_thread(snapshot))}


def _continued(message: UIMessage | None) -> dict[str, Any]:
    return {} if message is None else {"parts": message.parts, "metadata": message.metadata}


def _tool_names(graph: Any) -> frozenset[str] | None:
    """The tools of a graph of `create_agent`, whose structured output may come as a call of another name."""
    if "structured_response" not in (getattr(graph, "channels", None) or ()):
        return None
    nodes = cast("Mapping[str, Any]", graph.nodes).values()
    return frozenset(name for node in nodes for name in getattr(getattr(node, "bound", None), "tools_by_name", ()))
