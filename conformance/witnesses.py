"""For each rule that is no advice, a stream that breaks it and what that does to a supported client."""

import json
from typing import Any, Final, NamedTuple

from chat_faults import INVALID, REFUSED
from promises import V5, V6, V7
from usechat.protocol.clients import ClientName

__all__ = ["WITNESSES", "Witness"]


class Witness(NamedTuple):
    """A stream whose only fault is that it breaks the rule, a client that minds, and what is wrong there then."""

    body: str
    client: str
    faults: set[str]
    profile: ClientName = "portable"


def _body(*chunks: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)


_BEGIN: Final = ({"type": "start", "messageId": "m"}, {"type": "start-step"})
_END: Final = ({"type": "finish-step"}, {"type": "finish"})
_EMPTY_STEP: Final[tuple[dict[str, Any], ...]] = (
    {"type": "start-step"},
    {"type": "message-metadata", "messageMetadata": {}},
)
_TEXT: Final = {"type": "text-start", "id": "t"}
_TEXT_END: Final = {"type": "text-end", "id": "t"}
_INPUT: Final[dict[str, Any]] = {"type": "tool-input-available", "toolCallId": "c", "toolName": "f", "input": {}}
_OUTPUT: Final = {"type": "tool-output-available", "toolCallId": "c", "output": 1}
_ASK: Final = {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "c"}
_ANSWER: Final = {"type": "tool-approval-response", "approvalId": "a", "approved": True}

WITNESSES: Final[dict[str, Witness]] = {
    "json": Witness(_body(*_BEGIN) + 'data: {"type":"data-x","data":NaN}\n\n', V7, {REFUSED}),
    "no-chunks": Witness('data: {"type":"start"}\ndata: {"type":"finish"}\n', V7, {"nothing is read"}),
    "event-cut-off": Witness(
        _body(*_BEGIN, _TEXT) + f"data: {json.dumps(_TEXT_END)}\n", V7, {"a part stays streaming"}
    ),
    "object": Witness(_body(*_BEGIN) + "data: []\n\n", V7, {REFUSED}),
    "forbidden-key": Witness(_body(*_BEGIN, {"type": "data-x", "data": {"__proto__": 1}}), V7, {REFUSED}),
    "unknown-type": Witness(_body(*_BEGIN, {"type": "message-start"}), V7, {REFUSED}),
    "shape": Witness(_body({"type": "start", "messageId": None}), V7, {REFUSED}),
    "unknown-field": Witness(_body(*_BEGIN, {"type": "finish", "usage": 1}), "5.0.216", {REFUSED}),
    "too-new": Witness(_body(*_BEGIN, {"type": "custom", "kind": "a.b"}), V6, {REFUSED}),
    "late-start": Witness(
        _body(*_BEGIN, _TEXT, _TEXT_END, {"type": "start", "messageId": "other"}, *_END),
        V7,
        {"there are two messages"},
    ),
    "after-error": Witness(
        _body(*_BEGIN, {"type": "error", "errorText": "no"}, _TEXT, _TEXT_END),
        V7,
        {"chunks are never read"},
    ),
    "part-not-open": Witness(_body(*_BEGIN, {"type": "text-delta", "id": "t", "delta": "x"}), V7, {REFUSED}),
    "part-open-twice": Witness(_body(*_BEGIN, _TEXT, _TEXT, _TEXT_END, *_END), V7, {"a part stays streaming"}),
    "part-left-open": Witness(_body(*_BEGIN, _TEXT, *_END), V7, {"a part stays streaming"}),
    "call-unknown": Witness(_body(*_BEGIN, _OUTPUT), V7, {REFUSED}),
    "call-twice": Witness(
        _body(*_BEGIN, _INPUT, _OUTPUT, {"type": "finish-step"}, {"type": "start-step"}, _INPUT, *_END),
        "7.0.31",
        {"calls are missing", "a result is lost", "a tool is run twice"},
    ),
    "call-order": Witness(
        _body(*_BEGIN, _INPUT, _OUTPUT, _ASK, *_EMPTY_STEP, *_END), V7, {INVALID, "a result is lost"}
    ),
    "call-changed": Witness(_body(*_BEGIN, _INPUT, {**_OUTPUT, "dynamic": True}), V5, {REFUSED, "a result is lost"}),
    "call-across-steps": Witness(
        _body(
            *_BEGIN,
            {"type": "tool-input-start", "toolCallId": "c", "toolName": "f"},
            {"type": "finish-step"},
            {"type": "start-step"},
            _INPUT,
            *_END,
        ),
        V7,
        {"calls are doubled", "an input stays streaming"},
    ),
    "call-left-open": Witness(
        _body(*_BEGIN, {"type": "tool-input-start", "toolCallId": "c", "toolName": "f"}, *_END),
        V7,
        {"an input stays streaming"},
    ),
    "call-invalid": Witness(_body(*_BEGIN, _INPUT, _ASK, _OUTPUT, *_EMPTY_STEP, *_END), V7, {INVALID}),
    "approval-unknown": Witness(_body(*_BEGIN, _INPUT, _ANSWER), V7, {REFUSED}, "v7"),
    "approval-twice": Witness(
        _body(
            *_BEGIN,
            _INPUT,
            {**_INPUT, "toolCallId": "d"},
            _ASK,
            {**_ASK, "toolCallId": "d"},
            _ANSWER,
            _OUTPUT,
            {**_OUTPUT, "toolCallId": "d"},
            *_EMPTY_STEP,
            *_END,
        ),
        V7,
        {INVALID},
        "v7",
    ),
    "resubmits": Witness(_body(*_BEGIN, _INPUT, _OUTPUT, *_END), V7, {"the page posts again"}),
}
