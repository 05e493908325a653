"""How long one request keeps its event loop waiting: the processor time for the largest bodies, in milliseconds.

Each shape fills the 10 MB that a body may have. Between two columns others get their turn: `check` is `check_cost`,
`decode` `decode_request` after it, `message` the slowest of `request.decoded()`, which has pauses; `open` and
`send` read the same body as a frame of a WebSocket. Run it with `PYTHONPATH=src python bench/requests.py`.
"""

import contextlib
import gc
import json
import time
from collections.abc import Callable
from typing import Final

from usechat.errors import RequestError
from usechat.protocol.requests import ChatRequest, Limits, check_cost, decode_request
from usechat.protocol.websocket import open_frame, read_headers, read_resume, read_send

LIMITS: Final = Limits()
GOES: Final = 5
FILL: Final = b"\xff\xfe"
CODE: Final = json.dumps('def f(a, b=[1, 2], **c):\n    return {"x": [a, b], "y\\z": c}  # {{{[[[,,,\n')[1:-1].encode()


def filled(pattern: bytes, unit: bytes, join: bytes = b"") -> bytes:
    """The pattern with as many units in it as fit."""
    before, after = pattern.split(FILL)
    units = (LIMITS.body - len(before) - len(after)) // len(unit + join)
    return before + join.join([unit] * units) + after


def in_text(unit: bytes, pattern: bytes = b"%b") -> bytes:
    message = b'{"id":"m","role":"user","parts":[{"type":"text","text":"%b"}]}' % (pattern % FILL)
    return filled(b'{"id":"c","requestId":"r","type":"send","body":{},"messages":[%b]}' % message, unit)


def in_extra(unit: bytes, pattern: bytes, join: bytes = b"") -> bytes:
    message = b'{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}'
    body = b'{"id":"c","requestId":"r","type":"send","body":{},"messages":[%b],"x":%b}' % (message, pattern % FILL)
    return filled(body, unit, join)


def in_older(unit: bytes, count: int) -> bytes:
    """Messages of which each has an equal share of the body."""
    size = LIMITS.body // count - 80
    message = b'{"id":"m","role":"assistant","parts":[%b]}' % b",".join([unit] * (size // (len(unit) + 1)))
    messages = b",".join([message] * (count - 1) + [b'{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}'])
    return b'{"id":"c","requestId":"r","type":"send","body":{},"messages":[%b]}' % messages


def older(part: bytes, count: int) -> bytes:
    """A thousand messages of this many parts each."""
    message = b'{"id":"m","role":"assistant","parts":[%b]}' % b",".join([part] * count)
    messages = b",".join([message] * 999 + [b'{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}'])
    return b'{"id":"c","requestId":"r","type":"send","body":{},"messages":[%b]}' % messages


def lists(count: int) -> bytes:
    message = b'{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}'
    value = b",".join([b"[]"] * (count // 2))
    return b'{"id":"c","requestId":"r","type":"send","body":{},"messages":[%b],"x":[%b]}' % (message, value)


SHAPES: Final[dict[str, Callable[[], bytes]]] = {
    "a text of words": lambda: in_text(b"tide "),
    "a text of code": lambda: in_text(CODE),
    "a text of code, cut in an emoji": lambda: in_text(CODE, rb"\ud83d%b"),
    "a base64 image": lambda: in_text(b"QUJD"),
    "a base64 image, beside half an emoji": lambda: in_text(b"QUJD", rb"%b\ud83d"),
    "a text of escaped newlines": lambda: in_text(rb"\n"),
    "a text of escaped backslashes": lambda: in_text(rb"\\"),
    "a text of escaped quotes and commas": lambda: in_text(rb"\",\","),
    "a text of backslashes, then commas": lambda: in_text(rb"\\", b"," * 200_000 + b"%b"),
    "a text of emoji": lambda: in_text("😀".encode()),
    "a text of escaped emoji": lambda: in_text(rb"\ud83d\ude00"),
    "a text of escaped emoji, the last cut": lambda: in_text(rb"\ud83d\ude00", rb"%b\ud83d"),
    "a text of halves of emoji": lambda: in_text(rb"\ud83d"),
    "a text of backslashes, then half an emoji": lambda: in_text(rb"\\", rb"%b\ud83d"),
    "empty lists": lambda: in_extra(b"[]", b"[%b]", b","),
    "empty objects": lambda: in_extra(b"{}", b"[%b]", b","),
    "numbers": lambda: in_extra(b"1", b"[%b]", b","),
    "floats": lambda: in_extra(b"1.2345e-6", b"[%b]", b","),
    "empty strings": lambda: in_extra(b'""', b"[%b]", b","),
    "members": lambda: in_extra(b'"key":1', b"{%b}", b","),
    "one long whole number": lambda: in_extra(b"1", b"%b"),
    "one long fraction": lambda: in_extra(b"1", b"0.%b"),
    "whole numbers of 4,000 digits": lambda: in_extra(b"1" * 4_000, b"[%b]", b","),
    "fractions of 700 digits": lambda: in_extra(b"0." + b"1" * 700, b"[%b]", b","),
    "open lists": lambda: in_extra(b"[", b"%b"),
    "open objects": lambda: in_extra(b'{"a":', b"%b"),
    "lists in lists, 64 levels": lambda: in_extra(b"[" * 62 + b"]" * 62, b"[%b]", b","),
    "strings of one quote": lambda: in_extra(b'"', b"%b"),
    "backslashes": lambda: in_extra(b"\\", b"%b"),
    "commas": lambda: in_extra(b",", b"%b"),
    "white space": lambda: in_extra(b" ", b"%b1"),
    "zero bytes": lambda: in_extra(b"\0", b"%b"),
    "bytes that are no UTF-8": lambda: in_extra(b"\xff", b'"%b"'),
    "fields": lambda: filled(b'{"id":"c","requestId":"r","type":"send",%b}' % FILL, b'"a":1', b","),
    "messages": lambda: filled(b'{"id":"c","requestId":"r","type":"send","messages":[%b]}' % FILL, b"1", b","),
    "1,000 messages of empty parts": lambda: in_older(b'{"type":""}', 1_000),
    "1,000 messages of 10 texts": lambda: in_older(b'{"type":"text","text":"%b"}' % (b"x" * 960), 1_000),
    "1,000 messages of 10 texts, cut in an emoji": lambda: in_older(
        rb'{"type":"text","text":"\ud83d%b"}' % (b"x" * 960), 1_000
    ),
    "as many parts as allowed": lambda: older(b'{"type":"x"}', 14),
    "as many tool calls as allowed": lambda: older(
        b'{"type":"tool-x","toolCallId":"c","state":"output-available","preliminary":true,"title":"T"}', 6
    ),
    "as many denied calls as allowed": lambda: older(
        b'{"type":"tool-x","toolCallId":"c","state":"output-denied","approval":{"id":"p","approved":false}}', 5
    ),
    "as many lists as allowed": lambda: lists(49_000),
    "as many values as allowed": lambda: in_older(
        b'{"type":"data-x","data":[%b]}' % b",".join([b"%b" % (b'"%b"' % (b"x" * 250))] * 38), 1_000
    ),
    "headers": lambda: in_extra(b'"a":"b"', b'0,"headers":{%b}', b","),
}


def decode(body: bytes) -> ChatRequest:
    return decode_request(body, checked=True)


def slowest_message(body: bytes) -> float:
    """How long the slowest message takes to decode, in seconds."""
    messages = decode(body).decoded()
    slowest, begin = 0.0, time.process_time()
    for _ in messages:
        now = time.process_time()
        slowest, begin = max(slowest, now - begin), now
    return slowest


def opened(data: bytes) -> object:
    frame = open_frame(data)
    with contextlib.suppress(RequestError):
        read_headers(frame)
    return read_resume(frame)


def sent(data: bytes) -> object:
    return read_send(data, LIMITS, checked=True)


def took(read: Callable[[bytes], object], body: bytes) -> tuple[float, str]:
    """The least time of some goes, and what came of it."""
    best, outcome = float("inf"), ""
    for _ in range(GOES):
        gc.collect()
        begin = time.process_time()
        try:
            result = read(body)
            spent = time.process_time() - begin
            outcome = "served"
            del result
        except RequestError as error:
            spent = time.process_time() - begin
            outcome = f"{error.status}: {error}"
        best = min(best, spent)
        if best > 1:
            break
    return best * 1000, outcome


def main() -> None:
    print(f"{'longest ms':46}{'check':>9}{'decode':>9}{'message':>9}{'open':>9}{'send':>9}")
    worst = 0.0
    for name, build in SHAPES.items():
        body = build()
        (checked, outcome), (decoded, said), (opens, _), (sends, _) = (
            took(read, body) for read in (check_cost, decode, opened, sent)
        )
        message = 0.0
        if outcome != "served":
            # Nobody comes so far.
            decoded = sends = 0.0
        else:
            outcome = said
            with contextlib.suppress(RequestError):
                message = min(slowest_message(body) for _ in range(GOES)) * 1000
        times = (checked, decoded, message, opens, sends)
        worst = max(worst, *times)
        print(f"{name:46}{''.join(f'{time:9.1f}' for time in times)}  {outcome[:70]}")
    print(f"{'the longest':46}{worst:45.1f}")


if __name__ == "__main__":
    main()
