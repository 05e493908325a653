"""LangChain's messages."""

from collections.abc import Iterable

from usechat.models.files import Block, File, blocks, text_block
from usechat.models.rounds import EMPTY, Ids, Round, as_roles
from usechat.protocol.model_messages import ModelMessage

__all__ = ["to_langchain"]


def to_langchain(messages: Iterable[ModelMessage]) -> list[Block]:
    """The messages as dicts that LangChain's `convert_to_messages`, its models and LangGraph's graphs take.

    Every tool call has one result right after it; one that was refused, or that nobody answered, has one that says so.
    Reasoning is left out: the providers take it back only with a signature, which a page does not have.
    """
    return as_roles(messages, lambda parts: _content(parts) or EMPTY, _answer)


def _content(parts: list[Block]) -> str | list[Block]:
    items = blocks(parts, _file)
    # Some models take nothing but a string.
    if all(item["type"] == "text" for item in items):
        return "".join(item["text"] for item in items)
    return items


def _file(file: File) -> Block:
    kind = file.media_type.partition("/")[0]
    block = {"type": kind if kind in ("image", "audio", "video") else "file"}
    uploaded = next((found for found in file.ids.values() if isinstance(found, str)), "")
    if uploaded:
        return {**block, "file_id": uploaded}
    if file.url:
        return {**block, "url": file.url, "mime_type": file.media_type}
    if file.text:
        return text_block(file.named_text)
    if file.data:
        return {**block, "base64": file.base64, "mime_type": file.media_type}
    return text_block(file.words)


def _answer(said: Round) -> Iterable[Block]:
    content = _content(said.parts)
    if not said.calls:
        return [{"role": "assistant", "content": content}] if content else []
    ids = Ids(strict=False)
    calls: list[Block] = []
    results: list[Block] = []
    for call in said.calls:
        call_id = ids.take(call.id)
        calls.append({"type": "tool_call", "id": call_id, "name": call.name, "args": call.input})
        status = "error" if call.failed else "success"
        results.append({"role": "tool", "tool_call_id": call_id, "content": call.result, "status": status})
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]
