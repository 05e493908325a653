"""What of a request is believed: the server's history, and the client's last message where it can be true."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from usechat.agents.chat import Approval, ToolAnswer
from usechat.errors import RequestError
from usechat.protocol.canonical import canonical
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest

__all__ = ["EXPIRED", "NOTHING_OPEN", "Admission", "Verify", "admit", "admit_unkept", "calls"]

NOTHING_OPEN: Final = "This answers no tool call or approval that is open."
EXPIRED: Final = "This approval has expired, so nothing was done."
_FROM_SYSTEM: Final = "The last message must be from the user or the assistant."
_NOT_FROM_USER: Final = "The last message must be from the user."

_Part: TypeAlias = dict[str, Any]
Verify: TypeAlias = Callable[[str, str, str, Any], str]
"""Takes the id of an approval as the client has it, and the call: its id, its tool and its input."""


class Admission(Struct, frozen=True):
    """The messages of the turn, of which the last is the one to answer or to continue.

    `approval_ids` are those of the approvals as the client has them.
    """

    messages: list[UIMessage]
    continues: UIMessage | None = None
    tool_results: list[ToolAnswer] = []
    approvals: list[Approval] = []
    approval_ids: list[str] = []


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
    raise RequestError(_FROM_SYSTEM)


def admit_unkept(request: ChatRequest, verify: Verify) -> Admission:
    """Take the request's own messages for the history, except those of the system.

    `verify` gives the id of an approval as the agent knows it. Which results of the last step are the browser's and
    which are the agent's own cannot be told, so all of them are given.

    Raises:
        RequestError: A message is wrong, or `verify` refuses an approval.
    """
    messages = [message for message in request.messages if message.role != "system"]
    if request.last.role == "user":
        return Admission(messages)
    if request.trigger == "regenerate-message":
        raise RequestError(_NOT_FROM_USER)
    if request.last.role == "assistant":
        return _admit_continuation(messages, _richer_answers(request), verify)
    raise RequestError(_FROM_SYSTEM)


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
        raise RequestError(_NOT_FROM_USER)
    if any(_is_call(part) for part in request.last.parts):
        raise RequestError("A message of the user must not hold tool calls.")
    index = _index(stored, request.message_id or request.last.id)
    if index is not None and stored[index].role != "user":
        raise RequestError("Only a message of the user can be edited.", status=409)
    kept = stored if index is None else stored[:index]
    if _index(kept, request.last.id) is not None:
        raise RequestError("Another message of the chat has this id.", status=409)
    return [*kept, request.last]


def _index(stored: Sequence[UIMessage], message_id: str) -> int | None:
    return next((index for index, message in enumerate(stored) if message.id == message_id), None)


def _continuation(request: ChatRequest, stored: Sequence[UIMessage]) -> Admission:
    if not stored or stored[-1].id != request.last.id or stored[-1].role != "assistant":
        raise RequestError("The message to continue is not the last one of the chat.", status=409)
    continues = msgspec.convert(msgspec.to_builtins(stored[-1]), UIMessage)
    claims = {part["toolCallId"]: part for part in calls(request.last.parts)}
    answers = _Answers(_richer_answers(request))
    for part in calls(continues.parts):
        claim = claims.get(part["toolCallId"])
        if claim is not None:
            answers.take(part, claim)
    return answers.admission([*stored[:-1], continues])


def _admit_continuation(messages: list[UIMessage], richer: Mapping[str, Any], verify: Verify) -> Admission:
    answers = _Answers(richer)
    parts = messages[-1].parts
    last_step = max((number for number, part in enumerate(parts) if part["type"] == "step-start"), default=0)
    for number, part in enumerate(parts):
        if not _is_call(part) or part.get("providerExecuted") is True:
            continue
        if part["state"] == "approval-responded":
            answers.approve(part, verify(part["approval"]["id"], part["toolCallId"], _tool(part), part.get("input")))
        elif number >= last_step and part["state"] in ("output-available", "output-error"):
            # The server never sees which of them the page added.
            answers.results.append(_result(part))
    return answers.admission(messages)


class _Answers:
    """Takes from the client only what answers an open call, and notes it in the stored part."""

    def __init__(self, richer: Mapping[str, Any]) -> None:
        self.results: list[ToolAnswer] = []
        self._approvals: dict[str, Approval] = {}
        self._richer = richer

    def take(self, part: _Part, claim: _Part) -> None:
        other_input = canonical(claim.get("input", part.get("input"))) != canonical(part.get("input"))
        if other_input or part.get("providerExecuted") is True:
            # The answer is to another input than the one that was shown, or to a call that is not the page's.
            return
        match part["state"], claim["state"]:
            case "input-available", "output-available":
                part |= {"state": "output-available", "output": claim.get("output")}
                self.results.append(_result(part))
            case "input-available", "output-error":
                part |= {"state": "output-error", "errorText": claim["errorText"]}
                self.results.append(_result(part))
            case "approval-requested", "approval-responded" if claim["approval"]["id"] == part["approval"]["id"]:
                given: _Part = claim["approval"]
                answer = {key: given[key] for key in ("approved", "reason") if given.get(key) is not None}
                part |= {"state": "approval-responded", "approval": {**part["approval"], **answer}}
                self.approve(part, part["approval"]["id"])
            case _:
                pass

    def approve(self, part: _Part, approval_id: str) -> None:
        """Take the answer to an approval; `approval_id` is the one that the agent knows it by."""
        given: _Part = part["approval"]
        if given["id"] in self._approvals:
            raise RequestError(NOTHING_OPEN, status=409)
        self._approvals[given["id"]] = Approval(
            approval_id,
            part["toolCallId"],
            _tool(part),
            part.get("input"),
            given["approved"],
            given.get("reason"),
            self._richer.get(given["id"]),
        )

    def admission(self, messages: list[UIMessage]) -> Admission:
        if not self.results and not self._approvals:
            raise RequestError(NOTHING_OPEN, status=409)
        approvals = self._approvals
        return Admission(messages, messages[-1], self.results, list(approvals.values()), list(approvals))


def _richer_answers(request: ChatRequest) -> Mapping[str, Any]:
    richer = request.extra.get("approvals")
    return cast("dict[str, Any]", richer) if isinstance(richer, dict) else {}


def _result(part: _Part) -> ToolAnswer:
    output = part.get("output") if part["state"] == "output-available" else None
    error = part["errorText"] if part["state"] == "output-error" else None
    return ToolAnswer(part["toolCallId"], _tool(part), part.get("input"), output, error)


def calls(parts: Iterable[_Part]) -> Iterator[_Part]:
    """The parts that are tool calls."""
    return (part for part in parts if _is_call(part))


def _is_call(part: _Part) -> bool:
    kind: str = part["type"]
    return kind == "dynamic-tool" or kind.startswith("tool-")


def _tool(part: _Part) -> str:
    kind: str = part["type"]
    return part["toolName"] if kind == "dynamic-tool" else kind.removeprefix("tool-")
