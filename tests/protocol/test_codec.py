import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usechat.errors import LocalProtocolError, RemoteProtocolError
from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Citation,
    Data,
    Error,
    Finish,
    MessageMetadata,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    ToolInputAvailable,
    ToolOutputAvailable,
    UrlSource,
    chunk_type,
)
from usechat.protocol.codec import Decoded, clean_chunk, decode_chunk, encode_chunk, parse_json


def test_there_is_one_class_for_each_chunk_type_of_the_newest_client() -> None:
    assert len(CHUNK_TYPES) == 30


def test_absent_fields_are_left_out_and_null_values_stay() -> None:
    assert encode_chunk(Start()) == b'{"type":"start"}'
    assert encode_chunk(Start("m")) == b'{"type":"start","messageId":"m"}'
    assert encode_chunk(MessageMetadata(None)) == b'{"type":"message-metadata","messageMetadata":null}'
    assert (
        encode_chunk(ToolInputAvailable("c", "search", None))
        == b'{"type":"tool-input-available","toolCallId":"c","toolName":"search","input":null}'
    )
    assert encode_chunk(Data("data-x", None)) == b'{"type":"data-x","data":null}'


def test_a_chunk_knows_its_type_on_the_wire() -> None:
    assert chunk_type(StartStep()) == "start-step"
    assert chunk_type(Data("data-weather", 1)) == "data-weather"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (math.nan, b"null"),
        ({"__proto__": 1}, b'{"_proto_":1}'),
        ({"constructor": {"prototype": 1}}, b'{"_constructor":{"prototype":1}}'),
        ({"constructor": {"name": 1}}, b'{"constructor":{"name":1}}'),
        ("\ud800", '"\ufffd"'.encode()),
        (object(), b'"[object]"'),
    ],
)
def test_a_value_that_no_client_takes_costs_only_that_value(output: object, expected: bytes) -> None:
    prefix = b'{"type":"tool-output-available","toolCallId":"c","output":'
    assert encode_chunk(ToolOutputAvailable("c", output)) == prefix + expected + b"}"


def test_encoding_a_field_of_the_wrong_type_names_chunk_and_rule() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        clean_chunk(TextDelta("t", msgspec.convert(7, object)))  # pyright: ignore[reportArgumentType]
    assert (caught.value.chunk, caught.value.rule) == ("text-delta", "shape")
    assert str(caught.value) == (
        "The text-delta chunk has a wrong field: Expected `str`, got `int` - at `$.delta`. "
        "Send every required field with a value of its type; leave an absent one out instead of null."
    )


def test_cleaning_keeps_nested_structures_and_mends_their_text() -> None:
    citation = Citation(UrlSource("s", "https://example.com", title="\ud800"), cited_text="x")
    assert clean_chunk(TextEnd("t", citations=[citation])) == TextEnd(
        "t", citations=[Citation(UrlSource("s", "https://example.com", title="\ufffd"), cited_text="x")]
    )


def test_only_values_are_limited_in_size() -> None:
    long = "x" * 100
    assert clean_chunk(TextDelta("t", long), 50) == TextDelta("t", long)
    assert clean_chunk(Data("data-x", long), 50) == Data("data-x", "x" * 50 + "… [50 more characters left out]")


def test_decoding_hands_back_unknown_fields_beside_the_chunk() -> None:
    assert decode_chunk('{"type":"error","errorText":"x","code":7}') == Decoded(Error("x"), {"code": 7})
    assert decode_chunk(b'{"type":"data-a","data":[1],"id":"i"}') == Decoded(Data("data-a", [1], "i"), {})
    assert decode_chunk('{"type":"finish","finishReason":"stop"}').chunk == Finish("stop")


def _cited(source: str, index: str = "0") -> str:
    return f'{{"type":"text-end","id":"t","citations":[{{"source":{{{source}}},"startIndex":{index}}}]}}'


_SOURCE = '"type":"source","sourceType":"url","id":"s","url":"u"'


@pytest.mark.parametrize("index", ["3", "3.0", "3e0", "-0.0", "9007199254740991"])
def test_whole_numbers_of_any_form_are_indices(index: str) -> None:
    citation = Citation(UrlSource("s", "u"), float(index))
    assert decode_chunk(_cited(_SOURCE, index)).chunk == TextEnd("t", citations=[citation])


@pytest.mark.parametrize(
    ("payload", "chunk", "rule"),
    [
        ("{", "", "json"),
        ("", "", "json"),
        ('{"type":"data-x","data":NaN}', "", "json"),
        ("[" * 100_000, "", "json"),
        ("[]", "", "object"),
        ("null", "", "object"),
        ('{"type":"ping"}', "ping", "unknown-type"),
        ("{}", "None", "unknown-type"),
        ('{"type":["start"]}', "['start']", "unknown-type"),
        ('{"type":"text-delta","id":"a"}', "text-delta", "shape"),
        ('{"type":"text-start","id":"a","providerMetadata":null}', "text-start", "shape"),
        ('{"type":"text-start","id":"a","providerMetadata":{"a":1}}', "text-start", "shape"),
        ('{"type":"finish","finishReason":"end_turn"}', "finish", "shape"),
        ('{"type":"data-x"}', "data-x", "shape"),
        (_cited(_SOURCE.removeprefix('"type":"source",')), "text-end", "shape"),
        (_cited(_SOURCE, "1.5"), "text-end", "shape"),
        (_cited(_SOURCE, "1e20"), "text-end", "shape"),
        (_cited(_SOURCE, "9007199254740992"), "text-end", "shape"),
        ('{"type":"data-x","data":{"__proto__":1}}', "data-x", "forbidden-key"),
        ('{"type":"data-x","data":[{"constructor":{"prototype":1}}]}', "data-x", "forbidden-key"),
    ],
)
def test_decoding_names_the_wrong_chunk_and_the_rule(payload: str, chunk: str, rule: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_chunk(payload)
    assert (caught.value.chunk, caught.value.rule) == (chunk, rule)


def test_decoding_takes_what_javascript_takes() -> None:
    assert parse_json('"\\ud83d"') == "\ud83d"
    assert parse_json('["\\ud83d", ' + "1" * 5000 + ", 12]") == ["\ud83d", math.inf, 12]


def _decoded(payload: str | bytes) -> Decoded | str:
    try:
        return decode_chunk(payload)
    except RemoteProtocolError as error:
        return error.rule


@given(st.binary() | st.text())
def test_decoding_arbitrary_bytes_raises_only_our_error(payload: str | bytes) -> None:
    assert _decoded(payload) in ("json", "object", "unknown-type")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)
_names = st.text() | st.sampled_from(
    ["id", "delta", "toolCallId", "toolName", "input", "output", "data", "url", "errorText", "approved", "parts"]
)


@given(st.sampled_from([*CHUNK_TYPES, "data-x", "?"]), st.dictionaries(_names, _json))
def test_decoding_mutated_chunks_raises_only_our_error(name: str, fields: dict[str, object]) -> None:
    decoded = _decoded(msgspec.json.encode({**fields, "type": name}))
    if isinstance(decoded, Decoded):
        assert chunk_type(decoded.chunk) == name
        assert decoded.unknown.keys() <= fields.keys()
    else:
        assert decoded in ("unknown-type", "shape", "forbidden-key")
