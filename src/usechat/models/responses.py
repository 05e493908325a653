"""The `input` of OpenAI's Responses API."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, api_name, as_roles
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_openai_responses"]


def to_openai_responses(messages: Iterable[ModelMessage]) -> list[Any]:
    """The items for `client.responses.create(input=…)`, without a `previous_response_id`.

    Every tool call has one result after it; one that was refused, or that nobody answered, has one that says so.
    Reasoning is there where OpenAI has encrypted it (`include=["reasoning.encrypted_content"]`).
    """
    return as_roles(messages, _asked, partial(_answer, ids=Ids(strict=False)))


def _asked(parts: list[Block]) -> list[Block]:
    items = blocks(parts, _file) or [text_block(EMPTY)]
    return [{**item, "type": "input_text"} if item["type"] == "text" else item for item in items]


def _file(file: File) -> Block:
    uploaded, data = file.id_for("openai"), f"data:{file.media_type};base64,{file.base64}" if file.data else ""
    if file.is_image:
        if uploaded:
            return {"type": "input_image", "file_id": uploaded, "detail": "auto"}
        if url := file.url or data:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
    if uploaded:
        return {"type": "input_file", "file_id": uploaded}
    if file.text:
        return text_block(file.named_text)
    if file.media_type == "application/pdf" and (file.url or data):
        source = {"file_url": file.url} if file.url else {"filename": file.name or "file.pdf", "file_data": data}
        return {"type": "input_file", **source}
    return text_block(file.words)


def _answer(said: Round, ids: Ids) -> Iterator[Block]:
    for part in said.parts:
        if part["type"] == "text" and part["text"].strip():
            yield {"role": "assistant", "content": part["text"]}
        elif part["type"] == "reasoning" and (item := _reasoning(part["text"], part.get("providerOptions"))):
            yield item
    results: list[Block] = []
    for call in said.calls:
        call_id, arguments = ids.take(call.id), msgspec.json.encode(call.input).decode()
        yield {"type": "function_call", "call_id": call_id, "name": api_name(call.name), "arguments": arguments}
        results.append({"type": "function_call_output", "call_id": call_id, "output": call.result})
    yield from results


def _reasoning(text: str, options: Any) -> Block | None:
    match options:
        case {"openai": {"itemId": str(item_id), "reasoningEncryptedContent": str(encrypted)}} if encrypted:
            summary = [{"type": "summary_text", "text": text}] if text else []
            return {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": encrypted}
        case _:
            return None
