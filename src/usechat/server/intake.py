"""What of a request is believed: the server's history, and the client's last message where it can be true."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from usechat.agents.chat import Approval, ToolAnswer
from usechat.errors import RequestError
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest

__all__ = ["Admission", "admit"]

_NOTHING_OPEN: Final = "This answers no tool call or approval that is open."


class Admission(Struct, frozen=True):
    """The messages of the turn, of which the last is the one to answer or to continue."""

    messages: list[UIMessage]
    continues: UIMessage | None = None
    tool_results: list[ToolAnswer] = []
    approvals: list[Approval] = []


def admit(request: ChatRequest, stored: Sequence[UIMessage]) -> Admission:
    """Bring the request and the stored messages together.

    Raises:
        RequestError: the client claims something that the server does not know to be true.
    """
    if request.trigger == "regenerate-message":
        return Admission(_before_regeneration(request, stored))
    if request.last.role == "user":
        return Admission(_with_user_message(request, stored))
    if request.last.role == "assistant":
        return _continuation(request, stored)
    raise RequestError("The last message must be from the user or the assistant.")


def _before_regeneration(request: ChatRequest, stored: Sequence[UIMessage]) -> list[UIMessage]:
    index = _index(stored, request.message_id or request.last.id)
    if index is None and request.message_id:
        raise RequestError("There is no message with this messageId to regenerate.", status=409)
    if index is None:
        # Retrying a message that was refused: the server has not seen it yet.
        return _with_user_message(request, stored)
    kept = stored[: index if stored[index].role == "assistant" else index + 1]
    if not kept:
        raise RequestError("There is no message before this one to answer.", status=409)
    return list(kept)


def _with_user_message(request: ChatRequest, stored: Sequence[UIMessage]) -> list[UIMessage]:
    if request.last.role != "user":
        raise RequestError("The last message must be from the user.")
    index = _index(stored, request.message_id or request.last.id)
    if index is None:
        return [*stored, request.last]
    if stored[index].role != "user":
        raise RequestError("Only a message of the user can be edited.", status=409)
    return [*stored[:index], request.last]


def _index(stored: Sequence[UIMessage], message_id: str) -> int | None:
    return next((index for index, message in enumerate(stored) if message.id == message_id), None)


def _continuation(request: ChatRequest, stored: Sequence[UIMessage]) -> Admission:
    if not stored or stored[-1].id != request.last.id or stored[-1].role != "assistant":
        raise RequestError("The message to continue is not the last one of the chat.", status=409)
    continues = msgspec.convert(msgspec.to_builtins(stored[-1]), UIMessage)
    claims = {part["toolCallId"]: part for part in request.last.parts if "toolCallId" in part}
    richer = request.extra.get("approvals")
    answers = _Answers(cast("dict[str, Any]", richer) if isinstance(richer, dict) else {})
    for part in continues.parts:
        claim = claims.get(part.get("toolCallId", ""))
        if claim is not None:
            answers.take(part, claim)
    if not answers.results and not answers.approvals:
        raise RequestError(_NOTHING_OPEN, status=409)
    return Admission([*stored[:-1], continues], continues, answers.results, answers.approvals)


class _Answers:
    """Takes from the client only what answers an open call, and notes it in the stored part."""

    def __init__(self, richer: Mapping[str, Any]) -> None:
        self.results: list[ToolAnswer] = []
        self.approvals: list[Approval] = []
        self._richer = richer

    def take(self, part: dict[str, Any], claim: dict[str, Any]) -> None:
        other_input = not _same(claim.get("input", part.get("input")), part.get("input"))
        if other_input or part.get("providerExecuted") is True:
            # The answer is to another input than the one that was shown, or to a call that is not the page's.
            return
        match part["state"], claim["state"]:
            case "input-available", "output-available":
                part |= {"state": "output-available", "output": claim.get("output")}
                self.results.append(ToolAnswer(part["toolCallId"], _tool(part), part.get("input"), part["output"]))
            case "input-available", "output-error":
                part |= {"state": "output-error", "errorText": claim["errorText"]}
                answer = ToolAnswer(part["toolCallId"], _tool(part), part.get("input"), error=claim["errorText"])
                self.results.append(answer)
            case "approval-requested", "approval-responded":
                self._approve(part, claim["approval"])
            case _:
                pass

    def _approve(self, part: dict[str, Any], claim: dict[str, Any]) -> None:
        asked: dict[str, Any] = part["approval"]
        if claim["id"] != asked["id"]:
            return
        answer = {key: claim[key] for key in ("approved", "reason") if claim.get(key) is not None}
        part |= {"state": "approval-responded", "approval": {**asked, **answer}}
        self.approvals.append(
            Approval(
                asked["id"],
                part["toolCallId"],
                _tool(part),
                part.get("input"),
                claim["approved"],
                claim.get("reason"),
                self._richer.get(asked["id"]),
            )
        )


def _same(theirs: Any, ours: Any) -> bool:
    """Whether two values are the same to JavaScript, whose numbers are all floats."""
    match theirs, ours:
        case list(), list():
            pairs = zip(cast("list[Any]", theirs), cast("list[Any]", ours), strict=False)
            return len(cast("list[Any]", theirs)) == len(cast("list[Any]", ours)) and all(
                _same(*pair) for pair in pairs
            )
        case dict(), dict():
            left, right = cast("dict[str, Any]", theirs), cast("dict[str, Any]", ours)
            return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
        case bool(), _:
            return theirs is ours
        case int() | float(), int() | float():
            return not isinstance(ours, bool) and _float(cast("float", theirs)) == _float(cast("float", ours))
        case _:
            return theirs == ours


def _float(number: float) -> float | None:
    try:
        return float(number)
    except OverflowError:
        return None


def _tool(part: Mapping[str, Any]) -> str:
    kind: str = part["type"]
    return part["toolName"] if kind == "dynamic-tool" else kind.removeprefix("tool-")
