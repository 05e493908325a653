"""Serve any Python agent to the AI SDK's `useChat()` and AI Elements."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from usechat.errors import (
    AgentError,
    LocalProtocolError,
    MappingError,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    UsechatError,
)
from usechat.events import (
    AgentEvent,
    ApprovalRequest,
    ApprovalResponse,
    Data,
    DataBatch,
    Document,
    EndCalls,
    EndPart,
    File,
    Finish,
    Handoff,
    Pause,
    Reasoning,
    Source,
    Step,
    StructuredOutput,
    SubAgent,
    Text,
    ToolCall,
    ToolDenied,
    ToolError,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputDelta,
    ToolProgress,
    ToolResult,
    Translator,
    Usage,
)
from usechat.extras import missing
from usechat.integrations.deepagent_sdk.agent import DeepAgent
from usechat.models import to_anthropic, to_openai, to_openai_responses
from usechat.protocol import ChatRequest, MessageReader, MessageWriter, UIMessage, decode_chunk, encode_chunk
from usechat.protocol.chunks import Chunk
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Approval, Chat, ToolAnswer

if TYPE_CHECKING:
    from usechat.gateway.directory import SessionDirectory
    from usechat.gateway.gateway import sessions_gateway
    from usechat.gateway.settings import GatewaySettings
    from usechat.server.app import create_app
    from usechat.server.elements import elements_route
    from usechat.server.endpoint import ChatEndpoint
    from usechat.turns.settings import ChatSettings

    __version__: str

__all__ = [
    "AgentError",
    "AgentEvent",
    "Approval",
    "ApprovalRequest",
    "ApprovalResponse",
    "Chat",
    "ChatEndpoint",
    "ChatRequest",
    "ChatSettings",
    "Chunk",
    "Data",
    "DataBatch",
    "DeepAgent",
    "Document",
    "EndCalls",
    "EndPart",
    "File",
    "Finish",
    "GatewaySettings",
    "Handoff",
    "LocalProtocolError",
    "MappingError",
    "MessageReader",
    "MessageWriter",
    "Pause",
    "ProtocolError",
    "Reasoning",
    "RemoteProtocolError",
    "RequestError",
    "SessionDirectory",
    "Source",
    "Step",
    "StructuredOutput",
    "SubAgent",
    "Text",
    "ToolAnswer",
    "ToolCall",
    "ToolDenied",
    "ToolError",
    "ToolInputDelta",
    "ToolInputError",
    "ToolInputStart",
    "ToolOutputDelta",
    "ToolProgress",
    "ToolResult",
    "Translator",
    "UIMessage",
    "Usage",
    "UsechatError",
    "create_app",
    "decode_chunk",
    "elements_route",
    "encode_chunk",
    "sessions_gateway",
    "to_anthropic",
    "to_model_messages",
    "to_openai",
    "to_openai_responses",
]

# The server's packages are an extra, and nobody who needs only the protocol should wait for their import.
_SERVER: Final = {
    "create_app": "usechat.server.app",
    "ChatEndpoint": "usechat.server.endpoint",
    "ChatSettings": "usechat.turns.settings",
    "GatewaySettings": "usechat.gateway.settings",
    "SessionDirectory": "usechat.gateway.directory",
    "sessions_gateway": "usechat.gateway.gateway",
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
