"""LlamaIndex: drives an agent, an `AgentWorkflow` or any other workflow, one run for each turn.

The messages of the chat are the history of each run, so LlamaIndex's own memory lives as long as the run. `chat.state`
keeps what the messages do not have:

- `agent`: the agent that has the conversation, after a handoff;
- `state`: the state that the tools of an agent share, if it is JSON;
- `waiting`: a run that waits for the user. It has the serialised `Context`, the questions that are open, and the id of
  the message that the run began with. The context leaves out the memory of the agents, which is made anew from the
  messages up to that one. The user's next message answers the oldest question.
"""

import re
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from importlib import import_module, metadata
from itertools import chain
from typing import Any, Final, cast

import msgspec

from usechat.extras import missing
from usechat.integrations.llama_index.messages import to_llama_index
from usechat.integrations.llama_index.translator import LlamaIndexTranslator, kinds_of, values_of
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Chat

__all__ = ["LlamaIndexAgent"]

_WORKFLOW: Final = "workflows.workflow.Workflow"
# Older ones take a tool that waits for one that has failed.
_OLDEST: Final = (0, 14, 7)
_TOO_OLD: Final = (
    "LlamaIndexAgent needs llama-index-core 0.14.7 or newer, and this is {}. Install it with: "
    "pip install --upgrade 'usechat[llama-index]'"
)


class LlamaIndexAgent:
    """Drives a `FunctionAgent`, a `ReActAgent`, an `AgentWorkflow`, or any other `Workflow` of LlamaIndex.

    A workflow is run with `user_msg` and `chat_history`. Its result is the answer: a text, or data.
    """

    @classmethod
    def wrap(cls, thing: object) -> "LlamaIndexAgent | None":
        return cls(thing) if _is_workflow(thing) else None

    def __init__(self, workflow: Any) -> None:
        """Take the workflow, which several chats may run at once.

        Raises:
            TypeError: it is no workflow.
        """
        if not _is_workflow(workflow):
            raise TypeError(f"{type(workflow).__name__} is not a workflow of LlamaIndex, or an agent of it.")
        self._workflow = workflow

    def translator(self, _: Chat) -> LlamaIndexTranslator:
        return LlamaIndexTranslator()

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Run the workflow with the new message, or let it go on with the user's answer.

        Raises:
            RuntimeError: it asks the user, and nothing keeps it until the answer.
            ModuleNotFoundError: LlamaIndex is not installed.
        """
        kept = cast("dict[str, Any]", chat.state) if isinstance(chat.state, dict) else {}
        waiting = kept.pop("waiting", None)
        answer: Any = None
        if waiting is None:
            began, questions = chat.messages[-1].id, list[dict[str, Any]]()
            handler = await self._begin(chat, kept)
        else:
            # The run goes on once: if it fails now, the next message begins a new one.
            began, questions = waiting["began"], waiting["questions"]
            answer = self._answer(waiting["context"], questions.pop(0), chat.text)
            handler = await self._resume(chat, waiting)
            if not _has_requirements(waiting["context"]):
                handler.ctx.send_event(answer)
                answer = None
        # The questions of an earlier turn that are still open.
        others = len(questions)
        try:
            # The internal events tell when the run waits.
            async for event in handler.stream_events(expose_internal=True):
                kinds = kinds_of(event)
                if "InputRequiredEvent" in kinds:
                    questions.append(_json(values_of(event)) or {})
                if kinds[0] == "WorkflowIdleEvent" and answer is not None:
                    # Only now do all that wait know again what they require of an answer.
                    handler.ctx.send_event(answer)
                    answer = None
                elif kinds[0] == "WorkflowIdleEvent" and questions:
                    for question in questions[:others]:
                        yield {"type": "InputRequiredEvent", "value": question}
                    run = {"context": _dump(handler.ctx), "questions": questions, "began": began}
                    chat.state = {**await self._after(handler), "waiting": run}
                    return
                if "StopEvent" in kinds:
                    # It raises what has failed.
                    await handler
                if "InternalDispatchEvent" not in kinds:
                    yield event
            _keep(chat, await self._after(handler))
        finally:
            await handler.cancel_run()

    async def _begin(self, chat: Chat, kept: Mapping[str, Any]) -> Any:
        messages = _messages(to_llama_index(await chat.model_messages(), llm=self._llm))
        context = _core("workflow").Context(self._workflow)
        if self._agents:
            if kept.get("agent") in self._agents:
                await context.store.set("current_agent_name", kept["agent"])
            if kept.get("state"):
                await context.store.set("state", kept["state"])
        given = dict[str, Any]()
        if messages and messages[-1].role == "user":
            given["user_msg"] = said = messages.pop()
            if not self._agents and [block.block_type for block in said.blocks] == ["text"]:
                given["user_msg"] = said.content
        return self._workflow.run(ctx=context, chat_history=messages, **given)

    async def _resume(self, chat: Chat, waiting: dict[str, Any]) -> Any:
        """Start the run again where it waits."""
        handler = self._workflow.run(ctx=_core("workflow").Context.from_dict(self._workflow, waiting["context"]))
        if self._agents:
            history = await chat.history()
            place = next((place for place, one in enumerate(history) if one.id == waiting["began"]), -1)
            before = _messages(to_llama_index(to_model_messages(history[: place + 1]), llm=self._llm))
            memory = _core("memory").ChatMemoryBuffer.from_defaults(chat_history=before, llm=self._llm)
            # Only now, since a context leaves it out, also one that has not begun.
            await handler.ctx.store.set("memory", memory)
        return handler

    def _answer(self, context: Mapping[str, Any], question: Mapping[str, Any], text: str) -> Any:
        """The event that the run waits for: `HumanResponseEvent`, or one of the user's that stands on it."""
        kinds = list(_kinds_of(_core("workflow").HumanResponseEvent))
        waited = {waiter["waiting_for_event"] for waiter in _waiters(context)}
        # A step may also take the answer as its event.
        taken = {kind for step in self._workflow._get_steps().values() for kind in step._step_config.accepted_events}
        by_name = (kind for kind in kinds if f"{kind.__module__}.{kind.__qualname__}" in waited)
        by_step = (kind for kind in kinds if kind in taken)
        return next(chain(by_name, by_step, kinds))(**{**question, "response": text})

    @property
    def _agents(self) -> Mapping[str, Any]:
        """The agents by their names; a workflow that is no agent has none."""
        if hasattr(self._workflow, "root_agent"):
            return self._workflow.agents
        return {self._workflow.name: self._workflow} if hasattr(self._workflow, "take_step") else {}

    @property
    def _llm(self) -> Any:
        """The model of the agent that begins, by which LlamaIndex limits its memory, too."""
        root = getattr(self._workflow, "root_agent", None)
        return getattr(self._workflow if root is None else self._workflow.agents[root], "llm", None)

    async def _after(self, handler: Any) -> dict[str, Any]:
        """What the next run begins with."""
        if not self._agents:
            return {}
        store, root = handler.ctx.store, getattr(self._workflow, "root_agent", None)
        agent = await store.get("current_agent_name", default=root)
        state = _json(await store.get("state", default=None))
        return {**({} if agent == root else {"agent": agent}), **({"state": state} if state else {})}


def _is_workflow(thing: object) -> bool:
    kinds = () if isinstance(thing, type) else type(thing).__mro__
    return any(f"{kind.__module__}.{kind.__qualname__}" == _WORKFLOW for kind in kinds)


def _core(name: str) -> Any:
    """A module of LlamaIndex.

    Raises:
        ModuleNotFoundError: it is not installed.
        ImportError: it is too old.
    """
    try:
        module = import_module(f"llama_index.core.{name}")
        version = metadata.version("llama-index-core")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing("LlamaIndexAgent", error, "llama-index"), name=error.name) from error
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < _OLDEST:
        raise ImportError(_TOO_OLD.format(version))
    return module


def _messages(messages: list[dict[str, Any]]) -> list[Any]:
    return list(map(_core("llms").ChatMessage.model_validate, messages))


def _waiters(context: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for worker in cast("Mapping[str, Any]", context["workers"]).values():
        yield from worker["collected_waiters"]


def _has_requirements(context: Mapping[str, Any]) -> bool:
    return any(waiter.get("has_requirements") for waiter in _waiters(context))


def _kinds_of(base: Any) -> Iterator[Any]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds_of(kind)


def _dump(context: Any) -> Any:
    with warnings.catch_warnings():
        # It warns that it leaves out the memory.
        warnings.simplefilter("ignore")
        return _json(context.to_dict())


def _json(value: Any) -> Any:
    """The value as JSON has it; None if it is no JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return None


def _keep(chat: Chat, state: dict[str, Any]) -> None:
    """Keep what a chat can do without, unless nothing keeps it."""
    with suppress(RuntimeError):
        chat.state = state
