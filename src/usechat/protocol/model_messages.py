"""Messages for a model: what the AI SDK's `convertToModelMessages` makes of the messages of a chat.

The form is that of the newest release, 7.0.170, for every client profile: only Python reads it, and it has everything
that the older forms have. conformance/test_model_messages.py lists how the older releases differ.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from usechat.protocol.messages import UIMessage, is_tool_call, tool_name

__all__ = ["ModelMessage", "to_model_messages"]

ModelMessage: TypeAlias = dict[str, Any]
"""`{"role": …, "content": …}` with the field names of the SDK. The system's content is text; all others have parts."""

_Part: TypeAlias = Mapping[str, Any]
_Content: TypeAlias = list[dict[str, Any]]

_DENIED: Final = "Tool call execution denied."
_OMITTED: Final = "Tool output omitted because the tool is no longer available."


def to_model_messages(messages: Sequence[UIMessage]) -> list[ModelMessage]:
    """The messages for a model, as JSON, without what is only for the page: sources, data and metadata.

    Approvals that nobody answered before the user's last message are left out with their calls. The URL of a file
    stays as it was posted; the SDK would normalise it, and throws on a relative one.
    """
    last_asked = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    converted: list[ModelMessage] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            converted.append(_system(message.parts))
        elif message.role == "user":
            converted.append({"role": "user", "content": _asked(message.parts)})
        else:
            converted.extend(_answer(message.parts if index >= last_asked else filter(_not_waiting, message.parts)))
    return converted


def _not_waiting(part: _Part) -> bool:
    return not is_tool_call(part) or part["state"] != "approval-requested"


def _system(parts: Iterable[_Part]) -> ModelMessage:
    texts = [part for part in parts if part["type"] == "text"]
    options: dict[str, Any] = {}
    for part in texts:
        options |= part.get("providerMetadata") or {}
    message: ModelMessage = {"role": "system", "content": "".join(part["text"] for part in texts)}
    return {**message, "providerOptions": options} if options else message


def _asked(parts: Iterable[_Part]) -> _Content:
    return [_spoken(part) for part in parts if part["type"] in ("text", "file")]


def _answer(parts: Iterable[_Part]) -> Iterator[ModelMessage]:
    step: list[_Part] = []
    for part in parts:
        match part["type"]:
            case "step-start":
                yield from _step(step)
                step = []
            case "steering-message":
                yield from _step(step)
                step = []
                yield {"role": "user", "content": _asked(part["parts"])}
            case _:
                step.append(part)
    yield from _step(step)


def _step(parts: Sequence[_Part]) -> Iterator[ModelMessage]:
    if said := [item for part in parts for item in _said(part)]:
        yield {"role": "assistant", "content": said}
    if results := [item for part in parts if is_tool_call(part) for item in _answered(part)]:
        yield {"role": "tool", "content": results}


def _said(part: _Part) -> _Content:
    match part["type"]:
        case "text" | "file":
            return [_spoken(part)]
        case "reasoning":
            return [{"type": "reasoning", "text": part["text"], **_renamed(part, providerMetadata="providerOptions")}]
        case "reasoning-file":
            file = {
                "type": "reasoning-file",
                "data": {"type": "url", "url": part["url"]},
                "mediaType": part["mediaType"],
            }
            return [{**file, **_renamed(part, providerMetadata="providerOptions")}]
        case "custom":
            return [{"type": "custom", "kind": part["kind"], **_options(part.get("providerMetadata"))}]
        case _ if is_tool_call(part) and part["state"] != "input-streaming":
            return _called(part)
        case _:
            return []


def _spoken(part: _Part) -> dict[str, Any]:
    options = _options(part.get("providerMetadata"))
    if part["type"] == "text":
        return {"type": "text", "text": part["text"], **options}
    reference = part.get("providerReference")
    data = {"type": "url", "url": part["url"]} if reference is None else {"type": "reference", "reference": reference}
    return {
        "type": "file",
        "mediaType": part["mediaType"],
        **_renamed(part, filename="filename"),
        "data": data,
        **options,
    }


def _called(part: _Part) -> _Content:
    failed = part["state"] == "output-error"
    metadata, result_metadata = part.get("callProviderMetadata"), part.get("resultProviderMetadata")
    call = {
        "type": "tool-call",
        "toolCallId": part["toolCallId"],
        "toolName": tool_name(part),
        **_renamed(part, input="input", providerExecuted="providerExecuted"),
        **_options(result_metadata if metadata is None and failed else metadata),
    }
    if failed and part.get("input") is None:
        call.pop("input", None)
        call |= _renamed(part, rawInput="input")
    content = [call]
    if (approval := part.get("approval")) is not None:
        content.append(_approval_request(part["toolCallId"], approval))
    if part.get("providerExecuted") is True and part["state"] in ("output-available", "output-error"):
        output = {"type": "error-json", "value": part["errorText"]} if failed else _output(part)
        content.append(_result(part, output, metadata if result_metadata is None else result_metadata))
    return content


def _approval_request(call_id: str, approval: _Part) -> dict[str, Any]:
    optional = {"requestReason": "reason", "signature": "signature"}
    return {
        "type": "tool-approval-request",
        "approvalId": approval["id"],
        "toolCallId": call_id,
        **_renamed(approval, isAutomatic="isAutomatic", inputSchemaInput="inputSchemaInput"),
        **{name: approval[field] for field, name in optional.items() if approval.get(field) is not None},
    }


def _answered(part: _Part) -> _Content:
    """The tool message's part of a call: the user's answer to its approval, and the result of our own tool."""
    content: _Content = []
    state = part["state"]
    approval: _Part = part.get("approval") or {}
    metadata = part.get("callProviderMetadata")
    if approval.get("approved") is not None:
        answer = {"type": "tool-approval-response", "approvalId": approval["id"], "approved": approval["approved"]}
        executed = _renamed(part, providerExecuted="providerExecuted")
        content.append({**answer, **_renamed(approval, reason="reason"), **executed})
    if state == "approval-responded" and approval.get("approved") is False:
        denied = {"type": "execution-denied", **_renamed(approval, reason="reason")}
        content.append(_result(part, denied, metadata))
    if part.get("providerExecuted") is True:
        return content
    if state == "output-denied":
        reason = approval.get("reason")
        output = {"type": "error-text", "value": _DENIED if reason is None else reason}
        content.append(_result(part, output, metadata))
    elif state == "output-error":
        content.append(_result(part, {"type": "error-text", "value": part["errorText"]}, metadata))
    elif state == "output-available":
        content.append(_result(part, _output(part), metadata))
    return content


def _result(part: _Part, output: dict[str, Any], metadata: Any) -> dict[str, Any]:
    result = {"type": "tool-result", "toolCallId": part["toolCallId"], "toolName": tool_name(part), "output": output}
    return {**result, **_options(metadata)}


def _output(part: _Part) -> dict[str, Any]:
    # The SDK's validation marks the calls of tools that the server no longer has with `dynamic: false`.
    if part["type"] == "dynamic-tool" and part.get("dynamic") is False:
        return {"type": "text", "value": _OMITTED}
    output = part.get("output")
    return {"type": "text" if isinstance(output, str) else "json", "value": output}


def _options(metadata: Any) -> dict[str, Any]:
    return {} if metadata is None else {"providerOptions": metadata}


def _renamed(part: _Part, **names: str) -> dict[str, Any]:
    """These fields of a part by their new names, also null ones; absent fields stay absent."""
    return {name: part[field] for field, name in names.items() if field in part}
