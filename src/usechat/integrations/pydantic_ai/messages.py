"""The chat as the messages of Pydantic AI: what the agent said comes back as the model said it.

The page's messages are the only record of a chat. What a provider wants back with a part (ids, signatures, details) is
in the part's provider metadata. So the history is right after an edit, a regeneration or a stop, in another process,
and in a chat that another agent began.
"""

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from usechat.integrations.pydantic_ai.translator import METADATA, OUTPUT_TOOL
from usechat.models.files import Block, File, blocks
from usechat.models.rounds import EMPTY, Call
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages

__all__ = ["denied_text", "to_messages"]

_URLS: Final = {"image": "ImageUrl", "audio": "AudioUrl", "video": "VideoUrl"}
_PROCESSED: Final = "Final result processed."


def to_messages(messages: Iterable[UIMessage], open_calls: Collection[str] = ()) -> list[Any]:
    """The messages of a chat as `list[ModelMessage]`; the run itself gives the results of the `open_calls`.

    Every other call has a result; one that nobody answered has one that says so. Messages of the system are left out:
    the agent has a system prompt and instructions of its own.
    """
    reader = _Reader(open_calls)
    for message in to_model_messages([_with_output(message) for message in messages]):
        match message["role"]:
            case "user":
                reader.read_question(message["content"])
            case "assistant":
                reader.read_answer(message["content"])
            case "tool":
                reader.read_results(message["content"])
            case _:
                pass
    reader.end_calls()
    return reader.messages


def denied_text(reason: str | None) -> str:
    """What the model reads of a call that the user refused; the same now and in later turns."""
    return Call("", "", {}, refused=True, reason=reason or "").result


def _with_output(message: UIMessage) -> UIMessage:
    """The message with its structured output as the call of the output tool that it was."""
    if not any(part["type"] == "data-output" for part in message.parts):
        return message
    return structs.replace(message, parts=[_output_call(part) for part in message.parts])


def _output_call(part: dict[str, Any]) -> dict[str, Any]:
    name, _, call_id = str(part.get("id", "")).partition(":")
    if part["type"] != "data-output" or not call_id:
        return part
    value = part["data"]
    return {
        "type": f"tool-{name or OUTPUT_TOOL}",
        "toolCallId": call_id,
        "state": "output-available",
        # What is no object came as the field `response` of one.
        "input": value if isinstance(value, dict) else {"response": value},
        "output": _PROCESSED,
    }


class _Reader:
    def __init__(self, open_calls: Collection[str]) -> None:
        self.messages: list[Any] = []
        self._native: Any = import_module("pydantic_ai.messages")
        self._open_calls = open_calls
        # The calls of the last response, by their ids and by those of their approvals.
        self._calls: dict[str, Call] = {}
        self._approvals: dict[str, Call] = {}

    def read_question(self, content: list[Block]) -> None:
        self.end_calls()
        items = [
            item["text"] if item["type"] == "text" else item["content"]
            for item in blocks(content, lambda file: {"type": "content", "content": self._file(file)})
        ]
        prompt = items[0] if len(items) == 1 and isinstance(items[0], str) else items or EMPTY
        self.messages.append(self._native.ModelRequest([self._native.UserPromptPart(prompt)]))

    def read_answer(self, content: Iterable[dict[str, Any]]) -> None:
        self.end_calls()
        parts: list[Any] = []
        for item in content:
            if item["type"] == "tool-approval-request":
                if call := self._calls.get(item["toolCallId"]):
                    self._approvals[item["approvalId"]] = call
            elif (part := self._said(item)) is not None:
                parts.append(part)
        if parts:
            self.messages.append(self._native.ModelResponse(parts))

    def read_results(self, content: Iterable[dict[str, Any]]) -> None:
        for item in content:
            if item["type"] == "tool-result":
                if call := self._calls.get(item["toolCallId"]):
                    call.output = item["output"]
            elif call := self._approvals.get(item["approvalId"]):
                call.refused, call.reason = not item["approved"], item.get("reason") or ""

    def end_calls(self) -> None:
        """Add the results of the last response's calls."""
        results = [self._result(call) for call in self._calls.values() if call.id not in self._open_calls]
        if results:
            self.messages.append(self._native.ModelRequest(results))
        self._calls.clear()

    def _file(self, file: File) -> Any:
        if file.url:
            kind = getattr(self._native, _URLS.get(file.media_type.partition("/")[0], "DocumentUrl"))
            return kind(file.url, media_type=None if "*" in file.media_type else file.media_type or None)
        if file.text:
            return file.named_text
        return self._native.BinaryContent(file.data, media_type=file.media_type) if file.data else file.words

    def _said(self, item: dict[str, Any]) -> Any:
        """A part of a response. What only another agent's provider could read is left out."""
        options: Mapping[str, Any] = item.get("providerOptions") or {}
        kept: Mapping[str, Any] = options.get(METADATA) or {}
        match item["type"]:
            case "text" if item["text"].strip():
                return self._native.TextPart(item["text"], **_only(kept, "id"))
            case "reasoning" if kept := kept or _signed(options):
                return self._native.ThinkingPart(item["text"], **_only(kept, "id", "signature"))
            case "file":
                [block] = blocks([item], lambda file: {"type": "file", "file": self._file(file)})
                is_made = isinstance(block["file"], self._native.BinaryContent)
                return self._native.FilePart(block["file"]) if is_made else None
            case "tool-call":
                return self._called(item, kept)
            case "tool-result" if "provider_name" in kept:
                given = item["toolName"], item["output"]["value"], item["toolCallId"]
                return self._native.NativeToolReturnPart(*given, provider_name=kept["provider_name"])
            case _:
                return None

    def _called(self, item: dict[str, Any], kept: Mapping[str, Any]) -> Any:
        given = item.get("input")
        arguments = cast("dict[str, Any]", given) if isinstance(given, dict) else {"input": given} if given else {}
        call, fields = Call(item["toolCallId"], item["toolName"], arguments), _only(kept, "id", "tool_kind")
        if item.get("providerExecuted") is not True:
            self._calls[call.id] = call
            return self._native.ToolCallPart(call.name, call.input, call.id, **fields)
        if "provider_name" not in kept:
            return None
        return self._native.NativeToolCallPart(call.name, call.input, call.id, **fields)

    def _result(self, call: Call) -> Any:
        if call.failed:
            outcome = "denied" if call.refused else "failed"
            return self._native.ToolReturnPart(call.name, call.result, call.id, outcome=outcome)
        value = cast("dict[str, Any]", call.output)["value"]
        encoded = msgspec.json.encode(value)
        if b'"kind"' in encoded:
            # A file in a result is a file again.
            content = import_module("pydantic").TypeAdapter(self._native.ToolReturnContent)
            value = content.validate_json(encoded)
        return self._native.ToolReturnPart(call.name, value, call.id)


def _signed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The signature of reasoning that an agent with another SDK has kept."""
    match options:
        case {"anthropic": {"signature": str(signature)}}:
            return {"signature": signature, "provider_name": "anthropic"}
        case {"openai": {"itemId": str(item_id), "reasoningEncryptedContent": str(encrypted)}}:
            return {"id": item_id, "signature": encrypted, "provider_name": "openai"}
        case _:
            return {}


def _only(kept: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: kept[name] for name in (*names, "provider_name", "provider_details") if name in kept}
