"""What of a request is believed: the server's history, and the client's last message where it can be true.

Where the client keeps the chat, the server stores no approvals. The id of each then says, under a signature, what was
asked and until when. The id carries the signature, because every client sends it back; not every client knows the field
`signature`.
"""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct, structs

from usechat.errors import RequestError
from usechat.history import StoredMessages, Tail
from usechat.protocol.messages import Role, UIMessage, is_tool_call, tool_name
from usechat.protocol.requests import ChatRequest
from usechat.protocol.state import Call
from usechat.protocol.values import canonical
from usechat.turns.chat import Approval, ToolAnswer
from usechat.turns.pending import Admission

__all__ = [
    "EXPIRED",
    "NOTHING_OPEN",
    "ApprovalSigner",
    "AskedCall",
    "Verify",
    "admit",
    "admit_unkept",
    "signed_approval_ids",
]

_log = logging.getLogger("usechat")

NOTHING_OPEN: Final = "No open tool call or approval matches this answer. Reload the chat."
EXPIRED: Final = "This approval has expired, so nothing was done."
_ANSWERED: Final = "This approval has already been answered."
_FROM_SYSTEM: Final = "The last message must be from the user or the assistant."
_NOT_FROM_USER: Final = "The last message must be from the user."

_KEY_BYTES: Final = 32
_MOST_USED: Final = 100_000

_Part: TypeAlias = dict[str, Any]
Verify: TypeAlias = Callable[[str, str, str, Any], str]
"""Takes the id of an approval as the client has it, and the id, the tool and the input of its call."""


def admit(request: ChatRequest, stored: StoredMessages, *, writing: str | None = None) -> Admission:
    """Bring the request and the stored messages together, and read only the messages that the request is about.

    `writing` is the id of the answer that a turn of the chat still writes. It counts as the last message of the chat.
    All that is known of it is that it is the assistant's.

    Raises:
        RequestError: The client claims something that the server does not know to be true.
        ValueError: A stored message is broken.
    """
    chat = _Chat(stored, writing)
    if request.trigger == "regenerate-message":
        return _regeneration(request, chat)
    if request.last.role == "user":
        return _with_user_message(request, chat)
    if request.last.role == "assistant":
        return _continuation(request, chat)
    raise RequestError(_FROM_SYSTEM)


def admit_unkept(request: ChatRequest, messages: Sequence[UIMessage], verify: Verify) -> Admission:
    """Believe the request's own `messages` for the history, except those of the system.

    `verify` returns the id of an approval as the agent knows it. The server cannot see which results of the last step
    come from the browser and which from the agent, so the admission has all of them.

    Raises:
        RequestError: A message is wrong, or `verify` refuses an approval.
    """
    messages = [message for message in messages if message.role != "system"]
    if request.last.role == "user":
        return Admission(Tail(0), 0, [request.last], request.last, request.last.text, messages=messages)
    if request.trigger == "regenerate-message":
        raise RequestError(_NOT_FROM_USER)
    if request.last.role == "assistant":
        return _admit_continuation(messages, _richer_answers(request), verify)
    raise RequestError(_FROM_SYSTEM)


class _Chat:
    """The stored messages, and after them the answer that is still being written, if there is one."""

    def __init__(self, stored: StoredMessages, writing: str | None) -> None:
        self.stored = stored
        self.length = stored.tail.length
        self._writing = writing

    def find(self, message_id: str) -> int | None:
        position = self.stored.find(message_id)
        return self.length if position is None and message_id == self._writing else position

    def role(self, position: int) -> Role:
        return "assistant" if position == self.length else self.stored.role(position)

    def to_continue(self, message_id: str) -> UIMessage:
        """The stored last message, which must be the assistant's and have this id.

        Raises:
            RequestError: It is another message.
        """
        if self.length and self._writing in (None, message_id):
            last = self.stored.message(self.length - 1)
            if last.id == message_id and last.role == "assistant":
                return last
        raise RequestError("This is not the last message of the chat. Reload the chat.", status=409)


def _regeneration(request: ChatRequest, chat: _Chat) -> Admission:
    position = chat.find(request.message_id or request.last.id)
    if position is None and request.message_id:
        raise RequestError("There is no message with this messageId to regenerate.", status=409)
    if position is None:
        # The user retries a message that was refused, so the server has not stored it.
        return _with_user_message(request, chat)
    keep = position if chat.role(position) == "assistant" else position + 1
    if not keep:
        raise RequestError("There is no message before this one to answer.", status=409)
    question = chat.stored.message(keep - 1)
    asked = question if question.role == "user" else chat.stored.last_user(keep - 1)
    return Admission(chat.stored.tail, keep, [], question, asked.text if asked else "")


def _with_user_message(request: ChatRequest, chat: _Chat) -> Admission:
    if request.last.role != "user":
        raise RequestError(_NOT_FROM_USER)
    if any(is_tool_call(part) for part in request.last.parts):
        raise RequestError("A message of the user must not hold tool calls.")
    position = chat.find(request.message_id or request.last.id)
    if position is not None and chat.role(position) != "user":
        raise RequestError("Only a message of the user can be edited.", status=409)
    if request.message_id and _stands_before(position, chat.find(request.last.id)):
        raise RequestError("Another message of the chat has this id.", status=409)
    keep = chat.length if position is None else position
    return Admission(chat.stored.tail, keep, [request.last], request.last, request.last.text)


def _stands_before(position: int | None, other: int | None) -> bool:
    return other is not None and (position is None or other < position)


def _continuation(request: ChatRequest, chat: _Chat) -> Admission:
    continues = chat.to_continue(request.last.id)
    claims = {part["toolCallId"]: part for part in _calls(request.last.parts)}
    answers = _Answers(_richer_answers(request))
    for part in _calls(continues.parts):
        claim = claims.get(part["toolCallId"])
        if claim is not None:
            answers.take(part, claim)
    answers.check()
    keep = chat.length - 1
    asked = chat.stored.last_user(keep)
    return answers.admission(chat.stored.tail, keep, continues, asked.text if asked else "")


def _admit_continuation(messages: list[UIMessage], richer: Mapping[str, Any], verify: Verify) -> Admission:
    answers = _Answers(richer)
    parts = messages[-1].parts
    last_step = max((number for number, part in enumerate(parts) if part["type"] == "step-start"), default=0)
    for number, part in enumerate(parts):
        if not is_tool_call(part) or part.get("providerExecuted") is True:
            continue
        if part["state"] == "approval-responded":
            answers.approve(
                part, verify(part["approval"]["id"], part["toolCallId"], tool_name(part), part.get("input"))
            )
        elif number >= last_step and part["state"] in ("output-available", "output-error"):
            answers.results.append(_result(part))
    answers.check()
    return structs.replace(answers.admission(Tail(0), 0, messages[-1], _last_text(messages)), messages=messages)


def _last_text(messages: Sequence[UIMessage]) -> str:
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


class _Answers:
    """Takes from the client only the answers to open calls, and writes them into the stored parts."""

    def __init__(self, richer: Mapping[str, Any]) -> None:
        self.results: list[ToolAnswer] = []
        self._approvals: dict[str, Approval] = {}
        self._richer = richer

    def take(self, part: _Part, claim: _Part) -> None:
        other_input = canonical(claim.get("input", part.get("input"))) != canonical(part.get("input"))
        if other_input or part.get("providerExecuted") is True:
            # The page answered another input than it was shown, or a call that the provider runs.
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
        """Take the answer to an approval, which the agent knows by `approval_id`."""
        given: _Part = part["approval"]
        if given["id"] in self._approvals:
            raise RequestError(NOTHING_OPEN, status=409)
        self._approvals[given["id"]] = Approval(
            approval_id,
            part["toolCallId"],
            tool_name(part),
            part.get("input"),
            given["approved"],
            given.get("reason"),
            self._richer.get(given["id"]),
        )

    def check(self) -> None:
        """Refuse a request that answers nothing."""
        if not self.results and not self._approvals:
            raise RequestError(NOTHING_OPEN, status=409)

    def admission(self, after: Tail, keep: int, continues: UIMessage, text: str) -> Admission:
        approvals = list(self._approvals.values())
        return Admission(
            after, keep, [continues], continues, text, continues, self.results, approvals, list(self._approvals)
        )


def _richer_answers(request: ChatRequest) -> Mapping[str, Any]:
    richer = request.extra.get("approvals")
    if richer is not None and not isinstance(richer, dict):
        # A user who wants to change a call must not have the unchanged call run.
        raise RequestError("approvals must be an object.")
    return cast("dict[str, Any]", richer or {})


def _result(part: _Part) -> ToolAnswer:
    output = part.get("output") if part["state"] == "output-available" else None
    error = part["errorText"] if part["state"] == "output-error" else None
    return ToolAnswer(part["toolCallId"], tool_name(part), part.get("input"), output, error)


def _calls(parts: Iterable[_Part]) -> Iterator[_Part]:
    """The parts that are tool calls."""
    return (part for part in parts if is_tool_call(part))


class AskedCall(Struct, frozen=True):
    """The call that an approval is for, and its chat and owner."""

    chat: str
    owner: str
    call_id: str
    tool: str
    input: Any


class ApprovalSigner:
    """Signs approvals, and remembers the last 100,000 that were answered in this process."""

    def __init__(self, secret: str | None, ttl: float, *, now: Callable[[], float] = time.time) -> None:
        """`secret` is shared by all processes; an approval expires after `ttl` seconds.

        Raises:
            ValueError: The secret is too short.
        """
        self._key = _random_key() if secret is None else secret.encode()
        if len(self._key) < _KEY_BYTES:
            raise ValueError(f"The approval secret must have at least {_KEY_BYTES} bytes.")
        self._ttl = ttl
        self._now = now
        self._used = OrderedDict[str, None]()

    def sign(self, approval_id: str, call: AskedCall) -> str:
        """The id for the client."""
        # In milliseconds: the same question asked again is another approval.
        expiry = str(int((self._now() + self._ttl) * 1000))
        return f"{approval_id}.{expiry}.{self._signature(approval_id, expiry, call)}"

    def verify(self, signed_id: str, call: AskedCall) -> str:
        """The id that was signed for this call.

        Raises:
            RequestError: It was not signed for this call, has expired, or was used.
        """
        signed, _, signature = signed_id.rpartition(".")
        approval_id, _, expiry = signed.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(approval_id, expiry, call).encode()):
            raise RequestError(NOTHING_OPEN, status=409)
        if int(expiry) <= self._now() * 1000:
            raise RequestError(EXPIRED, status=409)
        if signature in self._used:
            raise RequestError(_ANSWERED, status=409)
        return approval_id

    def use(self, signed_id: str) -> None:
        """From now on, refuse this id, which was verified."""
        self._used[signed_id.rpartition(".")[2]] = None
        if len(self._used) > _MOST_USED:
            self._used.popitem(last=False)

    def _signature(self, approval_id: str, expiry: str, call: AskedCall) -> str:
        asked = [call.chat, call.owner, approval_id, call.call_id, call.tool, expiry, canonical(call.input)]
        digest = hmac.digest(self._key, b"usechat approval " + msgspec.json.encode(asked), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _random_key() -> bytes:
    _log.warning(
        "approvals are signed with a secret that only this process has, so they do not survive a restart and other "
        "processes refuse them; set approval_secret, or USECHAT_SECRET for usechat serve"
    )
    return secrets.token_bytes(_KEY_BYTES)


def signed_approval_ids(signer: ApprovalSigner, chat: str, owner: str) -> Callable[[str, Call, Any], str]:
    """The `approval_id` of a `MessageWriter` for this user's chat."""

    def sign(approval_id: str, call: Call, shown: Any) -> str:
        return signer.sign(approval_id, AskedCall(chat, owner, call.id, call.name, shown))

    return sign
