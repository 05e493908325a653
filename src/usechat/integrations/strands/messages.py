"""The messages of a chat as those of Bedrock, which Strands has for every provider."""

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from usechat.models.files import Block, File, blocks
from usechat.models.rounds import EMPTY, Ids, Round, api_name, rounds
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_strands"]

_DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
_NO_ANSWER: Final = "(This answer was interrupted.)"
# Bedrock refuses all other characters in the name of a document.
_UNNAMEABLE: Final = re.compile(r"[^a-zA-Z0-9\s\-()\[\]]+")


def to_strands(messages: Iterable[ModelMessage]) -> list[dict[str, Any]]:
    """The messages without the system's. The roles alternate, and every call has its result in the next message."""
    ids, joined = Ids(strict=True), list[dict[str, Any]]()
    for each in rounds(messages):
        for role, content in _messages(each, ids):
            if joined and joined[-1]["role"] == role == "assistant":
                joined[-1]["content"] += content
                continue
            if content and joined and joined[-1]["role"] == role:
                # Bedrock wants an answer here. OpenAI's model of 1.62 would move results behind a text beside them.
                joined.append({"role": "assistant", "content": [{"text": _NO_ANSWER}]})
            if content:
                joined.append({"role": role, "content": content})
    return joined


def _messages(said: Round, ids: Ids) -> Iterator[tuple[str, list[Block]]]:
    if said.role == "user":
        content = [{"text": one["text"]} if "text" in one else one for one in blocks(said.parts, _file)]
        yield "user", content or [{"text": EMPTY}]
    elif said.role == "assistant":
        answer, results = [block for part in said.parts if (block := _block(part))], list[Block]()
        for call in said.calls:
            call_id, status = ids.take(call.id), "error" if call.failed else "success"
            answer.append({"toolUse": {"toolUseId": call_id, "name": api_name(call.name), "input": call.input}})
            result = {"toolUseId": call_id, "status": status, "content": [{"text": call.result}]}
            results.append({"toolResult": result})
        yield "assistant", answer
        yield "user", results


def _block(part: Block) -> Block | None:
    match part:
        case {"type": "text", "text": str(text)} if text.strip():
            return {"text": text}
        case {"type": "reasoning", "text": str(text), "providerOptions": {"strands": {"signature": str(signature)}}}:
            return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}
        case {"type": "reasoning", "providerOptions": {"strands": {"redactedContent": str(data)}}}:
            return {"reasoningContent": {"redactedContent": base64.b64decode(data)}}
        case _:
            return None


def _file(file: File) -> Block:
    if file.text:
        return {"text": file.named_text}
    if file.data and file.is_image:
        return {"image": {"format": file.media_type.partition("/")[2], "source": {"bytes": file.data}}}
    if file.data and file.media_type in _DOCUMENTS:
        name = _UNNAMEABLE.sub("-", file.name).strip() or "document"
        return {"document": {"format": _DOCUMENTS[file.media_type], "name": name, "source": {"bytes": file.data}}}
    return {"text": file.words}
