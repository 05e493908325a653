import math
from collections import OrderedDict, UserDict, UserList
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from usechat.protocol.values import MAX_DEPTH, canonical, has_forbidden_key, mend, plain

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


class Odd(Enum):
    ONE = object()


@dataclass
class Point:
    x: int
    y: Any = field(default=None)


@attrs.define
class Size:
    width: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    when: datetime
    anything: Any = None


class Record(msgspec.Struct, tag="record", rename="camel"):
    first_name: Any
    absent: str | msgspec.UnsetType = msgspec.UNSET


class Array:
    def tolist(self) -> list[int]:
        return [1, 2]


class Broken:
    def tolist(self) -> list[int]:
        raise RuntimeError("secret")


class Word(str):
    __slots__ = ()


class Count(int):
    pass


class Ratio(float):
    pass


@dataclass
class ApiError(Exception):
    text: str


class Unreadable(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("secret")


class Unmapped(UserDict[str, int]):
    def __iter__(self) -> Any:
        raise RuntimeError("secret")


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (math.nan, None),
        ([math.inf, -math.inf], [None, None]),
        (2**70, 2**70),
        ("text", "text"),
        (b"ab", "YWI="),
        (WHEN, "2026-01-02T00:00:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (Odd.ONE, "[object]"),
        ({3}, [3]),
        (frozenset([3]), [3]),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (UserList([1]), [1]),
        (OrderedDict({"a": 1}), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (PurePosixPath("a/b"), "a/b"),
        (Point(1), {"x": 1, "y": None}),
        (Size(2), {"width": 2}),
        (Record("A"), {"type": "record", "firstName": "A"}),
        (Model(when=WHEN), {"when": "2026-01-02T00:00:00Z", "anything": None}),
        (
            Model(when=WHEN, anything=Array()),
            {"when": "2026-01-02T00:00:00Z", "anything": [1, 2]},
        ),
        (Word("é"), "é"),
        (Count(3), 3),
        (Ratio(1.5), 1.5),
        (ApiError("secret"), {"error": "ApiError"}),
        (Point(1, ApiError("secret")), {"x": 1, "y": {"error": "ApiError"}}),
        (
            Model(when=WHEN, anything=ApiError("secret")),
            {"when": "2026-01-02T00:00:00Z", "anything": {"error": "ApiError"}},
        ),
        ([10**5_000, 1], ["[int]", 1]),
        (msgspec.Raw(b"nonsense"), "[Raw]"),
        (Unmapped(), "[Unmapped]"),
        (Unreadable({"a": 1, "\ud800": 2}), "[Unreadable]"),
        (Array(), [1, 2]),
        (Broken(), "[Broken]"),
        (numbers(), "[generator]"),
        (ValueError("secret"), {"error": "ValueError"}),
        ({None: 1, True: 2, (1, 2): 3, 4: 5, 1.5: 6}, {"null": 1, "true": 2, "[1,2]": 3, "4": 5, "1.5": 6}),
        ({None: 1}, {"null": 1}),
        ({False: 1}, {"false": 1}),
        ({1: "a", "1": "b", (): 0}, {"1": "a", "_1": "b", "[]": 0}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_becomes_plain_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert plain([value, "\ud800"]) == [expected, "\ufffd"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, "\ud800"), {"x": 1, "y": "\ufffd"}),
        (Size("\ud800"), {"width": "\ufffd"}),
        (Record("\ud800"), {"type": "record", "firstName": "\ufffd"}),
        (Model(when=WHEN, anything="\ud800"), {"when": "2026-01-02T00:00:00Z", "anything": "\ufffd"}),
        (MappingProxyType({"\ud800": 1}), {"\ufffd": 1}),
        (UserList(["\ud800"]), ["\ufffd"]),
    ],
)
def test_an_object_keeps_its_shape_when_a_text_in_it_is_mended(value: object, expected: object) -> None:
    assert plain(value) == expected


def test_keys_that_the_client_refuses_are_renamed() -> None:
    hostile = {"__proto__": 1, "_proto_": 2, "constructor": {"prototype": 3}, "a": [{"constructor": {"name": 4}}]}
    clean = plain(hostile)
    assert clean == {"_proto_": 1, "__proto_": 2, "_constructor": {"prototype": 3}, "a": [{"constructor": {"name": 4}}]}
    assert has_forbidden_key(hostile)
    assert not has_forbidden_key(clean)


def test_a_forbidden_key_is_found_at_any_depth() -> None:
    nested: object = {"__proto__": 1}
    for _ in range(5000):
        nested = [nested]
    assert has_forbidden_key(nested)


def test_a_cycle_is_cut_where_it_closes() -> None:
    cycle: dict[str, object] = {"a": 1}
    cycle["self"] = [cycle]
    assert plain(cycle) == {"a": 1, "self": ["[circular]"]}


def test_a_value_is_cut_at_the_depth_that_a_request_may_have() -> None:
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    clean: object = plain(deep)
    depth = 0
    while isinstance(clean, list):
        clean, depth = cast("list[object]", clean)[0], depth + 1
    assert (depth, clean) == (MAX_DEPTH, "[nested too deeply]")


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH])
def test_only_what_is_too_deep_is_cut(depth: int) -> None:
    deep: object = "]"
    for _ in range(depth):
        deep = [deep]
    wide = [deep, ["["], *({"x": i} for i in range(60))]
    assert (plain(wide) == wide) is (depth < MAX_DEPTH)


def test_many_brackets_are_not_mistaken_for_depth() -> None:
    wide = [{"a": [i]} for i in range(100)]
    assert plain(wide) == wide


def test_a_long_text_keeps_its_beginning() -> None:
    assert plain("é" * 100, 21) == "é" * 10 + "… [90 more characters left out]"


def test_a_long_list_keeps_its_beginning() -> None:
    clean = plain(["0123456789"] * 100, 40)
    assert clean == [
        "0123456789",
        "0123456789",
        "0123456789",
        "… [10 more characters left out]",
        "… [the rest left out]",
    ]


def test_a_long_object_keeps_its_beginning() -> None:
    clean = plain({f"key-{i}": i for i in range(100)}, 25)
    assert clean == {"key-0": 0, "key-1": 1, "key-2": 2, "…": "[the rest left out]"}


@pytest.mark.parametrize("size", [100, 10_000, 10_000_000])
def test_what_is_left_is_about_as_large_as_the_limit(size: int) -> None:
    for value in ("x" * size, ["x" * 10] * (size // 10), {str(i): i for i in range(size // 10)}):
        assert len(msgspec.json.encode(plain(value, 5_000))) <= min(5_000, 2 * size + 20) + 100


def test_surrogates_are_joined_or_replaced() -> None:
    assert mend("ascii") == "ascii"
    assert mend("é\U0001f600") == "é\U0001f600"
    assert mend("a\ud83d\ude00b\ude00\ud83d") == "a\U0001f600b\ufffd\ufffd"


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        (2**53, 2**53 + 1),
        (10**21, 1e21),
        (10**400, None),
        ({"b": 1, "a": [2, {"10": 0, "9": 0}]}, {"a": [2.0, {"9": 0, "10": -0.0}], "b": 1.0}),
    ],
)
def test_values_that_are_the_same_to_javascript_are_the_same(value: Any, other: Any) -> None:
    assert canonical(value) == canonical(other)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, True),
        (0, False),
        (None, False),
        (1, "1"),
        (None, "null"),
        ([], {}),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ({"a": None}, {}),
        ({"1": 0}, [0]),
        ("é", "e\u0301"),
        (0.1 + 0.2, 0.3),
        (5e-324, 0),
    ],
)
def test_values_that_are_not_the_same_to_javascript_differ(value: Any, other: Any) -> None:
    assert canonical(value) != canonical(other)
