"""Microsoft Agent Framework: drives any `agent_framework.Agent`.

In each turn the agent gets the messages of the chat, and a new `AgentSession`. `chat.state` keeps the session's state,
and, while calls wait for the user, the requests that the answers are bound to.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import structs

from usechat import events as e
from usechat.errors import AgentError, MappingError, RequestError
from usechat.integrations.event_queue import EventQueue
from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, api_name, rounds
from usechat.protocol.chunks import FinishReason
from usechat.protocol.model_messages import ModelMessage
from usechat.turns.chat import Approval, Chat
from usechat.turns.pending import PendingTurn

__all__ = ["AgentFrameworkAgent", "AgentFrameworkTranslator", "log_translator", "show_sub_agent"]

_Said: TypeAlias = Iterator[e.AgentEvent]
_State: TypeAlias = dict[str, Any]

_WAITS: Final = "Waits until the other calls are answered."
_FAILED: Final = "The tool failed."
_REFUSED: Final = "I refused these calls for the following reasons. {}"
_NOT_OPEN: Final = "This answers no approval that is open."
_TOGETHER: Final = "The calls that wait together have to be answered together."
_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
    "content_filter": "content-filter",
}
_COUNTS: Final = {
    "input_tokens": "input_token_count",
    "output_tokens": "output_token_count",
    "total_tokens": "total_token_count",
    "cache_read_tokens": "cache_read_input_token_count",
    "cache_write_tokens": "cache_creation_input_token_count",
    "reasoning_tokens": "reasoning_output_token_count",
}
_KEY: Final = "agentFramework"
# The call that a task runs, and the turn that shows what happens in it.
_running: ContextVar["tuple[str, EventQueue[Any]] | None"] = ContextVar("usechat_running_call", default=None)


def show_sub_agent(update: Any) -> None:
    """Show what an agent says that is used as a tool: `agent.as_tool(stream_callback=show_sub_agent)`."""
    running = _running.get()
    if running is not None:
        running[1].push({"sub_agent": running[0], "update": update})


class AgentFrameworkTranslator:
    """Translates the updates of one run, objects or their dicts."""

    def __init__(self) -> None:
        self._role = ""
        # The name and the arguments of each call whose arguments are not complete.
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self._waits = False
        self._used: dict[str, Any] = {}
        # The sub-agents by the calls that they work for, with their names.
        self._inner: dict[str, tuple[str, AgentFrameworkTranslator]] = {}

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        if _field(event, "sub_agent") is not None:
            return self._sub_agent(event["sub_agent"], event["update"])
        contents = _field(event, "contents")
        if not isinstance(contents, list):
            raise MappingError("An update of Agent Framework has contents.")
        return self._update(event, cast("list[Any]", contents))

    def end(self) -> _Said:
        yield from self._complete()
        if self._waits:
            yield e.Pause(_WAITS)

    def _update(self, update: Any, contents: list[Any]) -> _Said:
        role = str(_field(update, "role") or self._role)
        if role == "assistant" != self._role:
            yield e.Step(lazy=True)
        self._role = role
        for content in contents:
            if _field(content, "type") != "function_call":
                yield from self._complete()
            yield from self._content(content)
        reason = _field(update, "finish_reason")
        if reason is not None:
            yield e.Finish(_REASONS.get(str(reason), "other"))

    def _content(self, content: Any) -> _Said:
        match _field(content, "type"):
            case "text":
                yield e.Text(_field(content, "text") or "", whole=_is_whole(content))
                for annotation in _field(content, "annotations") or ():
                    yield from _citation(annotation)
            case "text_reasoning":
                yield e.Reasoning(_field(content, "text") or "", whole=_is_whole(content))
            case "function_call":
                yield from self._call(content)
            case "function_result":
                yield from self._result(content)
            case "function_approval_request":
                self._waits = True
                call = _field(content, "function_call")
                call_id = _field(call, "call_id")
                yield e.ToolCall(call_id, _field(call, "name"), _input(_field(call, "arguments")))
                yield e.ApprovalRequest(_field(content, "id"), call_id)
            case "usage":
                yield self._usage(_field(content, "usage_details"), is_total=_is_whole(content))
            case "data" | "uri":
                yield e.File(_field(content, "uri"), _field(content, "media_type") or "application/octet-stream")
            case kind:
                yield from _hosted(str(kind), content)

    def _call(self, content: Any) -> _Said:
        call_id, name, given = (_field(content, field) for field in ("call_id", "name", "arguments"))
        # Chat Completions of 1.0 name a call only in its first piece.
        call_id = call_id or next(reversed(self._calls), "")
        if isinstance(given, Mapping) or _is_whole(content):
            self._calls.pop(call_id, None)
            yield e.ToolCall(call_id, name, _input(given))
            return
        if call_id not in self._calls:
            self._calls[call_id] = (name, [])
            yield e.ToolInputStart(call_id, name)
        if given:
            self._calls[call_id][1].append(given)
            yield e.ToolInputDelta(call_id, given)

    def _usage(self, details: Any, *, is_total: bool) -> e.Usage:
        """The usage of the run: a whole one has all model calls so far, and any other is one more. 1.0 has no whole."""
        for name, field in _COUNTS.items():
            if (count := _field(details, field)) is not None:
                self._used[name] = count + (0 if is_total else self._used.get(name, 0))
        return e.Usage(**self._used, key="run")

    def _result(self, content: Any) -> _Said:
        call_id, output = _field(content, "call_id"), _field(content, "result")
        failed = _field(content, "exception") is not None
        if call_id in self._inner:
            name, _ = self._inner.pop(call_id)
            yield e.SubAgent(call_id, name, status="failed" if failed else "done", call_id=call_id)
        if failed:
            yield e.ToolError(call_id, output if isinstance(output, str) and output else _FAILED)
        else:
            yield e.ToolResult(call_id, _value(output))

    def _sub_agent(self, call_id: str, update: Any) -> _Said:
        name = _field(update, "author_name") or "agent"
        _, inner = self._inner.setdefault(call_id, (name, AgentFrameworkTranslator()))
        for event in inner.translate(update):
            match event:
                case e.Text(whole=True) | e.Reasoning(whole=True):
                    # It repeats what the part has.
                    continue
                case e.Usage():
                    said = structs.replace(event, key=event.key and f"{call_id}:{event.key}")
                case _:
                    said = event
            yield e.SubAgent(call_id, name, said, call_id=call_id)

    def _complete(self) -> _Said:
        calls, self._calls = self._calls, {}
        for call_id, (name, pieces) in calls.items():
            yield e.ToolCall(call_id, name, _input("".join(pieces)))


class AgentFrameworkAgent:
    """Drives an agent. All chats may share it, since each turn has a session of its own."""

    @classmethod
    def wrap(cls, thing: object) -> "AgentFrameworkAgent | None":
        names = {f"{base.__module__}.{base.__name__}" for base in type(thing).__mro__}
        return cls(thing) if "agent_framework._agents.RawAgent" in names else None

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        tools = cast("Iterable[Any]", agent.default_options.get("tools") or ())
        self._free = {tool.name for tool in tools if getattr(tool, "approval_mode", "") == "never_require"}

    def translator(self, _: Chat) -> AgentFrameworkTranslator:
        return AgentFrameworkTranslator()

    async def admit(self, pending: PendingTurn) -> None:
        """Refuse answers that the agent does not wait for, and those that leave out a call.

        Raises:
            RequestError: they are such.
        """
        if problem := _problem(pending.approvals, pending.state):
            raise RequestError(problem, status=409)

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Run the agent with the messages of the chat, or with the user's answers.

        Raises:
            AgentError: nothing waits for the answers.
            RuntimeError: the provider reports an error.
        """
        # Sub-agents speak beside the agent's own stream.
        events = EventQueue[Any]()
        driving = asyncio.create_task(self._drive(chat, events))
        driving.add_done_callback(lambda task: events.end(None if task.cancelled() else task.exception()))
        try:
            async for event in events:
                yield event
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)

    async def _drive(self, chat: Chat, events: EventQueue[Any]) -> None:
        framework, requests = import_module("agent_framework"), list[Any]()
        session = _session(framework, chat)
        # OpenAI's Responses of 1.23 sends the calls of a message before its text.
        apart = bool(getattr(self._agent.client, "STORES_BY_DEFAULT", False))
        messages = await _input_messages(framework, session, chat, apart=apart)
        answered = [one for one in messages if any(part.type == "function_approval_response" for part in one.contents)]
        middleware = [framework.function_middleware(_note_calls(events))]
        stream = self._agent.run(messages, stream=True, session=session, middleware=middleware)
        async for update in stream:
            if _kind(update) == "response.failed" or any(one.type == "error" for one in update.contents):
                # The framework would end the run as if all were well.
                raise RuntimeError("The provider reports that the response failed.")
            asked = [one for one in update.contents if one.type == "function_approval_request"]
            requests += asked
            for content in asked:
                if content.function_call.name in self._free:
                    # 1.0 asks about every call beside one that needs an approval.
                    update.contents.remove(content)
            while answered and answered[-1].role == "tool":
                # 1.0 puts the results of approved calls only here.
                events.push({"role": "tool", "contents": answered.pop().contents})
            events.push(update)
            await events.drain()
        self._keep(chat, session, requests)

    def _keep(self, chat: Chat, session: Any, requests: list[Any]) -> None:
        """Keep the session without the messages, which the chat has."""
        for provider in self._agent.context_providers:
            if type(provider).__name__ == "InMemoryHistoryProvider":
                session.state.pop(provider.source_id, None)
        if not requests:
            session.service_session_id = None
        free = [one.to_dict() for one in requests if one.function_call.name in self._free]
        asked = {one.id: one.to_dict() for one in requests if one.function_call.name not in self._free}
        kept = {"session": session.to_dict(), "requests": asked, "free": free}
        if requests or session.state or chat.state is not None:
            # Without an open request, a chat that the client keeps can do without.
            with nullcontext() if requests else suppress(RuntimeError):
                chat.state = {_KEY: msgspec.json.decode(msgspec.json.encode(kept))}


def _note_calls(events: EventQueue[Any]) -> Callable[..., Awaitable[None]]:
    """Middleware that lets a sub-agent know the call that it works for; 1.0 does not name the call."""

    async def note(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        call_id = context.metadata.get("call_id")
        before = _running.set((call_id, events) if call_id else None)
        try:
            await call_next()
        finally:
            _running.reset(before)

    return note


def _session(framework: Any, chat: Chat) -> Any:
    match chat.state:
        case {"agentFramework": {"session": session}}:
            kept = framework.AgentSession.from_dict(session)
            if chat.approvals:
                return kept
            # What waited is forgotten, with the service's own copy of the conversation.
            fresh = framework.AgentSession()
            fresh.state = {name: value for name, value in kept.state.items() if name != "tool_approval"}
            return fresh
        case _:
            return framework.AgentSession()


async def _input_messages(framework: Any, session: Any, chat: Chat, *, apart: bool) -> list[Any]:
    messages = to_agent_framework(framework, await chat.model_messages(), apart=apart)
    if chat.approvals and messages and messages[-1].role == "tool":
        # The calls that wait have no results for the agent.
        messages.pop()
    if not chat.approvals:
        return messages
    if problem := _problem(chat.approvals, chat.state):
        raise AgentError(problem)
    # A service that keeps the conversation has what came before.
    before = [] if session.service_session_id else messages
    requests, read = _requests(chat.state), framework.Content.from_dict
    answers = [read(requests[one.id]).to_function_approval_response(one.approved) for one in chat.approvals]
    answers += (read(one).to_function_approval_response(approved=True) for one in chat.state[_KEY]["free"])
    said = [framework.Message("user", answers)]
    # An answer has no place for a reason in 1.23.
    if reasons := [f"{one.tool}: {one.reason}" for one in chat.approvals if not one.approved and one.reason]:
        said.append(framework.Message("user", [framework.Content.from_text(_REFUSED.format("; ".join(reasons)))]))
    return [*before, *said]


def _problem(approvals: Iterable[Approval], state: Any) -> str:
    """What is wrong with these answers, if there are some."""
    answered, waiting = {approval.id for approval in approvals}, _requests(state).keys()
    if answered - waiting:
        return _NOT_OPEN
    # A call that was not answered must not run with the others.
    return _TOGETHER if answered and waiting - answered else ""


def _requests(state: Any) -> Mapping[str, Any]:
    match state:
        case {"agentFramework": {"requests": requests}}:
            return cast("Mapping[str, Any]", requests)
        case _:
            return {}


def _is_whole(content: Any) -> bool:
    """Whether it repeats what was streamed. 1.0 does not say so; then the provider's event does."""
    mode = _field(content, "merge_mode")
    return mode == "replace" or (mode is None and _kind(content).endswith(".done"))


def _kind(value: Any) -> str:
    """The type of the provider's event that an update or a content was made of."""
    while (raw := _field(value, "raw_representation")) is not None:
        value = raw
    return str(_field(value, "type") or "")


def _hosted(kind: str, content: Any) -> _Said:
    """A call of a tool that the provider runs, or its result."""
    if kind.endswith("_tool_call"):
        name = _field(content, "tool_name") or kind.removesuffix("_tool_call")
        given = _input(_field(content, "arguments"))
        yield e.ToolCall(_field(content, "call_id"), name, given, provider_executed=True)
    elif kind.endswith("_tool_result"):
        output = _plain(_field(content, "output") or _field(content, "outputs"))
        yield e.ToolResult(_field(content, "call_id"), output, provider_executed=True)


def _citation(annotation: Any) -> _Said:
    title = _field(annotation, "title") or ""
    if url := _field(annotation, "url"):
        yield e.Source(url, title)
    elif name := title or _field(annotation, "file_id"):
        yield e.Document(name, "text/plain")


def _input(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            return {"input": arguments}
    return {} if arguments is None else arguments


def _value(output: Any) -> Any:
    """What a tool gave; the framework writes an object or an array as its JSON."""
    if isinstance(output, str) and output[:1] in ("{", "["):
        try:
            return msgspec.json.decode(output)
        except (msgspec.DecodeError, RecursionError):
            pass
    return output


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[Any]", value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def _field(value: Any, name: str) -> Any:
    return cast("_State", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def to_agent_framework(framework: Any, messages: Iterable[ModelMessage], *, apart: bool) -> list[Any]:
    """The messages of the framework; `apart` makes a message of its own of the calls beside a text."""
    ids, converted = Ids(strict=False), list[Any]()
    for each in rounds(messages):
        converted += (framework.Message(role, contents) for role, contents in _messages(framework.Content, each, ids))
    if apart:
        return converted
    joined = list[Any]()
    for message in converted:
        if joined and message.role == joined[-1].role == "assistant":
            joined[-1].contents += message.contents
        else:
            joined.append(message)
    return joined


def _messages(content: Any, said: Round, ids: Ids) -> Iterator[tuple[str, list[Any]]]:
    if said.role != "assistant":
        shown = blocks(said.parts, _file) or [text_block(EMPTY)]
        yield said.role, [content.from_text(one["text"]) if "text" in one else content.from_uri(**one) for one in shown]
        return
    texts = [part["text"] for part in said.parts if part["type"] == "text" and part["text"].strip()]
    if texts:
        yield "assistant", [content.from_text(text) for text in texts]
    calls, results = list[Any](), list[Any]()
    for call in said.calls:
        call_id, given = ids.take(call.id), msgspec.json.encode(call.input).decode()
        calls.append(content.from_function_call(call_id, api_name(call.name), arguments=given))
        results.append(content.from_function_result(call_id, result=call.result))
    if calls:
        yield "assistant", calls
        yield "tool", results


def _file(file: File) -> Block:
    if file.text:
        return text_block(file.named_text)
    named = {"additional_properties": {"filename": file.name}} if file.name else {}
    if file.url:
        return {"uri": file.url, "media_type": file.media_type, **named}
    if file.data:
        return {"uri": f"data:{file.media_type};base64,{file.base64}", "media_type": file.media_type, **named}
    return text_block(file.words)


def log_translator(options: Mapping[str, Any]) -> AgentFrameworkTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("Agent Framework has no options.")
    return AgentFrameworkTranslator()
