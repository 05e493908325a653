"""Serve any Python agent to the AI SDK's `useChat()` and AI Elements."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from usechat.agents.chat import Approval, Chat, ToolAnswer
from usechat.errors import (
    AgentError,
    LocalProtocolError,
    MappingError,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    UsechatError,
)
from usechat.protocol import ChatRequest, MessageReader, MessageWriter, UIMessage, decode_chunk, encode_chunk
from usechat.sources.plain import Reasoning, StructuredOutput, ToolCall, ToolError, ToolResult

if TYPE_CHECKING:
    from usechat.server.app import create_app
    from usechat.server.endpoint import ChatEndpoint

__all__ = [
    "AgentError",
    "Approval",
    "Chat",
    "ChatEndpoint",
    "ChatRequest",
    "LocalProtocolError",
    "MappingError",
    "MessageReader",
    "MessageWriter",
    "ProtocolError",
    "Reasoning",
    "RemoteProtocolError",
    "RequestError",
    "StructuredOutput",
    "ToolAnswer",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "UIMessage",
    "UsechatError",
    "create_app",
    "decode_chunk",
    "encode_chunk",
]

# The server's packages are an extra, and nobody who needs only the protocol should wait for their import.
_SERVER: Final = {"create_app": "usechat.server.app", "ChatEndpoint": "usechat.server.endpoint"}


def __getattr__(name: str) -> Any:
    if name not in _SERVER:
        raise AttributeError(f"module 'usechat' has no attribute {name!r}")
    try:
        return getattr(import_module(_SERVER[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs {error.name}. Install it with: pip install 'usechat[server]'") from error
