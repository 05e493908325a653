"""The tables of releases against the parsers of the real clients, and what each profile promises."""

from collections.abc import Iterable
from itertools import count
from typing import Any, Final, get_args

import msgspec
import pytest

from chat_faults import INVALID, faults_of
from judge import Judge, body_of
from promises import PINNED, PROMISES, V5, V6, V7, promised, release_of
from samples import OPTIONAL, REQUIRED, sample, text_of
from usechat.errors import LocalProtocolError, RemoteProtocolError
from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Chunk,
    FinishReason,
    ReasoningStart,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputStart,
)
from usechat.protocol.clients import CLIENTS, FIELDS, LOOSE, TYPES, ClientName, newer_than
from usechat.protocol.codec import decode_chunk, encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter

_OPTIONAL_FIELDS: Final = [(kind, field) for kind, fields in OPTIONAL.items() for field in fields]
_ANYTHING: Final = ("messageMetadata", "approvalDescriptor", "inputSchemaInput")


def _taking(judge: Judge, texts: Iterable[str]) -> dict[str, list[str]]:
    """The clients that take each chunk."""
    texts = list(texts)
    verdicts = judge.parse(texts, PINNED)
    return {text: [client for client in PINNED if verdicts[client][index] is None] for index, text in enumerate(texts)}


def _said_to_take(text: str) -> list[str]:
    chunk = decode_chunk(text).chunk
    return [client for client in PINNED if not any(newer_than(chunk, release_of(client)))]


def _fields(kind: type[Chunk], *, required: bool) -> set[str]:
    fields = msgspec.structs.fields(kind)
    return {field.encode_name for field in fields if field.required is required} - {"type"}


def test_the_pinned_clients_are_those_of_the_judge(judge: Judge) -> None:
    assert judge.clients == PINNED


def test_the_profiles_promise_these_clients() -> None:
    v5 = ["5.0.92", "5.0.216", V5]
    v6 = ["6.0.0", "6.0.230", V6]
    v7 = ["7.0.0", "7.0.31", V7]
    assert {
        "portable": [*v5, *v6, *v7],
        "v5": ["5.0.0", *v5],
        "v6": v6,
        "v7": v7,
        "latest": [V7],
    } == PROMISES
    assert promised("portable", [sample("tool-approval-request")]) == [*v6, *v7]


def test_only_5_0_92_and_later_5_take_the_finish_reason_unknown(judge: Judge) -> None:
    chunks = [f'{{"type":"finish","finishReason":"{reason}"}}' for reason in ("unknown", "made-up")]
    taken = {client: [error is None for error in errors] for client, errors in judge.parse(chunks, PINNED).items()}
    late = [client for client in PROMISES["portable"] if client.startswith("5.")]
    assert taken == {client: [client in late, False] for client in PINNED}


def test_every_type_and_every_optional_field_has_a_row_and_a_sample() -> None:
    types = set(CHUNK_TYPES)
    optional = {name: _fields(kind, required=False) for name, kind in CHUNK_TYPES.items()}
    rows = {name: fields for name, fields in optional.items() if fields}
    assert set(TYPES) == types
    assert {name: set(fields) for name, fields in FIELDS.items()} == rows
    assert {name: set(fields) for name, fields in OPTIONAL.items()} == rows
    assert {name: set(fields) for name, fields in REQUIRED.items()} == {
        name: _fields(kind, required=True) for name, kind in CHUNK_TYPES.items()
    }


def test_a_client_takes_a_type_if_the_table_says_so(judge: Judge) -> None:
    texts = [text_of(kind, fields) for kind, fields in REQUIRED.items()]
    assert _taking(judge, texts) == {text: _said_to_take(text) for text in texts}


def test_a_client_takes_a_field_if_the_table_says_so(judge: Judge) -> None:
    texts = [text_of(kind, REQUIRED[kind] | {field: OPTIONAL[kind][field]}) for kind, field in _OPTIONAL_FIELDS]
    assert _taking(judge, texts) == {text: _said_to_take(text) for text in texts}


def test_a_client_takes_a_finish_reason_if_the_table_says_so(judge: Judge) -> None:
    texts = [text_of("finish", {"finishReason": reason}) for reason in get_args(FinishReason)]
    assert _taking(judge, texts) == {text: _said_to_take(text) for text in texts}


def test_only_loose_clients_take_a_field_that_nobody_knows(judge: Judge) -> None:
    texts = {kind: text_of(kind, {**fields, "usage": 1}) for kind, fields in REQUIRED.items()}
    loose = [client for client in PINNED if LOOSE.includes(release_of(client))]
    taking = _taking(judge, texts.values())
    assert {kind: taking[text] for kind, text in texts.items()} == {
        kind: [client for client in loose if TYPES[kind].includes(release_of(client))] for kind in texts
    }


def test_no_client_takes_a_chunk_without_a_required_field(judge: Judge) -> None:
    texts = [
        text_of(kind, {name: value for name, value in fields.items() if name != missing})
        for kind, fields in REQUIRED.items()
        for missing in fields
    ]
    assert _taking(judge, texts) == {text: [] for text in texts}
    assert {text: _rule(text) for text in texts} == dict.fromkeys(texts, "shape")


def test_no_client_that_knows_an_optional_field_takes_null_for_it(judge: Judge) -> None:
    texts = {
        (kind, field): text_of(kind, REQUIRED[kind] | {field: None})
        for kind, field in _OPTIONAL_FIELDS
        if field not in _ANYTHING
    }
    taking = _taking(judge, texts.values())
    assert {key: taking[text] for key, text in texts.items()} == {key: _ignoring(*key) for key in texts}
    assert {text: _rule(text) for text in texts.values()} == dict.fromkeys(texts.values(), "shape")


def test_a_citation_is_taken_as_the_newest_client_takes_it(judge: Judge) -> None:
    source: dict[str, Any] = {"type": "source", "sourceType": "url", "id": "s", "url": "https://a.example"}
    sources = [source, {**source, "more": 1}, {**source, "type": "other"}]
    sources += [{name: value for name, value in source.items() if name != missing} for missing in source]
    indices: list[Any] = [0, 3, 3.0, -0.0, 2**53 - 1, 2**53, 1.5, -1, 1e20, True, None, "1"]
    citations = [*({"source": each} for each in sources), *({"source": source, "startIndex": at} for at in indices)]
    texts = [text_of("text-end", {"id": "part", "citations": [citation]}) for citation in citations]
    newest = PINNED[-1]
    assert {text: newest in clients for text, clients in _taking(judge, texts).items()} == {
        text: _rule(text) is None for text in texts
    }


def _ignoring(kind: str, field: str) -> list[str]:
    """The clients that know the type, do not know the field, and do not mind."""
    releases = {client: release_of(client) for client in PINNED}
    return [
        client
        for client, release in releases.items()
        if TYPES[kind].includes(release) and LOOSE.includes(release) and not FIELDS[kind][field].includes(release)
    ]


def _rule(text: str) -> str | None:
    try:
        decode_chunk(text)
    except RemoteProtocolError as error:
        return error.rule
    return None


_CALL: Final = ToolInputAvailable("call", "weather", {})
_TEXT: Final[list[Chunk]] = [TextStart("part"), TextEnd("part")]
_CONTEXT: Final[dict[str, list[Chunk]]] = {
    "finish": _TEXT,
    "abort": _TEXT,
    "error": _TEXT,
    "text-delta": [TextStart("part")],
    "text-end": [TextStart("part")],
    "reasoning-delta": [ReasoningStart("part")],
    "reasoning-end": [ReasoningStart("part")],
    "tool-input-delta": [ToolInputStart("call", "weather")],
    "tool-output-available": [_CALL],
    "tool-output-error": [_CALL],
    "tool-approval-request": [_CALL],
    "tool-approval-response": [_CALL, ToolApprovalRequest("approval", "call")],
}
_REFUSED_CALL: Final[dict[str, Any]] = {
    "type": "tool-weather",
    "toolCallId": "call",
    "state": "approval-responded",
    "input": {},
    "approval": {"id": "approval", "approved": False},
}
_CONTINUED: Final[dict[str, dict[str, Any]]] = {
    "tool-output-denied": {"id": "m", "role": "assistant", "parts": [{"type": "step-start"}, _REFUSED_CALL]}
}
_WITHOUT_OLDER_FORM: Final[dict[ClientName, set[str]]] = {
    "portable": {"reset-step", "tool-approval-response"},
    "v5": {"reset-step", "tool-approval-response"},
    "v6": {"reset-step", "tool-approval-response"},
    "v7": {"reset-step"},
    "latest": set(),
}
_INVALID: Final[dict[tuple[ClientName, str], set[str]]] = {
    # The wrong input of a static call goes to `rawInput`, and the old check asks for `input`.
    ("portable", "tool-input-error"): {"5.0.92", "5.0.216", "6.0.0"},
    ("v6", "tool-input-error"): {"6.0.0"},
    # No v5 client has a message with an answered approval, so that its check does not know one.
    ("v5", "tool-output-denied"): {"5.0.92", "5.0.216", V5},
}
"""Where these clients show the right message and call it invalid all the same."""


def _written(profile: ClientName, kind: str) -> list[Chunk]:
    """A turn with one chunk of this type that has all its fields, and some text after it."""
    ids = count()
    continued = msgspec.convert(_CONTINUED.get(kind), UIMessage | None)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(ids)}", client=profile, continues=continued)
    written = [chunk for before in _CONTEXT.get(kind, []) for chunk in writer.send(before)]
    written += writer.send(sample(kind))
    if writer.state.phase not in ("ended", "failed"):
        written += [*writer.text("and so on"), *writer.finish("tool-calls")]
    return written


@pytest.mark.parametrize("kind", CHUNK_TYPES)
@pytest.mark.parametrize("profile", CLIENTS)
def test_whatever_is_written_for_a_profile_its_clients_take(judge: Judge, profile: ClientName, kind: str) -> None:
    if kind in _WITHOUT_OLDER_FORM[profile]:
        with pytest.raises(LocalProtocolError) as raised:
            _written(profile, kind)
        assert (raised.value.chunk, raised.value.rule) == (kind, "too-new")
        return
    stream = _written(profile, kind)
    clients = promised(profile, stream)
    texts = [encode_chunk(chunk).decode() for chunk in stream]
    assert judge.parse(texts, clients) == {client: [None] * len(texts) for client in clients}
    invalid = _INVALID.get((profile, kind), set())
    assert faults_of(judge, body_of(stream), clients, continues=_CONTINUED.get(kind)) == {
        client: {INVALID} if client in invalid else set() for client in clients
    }
