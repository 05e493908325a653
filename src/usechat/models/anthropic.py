"""The `system` and `messages` of Anthropic's Messages API."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, api_name, rounds
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_anthropic"]

_BEGINNING: Final = "(The assistant speaks first.)"


def to_anthropic(messages: Iterable[ModelMessage]) -> dict[str, Any]:
    """`messages`, and `system` if there is one: `client.messages.create(**to_anthropic(messages), …)`.

    The roles alternate. The results of all calls of a message stand at the beginning of the next one; a call that was
    refused, or that nobody answered, has one that says so. Reasoning is there where it has Anthropic's signature.
    """
    said = rounds(messages)
    ids = Ids(strict=True)
    joined: list[Block] = []
    for each in said:
        for role, content in _messages(each, ids):
            if joined and joined[-1]["role"] == role:
                joined[-1]["content"] += content
            elif content:
                joined.append({"role": role, "content": content})
    if joined and joined[0]["role"] == "assistant":
        joined.insert(0, {"role": "user", "content": [text_block(_BEGINNING)]})
    if joined and joined[-1]["role"] == "assistant":
        _strip(joined[-1]["content"][-1])
    system = "\n\n".join(text for each in said if each.role == "system" if (text := each.parts[0]["text"].strip()))
    return {"system": system, "messages": joined} if system else {"messages": joined}


def _messages(said: Round, ids: Ids) -> Iterator[tuple[str, list[Block]]]:
    if said.role == "user":
        yield "user", blocks(said.parts, _file) or [text_block(EMPTY)]
    elif said.role == "assistant":
        answer = [block for part in said.parts if (block := _block(part))]
        results: list[Block] = []
        for call in said.calls:
            call_id = ids.take(call.id)
            error = {"is_error": True} if call.failed else {}
            answer.append({"type": "tool_use", "id": call_id, "name": api_name(call.name), "input": call.input})
            results.append({"type": "tool_result", "tool_use_id": call_id, "content": call.result, **error})
        yield "assistant", answer
        yield "user", results


def _strip(block: Block) -> None:
    # The API refuses a last answer that ends with a space.
    if block["type"] == "text":
        block["text"] = block["text"].rstrip()


def _block(part: Block) -> Block | None:
    if part["type"] == "text":
        return text_block(part["text"]) if part["text"].strip() else None
    if part["type"] == "reasoning":
        return _thinking(part["text"], part.get("providerOptions"))
    return None


def _thinking(text: str, options: Any) -> Block | None:
    match options:
        case {"anthropic": {"signature": str(signature)}} if signature:
            return {"type": "thinking", "thinking": text, "signature": signature}
        case {"anthropic": {"redactedData": str(data)}} if data:
            return {"type": "redacted_thinking", "data": data}
        case _:
            return None


def _file(file: File) -> Block:
    if uploaded := file.id_for("anthropic"):
        return _shown(file, {"type": "file", "file_id": uploaded})
    if file.text:
        return _shown(file, {"type": "text", "media_type": "text/plain", "data": file.text})
    if file.is_image or file.media_type == "application/pdf":
        if file.url:
            return _shown(file, {"type": "url", "url": file.url})
        if file.data:
            return _shown(file, {"type": "base64", "media_type": file.media_type, "data": file.base64})
    return text_block(file.words)


def _shown(file: File, source: dict[str, str]) -> Block:
    if file.is_image:
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": file.name} if file.name.strip() else {})}
