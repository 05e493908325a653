"""The `messages` of OpenAI's chat completions, which many other servers take, too."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, api_name, as_roles
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_openai"]

_AUDIO: Final = {
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
}


def to_openai(messages: Iterable[ModelMessage]) -> list[Any]:
    """The messages for `client.chat.completions.create(messages=…)`.

    Every tool call has one result right after it; one that was refused, or that nobody answered, has one that says so.
    Reasoning and the assistant's own files are left out, since the API does not take them.
    """
    return as_roles(messages, _asked, _answer)


def _asked(parts: list[Block]) -> str | list[Block]:
    items = blocks(parts, _file)
    # Some servers take nothing but a string.
    if len(items) == 1 and items[0]["type"] == "text":
        return items[0]["text"]
    return items or EMPTY


def _file(file: File) -> Block:
    if uploaded := file.id_for("openai"):
        return {"type": "file", "file": {"file_id": uploaded}}
    if file.url and file.is_image:
        return {"type": "image_url", "image_url": {"url": file.url}}
    if file.text:
        return text_block(file.named_text)
    return (_data(file) if file.data else None) or text_block(file.words)


def _data(file: File) -> Block | None:
    url = f"data:{file.media_type};base64,{file.base64}"
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    if file.media_type in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": _AUDIO[file.media_type]}}
    if file.media_type == "application/pdf":
        return {"type": "file", "file": {"filename": file.name or "file.pdf", "file_data": url}}
    return None


def _answer(said: Round) -> Iterable[Block]:
    text = "".join(part["text"] for part in said.parts if part["type"] == "text")
    content = text if text.strip() else None
    if not said.calls:
        return [{"role": "assistant", "content": content}] if content else []
    ids = Ids(strict=False)
    calls: list[Block] = []
    results: list[Block] = []
    for call in said.calls:
        call_id = ids.take(call.id)
        function = {"name": api_name(call.name), "arguments": msgspec.json.encode(call.input).decode()}
        calls.append({"id": call_id, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": call_id, "content": call.result})
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]
