"""The `input` of OpenAI's Responses API."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from usechat.models.files import File, read_file
from usechat.models.rounds import EMPTY, Ids, Round, api_name, rounds
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_openai_responses"]

_Item = dict[str, Any]


def to_openai_responses(messages: Iterable[ModelMessage]) -> list[Any]:
    """The items for `client.responses.create(input=…)`, with `store=False` or without `previous_response_id`.

    Every tool call has one result after it; one that was refused, or that nobody answered, has one that says so.
    Reasoning is there where OpenAI has encrypted it (`include=["reasoning.encrypted_content"]`).
    """
    converted: list[_Item] = []
    ids = Ids(strict=False)
    for each in rounds(messages):
        match each.role:
            case "system":
                if each.parts[0]["text"].strip():
                    converted.append({"role": "system", "content": each.parts[0]["text"]})
            case "user":
                converted.append({"role": "user", "content": _asked(each.parts)})
            case "assistant":
                converted.extend(_answer(each, ids))
    return converted


def _asked(parts: Iterable[dict[str, Any]]) -> list[_Item]:
    items = [
        _file(read_file(part)) if part["type"] == "file" else _text(part["text"])
        for part in parts
        if part["type"] == "file" or part["text"].strip()
    ]
    return items or [_text(EMPTY)]


def _text(text: str) -> _Item:
    return {"type": "input_text", "text": text}


def _file(file: File) -> _Item:
    uploaded, data = file.id_for("openai"), f"data:{file.media_type};base64,{file.base64}" if file.data else ""
    if file.is_image:
        if uploaded:
            return {"type": "input_image", "file_id": uploaded, "detail": "auto"}
        if url := file.url or data:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
    if uploaded:
        return {"type": "input_file", "file_id": uploaded}
    if file.text:
        return _text(f'The file "{file.name}":\n\n{file.text}' if file.name else file.text)
    if file.media_type == "application/pdf" and (file.url or data):
        source = {"file_url": file.url} if file.url else {"filename": file.name or "file.pdf", "file_data": data}
        return {"type": "input_file", **source}
    return _text(file.words)


def _answer(said: Round, ids: Ids) -> Iterator[_Item]:
    for part in said.parts:
        if part["type"] == "text" and part["text"].strip():
            yield {"role": "assistant", "content": part["text"]}
        elif part["type"] == "reasoning" and (item := _reasoning(part["text"], part.get("providerOptions"))):
            yield item
    results: list[_Item] = []
    for call in said.calls:
        call_id, arguments = ids.take(call.id), msgspec.json.encode(call.input).decode()
        yield {"type": "function_call", "call_id": call_id, "name": api_name(call.name), "arguments": arguments}
        results.append({"type": "function_call_output", "call_id": call_id, "output": call.result})
    yield from results


def _reasoning(text: str, options: Any) -> _Item | None:
    match options:
        case {"openai": {"itemId": str(item_id), "reasoningEncryptedContent": str(encrypted)}} if encrypted:
            summary = [{"type": "summary_text", "text": text}] if text else []
            return {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": encrypted}
        case _:
            return None
