"""The AI SDK's UI message stream without any I/O.

`MessageWriter` says it, `StreamState` judges it, `MessageReader` understands it; `chunks` is what can be said.
"""

from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.closing import closing
from usechat.protocol.codec import Decoded, decode_chunk, encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.requests import ChatRequest, Limits, decode_request
from usechat.protocol.sse import SseDecoder, SseEvent, encode_event
from usechat.protocol.state import StreamState
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
