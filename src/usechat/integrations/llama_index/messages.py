"""The messages of a chat, as those of LlamaIndex."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from usechat.models import to_openai
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_llama_index"]


def to_llama_index(messages: Iterable[ModelMessage], *, llm: Any = None) -> list[dict[str, Any]]:
    """The messages as the JSON of `ChatMessage`, for this model.

    A call that waited for the user's answer is in two messages, first with a result that says so. It counts where it
    was last.
    """
    said = to_openai(messages)
    last = {call["id"]: place for place, message in enumerate(said) for call in message.get("tool_calls") or ()}
    results = {message["tool_call_id"]: place for place, message in enumerate(said) if message["role"] == "tool"}
    # llama-index-llms-openai up to 0.7 sends the arguments as they are, and OpenAI takes them only as text. The
    # packages of other providers take only objects.
    is_text = any(kind.__module__.startswith("llama_index.llms.openai") for kind in type(llm).__mro__)
    made = list[dict[str, Any]]()
    for place, message in enumerate(said):
        if message["role"] == "tool":
            if results[message["tool_call_id"]] == place:
                ids = {"tool_call_id": message["tool_call_id"]}
                made.append({"role": "tool", "blocks": [_text(message["content"])], "additional_kwargs": ids})
            continue
        calls = [call for call in message.get("tool_calls") or () if last[call["id"]] == place]
        blocks = [*_blocks(message["content"]), *(_call(call, is_text=is_text) for call in calls)]
        if blocks:
            made.append({"role": message["role"], "blocks": blocks})
    return made


def _blocks(content: str | Sequence[dict[str, Any]] | None) -> Iterator[dict[str, Any]]:
    for part in [_openai_text(content)] if isinstance(content, str) else content or ():
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                media_type, data = _data(url)
                image = {"image": data, "image_mimetype": media_type} if data else {"url": url}
                yield {"block_type": "image", **image}
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
                yield {"block_type": "audio", "audio": data, "format": kind}
            case {"type": "file", "file": {"file_data": str(url), "filename": str(name)}}:
                media_type, data = _data(url)
                yield {"block_type": "document", "data": data, "document_mimetype": media_type, "title": name}
            case {"text": str(text)}:
                yield _text(text)
            case _:
                pass


def _call(call: dict[str, Any], *, is_text: bool) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    given = arguments if is_text else msgspec.json.decode(arguments)
    return {"block_type": "tool_call", "tool_call_id": call["id"], "tool_name": name, "tool_kwargs": given}


def _text(text: str) -> dict[str, Any]:
    return {"block_type": "text", "text": text}


def _openai_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _data(url: str) -> tuple[str, str]:
    """The media type and the Base64 of a data URL; an address has none."""
    head, _, data = url.partition(";base64,")
    return (head.removeprefix("data:"), data) if url.startswith("data:") else ("", "")
