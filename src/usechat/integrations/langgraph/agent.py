"""LangGraph: drives any compiled graph, `create_agent` included, by its own stream."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Any, ClassVar, Final, TypeAlias, cast

import msgspec

from usechat.errors import AgentError, RequestError
from usechat.events import Translator
from usechat.integrations.langgraph.messages import field
from usechat.integrations.langgraph.thread import Thread
from usechat.integrations.langgraph.translator import LangGraphOptions, LangGraphTranslator, Subgraphs
from usechat.models import to_langchain
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Chat, RunOptions
from usechat.turns.pending import PendingTurn

__all__ = ["GraphMaker", "LangGraphAgent", "is_graph"]

_Part: TypeAlias = Mapping[str, Any]
_Config: TypeAlias = dict[str, Any]

GraphMaker: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes a graph in the event loop, for a checkpointer that has to be opened there and closed at the end."""

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

    @classmethod
    def wrap(cls, thing: object) -> "LangGraphAgent | None":
        return cls(thing) if is_graph(thing) else None

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

    def translator(self, chat: Chat) -> Translator[_Part]:
        return self._translator(chat.continues)

    async def admit(self, pending: PendingTurn) -> Thread | None:
        """Say whether the thread takes these answers, and hand it to `run`.

        Raises:
            RequestError: it does not, or waits for others.
        """
        graph, message = await self._get_graph(), pending.message
        if not graph.checkpointer:
            return None
        config = self._config_of(pending.chat_id, pending.user, pending.request.context)
        thread = Thread(await graph.aget_state(config))
        if pending.approvals:
            thread.decisions(pending.approvals)
        elif pending.trigger == "submit-message" and message.role == "user" and not thread.has(message.id):
            thread.answers(pending.request.body, message.text)
        return thread

    async def run(self, chat: Chat) -> AsyncGenerator[_Part, None]:
        """Run the graph with the new message, or let it go on with the user's answers.

        Raises:
            AgentError: there is nothing to run it with.
            RuntimeError: it asks the user, and nothing keeps it until the answer.
        """
        graph = await self._get_graph()
        given, config = await self._input(graph, chat)
        options = {} if self._context is None else {"context": self._context(chat)}
        stream = graph.astream(given, config, stream_mode=self._modes, subgraphs=True, version="v2", **options)
        async with aclosing(stream) as parts:
            async for part in parts:
                if not graph.checkpointer and part["type"] == "updates" and field(part["data"], "__interrupt__"):
                    raise RuntimeError(_NO_CHECKPOINTER)
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

    def _translator(self, continues: UIMessage | None) -> LangGraphTranslator:
        return LangGraphTranslator(self._options, tools=self._tool_names, continues=continues)

    def _config_of(self, chat_id: str, user: str | None, context: Any) -> _Config:
        own = cast("Mapping[str, Any]", self._config.get("configurable") or {})
        chosen = context.thread_id if isinstance(context, RunOptions) else None
        return {**self._config, "configurable": {**own, "thread_id": chosen or _thread_id(chat_id, user)}}

    def _tool_names(self) -> Collection[str] | None:
        """The tools of a graph of `create_agent`, whose structured output may come as a call of another name."""
        if "structured_response" not in (getattr(self._graph, "channels", None) or ()):
            return None
        nodes = cast("Mapping[str, Any]", self._graph.nodes).values()
        return frozenset(name for node in nodes for name in getattr(getattr(node, "bound", None), "tools_by_name", ()))

    async def _input(self, graph: Any, chat: Chat) -> tuple[Any, _Config]:
        """What the graph is run with, and from which checkpoint; `chat.admitted` is the thread as it is there."""
        config = self._config_of(chat.id, chat.user, chat.request.context)
        try:
            if graph.checkpointer:
                return await _go_on(graph, config, chat)
        except RequestError as error:
            raise AgentError(str(error)) from error
        if chat.approvals:
            raise AgentError("A graph without a checkpointer cannot wait for approvals.")
        return {**_begun_with(chat), "messages": _messages(to_langchain(await chat.model_messages()))}, config


def _thread_id(chat_id: str, user: str | None) -> str:
    """A thread for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return hashlib.sha256(msgspec.json.encode((user or "", chat_id))).hexdigest()


async def _go_on(graph: Any, config: _Config, chat: Chat) -> tuple[Any, _Config]:
    if chat.admitted is None:
        chat.admitted = Thread(await graph.aget_state(config))
    thread, question = cast("Thread", chat.admitted), chat.messages[-1]
    if chat.approvals:
        return _command(thread.decisions(chat.approvals)), config
    if chat.continues is not None:
        return {"messages": _messages(thread.results(chat.tool_results))}, config
    if question.role != "user":
        raise RequestError("There is no message to answer.", status=409)
    unsaved = thread.unsaved()
    if thread.has(question.id):
        # It is to be answered again, or was edited: the thread goes on from before it.
        chat.admitted = thread = await _before(graph, config, question.id)
        unsaved = []
        config = {**config, "configurable": {**config["configurable"], **thread.configurable}}
    elif answers := thread.answers(chat.request.body, chat.text):
        return _command(answers), config
    # A checkpointer that was emptied, or is new, does not hold what was said before.
    is_new = not thread.messages
    asked = await chat.history() if is_new else [question]
    messages = [*thread.unanswered(), *(said for message in asked for said in _said(message))]
    given = {"messages": [*unsaved, *_messages(messages)]}
    return {**_begun_with(chat), **given} if is_new else given, config


async def _before(graph: Any, config: _Config, message_id: str) -> Thread:
    """The newest state of the thread that does not have this message."""
    async with aclosing(graph.aget_state_history(config)) as snapshots:
        async for snapshot in snapshots:
            thread = Thread(snapshot)
            if not thread.has(message_id):
                return thread
    raise RequestError("The thread of this chat cannot go back before the message.", status=409)


def _begun_with(chat: Chat) -> Mapping[str, Any]:
    """The state that a new thread begins with, beside its messages."""
    context = chat.request.context
    return context.state or {} if isinstance(context, RunOptions) else {}


def _said(message: UIMessage) -> list[dict[str, Any]]:
    """What LangChain has for a message; one of the user keeps its id, by which it is found when it is edited."""
    said = to_langchain(to_model_messages([message]))
    return [{**each, "id": message.id} for each in said] if message.role == "user" else said


def _messages(messages: list[dict[str, Any]]) -> list[Any]:
    from langchain_core.messages import convert_to_messages

    return list(convert_to_messages(cast("Any", messages)))


def _command(resume: Mapping[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=resume)
