"""What the Claude Agent SDK streams, as `usechat.events`.

Messages are objects of the SDK, those objects as dicts with the name of their class as `type`, or lines of the CLI's
`--output-format stream-json`. Blocks are told apart by their fields, which are the same in all three.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from usechat import events as e
from usechat.models.decoders import AnthropicDecoder, IncompleteStreamError, field_of
from usechat.protocol.chunks import Error

__all__ = ["ClaudeTranslator", "ToolNames", "kind_of", "log_translator", "raw_of"]

_KINDS: Final = {
    "AssistantMessage": "assistant",
    "UserMessage": "user",
    "StreamEvent": "stream_event",
    "ResultMessage": "result",
    "SystemMessage": "system",
    "TaskStartedMessage": "system",
    "TaskProgressMessage": "system",
    "TaskUpdatedMessage": "system",
    "TaskNotificationMessage": "system",
}
_ENDED: Final = {"completed": "done", "failed": "failed", "stopped": "failed", "killed": "failed"}
_SYNTHETIC: Final = "<synthetic>"
_BROKEN_OFF: Final = "The answer broke off before this call was complete, and the model began anew."
_FAILED: Final = "The tool failed."
_RUN_FAILED: Final = "Something went wrong, and the run could not be finished."
_LAUNCHED: Final = {"status": "async_launched"}
_BY_HOOK: Final = re.compile(r"^PreToolUse:\S+ hook error: ")
# What a retried answer says in pieces was said before; its whole blocks tell what is new.
_PIECES: Final = (e.Step, e.Text, e.Reasoning, e.ToolInputStart, e.ToolInputDelta)


class ToolNames:
    """The names of tools as the user wrote them: `mcp__server__tool` is `tool`, if no other tool is called so."""

    def __init__(self) -> None:
        self._tails: list[str] = []

    def learn(self, tools: Iterable[str]) -> None:
        """Take in the tools of a run, by the names that the CLI has for them."""
        self._tails = [_tail(name) for name in tools]

    def short(self, name: str) -> str:
        tail = _tail(name)
        return tail if self._tails.count(tail) <= 1 else name


def _tail(name: str) -> str:
    return name.split("__", 2)[-1] if name.startswith("mcp__") and name.count("__") > 1 else name


def kind_of(message: Any) -> str:
    """The type of a message, as the CLI calls it."""
    name = cast("Mapping[str, Any]", message).get("type", "") if isinstance(message, dict) else type(message).__name__
    return _KINDS.get(name, name)


def raw_of(message: Any) -> Any:
    """What the CLI wrote of a system message, of which the SDK's objects have only a part as fields."""
    return field_of(message, "data") or message


class ClaudeTranslator:
    """Translates the messages of one turn, also those of several connections."""

    def __init__(self) -> None:
        self._decoder = AnthropicDecoder()
        self._names = ToolNames()
        # The message of the model that is open, or was last.
        self._message_id = ""
        self._is_open = False
        self._is_repeated = False
        self._is_over = False
        # The name of each sub-agent, and the sub-agent that started it, by the call that it works for.
        self._agents: dict[str, tuple[str, str]] = {}
        # The call of each task, which not every message about it names.
        self._tasks: dict[str, str] = {}

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        match kind_of(event):
            case "stream_event":
                return () if field_of(event, "parent_tool_use_id") else self._streamed(field_of(event, "event"))
            case "assistant":
                return self._answer(event)
            case "user":
                return self._results(event)
            case "system":
                return self._system(raw_of(event))
            case "result":
                return self._result(event)
            case _:
                return ()

    def end(self) -> Iterable[e.AgentEvent]:
        if not self._is_over:
            raise IncompleteStreamError("The messages of the Claude Agent SDK ended without a result.")
        return ()

    def _streamed(self, event: Any) -> Iterator[e.AgentEvent]:
        self._is_over = False
        match field_of(event, "type"):
            case "message_start":
                # After a stream that broke off, the CLI (2.1.326) asks again.
                self._is_repeated = self._is_open
                self._is_open = True
                self._message_id = field_of(field_of(event, "message"), "id") or ""
                if self._is_repeated:
                    yield e.EndCalls(_BROKEN_OFF)
            case "message_stop":
                self._is_open = False
            case _:
                pass
        for said in self._decoder.translate(event):
            if not self._is_repeated or not isinstance(said, _PIECES):
                yield self._named(said)

    def _named(self, said: e.AgentEvent) -> e.AgentEvent:
        if isinstance(said, e.ToolInputStart | e.ToolCall | e.ToolInputError):
            return structs.replace(said, name=self._names.short(said.name))
        return said

    def _answer(self, event: Any) -> Iterator[e.AgentEvent]:
        """A whole block, which comes before the stream ends it; sub-agents have no stream."""
        message = field_of(event, "message") or event
        parent = field_of(event, "parent_tool_use_id") or ""
        # The provider's words, after it failed, and what the CLI says in place of the model.
        if field_of(message, "model") == _SYNTHETIC:
            return
        if not parent:
            yield from self._unstreamed(event, message)
        for block in field_of(message, "content") or ():
            for said in self._block(block, parent):
                yield self._inside(parent, said) if parent else said

    def _unstreamed(self, event: Any, message: Any) -> Iterator[e.AgentEvent]:
        """The beginning of a message that was not streamed, as when the CLI asks again after its last retry."""
        message_id: str = field_of(event, "message_id") or field_of(message, "id") or ""
        if message_id == self._message_id:
            return
        if not self._is_open:
            yield e.Step()
        self._message_id, self._is_over = message_id, False
        usage = field_of(message, "usage")
        read, written = field_of(usage, "cache_read_input_tokens"), field_of(usage, "cache_creation_input_tokens")
        yield e.Usage(
            input_tokens=(field_of(usage, "input_tokens") or 0) + (read or 0) + (written or 0),
            output_tokens=field_of(usage, "output_tokens"),
            cache_read_tokens=read,
            cache_write_tokens=written,
            model=field_of(message, "model") or "",
            key=message_id,
        )

    def _block(self, block: Any, parent: str) -> Iterator[e.AgentEvent]:
        if (name := field_of(block, "name")) is not None:
            given = field_of(block, "input")
            if agent := field_of(given, "subagent_type"):
                self._agents[field_of(block, "id")] = (agent, parent)
            # Tools that Anthropic runs are read from the stream.
            if field_of(block, "type") != "server_tool_use" and type(block).__name__ != "ServerToolUseBlock":
                yield e.ToolCall(field_of(block, "id"), self._names.short(name), given)
        elif (thinking := field_of(block, "thinking")) is not None:
            signature = field_of(block, "signature")
            metadata = {"anthropic": {"signature": signature}} if signature else None
            # The stream has told the signature of what it has streamed.
            yield e.Reasoning(thinking, whole=True, metadata=None if self._is_open else metadata)
        elif text := field_of(block, "text"):
            yield e.Text(text, whole=True)
            if parent:
                yield e.EndPart()

    def _inside(self, call_id: str, said: e.AgentEvent | None, status: Any = "running") -> e.SubAgent:
        name, parent = self._agents.get(call_id, ("agent", ""))
        return e.SubAgent(call_id, name, said, status=status, call_id=call_id, parent=parent)

    def _results(self, event: Any) -> Iterator[e.AgentEvent]:
        """The results of calls. What else the CLI says in the user's name is for the model."""
        parent = field_of(event, "parent_tool_use_id") or ""
        content = field_of(field_of(event, "message") or event, "content")
        for block in cast("list[Any]", content) if isinstance(content, list) else ():
            call_id = field_of(block, "tool_use_id")
            if call_id is None:
                continue
            is_agent = call_id in self._agents and call_id != parent
            said = _ended(call_id, block, field_of(event, "tool_use_result") if is_agent else None)
            yield self._inside(parent, said) if parent else said
            if is_agent and getattr(said, "output", None) != _LAUNCHED:
                yield self._inside(call_id, None, "failed" if isinstance(said, e.ToolError) else "done")

    def _system(self, raw: Any) -> Iterator[e.AgentEvent]:
        task, status = field_of(raw, "task_id"), field_of(raw, "status")
        match field_of(raw, "subtype"):
            case "init":
                self._names.learn(field_of(raw, "tools") or ())
            case "task_started" if (call_id := field_of(raw, "tool_use_id")) in self._agents:
                self._tasks[task] = call_id
                yield self._inside(call_id, None)
            case "task_updated" | "task_notification" if task in self._tasks:
                status = status or field_of(field_of(raw, "patch"), "status")
                if status in _ENDED:
                    yield self._inside(self._tasks[task], None, _ENDED[status])
            case _:
                pass

    def _result(self, event: Any) -> Iterator[e.AgentEvent]:
        self._is_over, self._is_open = True, False
        if field_of(event, "is_error"):
            # The driver raises before, so this is a log.
            yield Error(_RUN_FAILED)
            return
        if (value := field_of(event, "structured_output")) is not None:
            yield e.Data("output", value)
        if (deferred := field_of(event, "deferred_tool_use")) is not None:
            yield e.ApprovalRequest(call_id=field_of(deferred, "id"))
        if field_of(event, "stop_reason") in ("tool_deferred", "tool_use"):
            # Of other ends the model itself has told the reason.
            yield e.Finish()


def _ended(call_id: str, block: Any, about_agent: Any) -> e.ToolResult | e.ToolError:
    output = _output(field_of(block, "content"))
    if field_of(block, "is_error"):
        # What a hook says is meant for the user. Anything else may be the text of an exception, which is for the model.
        by_hook = _BY_HOOK.match(output) if isinstance(output, str) else None
        return e.ToolError(call_id, _FAILED if by_hook is None else by_hook.string[by_hook.end() :] or _FAILED)
    # The text of a sub-agent's call is full of rules for the model.
    match field_of(about_agent, "status"):
        case "async_launched":
            output = _LAUNCHED
        case "completed":
            output = _output((field_of(about_agent, "content") or [output])[-1:])
        case _:
            pass
    return e.ToolResult(call_id, output)


def _output(content: Any) -> Any:
    """A result as a value: MCP has only texts and files."""
    match content:
        case [block] if isinstance(text := field_of(block, "text"), str):
            content = text
        case _:
            pass
    if not isinstance(content, str) or not content.lstrip().startswith(("{", "[")):
        return content
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content


def log_translator(options: Mapping[str, Any]) -> ClaudeTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: There is no such option.
    """
    if options:
        raise ValueError("The logs of the Claude Agent SDK have no options.")
    return ClaudeTranslator()
