"""What agents return, as the real clients have it in their message: one odd value costs that value, never the turn."""

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge import Judge, body_of
from promises import PROMISES, V7
from same_json import as_json, strict
from support.soak import draws
from usechat.protocol.chunks import Chunk
from usechat.protocol.requests import decode_request
from usechat.protocol.values import MAX_DEPTH, VALUE_LIMIT
from usechat.protocol.writer import MessageWriter

CLIENTS: Final = PROMISES["portable"]
SECRET: Final = "the password is swordfish"  # noqa: S105
WHEN: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STEP: Final = {"type": "step-start"}
AFTER: Final = {"type": "text", "text": "And on it goes.", "state": "done"}


class Colour(Enum):
    RED = "red"
    UNKNOWN = object()


class Level(IntEnum):
    HIGH = 3


class Size(StrEnum):
    LARGE = "large"


@dataclass
class Point:
    x: Any
    y: Any = None


@attrs.define
class Box:
    width: Any


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    name: str
    founded: date
    anything: Any = None


class Record(msgspec.Struct):
    name: Any


class Pair(NamedTuple):
    left: int
    right: str


class Tensor:
    def tolist(self) -> list[list[float]]:
        return [[1.0, math.nan], [2.5, 3.0]]


class Refusing:
    def tolist(self) -> list[int]:
        raise RuntimeError(SECRET)


class Unreadable(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError(SECRET)

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1


@dataclass
class ApiError(Exception):
    token: str


class Unlisted(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise RuntimeError(SECRET)


class Hidden:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(SECRET)


class Word(str):
    __slots__ = ()


class Count(int):
    pass


def numbers() -> Iterator[int]:
    yield 1


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {"self": None, "twice": "fine"}
    value["self"] = [value]
    return value


def cyclic_object() -> Point:
    point = Point(1)
    point.y = point
    return point


VALUES: Final[dict[str, tuple[Callable[[], Any], Any]]] = {
    "None": (lambda: None, None),
    "None inside": (lambda: {"a": None, "b": [None]}, {"a": None, "b": [None]}),
    "NaN and infinities": (lambda: [math.nan, math.inf, -math.inf, {"a": math.nan}], [None, None, None, {"a": None}]),
    "a bare NaN": (lambda: math.nan, None),
    "lone surrogates": (lambda: ["\ud800", "a\udc00b", "\ude00\ud83d"], ["\ufffd", "a\ufffdb", "\ufffd\ufffd"]),
    "a surrogate pair": (lambda: "\ud83d\ude00", "😀"),
    "lone surrogates in keys": (lambda: dict(zip("\ud800\udc00", (1, 2), strict=True)), {"\ufffd": 1, "_\ufffd": 2}),
    "__proto__": (
        lambda: {"__proto__": {"a": 1}, "b": [{"__proto__": 2}]},
        {"_proto_": {"a": 1}, "b": [{"_proto_": 2}]},
    ),
    "constructor.prototype": (lambda: {"constructor": {"prototype": 1}}, {"_constructor": {"prototype": 1}}),
    "a harmless constructor": (lambda: {"constructor": {"name": 1}}, {"constructor": {"name": 1}}),
    "a renamed key that is taken": (lambda: {"_proto_": 1, "__proto__": 2}, {"_proto_": 1, "__proto_": 2}),
    "the text of a forbidden key": (lambda: ['"__proto__":', "__proto__"], ['"__proto__":', "__proto__"]),
    "bytes": (lambda: [b"\x00\xff", bytearray(b"ab"), memoryview(b"ab")], ["AP8=", "YWI=", "YWI="]),
    "datetime": (lambda: [WHEN, WHEN.date(), timedelta(hours=1)], ["2026-01-02T03:04:05Z", "2026-01-02", "PT3600S"]),
    "UUID": (lambda: UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Decimal": (lambda: [Decimal("1.10"), Decimal("NaN")], ["1.10", "NaN"]),
    "Enum": (lambda: [Colour.RED, Level.HIGH, Size.LARGE], ["red", 3, "large"]),
    "an Enum of no JSON": (lambda: Colour.UNKNOWN, "[object]"),
    "set": (lambda: [{3}, frozenset("a")], [[3], ["a"]]),
    "tuple": (lambda: (1, Pair(2, "\ud800")), [1, [2, "\ufffd"]]),
    "a dict of a subclass": (lambda: OrderedDict([("a", 1)]), {"a": 1}),
    "path": (lambda: PurePosixPath("a/b"), "a/b"),
    "dataclass": (lambda: Point(1, {Point(2).x}), {"x": 1, "y": [2]}),
    "attrs": (lambda: Box(Box("\ud800")), {"width": {"width": "\ufffd"}}),
    "struct": (lambda: Record(WHEN), {"name": "2026-01-02T03:04:05Z"}),
    "pydantic model": (
        lambda: City(name="Köln", founded=date(50, 1, 1), anything=Box(1)),
        {"name": "Köln", "founded": "0050-01-01", "anything": {"width": 1}},
    ),
    "exception": (
        lambda: [ValueError(SECRET), {"cause": KeyError(SECRET)}],
        [{"error": "ValueError"}, {"cause": {"error": "KeyError"}}],
    ),
    "exception in an object": (lambda: Point(ValueError(SECRET)), {"x": {"error": "ValueError"}, "y": None}),
    "exception group": (lambda: ExceptionGroup(SECRET, [ValueError(SECRET)]), {"error": "ExceptionGroup"}),
    "cyclic list": (cyclic_list, [1, "[circular]"]),
    "cyclic dict": (cyclic_dict, {"self": ["[circular]"], "twice": "fine"}),
    "cyclic object": (cyclic_object, {"x": 1, "y": "[circular]"}),
    "the same value twice": (lambda: [[1]] * 2, [[1], [1]]),
    "numpy": (lambda: Tensor(), [[1.0, None], [2.5, 3.0]]),
    "an object that refuses": (lambda: [Refusing(), 1], ["[Refusing]", 1]),
    "an object": (lambda: [object(), len, int], ["[object]", "[builtin_function_or_method]", "[type]"]),
    "generator": (numbers, "[generator]"),
    "odd keys": (
        lambda: {None: 1, True: 2, (1, "a"): 3, 4: 5, 1.5: 6, b"b": 7, WHEN: 8},
        {"null": 1, "true": 2, '[1,"a"]': 3, "4": 5, "1.5": 6, "Yg==": 7, "2026-01-02T03:04:05Z": 8},
    ),
    "large integers": (lambda: [2**53, 2**64, 2**70, -(10**30)], [2.0**53, 2.0**64, 2.0**70, -1e30]),
    "a text of a subclass": (lambda: Word("köln"), "köln"),
    "an integer of a subclass": (lambda: Count(3), 3),
    "an exception that is a dataclass": (lambda: ApiError(SECRET), {"error": "ApiError"}),
    "keys that become the same": (lambda: {1: "a", "1": "b"}, {"1": "a", "_1": "b"}),
    "an integer of 5,000 digits": (lambda: [10**5_000, 1], ["[int]", 1]),
    "an exception that is a dataclass in an object": (
        lambda: Point(ApiError(SECRET)),
        {"x": {"error": "ApiError"}, "y": None},
    ),
    "an exception that is a dataclass in a model": (
        lambda: City(name="", founded=date(50, 1, 1), anything=ApiError(SECRET)),
        {"name": "", "founded": "0050-01-01", "anything": {"error": "ApiError"}},
    ),
    "a mapping that raises": (lambda: [Unreadable(), 1], ["[Unreadable]", 1]),
    "a list that raises": (lambda: [Unlisted([1]), 1], ["[Unlisted]", 1]),
    "an object that raises at everything": (lambda: [Hidden(), 1], ["[Hidden]", 1]),
}
CASES: Final = [
    *(pytest.param(*case, id=name) for name, case in VALUES.items()),
]


def writer(**options: Any) -> MessageWriter:
    numbers = count()
    return MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", **options)


def use_everywhere(value: Callable[[], Any]) -> list[Chunk]:
    w = writer()
    chunks = w.tool_input("c", "tool", value()) + w.tool_output("c", value()) + w.data("own", value())
    return chunks + w.metadata({"value": value()}) + w.text("And on it goes.") + w.finish()


def messages(judge: Judge, chunks: list[Chunk], clients: list[str]) -> dict[str, Any]:
    results = judge.read(chunks, clients)
    for client, result in results.items():
        assert (result["status"], result["error"]) == ("ready", None), client
    return {client: strict(result["messages"][0]) for client, result in results.items()}


def call(value: Any, output: Any) -> dict[str, Any]:
    return {"type": "tool-tool", "toolCallId": "c", "state": "output-available", "input": value, "output": output}


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_every_client_has_the_value_and_the_turn_goes_on(judge: Judge, value: Callable[[], Any], expected: Any):
    chunks = use_everywhere(value)
    assert SECRET not in body_of(chunks)
    parts = [STEP, call(expected, expected), {"type": "data-own", "data": expected}, STEP, AFTER]
    message = {"id": "m", "role": "assistant", "metadata": {"value": expected}, "parts": parts}
    assert messages(judge, chunks, CLIENTS) == dict.fromkeys(CLIENTS, strict(message))


def results_in(judge: Judge, output: Any, clients: list[str] = CLIENTS, **options: Any) -> dict[str, Any]:
    """What each client has as the result of a tool, if it has the text after it too."""
    w = writer(**options)
    chunks = w.tool_input("c", "tool", {}) + w.tool_output("c", output) + w.text("And on it goes.") + w.finish()
    found = messages(judge, chunks, clients)
    for message in found.values():
        assert message["parts"] == [STEP, {**call({}, None), "output": message["parts"][1]["output"]}, STEP, AFTER]
    return {client: message["parts"][1]["output"] for client, message in found.items()}


def nested(levels: int, innermost: Any) -> Any:
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


def test_a_very_deep_value_is_cut_at_the_depth_that_a_request_may_have(judge: Judge):
    outputs = results_in(judge, nested(100_000, 0))
    assert outputs == dict.fromkeys(CLIENTS, nested(MAX_DEPTH, "[nested too deeply]"))
    message = {"id": "m", "role": "assistant", "parts": [call({}, outputs[V7])]}
    request = decode_request(json.dumps({"id": "chat", "messages": [message]}).encode())
    assert as_json(request.last) == message


@pytest.mark.parametrize(
    ("output", "limit", "expected"),
    [
        ("x" * 2_000_000, VALUE_LIMIT, "x" * VALUE_LIMIT + "… [951424 more characters left out]"),
        ([0] * 50_000, 20_000, [0.0] * 10_000 + ["… [the rest left out]"]),
        ("x" * 2_000_000, 10, "xxxxxxxxxx… [1999990 more characters left out]"),
        ({"a": "é" * 9, "b": 1}, 20, {"a": "é" * 7 + "… [2 more characters left out]", "…": "[the rest left out]"}),
        ("x" * 2_000_000, 4_000_000, "x" * 2_000_000),
    ],
    ids=["text", "list", "text and a small limit", "object and a small limit", "text and a large limit"],
)
def test_a_huge_value_keeps_its_beginning_up_to_the_limit(judge: Judge, output: Any, limit: int, expected: Any):
    clients = ["5.0.92", "6.0.0", V7]
    found = results_in(judge, output, clients, value_limit=limit)
    # Compared without the help of pytest, which would take minutes to explain a difference.
    assert [client for client in clients if found[client] != expected] == []


def test_halves_of_a_character_in_two_deltas_arrive_as_one_character(judge: Judge):
    w = writer()
    chunks = w.text("a\ud83d") + w.text("\ude00b") + w.reasoning("\ud83d") + w.reasoning("\ude00")
    chunks += w.text("\ud83d") + w.text("c\udc00") + w.text("d\ud83d")
    chunks += w.tool_input_start("c", "tool") + w.tool_input_delta("c", '"\ud83d') + w.tool_input_delta("c", '\ude00"')
    chunks += w.tool_output("c", 1) + w.text("And on it goes.") + w.finish()
    expected = [
        STEP,
        {"type": "text", "text": "a😀b", "state": "done"},
        {"type": "reasoning", "text": "😀", "state": "done"},
        {"type": "text", "text": "\ufffdc\ufffdd\ufffd", "state": "done"},
        call("😀", 1.0),
        STEP,
        AFTER,
    ]
    for client, message in messages(judge, chunks, CLIENTS).items():
        # The newest of each major keep the id of reasoning.
        message["parts"][2].pop("id", None)
        assert message["parts"] == expected, client


def test_half_a_character_in_the_input_of_a_call_stays_out_of_the_next_call(judge: Judge):
    w = writer()
    chunks = w.tool_input_start("c", "tool") + w.tool_input_delta("c", '"\ud83d') + w.tool_input("c", "tool", "")
    chunks += w.tool_output("c", 1) + w.tool_input_start("c", "tool") + w.tool_input_delta("c", "[2]")
    chunks += w.tool_output("c", 2) + w.text("And on it goes.") + w.finish()
    for client, message in messages(judge, chunks, CLIENTS).items():
        inputs = [part["input"] for part in message["parts"] if "toolCallId" in part]
        assert inputs == ["", [2.0]], client


TEXTS: Final = st.text("a\ud83d\ude00\udc00é😀\0", max_size=4) | st.sampled_from(
    ("__proto__", "constructor", "prototype", "")
)
LEAVES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    TEXTS,
    st.binary(max_size=4),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(),
    st.sampled_from((*Colour, *Level, Refusing(), Tensor(), object(), ValueError(SECRET), math.nan, 10**400, ...)),
)
KEYS: Final = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(), st.tuples(TEXTS, st.integers()))


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    return st.one_of(
        items,
        st.builds(tuple, items),
        st.frozensets(KEYS, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Box, inner),
        st.builds(Record, inner),
        st.builds(City, name=st.just("x"), founded=st.just(date(50, 1, 1)), anything=inner),
    )


@settings(max_examples=draws(40, 75))
@given(st.recursive(LEAVES, compound, max_leaves=12))
def test_the_clients_take_any_mixture_of_python_values(judge: Judge, value: Any):
    chunks = use_everywhere(lambda: value)
    assert SECRET not in body_of(chunks)
    for message in messages(judge, chunks, ["5.0.216", V7]).values():
        assert message["parts"][-1] == AFTER
