"""The `messages` of OpenAI's chat completions, which many other servers take, too."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from usechat.models.files import File, read_file
from usechat.models.rounds import EMPTY, Ids, Round, api_name, rounds
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
    converted: list[dict[str, Any]] = []
    for each in rounds(messages):
        match each.role:
            case "system":
                if each.parts[0]["text"].strip():
                    converted.append({"role": "system", "content": each.parts[0]["text"]})
            case "user":
                converted.append({"role": "user", "content": _asked(each.parts)})
            case "assistant":
                converted.extend(_answer(each))
    return converted


def _asked(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]]:
    items = [
        _file(read_file(part)) if part["type"] == "file" else _text(part["text"])
        for part in parts
        if part["type"] == "file" or part["text"].strip()
    ]
    # Some servers take nothing but a string.
    if len(items) == 1 and items[0]["type"] == "text":
        return items[0]["text"]
    return items or EMPTY


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _file(file: File) -> dict[str, Any]:
    if uploaded := file.id_for("openai"):
        return {"type": "file", "file": {"file_id": uploaded}}
    if file.url and file.is_image:
        return {"type": "image_url", "image_url": {"url": file.url}}
    if file.text:
        return _text(f'The file "{file.name}":\n\n{file.text}' if file.name else file.text)
    return (_data(file) if file.data else None) or _text(file.words)


def _data(file: File) -> dict[str, Any] | None:
    url = f"data:{file.media_type};base64,{file.base64}"
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    if file.media_type in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": _AUDIO[file.media_type]}}
    if file.media_type == "application/pdf":
        return {"type": "file", "file": {"filename": file.name or "file.pdf", "file_data": url}}
    return None


def _answer(said: Round) -> Iterable[dict[str, Any]]:
    text = "".join(part["text"] for part in said.parts if part["type"] == "text")
    content = text if text.strip() else None
    if not said.calls:
        return [{"role": "assistant", "content": content}] if content else []
    ids = Ids(strict=False)
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for call in said.calls:
        call_id = ids.take(call.id)
        function = {"name": api_name(call.name), "arguments": msgspec.json.encode(call.input).decode()}
        calls.append({"id": call_id, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": call_id, "content": call.result})
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]
