"""LangChain's messages."""

from collections.abc import Iterable
from typing import Any

from usechat.models.files import File, read_file
from usechat.models.rounds import EMPTY, Ids, Round, rounds
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_langchain"]

_Message = dict[str, Any]


def to_langchain(messages: Iterable[ModelMessage]) -> list[_Message]:
    """The messages as dicts that LangChain's `convert_to_messages`, its models and LangGraph's graphs take.

    Every tool call has one result right after it; one that was refused, or that nobody answered, has one that says so.
    Reasoning is left out: the providers take it back only with a signature, which a page does not have.
    """
    converted: list[_Message] = []
    for each in rounds(messages):
        match each.role:
            case "system":
                if each.parts[0]["text"].strip():
                    converted.append({"role": "system", "content": each.parts[0]["text"]})
            case "user":
                converted.append({"role": "user", "content": _content(each.parts) or EMPTY})
            case "assistant":
                converted.extend(_answer(each))
    return converted


def _content(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]]:
    blocks = [block for part in parts if (block := _block(part))]
    # Some models take nothing but a string.
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return blocks


def _block(part: dict[str, Any]) -> dict[str, Any] | None:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]} if part["text"].strip() else None
    return _file(read_file(part)) if part["type"] == "file" else None


def _file(file: File) -> dict[str, Any]:
    kind = file.media_type.partition("/")[0]
    block = {"type": kind if kind in ("image", "audio", "video") else "file"}
    uploaded = next((found for found in file.ids.values() if isinstance(found, str)), "")
    if uploaded:
        return {**block, "file_id": uploaded}
    if file.url:
        return {**block, "url": file.url, "mime_type": file.media_type}
    if file.text:
        return {"type": "text", "text": f'The file "{file.name}":\n\n{file.text}' if file.name else file.text}
    if file.data:
        return {**block, "base64": file.base64, "mime_type": file.media_type}
    return {"type": "text", "text": file.words}


def _answer(said: Round) -> Iterable[_Message]:
    content = _content(said.parts)
    if not said.calls:
        return [{"role": "assistant", "content": content}] if content else []
    ids = Ids(strict=False)
    calls: list[dict[str, Any]] = []
    results: list[_Message] = []
    for call in said.calls:
        call_id = ids.take(call.id)
        calls.append({"type": "tool_call", "id": call_id, "name": call.name, "args": call.input})
        status = "error" if call.failed else "success"
        results.append({"role": "tool", "tool_call_id": call_id, "content": call.result, "status": status})
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]
