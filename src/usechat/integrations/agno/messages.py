"""The messages of a chat as those of Agno."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec
from msgspec import structs

from usechat.integrations.agno.translator import METADATA, SIGNED, field
from usechat.models.files import File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, rounds
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages

__all__ = ["to_agno"]


def to_agno(messages: Sequence[UIMessage]) -> list[Any]:
    """The messages of the chat as those of Agno, which keeps none of them in the run that they are added to."""
    make, ids = import_module("agno.models.message").Message, Ids(strict=False)
    own = to_model_messages([_without_members(message) for message in messages])
    said = [message for each in rounds(own) for message in _of_round(each, ids)]
    return [make(from_history=True, **message) for message in said]


def _without_members(message: UIMessage) -> UIMessage:
    """The message without the calls of members, which it has if the user was asked about them."""
    inside = tuple(f"{part.get('id')}:" for part in message.parts if part["type"] == "data-subagent")
    parts = [part for part in message.parts if not str(part.get("toolCallId", "")).startswith(inside)]
    return structs.replace(message, parts=parts) if inside else message


def _of_round(said: Round, ids: Ids) -> list[dict[str, Any]]:
    if said.role != "assistant":
        media, show = _attachments()
        content = "\n\n".join(block["text"] for block in blocks(said.parts, show) if block["text"])
        return [{"role": said.role, "content": content if content or media else EMPTY, **media}]
    content = "".join(part["text"] for part in said.parts if part["type"] == "text")
    thoughts = [part for part in said.parts if part["type"] == "reasoning"]
    answer: dict[str, Any] = {"role": "assistant", "content": content or None}
    options = [field(part.get("providerOptions"), METADATA) for part in thoughts]
    if signed := {name: field(given, name) for name in SIGNED for given in options if field(given, name)}:
        answer["reasoning_content"] = "".join(part["text"] for part in thoughts)
        answer["provider_data"] = signed
    if not said.calls:
        return [answer] if content else []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for call in said.calls:
        call_id, arguments = ids.take(call.id), msgspec.json.encode(call.input).decode()
        calls.append({"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        result = {"role": "tool", "content": call.result, "tool_call_id": call_id, "tool_name": call.name}
        results.append({**result, "tool_args": call.input, "tool_call_error": call.failed})
    return [{**answer, "tool_calls": calls}, *results]


def _attachments() -> tuple[dict[str, list[Any]], Callable[[File], dict[str, Any]]]:
    """The files of a message, and what adds one to them; a file that Agno does not take becomes text."""
    media, found = import_module("agno.media"), dict[str, list[Any]]()

    def show(file: File) -> dict[str, Any]:
        kind = file.media_type.partition("/")[0]
        place = {"url": file.url} if file.url else {"content": file.data}
        if file.text:
            return text_block(file.named_text)
        if not (file.url or file.data):
            return text_block(file.words)
        if kind in ("image", "audio", "video"):
            made = getattr(media, kind.title())(mime_type=file.media_type, **place)
            found.setdefault("audio" if kind == "audio" else f"{kind}s", []).append(made)
        elif file.media_type in media.File.valid_mime_types():
            made = media.File(filename=file.name or None, mime_type=file.media_type, **place)
            found.setdefault("files", []).append(made)
        else:
            return text_block(file.words)
        return text_block("")

    return found, show
