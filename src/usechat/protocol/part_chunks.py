"""The parts of a stored message as chunks that build them again."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Chunk,
    Citation,
    Data,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StartStep,
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
from usechat.protocol.messages import is_tool_call, tool_name
from usechat.protocol.partial import parse_partial

__all__ = ["chunks_of_parts", "in_pieces"]

Part: TypeAlias = dict[str, Any]
_OF_THE_CALL: Final = frozenset(("title", "callProviderMetadata", "resultProviderMetadata"))
_APPROVAL: Final = {
    "signature": "signature",
    "reason": "requestReason",
    "is_automatic": "isAutomatic",
    "approval_descriptor": "descriptor",
    "input_schema_input": "inputSchemaInput",
}

_LONG_INPUT: Final = 128
_BEGINS_JSON: Final = frozenset('{["-0123456789tfn')
# In characters, each of which is at most four bytes.
_PIECE: Final = 64 * 1024


def in_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The texts as one, in pieces that are cheap to encode: short ones are joined, a long one is cut."""
    waiting: list[str] = []
    size = 0
    for text in texts:
        if size + len(text) > _PIECE:
            if size:
                yield "".join(waiting)
            whole = len(text) - len(text) % _PIECE
            yield from (text[at : at + _PIECE] for at in range(0, whole, _PIECE))
            waiting, size, text = [], 0, text[whole:]
        waiting.append(text)
        size += len(text)
    if size:
        yield "".join(waiting)


def chunks_of_parts(parts: Iterable[Part]) -> Iterator[Chunk]:
    """The chunks that build these parts; one of a type that no chunk builds is left out."""
    for number, part in enumerate(parts):
        kind: str = part["type"]
        if kind == "step-start":
            yield StartStep()
        elif kind == "text":
            yield from _text(part, f"before-{number}")
        elif kind == "reasoning":
            yield from _reasoning(part, part.get("id", f"before-{number}"))
        elif is_tool_call(part):
            yield from _tool(part)
        elif kind.startswith("data-"):
            yield msgspec.convert(part, Data)
        elif kind in CHUNK_TYPES:
            yield msgspec.convert(part, CHUNK_TYPES[kind])


def _text(part: Part, id_: str) -> Iterator[Chunk]:
    yield TextStart(id_, part.get("providerMetadata", UNSET))
    yield from (TextDelta(id_, piece) for piece in in_pieces((part["text"],)))
    if part.get("state") != "streaming":
        citations = part.get("citations")
        yield TextEnd(id_, citations=UNSET if citations is None else msgspec.convert(citations, list[Citation]))


def _reasoning(part: Part, id_: str) -> Iterator[Chunk]:
    yield ReasoningStart(id_, part.get("providerMetadata", UNSET))
    yield from (ReasoningDelta(id_, piece) for piece in in_pieces((part["text"],)))
    if part.get("state") != "streaming":
        yield ReasoningEnd(id_)


def _tool(part: Part) -> Iterator[Chunk]:
    dynamic = part["type"] == "dynamic-tool"
    call: dict[str, Any] = {
        "tool_call_id": part["toolCallId"],
        "tool_name": tool_name(part),
        "dynamic": True if dynamic else UNSET,
        "provider_executed": part.get("providerExecuted", UNSET),
        "title": part.get("title", UNSET),
        "provider_metadata": part.get("callProviderMetadata", UNSET),
        "tool_metadata": part.get("toolMetadata", UNSET),
    }
    if _is_wrong_input(part):
        yield from _wrong_input(part, call)
        if part["state"] != "output-error":
            yield from _result(part, call["dynamic"])
        return
    if "rawInput" in part or "input" not in part:
        yield ToolInputStart(**call, input_encoding=_encoding(part))
        if "rawInput" in part:
            # An empty delta also makes a difference: the part has a raw input then.
            pieces = in_pieces((part["rawInput"],))
            yield ToolInputDelta(part["toolCallId"], next(pieces, ""))
            yield from (ToolInputDelta(part["toolCallId"], piece) for piece in pieces)
    else:
        yield ToolInputAvailable(**call, input=part["input"])
    yield from _approval(part)
    yield from _result(part, call["dynamic"])


def _encoding(part: Part) -> Any:
    # A part that has ended does not say how its input was encoded, but a text that was not parsed does.
    unparsed = "rawInput" in part and part.get("input") == part["rawInput"]
    return part.get("inputEncoding", "text" if unparsed else UNSET)


def _wrong_input(part: Part, call: dict[str, Any]) -> Iterator[Chunk]:
    if part.keys() & _OF_THE_CALL:
        # A wrong input brings neither a title nor the metadata of its call; its own are those of the result.
        yield ToolInputStart(**call)
        call = {**call, "provider_metadata": part.get("resultProviderMetadata", UNSET)}
    yield ToolInputError(**call, input=part["rawInput"], error_text=part.get("errorText", ""))


def _is_wrong_input(part: Part) -> bool:
    """Whether this is how v5 and v6 keep an input that the tool could not be called with."""
    if "rawInput" not in part or "input" in part or part["state"] == "input-streaming":
        return False
    raw = part["rawInput"]
    if not isinstance(raw, str):
        return True
    # Parsing costs microseconds a character; a long text that begins as JSON has a value in nearly every case.
    return raw.lstrip()[:1] in _BEGINS_JSON if len(raw) > _LONG_INPUT else parse_partial(raw) is not UNSET


def _approval(part: Part) -> Iterator[Chunk]:
    approval: Part | None = part.get("approval")
    if approval is None:
        return
    fields = {name: approval[key] for name, key in _APPROVAL.items() if key in approval}
    yield ToolApprovalRequest(approval["id"], part["toolCallId"], **fields)
    if "approved" in approval:
        yield ToolApprovalResponse(approval["id"], approval["approved"], approval.get("reason", UNSET))


def _result(part: Part, dynamic: Any) -> Iterator[Chunk]:
    call_id, metadata = part["toolCallId"], part.get("resultProviderMetadata", UNSET)
    match part["state"]:
        case "output-available":
            preliminary = part.get("preliminary", UNSET)
            yield ToolOutputAvailable(call_id, part.get("output"), UNSET, dynamic, preliminary, metadata)
        case "output-error":
            yield ToolOutputError(call_id, part["errorText"], UNSET, dynamic, metadata)
        case "output-denied":
            yield ToolOutputDenied(call_id)
        case _:
            pass
