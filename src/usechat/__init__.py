"""Serve any Python agent to the AI SDK's `useChat()` and AI Elements."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from usechat.agents.chat import Approval, Chat, ToolAnswer
from usechat.agents.deep_agent import DeepAgent
from usechat.errors import (
    AgentError,
    LocalProtocolError,
    MappingError,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    UsechatError,
)
from usechat.extras import missing
from usechat.models import to_anthropic, to_openai
from usechat.protocol import ChatRequest, MessageReader, MessageWriter, UIMessage, decode_chunk, encode_chunk
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Custom,
    Data,
    Error,
    File,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    SourceDocument,
    SourceUrl,
    Start,
    StartStep,
    SteeringMessage,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.model_messages import to_model_messages
from usechat.sources.plain import PlainEvent, Reasoning, StructuredOutput, ToolCall, ToolError, ToolResult

if TYPE_CHECKING:
    from usechat.server.app import create_app
    from usechat.server.chat_settings import ChatSettings
    from usechat.server.elements import elements_route
    from usechat.server.endpoint import ChatEndpoint
    from usechat.server.sessions.directory import SessionDirectory
    from usechat.server.sessions.gateway import sessions_gateway
    from usechat.server.sessions.settings import GatewaySettings

    __version__: str

__all__ = [
    "Abort",
    "AgentError",
    "Approval",
    "Chat",
    "ChatEndpoint",
    "ChatRequest",
    "ChatSettings",
    "Chunk",
    "Custom",
    "Data",
    "DeepAgent",
    "Error",
    "File",
    "Finish",
    "FinishStep",
    "GatewaySettings",
    "LocalProtocolError",
    "MappingError",
    "MessageMetadata",
    "MessageReader",
    "MessageWriter",
    "PlainEvent",
    "ProtocolError",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningFile",
    "ReasoningStart",
    "RemoteProtocolError",
    "RequestError",
    "ResetStep",
    "SessionDirectory",
    "SourceDocument",
    "SourceUrl",
    "Start",
    "StartStep",
    "SteeringMessage",
    "StructuredOutput",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ToolAnswer",
    "ToolApprovalRequest",
    "ToolApprovalResponse",
    "ToolCall",
    "ToolError",
    "ToolInputAvailable",
    "ToolInputDelta",
    "ToolInputError",
    "ToolInputStart",
    "ToolOutputAvailable",
    "ToolOutputDenied",
    "ToolOutputError",
    "ToolResult",
    "UIMessage",
    "UsechatError",
    "create_app",
    "decode_chunk",
    "elements_route",
    "encode_chunk",
    "sessions_gateway",
    "to_anthropic",
    "to_model_messages",
    "to_openai",
]

# The server's packages are an extra, and nobody who needs only the protocol should wait for their import.
_SERVER: Final = {
    "create_app": "usechat.server.app",
    "ChatEndpoint": "usechat.server.endpoint",
    "ChatSettings": "usechat.server.chat_settings",
    "GatewaySettings": "usechat.server.sessions.settings",
    "SessionDirectory": "usechat.server.sessions.directory",
    "sessions_gateway": "usechat.server.sessions.gateway",
    "elements_route": "usechat.server.elements",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("usechat")
    if name not in _SERVER:
        raise AttributeError(f"module 'usechat' has no attribute {name!r}")
    try:
        return getattr(import_module(_SERVER[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(missing(name, error, "server")) from error
