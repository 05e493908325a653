"""The AI SDK's UI message stream without any I/O.

What can be said        chunks; values makes any Python value plain JSON
When it may be said     tables, rules, state
Who understands it      clients
Writing a message       writer; `state.closing` ends any stream
Reading a message       reader, with partial for tool inputs that still stream
Judging a recording     verdict, with recorded
Resuming a stream       replay
Bytes out and in        codec, frames, sse, websocket
What a client sends     requests, with messages; model_messages converts them for a model
"""

from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import Decoded, decode_chunk, encode_chunk
from usechat.protocol.frames import encode_event
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.requests import ChatRequest, Limits, decode_request
from usechat.protocol.sse import SseDecoder, SseEvent
from usechat.protocol.state import StreamState, closing
from usechat.protocol.verdict import Verdict, judge, recorded_events
from usechat.protocol.writer import MessageWriter

__all__ = [
    "ChatRequest",
    "Chunk",
    "ClientName",
    "Decoded",
    "Limits",
    "MessageReader",
    "MessageWriter",
    "SseDecoder",
    "SseEvent",
    "StreamState",
    "UIMessage",
    "Verdict",
    "closing",
    "decode_chunk",
    "decode_request",
    "encode_chunk",
    "encode_event",
    "judge",
    "recorded_events",
]
