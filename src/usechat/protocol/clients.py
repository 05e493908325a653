"""Which release of the client takes which chunk, field and value, and what to send to older releases instead.

The server cannot see the client's release, so it writes a stream for a `Client`: the releases that must accept it.
docs/reference/clients.md is generated from these tables.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from usechat.protocol import chunks as c
from usechat.protocol.rules import local_error
from usechat.protocol.state import StreamState

__all__ = [
    "CLIENTS",
    "FIELDS",
    "LOOSE",
    "TYPES",
    "VALUES",
    "Client",
    "ClientName",
    "Release",
    "Since",
    "needs",
    "newer_than",
]

ClientName: TypeAlias = Literal["portable", "v5", "v6", "v7", "latest"]


class Release(NamedTuple):
    major: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.0.{self.patch}"


class Since(NamedTuple):
    """The first patch of each major that takes something; None if the major never does."""

    v5: int | None
    v6: int | None
    v7: int | None

    def includes(self, release: Release) -> bool:
        first = self[release.major - 5]
        return first is not None and first <= release.patch

    def or_ignored(self) -> "Since":
        """The releases that take a field because they know it, or because they ignore unknown fields."""
        return Since(*(loose if own is None else min(own, loose) for own, loose in zip(self, _LOOSE, strict=True)))


_LOOSE: Final = (217, 231, 32)
LOOSE: Final = Since(*_LOOSE)
"""From these releases on, a client ignores an unknown field. Older releases refuse the chunk."""

_ALWAYS: Final = Since(0, 0, 0)
_V6: Final = Since(None, 0, 0)
_V7: Final = Since(None, None, 0)

TYPES: Final[dict[str, Since]] = dict.fromkeys(c.CHUNK_TYPES, _ALWAYS) | {
    "tool-input-error": Since(7, 0, 0),
    "tool-approval-request": _V6,
    "tool-output-denied": _V6,
    "tool-approval-response": _V7,
    "reasoning-file": _V7,
    "custom": _V7,
    "reset-step": Since(None, None, 70),
    "steering-message": Since(None, None, 163),
}

FIELDS: Final[dict[str, dict[str, Since]]] = {
    "start": {"messageId": _ALWAYS, "messageMetadata": _ALWAYS},
    "finish": {"finishReason": Since(92, 0, 0), "messageMetadata": _ALWAYS},
    "abort": {"reason": Since(None, 15, 0)},
    "text-start": {"providerMetadata": _ALWAYS},
    "text-delta": {"providerMetadata": _ALWAYS},
    "text-end": {"providerMetadata": _ALWAYS, "citations": Since(None, None, 138)},
    "reasoning-start": {"providerMetadata": _ALWAYS},
    "reasoning-delta": {"providerMetadata": _ALWAYS},
    "reasoning-end": {"providerMetadata": _ALWAYS},
    "reasoning-file": {"providerMetadata": _V7},
    "custom": {"providerMetadata": _V7},
    "source-url": {"title": _ALWAYS, "providerMetadata": _ALWAYS},
    "source-document": {"filename": _ALWAYS, "providerMetadata": _ALWAYS},
    "file": {"providerMetadata": _ALWAYS},
    "data-*": {"id": _ALWAYS, "transient": _ALWAYS},
    "tool-input-start": {
        "providerExecuted": _ALWAYS,
        "dynamic": _ALWAYS,
        "title": _V6,
        "providerMetadata": Since(None, 39, 0),
        "toolMetadata": Since(None, 176, 0),
        "inputEncoding": Since(None, 308, 142),
    },
    "tool-input-available": {
        "providerExecuted": _ALWAYS,
        "dynamic": _ALWAYS,
        "title": _V6,
        "providerMetadata": _ALWAYS,
        "toolMetadata": Since(None, 176, 0),
    },
    "tool-input-error": {
        "providerExecuted": Since(7, 0, 0),
        "dynamic": Since(7, 0, 0),
        "title": _V6,
        "providerMetadata": Since(7, 0, 0),
        "toolMetadata": Since(None, 176, 0),
    },
    "tool-output-available": {
        "providerExecuted": _ALWAYS,
        "dynamic": _ALWAYS,
        "preliminary": Since(11, 0, 0),
        "providerMetadata": Since(None, 120, 0),
        "toolMetadata": Since(None, 176, 0),
    },
    "tool-output-error": {
        "providerExecuted": _ALWAYS,
        "dynamic": _ALWAYS,
        "providerMetadata": Since(None, 120, 0),
        "toolMetadata": Since(None, 176, 0),
    },
    "tool-approval-request": {
        "signature": Since(None, 202, 0),
        "reason": Since(None, None, 82),
        "isAutomatic": _V7,
        "approvalDescriptor": Since(None, 274, 87),
        "inputSchemaInput": Since(None, 290, 113),
    },
    "tool-approval-response": {"reason": _V7, "providerExecuted": _V7, "providerMetadata": _V7},
}

VALUES: Final[dict[tuple[str, str, str], Since]] = {
    ("finish", "finishReason", "interrupted"): Since(None, None, 149),
}

_Older: TypeAlias = Callable[[Any, StreamState], tuple[c.Chunk, ...]]


def needs(chunk: c.Chunk, unknown: Iterable[str] = ()) -> Iterator[tuple[str, Since]]:
    """What the chunk needs from a client, in words, and the releases that take it; `unknown` are its unknown fields."""
    name, wire_name = _NAMES[type(chunk)], c.chunk_type(chunk)
    yield f"the chunk `{wire_name}`", TYPES[name]
    for wire, attribute in _fields(type(chunk)):
        value = getattr(chunk, attribute)
        if value is not UNSET and wire in FIELDS.get(name, {}):
            yield f"the field `{wire}` of `{wire_name}`", FIELDS[name][wire].or_ignored()
            if isinstance(value, str) and (name, wire, value) in VALUES:
                yield f"the value `{value}` of `{wire}`", VALUES[name, wire, value]
    for wire in unknown:
        yield f"the field `{wire}` of `{wire_name}`", LOOSE


def newer_than(chunk: c.Chunk, release: Release) -> list[str]:
    """What the release refuses about the chunk, in words; empty if it takes the chunk."""
    return [what for what, since in needs(chunk) if not since.includes(release)]


class Client:
    """The releases that must accept a stream: in each major that `oldest` names, that release and all later ones."""

    def __init__(self, name: ClientName, oldest: tuple[Release, ...], *, passes: frozenset[str] = frozenset()) -> None:
        self.name: ClientName = name
        self.oldest = oldest
        self.passes = passes
        self._changes = {kind: change for kind in c.CHUNK_TYPES.values() if (change := self._change(kind))}

    def takes(self, since: Since) -> bool:
        """Whether all releases of this client take it."""
        return all(since.includes(release) for release in self.oldest)

    def fit(self, chunk: c.Chunk, state: StreamState) -> tuple[c.Chunk, ...]:
        """The chunk in a form that all releases take; `state` is the state of the stream before the chunk.

        Raises:
            LocalProtocolError: There is no such form.
        """
        change = self._changes.get(type(chunk))
        return (chunk,) if change is None else change(chunk, state)

    def _change(self, kind: type[c.Chunk]) -> _Older | None:
        name = _NAMES[kind]
        if name not in self.passes and not self.takes(TYPES[name]):
            return _OLDER.get(kind, self._none)
        fields = FIELDS.get(name, {})
        lacking = [attribute for wire, attribute in _fields(kind) if wire in fields and not self.takes(fields[wire])]
        if kind is c.Finish and "finish_reason" not in lacking and not self.takes(_INTERRUPTED):
            return _finish
        return _without(lacking) if lacking else None

    def _none(self, chunk: c.Chunk, state: StreamState) -> tuple[c.Chunk, ...]:
        name = c.chunk_type(chunk)
        raise local_error("too-new", name, f"`{name}` has no form that the client `{self.name}` takes.")


_NAMES: Final = {kind: name for name, kind in c.CHUNK_TYPES.items()}
_INTERRUPTED: Final = VALUES["finish", "finishReason", "interrupted"]


def _fields(kind: type[c.Chunk]) -> Iterator[tuple[str, str]]:
    return zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)


def _without(attributes: list[str]) -> _Older:
    absent = dict.fromkeys(attributes, UNSET)

    def older(chunk: c.Chunk, state: StreamState) -> tuple[c.Chunk, ...]:
        return (msgspec.structs.replace(chunk, **absent),)

    return older


def _finish(chunk: c.Finish, state: StreamState) -> tuple[c.Chunk, ...]:
    if chunk.finish_reason != "interrupted":
        return (chunk,)
    return (msgspec.structs.replace(chunk, finish_reason="other"),)


def _as_data(name: str, chunk: c.Chunk, id_: str | UnsetType = UNSET) -> tuple[c.Chunk, ...]:
    body = msgspec.to_builtins(chunk)
    del body["type"]
    return (c.Data(f"data-{name}", body, id_),)


def _input_error(chunk: c.ToolInputError, state: StreamState) -> tuple[c.Chunk, ...]:
    # `tool-input-available` would make the page run the tool with the wrong input.
    call = state.calls.get(chunk.tool_call_id)
    failed = c.ToolOutputError(chunk.tool_call_id, chunk.error_text, chunk.provider_executed, chunk.dynamic)
    if call is not None and call.state == "streaming":
        return (failed,)
    shown = c.ToolInputDelta(chunk.tool_call_id, msgspec.json.encode(chunk.input).decode())
    if call is not None:
        return (shown, failed)
    begun = c.ToolInputStart(chunk.tool_call_id, chunk.tool_name, chunk.provider_executed, chunk.dynamic)
    return (begun, shown, failed)


def _denied(chunk: c.ToolOutputDenied, state: StreamState) -> tuple[c.Chunk, ...]:
    call = state.calls.get(chunk.tool_call_id)
    dynamic = UNSET if call is None or not call.dynamic else True
    return (c.ToolOutputError(chunk.tool_call_id, "The call was denied.", dynamic=dynamic),)


_OLDER: Final[dict[type[c.Chunk], _Older]] = {
    c.ToolInputError: _input_error,
    c.ToolOutputDenied: _denied,
    c.ToolApprovalRequest: lambda chunk, _: _as_data("approval-request", chunk, chunk.approval_id),
    c.ReasoningFile: lambda chunk, _: (c.File(chunk.url, chunk.media_type, chunk.provider_metadata),),
    c.Custom: lambda chunk, _: _as_data("custom", chunk),
    c.SteeringMessage: lambda chunk, _: _as_data("steering-message", chunk, chunk.id),
}
"""The nearest older form of each newer chunk. `reset-step` and `tool-approval-response` have none: the client's message
already has what they undo or answer."""

CLIENTS: Final[dict[ClientName, Client]] = {
    client.name: client
    for client in (
        # No older form of an approval could be answered by a v6 page, so the default lets approvals pass.
        Client(
            "portable",
            (Release(5, 92), Release(6, 0), Release(7, 0)),
            passes=frozenset(("tool-approval-request", "tool-output-denied")),
        ),
        Client("v5", (Release(5, 0),)),
        Client("v6", (Release(6, 0),)),
        Client("v7", (Release(7, 0),)),
        Client("latest", (Release(7, 170),)),
    )
}
