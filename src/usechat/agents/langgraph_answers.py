"""What a user answered to a graph that waits, as the graph takes it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from usechat.agents.chat import Approval
from usechat.errors import RequestError
from usechat.sources.langgraph_interrupts import Action, Interrupt

__all__ = ["answer_questions", "decide"]

_NOTHING_OPEN: Final = "This answers no approval that is open."


def decide(interrupts: Sequence[Interrupt], approvals: Sequence[Approval]) -> dict[str, Any]:
    """What the interrupts that the approvals answer are resumed with, by their ids.

    Raises:
        RequestError: an answer is not allowed, or is to nothing that is open, or others belong to it.
    """
    given = {approval.id: approval for approval in approvals}
    resumed: dict[str, Any] = {}
    for interrupt in interrupts:
        answers = [given.pop(action.approval_id, None) for action in interrupt.actions]
        decisions = [
            _decision(action, answer)
            for action, answer in zip(interrupt.actions, answers, strict=True)
            if answer is not None
        ]
        if decisions and len(decisions) < len(answers):
            raise RequestError("The calls that wait together have to be answered together.", status=409)
        if decisions:
            resumed[interrupt.id] = {"decisions": decisions} if interrupt.batched else decisions[0]
    if given or not resumed:
        raise RequestError(_NOTHING_OPEN, status=409)
    return resumed


def answer_questions(interrupts: Sequence[Interrupt], body: Mapping[str, Any], text: str) -> dict[str, Any]:
    """What the interrupts that are no approvals are resumed with: the body's `resume`, or else the user's text.

    Nothing if the text is a message like any other.

    Raises:
        RequestError: the body answers what is not open, or it is not clear which question the text answers.
    """
    questions = [interrupt.id for interrupt in interrupts if not interrupt.actions]
    given = body.get("resume")
    if given is not None:
        if not isinstance(given, dict) or not given or not set(cast("dict[str, Any]", given)) <= set(questions):
            raise RequestError("This answers no question that is open.", status=409)
        return cast("dict[str, Any]", given)
    if len(questions) < len(interrupts):
        return {}
    if len(questions) > 1:
        raise RequestError("Several questions are open, so each has to be answered by its id.", status=409)
    return dict.fromkeys(questions, text)


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
            # Whoever may change what a tool is called with may not therefore call any other.
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
