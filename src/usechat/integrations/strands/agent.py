"""Drives the agent that a function makes for each turn.

A `strands.Agent` holds one conversation, so each turn gets an agent of its own. Its messages are those of the chat.
`chat.state` keeps the agent's `state`, and, while calls wait for the user, what the agent needs to go on with them.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from importlib import import_module
from typing import Any, Final, cast
from weakref import WeakSet

import msgspec

from usechat.errors import AgentError, RequestError
from usechat.integrations.strands.messages import to_strands
from usechat.integrations.strands.translator import Event, StrandsTranslator
from usechat.turns.chat import Approval, Chat
from usechat.turns.pending import PendingTurn

__all__ = ["StrandsAgent"]

_SHARED: Final = (
    "A strands.Agent holds one conversation, so every turn needs a new one: "
    "create_app(StrandsAgent(lambda chat: Agent(model=…, tools=[…]))), with StrandsAgent of "
    "usechat.integrations.strands."
)
_NO_AGENT: Final = (
    "What is given to StrandsAgent must return a strands.Agent of strands-agents 1.41 or newer, not a {}."
)
_ASKED_ELSEWHERE: Final = (
    "This agent was interrupted outside of a tool call. A page can only answer what a call waits for: interrupt in a "
    "hook for BeforeToolCallEvent, or in a tool."
)
_NOT_OPEN: Final = "This answers no approval that is open."


class StrandsAgent:
    """Drives the agents of `make(chat)`, which returns a new `strands.Agent` for each turn, and may be async."""

    @classmethod
    def wrap(cls, thing: object) -> None:
        """Refuse an agent that all chats would share; a function that makes one looks like any other function.

        Raises:
            TypeError: it is a `strands.Agent`.
        """
        if any((base.__module__, base.__name__) == ("strands.agent.agent", "Agent") for base in type(thing).__mro__):
            raise TypeError(_SHARED)

    def __init__(self, make: Callable[[Chat], Any]) -> None:
        """Take the function.

        Raises:
            TypeError: it is an agent.
        """
        self.wrap(make)
        self._make = make
        self._used: WeakSet[Any] = WeakSet()

    def translator(self, _: Chat) -> StrandsTranslator:
        return StrandsTranslator()

    async def admit(self, pending: PendingTurn) -> None:
        """Refuse answers that the agent does not wait for.

        Raises:
            RequestError: it does not.
        """
        if any(approval.id not in _open_in(pending.state) for approval in pending.approvals):
            raise RequestError(_NOT_OPEN, status=409)

    async def run(self, chat: Chat) -> AsyncGenerator[Event, None]:
        """Run the agent with the new message, or let it go on with the user's answers.

        Raises:
            AgentError: nothing waits for the answers.
            RuntimeError: the agent had another turn, or waits for what no page can answer.
            TypeError: it is no `strands.Agent`.
        """
        agent, asked = await self._new_agent(chat), set[str]()
        prompt = await _prepare(agent, chat)
        try:
            async with aclosing(agent.stream_async(prompt)) as stream:
                async for event in stream:
                    if "tool_interrupt_event" in event:
                        asked.update(interrupt.id for interrupt in event["tool_interrupt_event"]["interrupts"])
                    elif "result" in event and event["result"].stop_reason == "interrupt":
                        if not asked.issuperset(interrupt.id for interrupt in event["result"].interrupts):
                            raise RuntimeError(_ASKED_ELSEWHERE)
                        _keep(agent, chat, "state", "interrupt_state")
                        # Strands itself gives the results of the other calls only after the answer.
                        results = [{"toolResult": result} for result in _pending(chat.state)[1]]
                        yield {"message": {"role": "user", "content": results}}
                    yield event
        except import_module("strands.types.exceptions").MaxTokensReachedException:
            # An answer that is cut off is an answer; the translator has said why it ends.
            pass
        if not asked and agent.state.get():
            # A chat that the client keeps has no place for it.
            with suppress(RuntimeError):
                _keep(agent, chat, "state")
        elif not asked and _kept(chat.state) is not None:
            chat.state = None

    async def _new_agent(self, chat: Chat) -> Any:
        made = self._make(chat)
        agent: Any = await made if inspect.isawaitable(made) else made
        if not all(callable(getattr(agent, name, None)) for name in ("stream_async", "take_snapshot", "add_hook")):
            raise TypeError(_NO_AGENT.format(type(agent).__name__))
        if agent in self._used:
            raise RuntimeError(_SHARED)
        self._used.add(agent)
        if type(agent.callback_handler).__name__ == "PrintingCallbackHandler":
            # The default of Strands prints every answer to the server's output.
            agent.callback_handler = import_module("strands.handlers.callback_handler").null_callback_handler
        return agent


async def _prepare(agent: Any, chat: Chat) -> list[Any] | None:
    """Give the agent its conversation and its state; what it is to be run with."""
    messages = await chat.model_messages()
    system = [message["content"] for message in messages if message["role"] == "system"]
    if system:
        agent.system_prompt = "\n\n".join([*filter(None, [agent.system_prompt]), *system])
    said, snapshot = to_strands(messages), _kept(chat.state)
    if snapshot is not None:
        data = {name: value for name, value in snapshot["data"].items() if name == "state" or chat.approvals}
        snapshot = {**snapshot, "data": _session().decode_bytes_values(data)}
        agent.load_snapshot(import_module("strands").Snapshot.from_dict(snapshot))
    if chat.approvals:
        if any(approval.id not in _open_in(chat.state) for approval in chat.approvals):
            raise AgentError(_NOT_OPEN)
        # The answer whose calls wait is the last one. For the agent none of them has a result yet.
        while said and said.pop()["role"] != "assistant":
            pass
        agent.messages = [*said, _pending(chat.state)[0]]
        _add_answers(agent, chat.approvals)
        return [
            {"interruptResponse": {"interruptId": approval.id, "response": _response(approval)}}
            for approval in chat.approvals
        ]
    agent.messages = said
    # Without a message to answer, it goes on with what it has.
    is_asked = chat.continues is None and bool(said) and said[-1]["role"] == "user"
    return said.pop()["content"] if is_asked else None


def _response(approval: Approval) -> Any:
    match approval.extra:
        case {"response": response} if response is not None:
            return response
        case _:
            # What `HumanInTheLoop` takes, and the hooks in Strands' documentation.
            return "y" if approval.approved else "n"


def _add_answers(agent: Any, approvals: Iterable[Approval]) -> None:
    """Run approved calls with the input that the user has edited, and let the model read why others were refused."""
    edits, reasons = dict[str, Any](), dict[str, str]()
    for approval in approvals:
        match approval.extra:
            case {"input": given} if approval.approved:
                edits[approval.call_id] = given
            case _ if not approval.approved and approval.reason:
                reasons[approval.call_id] = approval.reason
            case _:
                pass

    def edit(event: Any) -> None:
        if event.tool_use["toolUseId"] in edits:
            event.tool_use = {**event.tool_use, "input": edits[event.tool_use["toolUseId"]]}

    def explain(event: Any) -> None:
        reason = reasons.get(event.tool_use["toolUseId"])
        if reason is not None and event.result["status"] == "error":
            # `HumanInTheLoop` of 1.62 tells the model only that the call was not confirmed.
            said = {"text": f"The user refused this call. Their reason: {reason}"}
            event.result = {**event.result, "content": [*event.result["content"], said]}

    hooks = import_module("strands.hooks")
    agent.add_hook(edit, hooks.BeforeToolCallEvent)
    agent.add_hook(explain, hooks.AfterToolCallEvent)


def _keep(agent: Any, chat: Chat, *fields: str) -> None:
    """Keep these fields of the agent in the chat, which has the messages already."""
    snapshot = agent.take_snapshot(include=list(fields)).to_dict()
    chat.state = {"strands": msgspec.json.decode(msgspec.json.encode(_session().encode_bytes_values(snapshot)))}


def _kept(state: Any) -> dict[str, Any] | None:
    match state:
        case {"strands": {"data": dict()} as snapshot}:
            return cast("dict[str, Any]", snapshot)
        case _:
            return None


def _open_in(state: Any) -> Collection[str]:
    """The ids of the approvals that are open."""
    match state:
        case {"strands": {"data": {"interrupt_state": {"activated": True, "interrupts": interrupts}}}}:
            return cast("Mapping[str, Any]", interrupts).keys()
        case _:
            return ()


def _pending(state: Any) -> tuple[Any, list[Any]]:
    """The message whose calls wait, and the results of those that are done; 1.41 has them in another place."""
    kept = _session().decode_bytes_values(state["strands"]["data"]["interrupt_state"])
    if pending := kept.get("pending_tool_execution"):
        return pending["assistant_message"], pending["completed_tool_results"]
    return kept["context"]["tool_use_message"], kept["context"]["tool_results"]


def _session() -> Any:
    return import_module("strands.types.session")
