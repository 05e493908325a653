"""The session of a chat: which of its events count, and what is added before a turn.

Events are ADK's own objects here. New ones are written as JSON, which `Event.model_validate` reads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from usechat.integrations.google_adk.translator import ASKS, CONFIRMS, read
from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Round, rounds
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import STATE_LIMIT, Approval, Chat, ToolAnswer

__all__ = ["REASON", "Kept", "add_what_is_missing", "begins", "edit", "events_of", "message", "open_calls", "valid"]

JSON: TypeAlias = dict[str, Any]
_STOPPED: Final = "This call has no result, since it was stopped or failed."
REASON: Final = "usechat_reason"
"""Where the payload of a refusal has the user's reason."""


def valid(events: Iterable[Any]) -> list[Any]:
    """The events of a session without those that it was rewound over."""
    kept: list[Any] = []
    for event in events:
        before = event.actions.rewind_before_invocation_id if event.actions else None
        if before is None:
            kept.append(event)
        else:
            del kept[next((at for at, one in enumerate(kept) if one.invocation_id == before), len(kept)) :]
    return kept


def begins(events: Sequence[Any]) -> list[int]:
    """Where each message of the user stands. The results of calls are none, except what the user was asked for."""
    found: list[int] = []
    invocations: set[str] = set()
    for at, event in enumerate(events):
        if event.author != "user" or not event.invocation_id or event.content is None:
            continue
        answers = [part.function_response for part in event.content.parts or () if part.function_response]
        if any(answer.name == ASKS for answer in answers) or (not answers and event.invocation_id not in invocations):
            invocations.add(event.invocation_id)
            found.append(at)
    return found


def open_calls(events: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The calls that have no result, each with its event."""
    calls: dict[str, tuple[Any, Any]] = {}
    for event in events:
        for part in (event.content.parts or ()) if event.content else ():
            if part.function_call and part.function_call.id:
                calls[part.function_call.id] = event, part.function_call
            elif part.function_response:
                calls.pop(part.function_response.id, None)
    return list(calls.values())


def add_what_is_missing(events: Sequence[Any], partial: Any) -> Iterator[JSON]:
    """What a turn that was stopped or failed has left out: the text that the user saw, and results of its calls."""
    match partial:
        case {"author": str(author), "text": [_, *_] as texts} if events:
            text = "".join(texts)
            last = events[-1]
            # A turn that is done again has added it already.
            if not last.content or all(part.text != text for part in last.content.parts or ()):
                yield _event(last.invocation_id, author, "model", [{"text": text}])
        case _:
            pass
    for event, call in open_calls(events):
        if call.name not in (CONFIRMS, ASKS):
            parts = [_response(call.id, call.name, {"error": _STOPPED})]
            rest = {"branch": event.branch} if event.branch else {}
            yield {**_event(event.invocation_id, event.author, "user", parts), **rest}


def edit(events: Iterable[Any], approvals: Iterable[Approval]) -> bool:
    """Change calls to what the user made of their arguments; ADK runs what its events say."""
    edits = {one.id: one.extra["input"] for one in approvals if one.approved and _is_edit(one.extra)}
    calls = [
        part.function_call
        for event in (events if edits else ())
        for part in (event.content.parts or () if event.content else ())
        if part.function_call
    ]
    changed: dict[str, Any] = {}
    for call in calls:
        if call.id in edits:
            call.args["originalFunctionCall"]["args"] = edits[call.id]
            changed[call.args["originalFunctionCall"]["id"]] = edits[call.id]
    for call in calls:
        if call.id in changed:
            call.args = changed[call.id]
    return bool(changed)


def _is_edit(extra: Any) -> bool:
    match extra:
        case {"input": dict()}:
            return True
        case _:
            return False


def message(chat: Chat, events: Sequence[Any]) -> JSON:
    """What the runner is given: the user's message, or answers to calls."""
    if chat.continues is not None:
        return {"role": "user", "parts": [*map(_confirmation, chat.approvals), *map(_answer, chat.tool_results)]}
    for _, call in open_calls(events):
        if call.name == ASKS:
            return {"role": "user", "parts": [_response(call.id, ASKS, {"result": chat.text})]}
    parts = [part for said in rounds(to_model_messages(chat.messages[-1:])) for part in said.parts]
    return {"role": "user", "parts": _shown(parts) or [{"text": EMPTY}]}


def _confirmation(approval: Approval) -> JSON:
    payload = read(approval.extra, "payload")
    if payload is None and not approval.approved:
        # `agent.py` tells the model.
        payload = {REASON: approval.reason or ""}
    rest = {} if payload is None else {"payload": payload}
    return _response(approval.id, CONFIRMS, {"confirmed": approval.approved, **rest})


def _answer(answer: ToolAnswer) -> JSON:
    if answer.error is not None:
        return _response(answer.call_id, answer.tool, {"error": answer.error})
    return _response(answer.call_id, answer.tool, _object(answer.output))


def _object(value: Any) -> JSON:
    return cast("JSON", value) if isinstance(value, dict) else {"result": value}


def events_of(messages: Sequence[UIMessage], agent: str, chat: Chat) -> Iterator[JSON]:
    """Events for the messages of a chat whose session is lost. Calls that this turn answers wait for the answer."""
    waits = {one.call_id: one for one in chat.approvals} | dict.fromkeys(one.call_id for one in chat.tool_results)
    number = 0
    for each in rounds(to_model_messages(messages)):
        if each.role == "user":
            number += 1
            yield _event(f"usechat-{number}", "user", "user", _shown(each.parts) or [{"text": EMPTY}])
        elif each.role == "assistant":
            yield from _answered(each, f"usechat-{number}", agent, waits)


def _answered(said: Round, invocation: str, agent: str, waits: Mapping[str, Approval | None]) -> Iterator[JSON]:
    calls = [{"functionCall": {"id": call.id, "name": call.name, "args": call.input}} for call in said.calls]
    parts = [*_shown(part for part in said.parts if part["type"] == "text"), *calls]
    if parts:
        yield _event(invocation, agent, "model", parts)
    results = [
        _response(call.id, call.name, {"error": call.result} if call.failed else _object((call.output or {})["value"]))
        for call in said.calls
        if call.id not in waits
    ]
    if results:
        yield _event(invocation, agent, "user", results)
    for call, function in zip(said.calls, calls, strict=True):
        if approval := waits.get(call.id):
            asked = {"originalFunctionCall": function["functionCall"], "toolConfirmation": {"confirmed": False}}
            confirms = {"functionCall": {"id": approval.id, "name": CONFIRMS, "args": asked}}
            yield {**_event(invocation, agent, "model", [confirms]), "longRunningToolIds": [approval.id]}


def _shown(parts: Iterable[Block]) -> list[Block]:
    """Texts and files, as Gemini has them."""
    return [{key: value for key, value in block.items() if key != "type"} for block in blocks(parts, _file)]


def _file(file: File) -> Block:
    if file.text:
        return {"text": file.named_text}
    if file.data:
        return {"inlineData": {"mimeType": file.media_type, "data": file.base64}}
    return {"fileData": {"mimeType": file.media_type, "fileUri": file.url}} if file.url else text_block(file.words)


def _event(invocation: str, author: str, role: str, parts: Sequence[Block]) -> JSON:
    return {"invocationId": invocation, "author": author, "content": {"role": role, "parts": list(parts)}}


def _response(call_id: str, name: str, response: Any) -> JSON:
    return {"functionResponse": {"id": call_id, "name": name, "response": response}}


class Kept:
    """What `chat.state` has of a session, which grows in place with it: also a turn that is stopped leaves it.

    `partial` is the text of an answer that is not complete; ADK's session never has it. A session that is too large or
    no JSON is not kept. The next turn then makes one of the chat's messages.
    """

    def __init__(self, chat: Chat, events: Sequence[Any] | None) -> None:
        """Begin with the events of the session; None if a service of the user's keeps them."""
        self._chat = chat
        self._size = 0
        self._state: JSON = {"partial": {}} if events is None else {"events": [], "partial": {}}
        try:
            chat.state = self._state
            self._is_kept = True
        except RuntimeError:
            # Nothing keeps a state here.
            self._is_kept = False
        self.add(events or ())

    def add(self, events: Sequence[Any]) -> None:
        """Take the events that are new in the session."""
        kept = self._state.get("events")
        for event in events[len(kept) :] if kept is not None and self._is_kept else ():
            try:
                text = event.model_dump_json(by_alias=True, exclude_none=True)
            except ValueError:
                text = ""
            self._size += len(text)
            if not text or self._size > STATE_LIMIT - 65536:
                self._is_kept, self._chat.state = False, None
                return
            self._state["events"].append(msgspec.json.decode(text))

    def hear(self, event: Any) -> None:
        """Take the text of an answer while it is made."""
        if not self._is_kept or event.branch:
            return
        if not event.partial:
            self._state["partial"] = {}
            return
        for part in (event.content.parts or ()) if event.content else ():
            if part.text and not part.thought:
                self._state["partial"].setdefault("author", event.author)
                self._state["partial"].setdefault("text", []).append(part.text)
