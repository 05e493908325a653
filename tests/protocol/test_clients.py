import pytest
from msgspec import UNSET

from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Abort,
    Chunk,
    Citation,
    Custom,
    Data,
    File,
    Finish,
    ReasoningFile,
    ResetStep,
    SteeringMessage,
    SteeringText,
    TextDelta,
    TextEnd,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
    UrlSource,
)
from usechat.protocol.clients import CLIENTS, FIELDS, TYPES, ClientName, Release, newer_than
from usechat.protocol.state import StreamState


def fit(client: ClientName, chunk: Chunk, before: Chunk | None = None) -> tuple[Chunk, ...]:
    state = StreamState()
    if before is not None:
        state.apply(before)
    return CLIENTS[client].fit(chunk, state)


def test_every_type_and_optional_field_stands_in_the_tables() -> None:
    assert TYPES.keys() == CHUNK_TYPES.keys()
    optional = {
        name: {
            wire
            for wire, default in zip(
                kind.__struct_encode_fields__[-len(kind.__struct_defaults__) :], kind.__struct_defaults__, strict=True
            )
            if default is UNSET
        }
        for name, kind in CHUNK_TYPES.items()
        if kind.__struct_defaults__
    }
    assert {name: set(fields) for name, fields in FIELDS.items()} == optional


FITTED: list[tuple[ClientName, Chunk, tuple[Chunk, ...]]] = [
    ("portable", Finish("stop"), (Finish("stop"),)),
    ("portable", Finish("interrupted", {"a": 1}), (Finish("other", {"a": 1}),)),
    ("v7", Finish("interrupted"), (Finish("other"),)),
    ("latest", Finish("interrupted"), (Finish("interrupted"),)),
    ("v5", Finish("stop", {"a": 1}), (Finish(UNSET, {"a": 1}),)),
    ("portable", Abort("why"), (Abort(),)),
    ("v6", Abort("why"), (Abort(),)),
    ("v7", Abort("why"), (Abort("why"),)),
    ("v5", ToolOutputAvailable("c", 1, preliminary=True), (ToolOutputAvailable("c", 1),)),
    (
        "portable",
        ToolOutputAvailable("c", 1, preliminary=True, tool_metadata={}),
        (ToolOutputAvailable("c", 1, preliminary=True),),
    ),
    ("portable", ToolInputStart("c", "x", dynamic=True, title="T"), (ToolInputStart("c", "x", dynamic=True),)),
    ("v6", ToolInputStart("c", "x", title="T", tool_metadata={}), (ToolInputStart("c", "x", title="T"),)),
    ("portable", ToolInputStart("c", "x", provider_metadata={"p": {}}), (ToolInputStart("c", "x"),)),
    ("portable", ToolOutputAvailable("c", 1, True, provider_metadata={"p": {}}), (ToolOutputAvailable("c", 1, True),)),
    ("v6", ToolOutputError("c", "no", provider_metadata={"p": {}}), (ToolOutputError("c", "no"),)),
    ("v7", TextEnd("t", citations=[Citation(UrlSource("s", "u"))]), (TextEnd("t"),)),
    ("portable", ReasoningFile("u", "m", {"p": {}}), (File("u", "m", {"p": {}}),)),
    ("v6", Custom("a.b", {"p": {}}), (Data("data-custom", {"kind": "a.b", "providerMetadata": {"p": {}}}),)),
    (
        "v7",
        SteeringMessage("s", [SteeringText("x")]),
        (Data("data-steering-message", {"id": "s", "parts": [{"type": "text", "text": "x"}]}, "s"),),
    ),
    ("portable", ToolApprovalRequest("a", "c", "sig", "why"), (ToolApprovalRequest("a", "c"),)),
    (
        "v5",
        ToolApprovalRequest("a", "c", reason="why"),
        (Data("data-approval-request", {"approvalId": "a", "toolCallId": "c", "reason": "why"}, "a"),),
    ),
    ("portable", ToolOutputDenied("c"), (ToolOutputDenied("c"),)),
    ("v5", ToolOutputDenied("c"), (ToolOutputError("c", "The call was denied."),)),
    (
        "v5",
        ToolInputError("c", "x", {"a": 1}, "bad"),
        (ToolInputStart("c", "x"), ToolInputDelta("c", '{"a":1}'), ToolOutputError("c", "bad")),
    ),
]


@pytest.mark.parametrize(("client", "chunk", "fitted"), FITTED)
def test_what_an_old_release_lacks_gets_its_nearest_older_form(
    client: ClientName, chunk: Chunk, fitted: tuple[Chunk, ...]
) -> None:
    assert fit(client, chunk) == fitted


def test_a_wrong_input_adds_only_what_the_call_lacks() -> None:
    wrong = ToolInputError("c", "x", 1, "bad", dynamic=True)
    begun = ToolInputStart("c", "x", dynamic=True)
    failed = ToolOutputError("c", "bad", dynamic=True)
    assert fit("v5", wrong, begun) == (ToolInputDelta("c", "1"), failed)
    state = StreamState()
    state.apply(begun)
    state.apply(ToolInputDelta("c", "{"))
    assert CLIENTS["v5"].fit(wrong, state) == (failed,)


def test_a_denied_call_stays_dynamic() -> None:
    begun = ToolInputStart("c", "x", dynamic=True)
    assert fit("v5", ToolOutputDenied("c"), begun) == (ToolOutputError("c", "The call was denied.", dynamic=True),)


@pytest.mark.parametrize("client", ["portable", "v5", "v6", "v7"])
def test_what_has_no_older_form_raises(client: ClientName) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        fit(client, ResetStep())
    assert (caught.value.rule, caught.value.chunk) == ("too-new", "reset-step")


@pytest.mark.parametrize("client", ["portable", "v5", "v6"])
def test_an_answer_to_an_approval_has_no_older_form(client: ClientName) -> None:
    with pytest.raises(LocalProtocolError, match=f"no form that the client `{client}` takes"):
        fit(client, ToolApprovalResponse("a", True))


def test_the_newest_release_takes_everything_as_it_is() -> None:
    for chunk in (ResetStep(), ToolApprovalResponse("a", True), Custom("a.b"), Abort("x")):
        assert fit("latest", chunk) == (chunk,)


@pytest.mark.parametrize("client", list(CLIENTS))
def test_every_client_takes_a_text_delta_as_it_is(client: ClientName) -> None:
    assert fit(client, TextDelta("t", "x")) == (TextDelta("t", "x"),)


def test_what_a_release_refuses_is_named() -> None:
    assert newer_than(Finish("interrupted"), Release(5, 0)) == [
        "the field `finishReason` of `finish`",
        "the value `interrupted` of `finishReason`",
    ]
    assert newer_than(Finish("interrupted"), Release(5, 277)) == ["the value `interrupted` of `finishReason`"]
    assert newer_than(Custom("a.b"), Release(6, 326)) == ["the chunk `custom`"]
    assert newer_than(Data("data-x", 1, "i"), Release(5, 0)) == []
    assert str(Release(7, 170)) == "7.0.170"
