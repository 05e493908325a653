"""One chunk of every type as it stands on the wire: its required fields, and a value for each optional one."""

import json
from collections.abc import Mapping
from typing import Any, Final

from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import decode_chunk

__all__ = ["OPTIONAL", "REQUIRED", "sample", "text_of"]

_PROVIDER: Final = {"provider": {"key": None}}
_METADATA: Final = {"providerMetadata": _PROVIDER}
_TOOL: Final = {
    "providerExecuted": False,
    "dynamic": False,
    **_METADATA,
    "toolMetadata": {"icon": "sun"},
}
_CALL: Final = {"toolCallId": "call", "toolName": "weather"}
_SOURCES: Final = [
    {"type": "source", "sourceType": "url", "id": "s", "url": "https://a.example", "title": "A", **_METADATA},
    {
        "type": "source",
        "sourceType": "document",
        "id": "s",
        "mediaType": "text/plain",
        "title": "A",
        "filename": "a.txt",
        **_METADATA,
    },
]

REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "start": {},
    "finish": {},
    "abort": {},
    "error": {"errorText": "no"},
    "message-metadata": {"messageMetadata": None},
    "start-step": {},
    "finish-step": {},
    "reset-step": {},
    "text-start": {"id": "part"},
    "text-delta": {"id": "part", "delta": "x"},
    "text-end": {"id": "part"},
    "reasoning-start": {"id": "part"},
    "reasoning-delta": {"id": "part", "delta": "x"},
    "reasoning-end": {"id": "part"},
    "reasoning-file": {"url": "data:,x", "mediaType": "text/plain"},
    "custom": {"kind": "provider.kind"},
    "source-url": {"sourceId": "s", "url": "https://a.example"},
    "source-document": {"sourceId": "s", "mediaType": "text/plain", "title": "A"},
    "file": {"url": "data:,x", "mediaType": "text/plain"},
    "steering-message": {
        "id": "s",
        "parts": [
            {"type": "text", "text": "x", **_METADATA},
            {
                "type": "file",
                "mediaType": "text/plain",
                "url": "data:,x",
                "filename": "a.txt",
                "providerReference": {"provider": "file"},
                **_METADATA,
            },
        ],
    },
    "data-*": {"data": None},
    "tool-input-start": _CALL,
    "tool-input-delta": {"toolCallId": "call", "inputTextDelta": "{}"},
    "tool-input-available": {**_CALL, "input": None},
    "tool-input-error": {**_CALL, "input": None, "errorText": "no"},
    "tool-output-available": {"toolCallId": "call", "output": None},
    "tool-output-error": {"toolCallId": "call", "errorText": "no"},
    "tool-output-denied": {"toolCallId": "call"},
    "tool-approval-request": {"approvalId": "approval", "toolCallId": "call"},
    "tool-approval-response": {"approvalId": "approval", "approved": True},
}

OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "start": {"messageId": "m", "messageMetadata": None},
    "finish": {"finishReason": "interrupted", "messageMetadata": None},
    "abort": {"reason": "stopped"},
    "text-start": _METADATA,
    "text-delta": _METADATA,
    "text-end": {
        **_METADATA,
        "citations": [{"source": source, "startIndex": 0, "endIndex": 1, "citedText": "x"} for source in _SOURCES],
    },
    "reasoning-start": _METADATA,
    "reasoning-delta": _METADATA,
    "reasoning-end": _METADATA,
    "reasoning-file": _METADATA,
    "custom": _METADATA,
    "source-url": {"title": "A", **_METADATA},
    "source-document": {"filename": "a.txt", **_METADATA},
    "file": _METADATA,
    "data-*": {"id": "d", "transient": False},
    "tool-input-start": {**_TOOL, "title": "Weather", "inputEncoding": "json"},
    "tool-input-available": {**_TOOL, "title": "Weather"},
    "tool-input-error": {**_TOOL, "title": "Weather"},
    "tool-output-available": {**_TOOL, "preliminary": False},
    "tool-output-error": _TOOL,
    "tool-approval-request": {
        "signature": "signed",
        "reason": "costs money",
        "isAutomatic": False,
        "approvalDescriptor": None,
        "inputSchemaInput": None,
    },
    "tool-approval-response": {"reason": "fine", "providerExecuted": False, **_METADATA},
}


def text_of(kind: str, fields: Mapping[str, Any]) -> str:
    """The JSON of a chunk of this type."""
    return json.dumps({"type": kind.replace("*", "chart"), **fields})


def sample(kind: str) -> Chunk:
    """The chunk with all its fields."""
    return decode_chunk(text_of(kind, REQUIRED[kind] | OPTIONAL.get(kind, {}))).chunk
