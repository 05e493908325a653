"""The OpenAI Agents SDK: drives an `agents.Agent` with `Runner.run_streamed`, one run for each turn.

The messages of the chat are the history. `chat.state` keeps what they do not have: the name of the agent that has the
conversation after a handoff, and a run that waits for approvals.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from contextvars import ContextVar
from importlib import import_module, metadata
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from usechat.errors import AgentError
from usechat.events import Translator
from usechat.extras import missing
from usechat.integrations.edits import check_edits
from usechat.integrations.event_queue import EventQueue
from usechat.integrations.openai_agents.translator import OpenAIAgentsTranslator
from usechat.models import to_openai_responses
from usechat.models.decoders import field_of
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Chat
from usechat.turns.pending import PendingTurn

__all__ = ["OpenAIAgent", "show_subagent"]

_FLOOR: Final = (0, 17)
_RUN_IS_GONE: Final = "No run waits for this approval. Send your message again."
_SAME_IDS: Final = "Two calls that wait have the same id, so neither can be answered. Send your message again."
_REFUSED: Final = "The user refused this call. Their reason: {}"

_shown: ContextVar[EventQueue[Any]] = ContextVar("usechat_openai_agents")
"""The events of the turn that runs. The SDK starts the run of an agent that is a tool, and passes nothing else on."""


async def show_subagent(event: Mapping[str, Any]) -> None:
    """Show what an agent that is used as a tool does: `agent.as_tool(…, on_stream=show_subagent)`."""
    queue = _shown.get(None)
    # A page that reads too slowly loses events, since the SDK fails the tool if this waits.
    if queue is not None:
        queue.push(event)


class OpenAIAgent:
    """Drives an agent. `context` is the context of each run, or a function that makes it of the chat."""

    @classmethod
    def wrap(cls, thing: object) -> "OpenAIAgent | None":
        names = {f"{one.__module__}.{one.__name__}" for one in type(thing).__mro__}
        return cls(thing) if "agents.agent.Agent" in names else None

    def __init__(
        self, agent: Any, *, context: Any = None, run_config: Any = None, max_turns: int | None = None
    ) -> None:
        """Prepare the runs.

        Raises:
            ImportError: the SDK is not installed, or older than 0.17.
        """
        _refuse_old_version()
        self._agent = agent
        self._context = context
        self._run_config = run_config
        self._max_turns = max_turns

    def translator(self, chat: Chat) -> Translator[Any]:
        agents = _reachable(self._agent).values()
        return OpenAIAgentsTranslator(
            self._speaker(chat).name,
            handoffs={name for agent in agents for name in _handoff_names(agent)},
            structured={agent.name for agent in agents if _is_structured(agent)},
        )

    async def admit(self, pending: PendingTurn) -> None:
        """Check the answers to approvals.

        Raises:
            RequestError: An edit is no object.
        """
        check_edits(pending.approvals)

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Run the agent that has the conversation, or let a run go on with the user's answers.

        Raises:
            AgentError: nothing waits for the answers.
            RuntimeError: it asks the user, and nothing keeps it until the answer.
        """
        queue = EventQueue[Any]()

        def end(task: asyncio.Task[None]) -> None:
            queue.end(AgentError("The run was cancelled.") if task.cancelled() else task.exception())

        running = asyncio.create_task(self._drive(chat, queue))
        running.add_done_callback(end)
        try:
            async for event in queue:
                yield event
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _drive(self, chat: Chat, queue: EventQueue[Any]) -> None:
        _shown.set(queue)
        sdk = import_module("agents")
        items, failed = await _history(chat), set[str]()
        result = await self._start(sdk, chat, items, failed)
        kind = ""
        try:
            async with aclosing(result.stream_events()) as events:
                async for event in events:
                    kind = getattr(getattr(event, "data", None), "type", "")
                    self._look(event, chat, queue, failed)
                    queue.push(event)
                    await _drain(queue, result)
        except sdk.ModelBehaviorError:
            # The SDK fails a run whose answer was cut off, which is no error for the reader.
            if kind != "response.incomplete":
                raise
            return
        if result.interruptions:
            self._keep(chat, result.current_agent.name, _saved(result, items))
            for item in result.interruptions:
                queue.push({"type": "run_item_stream_event", "name": "tool_approval_requested", "item": item})
        elif _is_structured(result.current_agent):
            queue.push({"type": "final_output", "output": result.final_output})

    async def _start(self, sdk: Any, chat: Chat, items: list[Any], failed: set[str]) -> Any:
        context = self._context(chat) if callable(self._context) else self._context
        if inspect.isawaitable(context):
            context = await context
        options: dict[str, Any] = {"run_config": self._watched(sdk, failed)}
        if self._max_turns is not None:
            options["max_turns"] = self._max_turns
        if chat.approvals:
            state = await self._resumed(sdk, chat, items, context)
            return sdk.Runner.run_streamed(self._agent, state, **options)
        return sdk.Runner.run_streamed(self._speaker(chat), items, context=context, **options)

    def _look(self, event: Any, chat: Chat, queue: EventQueue[Any], failed: set[str]) -> None:
        if event.type == "agent_updated_stream_event":
            # Where nothing keeps it, the next message begins with the first agent.
            with suppress(RuntimeError):
                self._keep(chat, event.new_agent.name)
        elif event.type == "run_item_stream_event" and event.name == "tool_output":
            call_id = field_of(event.item.raw_item, "call_id")
            if call_id in failed:
                queue.push({"type": "tool_failed", "call_id": call_id})

    def _speaker(self, chat: Chat) -> Any:
        """The agent that has the conversation."""
        return _reachable(self._agent).get(_kept(chat).get("agent", ""), self._agent)

    def _keep(self, chat: Chat, agent: str, run: dict[str, Any] | None = None) -> None:
        kept: dict[str, Any] = {} if agent == self._agent.name else {"agent": agent}
        if run is not None:
            kept["run"] = run
        if kept != _kept(chat):
            chat.state = kept

    def _watched(self, sdk: Any, failed: set[str]) -> Any:
        """The config of a run that notes which calls fail. In 0.17 only the text of a result shows that."""
        given: Any = self._run_config
        config = sdk.RunConfig(**(given or {})) if given is None or isinstance(given, dict) else given
        own = config.tool_error_formatter

        async def note(about: Any) -> Any:
            if about.kind == "tool_exception":
                failed.add(about.call_id)
            said = None if own is None else own(about)
            return await said if inspect.isawaitable(said) else said

        return dataclasses.replace(config, tool_error_formatter=note)

    async def _resumed(self, sdk: Any, chat: Chat, items: list[Any], context: Any) -> Any:
        """The run that waits, with the user's answers.

        Raises:
            AgentError: no run waits for them.
        """
        kept = _kept(chat).get("run")
        if kept is None:
            raise AgentError(_RUN_IS_GONE)
        saved: dict[str, Any] = {"original_input": items, **kept}
        for approval in chat.approvals:
            match approval.extra:
                case {"input": given}:
                    saved = _edited(saved, approval.call_id, msgspec.json.encode(given).decode())
                case _:
                    pass
        # In 0.17 a context that is given to the run replaces the answers, so the state gets it.
        state = await sdk.RunState.from_json(self._agent, saved, context_override=sdk.RunContextWrapper(context))
        waiting = state.get_interruptions()
        for approval in chat.approvals:
            found = [item for item in waiting if _is_same(item.raw_item, approval.call_id)]
            # Some providers count the ids of calls anew in each answer, so that a sub-agent may have the same one.
            if len(found) != 1:
                raise AgentError(_SAME_IDS if found else _RUN_IS_GONE)
            item = found[0]
            if approval.approved:
                state.approve(item)
            else:
                reason = None if approval.reason is None else _REFUSED.format(approval.reason)
                state.reject(item, rejection_message=reason)
        return state


async def _drain(queue: EventQueue[Any], result: Any) -> None:
    try:
        await queue.drain()
    except asyncio.CancelledError:
        # Closing its events would wait for the run. Where the events are waited for, the SDK cancels the run, and doing
        # it twice would keep 0.17 from closing the provider's connection.
        result.cancel()
        raise


def _kept(chat: Chat) -> dict[str, Any]:
    return chat.state or {}


async def _history(chat: Chat) -> list[Any]:
    """The messages as the input of a run. A run that waits began before the message that it continues."""
    messages = await chat.history()
    shown = messages[:-1] if chat.approvals else messages
    return [_as_made(item) for item in to_openai_responses(to_model_messages([_with_output(one) for one in shown]))]


def _as_made(item: dict[str, Any]) -> dict[str, Any]:
    """An answer in the form in which the SDK's own models make it.

    Only in this form does the Chat Completions model put an answer and its calls into one message (0.17 to 0.24). The
    Responses model sends neither this id nor `provider_data`.
    """
    if item.get("role") != "assistant":
        return item
    text: dict[str, Any] = {"type": "output_text", "text": item["content"], "annotations": []}
    made = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {**made, "id": "__fake_id__", "provider_data": {"from": "usechat"}}


def _with_output(message: UIMessage) -> UIMessage:
    """The message with its structured output as the text that the model wrote."""
    parts = [
        {"type": "text", "text": msgspec.json.encode(part["data"]).decode()} if part["type"] == "data-output" else part
        for part in message.parts
    ]
    return structs.replace(message, parts=parts)


def _saved(result: Any, items: list[Any]) -> dict[str, Any]:
    """A run that waits, as JSON, without what the next turn has anyway: its context, and the messages of the chat."""
    state = result.to_state().to_json(context_serializer=_no_context)
    if result.input == items:
        del state["original_input"]
    return msgspec.json.decode(msgspec.json.encode(_without_context(state), enc_hook=str))


def _no_context(_: Any) -> dict[str, Any]:
    return {}


def _without_context(value: Any) -> Any:
    """The state without the contexts of its runs. A context may hold secrets, or what is no JSON."""
    if isinstance(value, list):
        return [_without_context(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    hidden = {"context": None, "context_meta": None} if "context_meta" in entries else {}
    return {key: _without_context(one) for key, one in {**entries, **hidden}.items()}


def _edited(value: Any, call_id: str, arguments: str) -> Any:
    """The state with other arguments for a call, which it has in several places."""
    if isinstance(value, list):
        return [_edited(one, call_id, arguments) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = dict(cast("dict[str, Any]", value))
    if "arguments" in entries and _is_same(entries, call_id):
        entries["arguments"] = arguments
    # 0.24 keeps a fingerprint of each call by its id, and makes another if there is none.
    made = {key: one for key, one in entries.items() if not (_has_fingerprint(one) and _is_id(key, call_id))}
    return {key: _edited(one, call_id, arguments) for key, one in made.items()}


def _has_fingerprint(value: Any) -> bool:
    return isinstance(value, dict) and "fingerprint" in value


def _is_same(raw: Any, call_id: str) -> bool:
    return _is_id(field_of(raw, "call_id") or field_of(raw, "id"), call_id)


def _is_id(own: Any, call_id: str) -> bool:
    """Whether the page has a call under this id, which begins with the sub-agent if that has asked."""
    return own is not None and (call_id == own or call_id.endswith(f":{own}"))


def _reachable(agent: Any) -> dict[str, Any]:
    """The agent, and all that it can hand the conversation to, by their names."""
    found, left = dict[str, Any](), [agent]
    while left:
        one = left.pop()
        if one is not None and one.name not in found:
            found[one.name] = one
            left += (_target(handoff) for handoff in one.handoffs)
    return found


def _target(handoff: Any) -> Any:
    """The agent of a handoff, which is an agent itself, or has a reference that the SDK uses to restore a run."""
    if hasattr(handoff, "handoffs"):
        return handoff
    reference = getattr(handoff, "_agent_ref", None)
    return None if reference is None else reference()


def _handoff_names(agent: Any) -> Iterable[str]:
    handoffs: Iterable[Any] = agent.handoffs
    default = import_module("agents").Handoff.default_tool_name
    return [default(handoff) if hasattr(handoff, "handoffs") else handoff.tool_name for handoff in handoffs]


def _is_structured(agent: Any) -> bool:
    """Whether the answers of the agent are values."""
    kind = agent.output_type
    is_plain_text = getattr(kind, "is_plain_text", None)
    return kind not in (None, str) and not (callable(is_plain_text) and not isinstance(kind, type) and is_plain_text())


def _refuse_old_version() -> None:
    try:
        version = metadata.version("openai-agents")
    except metadata.PackageNotFoundError as error:
        raise ImportError(missing("OpenAIAgent", error, "openai-agents")) from error
    if tuple(int(number) for number in version.split(".")[:2]) < _FLOOR:
        raise ImportError(
            f"OpenAIAgent needs openai-agents 0.17 or newer, and {version} is installed. "
            "Upgrade it with: pip install -U 'usechat[openai-agents]'"
        )
