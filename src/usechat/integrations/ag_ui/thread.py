"""What a chat keeps of its AG-UI thread, and what an agent is asked with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from usechat.models.files import File, read_file
from usechat.models.rounds import Call, Round, rounds
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import ModelMessage, to_model_messages

__all__ = ["PROVIDER", "Thread", "to_ag_ui"]

PROVIDER: Final = "ag-ui"
"""The name under which a part keeps the id of its AG-UI message."""

_Message = dict[str, Any]

_MOST: Final = 1000
_MOST_ENCRYPTED: Final = 256 * 1024


class Thread:
    """One value of `chat.state`, which is changed in place.

    `state` is the shared state of agent and page. `interrupts` are those that wait, by their ids: the call that each is
    about, and whether its arguments may be edited. `paused` are the calls that run only after them. `results` has the
    ids of the messages that hold the results of calls, and `encrypted` what a provider wants back with a message or
    call. `branch` is new whenever messages were replaced: the agent may remember the old ones.
    """

    def __init__(self, kept: dict[str, Any] | None = None) -> None:
        self.kept: dict[str, Any] = {} if kept is None else kept
        # The ids of messages that the agent was sent.
        self.known: set[str] = set()

    @property
    def state(self) -> Any:
        return self.kept.get("state", {})

    @state.setter
    def state(self, document: Any) -> None:
        self.kept["state"] = document

    @property
    def branch(self) -> str:
        return self.kept.get("branch", "")

    def begin_branch(self, branch: str) -> None:
        """The agent is given the history anew, and waits for nothing."""
        self.kept["branch"] = branch
        self.wait_for({}, ())

    @property
    def interrupts(self) -> dict[str, dict[str, Any]]:
        return self.kept.get("interrupts", {})

    @property
    def paused(self) -> list[str]:
        return self.kept.get("paused", [])

    def wait_for(self, interrupts: Mapping[str, Mapping[str, Any]], paused: Iterable[str]) -> None:
        self.kept["interrupts"], self.kept["paused"] = dict(interrupts), list(paused)

    def result_id(self, call_id: str) -> str:
        return self._map("results").get(call_id) or f"{call_id}-result"

    def keep_result(self, call_id: str, message_id: str) -> None:
        results = self._map("results")
        results[call_id] = message_id
        while len(results) > _MOST:
            del results[next(iter(results))]

    def encrypted(self, entity_id: str) -> dict[str, str]:
        value = self._map("encrypted").get(entity_id)
        return {"encryptedValue": value} if value else {}

    def keep_encrypted(self, entity_id: str, value: str) -> None:
        values = self._map("encrypted")
        values[entity_id] = value
        while sum(map(len, values.values())) > _MOST_ENCRYPTED:
            del values[next(iter(values))]

    def _map(self, name: str) -> dict[str, str]:
        return self.kept.setdefault(name, {})


def to_ag_ui(messages: Sequence[UIMessage], thread: Thread, unanswered: Iterable[str] = ()) -> list[_Message]:
    """The messages of a run's input; calls that are `unanswered` have no result, because the agent will give it."""
    writer = _Writer(thread, frozenset(unanswered))
    asked = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    for index, message in enumerate(messages):
        # With the message to answer behind it, an approval that nobody answered is left out.
        said = to_model_messages([message, messages[asked]])[:-1] if index < asked else to_model_messages([message])
        writer.write(message.id, said)
    return writer.messages


class _Writer:
    def __init__(self, thread: Thread, unanswered: frozenset[str]) -> None:
        self.messages: list[_Message] = []
        self._thread = thread
        self._unanswered = unanswered

    def write(self, message_id: str, said: Sequence[ModelMessage]) -> None:
        parents = {
            item["toolCallId"]: _kept(item).get("messageId")
            for message in said
            if message["role"] == "assistant"
            for item in message["content"]
            if item["type"] == "tool-call"
        }
        for number, each in enumerate(rounds(said)):
            name = message_id if number == 0 else f"{message_id}-{number}"
            if each.role == "assistant":
                self._answer(each, name, parents)
            else:
                content = each.parts[0]["text"] if each.role == "system" else _content(each.parts)
                self.messages.append({"id": name, "role": each.role, "content": content})

    def _answer(self, said: Round, name: str, parents: Mapping[str, Any]) -> None:
        answers: dict[str, _Message] = {}
        for part in said.parts:
            kept = _kept(part)
            own_id = kept.get("messageId") or name
            if part["type"] == "reasoning" and kept:
                value = {"encryptedValue": kept["encryptedValue"]} if kept.get("encryptedValue") else {}
                self.messages.append({"id": own_id, "role": "reasoning", "content": part["text"], **value})
            elif part["type"] == "text" and part["text"]:
                self._assistant(own_id, answers)["content"] += part["text"]
        for call in said.calls:
            parent = parents.get(call.id) or next(reversed(answers), name)
            function = {"name": call.name, "arguments": msgspec.json.encode(call.input).decode()}
            told = {"id": call.id, "type": "function", "function": function, **self._thread.encrypted(call.id)}
            self._assistant(parent, answers).setdefault("toolCalls", []).append(told)
        self.messages += [self._result(call) for call in said.calls if call.id not in self._unanswered]

    def _assistant(self, message_id: str, answers: dict[str, _Message]) -> _Message:
        if message_id not in answers:
            value = self._thread.encrypted(message_id)
            answers[message_id] = {"id": message_id, "role": "assistant", "content": "", **value}
            self.messages.append(answers[message_id])
        return answers[message_id]

    def _result(self, call: Call) -> _Message:
        message_id = self._thread.result_id(call.id)
        content: Any = "" if call.output is not None and call.output.get("value", "") is None else call.result
        if call.output is not None and _is_parts(call.output.get("value")):
            content = call.output["value"]
        error = {"error": call.result} if call.failed else {}
        value = self._thread.encrypted(message_id)
        return {"id": message_id, "role": "tool", "toolCallId": call.id, "content": content, **error, **value}


def _kept(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was kept of the part's AG-UI message. A page may have sent anything."""
    kept = cast("Mapping[str, Any]", part.get("providerOptions") or {}).get(PROVIDER)
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in cast("dict[str, Any]", kept).values()):
        return {}
    return cast("dict[str, Any]", kept)


def _is_parts(value: Any) -> bool:
    """Whether it is a result in parts, as AG-UI has them."""
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(parts) and all(
        isinstance(part.get("text") if part.get("type") == "text" else part.get("source"), str | dict)
        for part in (cast("dict[str, Any]", one) if isinstance(one, dict) else {} for one in parts)
    )


def _content(parts: Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    items = list(_items(parts))
    # Releases before 0.1.10 take nothing but a string.
    if all(item["type"] == "text" for item in items):
        return "".join(item["text"] for item in items)
    return items


def _items(parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part["type"] == "text":
            yield {"type": "text", "text": part["text"]}
        elif source := _source(file := read_file(part)):
            kind, _, _ = file.media_type.partition("/")
            metadata = {"metadata": {"filename": file.name}} if file.name else {}
            kind = kind if kind in ("image", "audio", "video") else "document"
            yield {"type": kind, "source": source, **metadata}


def _source(file: File) -> dict[str, str] | None:
    media_type = {"mimeType": file.media_type} if file.media_type else {}
    if file.data:
        return {"type": "data", "value": file.base64, "mimeType": file.media_type or "application/octet-stream"}
    if file.url:
        return {"type": "url", "value": file.url, **media_type}
    for provider, handle in file.ids.items():
        if isinstance(handle, str):
            return {"type": "file", "value": handle, "provider": provider, **media_type}
    return None
