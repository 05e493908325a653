"""What a checkpointer has of a chat, and what a graph goes on with after the user's answers."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, cast

import msgspec

from usechat.errors import RequestError
from usechat.integrations.langgraph.interrupts import Action, read_interrupt
from usechat.integrations.langgraph.messages import field
from usechat.turns.chat import Approval, ToolAnswer

__all__ = ["Thread"]

_WENT_ON: Final = "This call was not carried out: the user approved nothing, and went on with another message."
_STOPPED: Final = "This call has no result, since it was stopped or failed."


class Thread:
    """A thread as it is at one checkpoint, by LangGraph's `StateSnapshot`."""

    def __init__(self, snapshot: Any) -> None:
        self.messages: Sequence[Any] = field(snapshot.values, "messages") or ()
        self.configurable: Mapping[str, Any] = snapshot.config["configurable"]
        self._snapshot = snapshot
        self._interrupts = [read_interrupt(raw) for raw in snapshot.interrupts]
        # The results at its end, and before them the last answer.
        self._results = [*takewhile(lambda message: field(message, "type") == "tool", reversed(self.messages))][::-1]

    @property
    def about(self) -> dict[str, Any] | None:
        """How far it is; None if it is new."""
        if not self._snapshot.values:
            return None
        return {"step": field(self._snapshot.metadata, "step") or 0, "messagesCount": len(self.messages)}

    def has(self, message_id: str) -> bool:
        return any(field(message, "id") == message_id for message in self.messages)

    def decisions(self, approvals: Sequence[Approval]) -> dict[str, Any]:
        """What the interrupts that the approvals answer are resumed with, by their ids.

        Raises:
            RequestError: an answer is not allowed, or is to nothing that is open, or others belong to it.
        """
        given = {approval.id: approval for approval in approvals}
        resumed: dict[str, Any] = {}
        for interrupt in self._interrupts:
            answers = [(action, given.pop(action.approval_id, None)) for action in interrupt.actions]
            decisions = [_decision(action, answer) for action, answer in answers if answer is not None]
            if decisions and len(decisions) < len(answers):
                raise RequestError("The calls that wait together have to be answered together.", status=409)
            if decisions:
                resumed[interrupt.id] = {"decisions": decisions} if interrupt.batched else decisions[0]
        if given or not resumed:
            raise RequestError("This answers no approval that is open.", status=409)
        return resumed

    def answers(self, body: Mapping[str, Any], text: str) -> dict[str, Any]:
        """What the interrupts that are no approvals are resumed with: the body's `resume`, or else the user's text.

        Nothing if the text is a message like any other.

        Raises:
            RequestError: the body answers what is not open, or it is not clear which question the text answers.
        """
        questions = [interrupt.id for interrupt in self._interrupts if not interrupt.actions]
        given = body.get("resume")
        if given is not None:
            if not isinstance(given, dict) or not given or not set(cast("dict[str, Any]", given)) <= set(questions):
                raise RequestError("This answers no question that is open.", status=409)
            return cast("dict[str, Any]", given)
        if len(questions) < len(self._interrupts):
            return {}
        if len(questions) > 1:
            raise RequestError("Several questions are open, so each has to be answered by its id.", status=409)
        return dict.fromkeys(questions, text)

    def results(self, answers: Sequence[ToolAnswer]) -> list[dict[str, Any]]:
        """What the browser answered to calls that the graph left to it.

        Raises:
            RequestError: it answered none of them.
        """
        given = {answer.call_id: answer for answer in answers}
        open_calls = self._open_calls()
        if not given.keys() & set(open_calls):
            raise RequestError("This answers no tool call that is open.", status=409)
        return [_answered(call_id, given.get(call_id)) for call_id in open_calls]

    def unsaved(self) -> list[Any]:
        """The last answer and its results, if they came in a step that was not finished.

        The state has them, but the next run would not. Messages that it has, too, are known by their ids.
        """
        is_answered = bool(self.messages) and field(self.messages[-1], "type") in ("ai", "tool")
        return list(self.messages[-len(self._results) - 1 :]) if self._snapshot.tasks and is_answered else []

    def unanswered(self) -> list[dict[str, Any]]:
        """Results for the calls that have none, without which a model's provider takes no further message."""
        waits = any(interrupt.actions for interrupt in self._interrupts)
        return [_result(call_id, _WENT_ON if waits else _STOPPED, "error") for call_id in self._open_calls()]

    def _open_calls(self) -> list[str]:
        """The calls of the last answer that have no result."""
        answered = {field(message, "tool_call_id") for message in self._results}
        answer = self.messages[-len(self._results) - 1] if len(self.messages) > len(self._results) else None
        return [call["id"] for call in field(answer, "tool_calls") or () if call["id"] not in answered]


def _answered(call_id: str, answer: ToolAnswer | None) -> dict[str, Any]:
    if answer is None:
        return _result(call_id, _STOPPED, "error")
    if answer.error is not None:
        return _result(call_id, answer.error, "error")
    output = answer.output
    return _result(call_id, output if isinstance(output, str) else msgspec.json.encode(output).decode(), "success")


def _result(call_id: str, text: str, status: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text, "status": status}


def _decision(action: Action, approval: Approval) -> dict[str, Any]:
    decision = _given(approval) if approval.extra is None else _richer(action, approval)
    if decision["type"] not in action.allowed:
        allowed = ", ".join(action.allowed)
        raise RequestError(f"The call can be answered with {allowed}, and not with {decision['type']}.", status=409)
    return decision


def _given(approval: Approval) -> dict[str, Any]:
    if approval.approved:
        return {"type": "approve"}
    return {"type": "reject", "message": approval.reason} if approval.reason else {"type": "reject"}


def _richer(action: Action, approval: Approval) -> dict[str, Any]:
    """The body's own decision, if it does not say the opposite of the answer that it came with."""
    match approval.extra, approval.approved:
        case {"type": "approve"}, True:
            return {"type": "approve"}
        case {"type": "edit", "edited_action": {"name": str(name), "args": dict()}}, True:
            # The user may change what a tool is called with, and not which tool is called.
            if name != action.name:
                raise RequestError("An edit can change the arguments of the call, and not its tool.", status=409)
            return {"type": "edit", "edited_action": {"name": name, "args": approval.extra["edited_action"]["args"]}}
        case {"type": "reject", "message": str(message)}, False:
            return {"type": "reject", "message": message}
        case {"type": "reject"}, False:
            return {"type": "reject"}
        case {"type": "respond", "message": str(message)}, _:
            return {"type": "respond", "message": message}
        case _:
            raise RequestError("The decision on the call is none, or says the opposite of the answer.", status=409)
