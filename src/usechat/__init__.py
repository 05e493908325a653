"""Serve any Python agent to the AI SDK's `useChat()` and AI Elements."""

from usechat.errors import LocalProtocolError, ProtocolError, RemoteProtocolError, RequestError, UsechatError
from usechat.protocol import ChatRequest, MessageReader, MessageWriter, UIMessage, decode_chunk, encode_chunk

__all__ = [
    "ChatRequest",
    "LocalProtocolError",
    "MessageReader",
    "MessageWriter",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestError",
    "UIMessage",
    "UsechatError",
    "decode_chunk",
    "encode_chunk",
]
