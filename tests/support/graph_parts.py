"""Parts of LangGraph's stream as JSON, and the chunks that are made of them."""

from itertools import count
from typing import Any

import msgspec

from usechat.events import Mapper
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.langgraph.translator import LangGraphTranslator, read_options
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter

__all__ = [
    "STEP",
    "STEP_END",
    "STOP",
    "Part",
    "ai",
    "available",
    "began",
    "call",
    "chunk",
    "error",
    "event",
    "mapped",
    "message",
    "new_mapper",
    "output",
    "said",
    "text",
    "text_end",
    "tool",
    "update",
]

Part = dict[str, Any]

STEP = {"type": "start-step"}
STEP_END = {"type": "finish-step"}
STOP = {"type": "finish", "finishReason": "stop"}


def new_mapper(continues: UIMessage | None = None, **options: Any) -> Mapper[Part]:
    numbers = count(1)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", continues=continues)
    return TranslatingMapper(LangGraphTranslator(read_options(options), continues=continues), writer)


def mapped(mapper: Mapper[Part], *parts: Part, end: bool = False) -> list[Any]:
    """The chunks after the message's start."""
    chunks = [chunk for part in parts for chunk in mapper.map(part)]
    chunks += mapper.end() if end else []
    return [chunk for chunk in msgspec.to_builtins(chunks) if chunk["type"] != "start"]


def said(*parts: Part, end: bool = False, **options: Any) -> list[Any]:
    return mapped(new_mapper(**options), *parts, end=end)


def message(message: Any, ns: list[str] | None = None, task: str = "t", **metadata: Any) -> Part:
    given = {"langgraph_checkpoint_ns": task, **metadata}
    return {"type": "messages", "ns": ns or [], "data": [message, given]}


def chunk(content: Any = "", id: str = "lc_run--1", **fields: Any) -> Part:  # noqa: A002
    return {"type": "AIMessageChunk", "id": id, "content": content, **fields}


def ai(content: Any = "", id: str = "lc_run--1", **fields: Any) -> Part:  # noqa: A002
    return {"type": "ai", "id": id, "content": content, **fields}


def tool(content: Any, call_id: str | None = "c1", **fields: Any) -> Part:
    return {"type": "tool", "tool_call_id": call_id, "content": content, **fields}


def update(*messages: Any, ns: list[str] | None = None, **state: Any) -> Part:
    return {"type": "updates", "ns": ns or [], "data": {"node": {"messages": list(messages), **state}}}


def event(kind: str, call_id: str = "c1", ns: list[str] | None = None, **fields: Any) -> Part:
    return {"type": "tools", "ns": ns or [], "data": {"event": f"tool-{kind}", "tool_call_id": call_id, **fields}}


def call(call_id: Any = "c1", name: str = "look", **args: Any) -> Part:
    return {"type": "tool_call", "id": call_id, "name": name, "args": args}


def text(*deltas: str, part: str = "id-1") -> list[Part]:
    return [{"type": "text-start", "id": part}, *({"type": "text-delta", "id": part, "delta": one} for one in deltas)]


def text_end(part: str = "id-1") -> Part:
    return {"type": "text-end", "id": part}


def began(call_id: str = "c1", name: str = "look", **fields: Any) -> Part:
    return {"type": "tool-input-start", "toolCallId": call_id, "toolName": name, **fields}


def available(call_id: str = "c1", name: str = "look", value: Any = None, **fields: Any) -> Part:
    return {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": value or {}, **fields}


def output(value: Any, call_id: str = "c1", **fields: Any) -> Part:
    return {"type": "tool-output-available", "toolCallId": call_id, "output": value, **fields}


def error(text: str, call_id: str = "c1") -> Part:
    return {"type": "tool-output-error", "toolCallId": call_id, "errorText": text}
