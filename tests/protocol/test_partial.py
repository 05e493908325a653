import json
from typing import Any

import pytest
from msgspec import UNSET

from usechat.protocol.partial import parse_partial

CASES: list[tuple[str, Any]] = [
    ("", UNSET),
    ("x", UNSET),
    ('{"a": 1}', {"a": 1}),
    ('{"a": [1, {"b": "c', {"a": [1, {"b": "c"}]}),
    ('{"a": 1, "b', {"a": 1}),
    ('{"a": 1, "b":', {"a": 1}),
    ('{"a": tr', {"a": True}),
    ('{"a": fal', {"a": False}),
    ("[nul", [None]),
    ("[true, fx", UNSET),
    ("[1, -", [1]),
    ("[1.", [1]),
    ("[12e5", [12e5]),
    ("[1}", [1]),
    ("[1 ,2", [1, 2]),
    ('["a\\', ["a"]),
    ('["a\\u00', ["a"]),
    ('["a\\u00e9', ["aé"]),
    ('["\\ud83d', ["\ud83d"]),
    ('{"a": {"__proto__": 1', UNSET),
    ('{"a": true}', {"a": True}),
    ('{"a": [], "b": {}, "c": [[1], 2', {"a": [], "b": {}, "c": [[1], 2]}),
    ('["ab", "c', ["ab", "c"]),
    ('["a\\n', ["a\n"]),
    ("[1 x", UNSET),
    ("1", 1),
    ("tru", True),
    ("t1", UNSET),
    ("12 ", 12),
    ("[" * 2000, UNSET),
    (
        '{"a": [1, [2, {"b": [3, [4, [5]], {}, []]}], 6], "c": {"d": 1}, "e": tr',
        {"a": [1, [2, {"b": [3, [4, [5]], {}, []]}], 6], "c": {"d": 1}, "e": True},
    ),
    (
        '[{"a": [1, 2], "b": {"c": null}}, {"a": [ ] , "b": {}}, {"a": [3',
        [{"a": [1, 2], "b": {"c": None}}, {"a": [], "b": {}}, {"a": [3]}],
    ),
    ('{"k\\": 1, "a', UNSET),
    ("[10}, 1", UNSET),
    ("[1e+5, 2", [1e5, 2]),
    ('["\\u12', [""]),
    ('["\\u1x234", 1', UNSET),
    ('["a"x', UNSET),
    ('["a" x', UNSET),
    ("[true x", UNSET),
    ("[truex", [True]),
    ("[1., 2", UNSET),
    ("{1", {}),
]


@pytest.mark.parametrize(("text", "value"), CASES)
def test_the_value_is_the_one_that_the_client_shows(text: str, value: object) -> None:
    assert parse_partial(text) == value


def test_a_long_text_with_many_rows_is_whole_up_to_the_last() -> None:
    rows: list[dict[str, Any]] = [
        {"id": number, "name": "a\nb", "tags": [["x"], {}], "ok": True} for number in range(2_000)
    ]
    assert parse_partial(json.dumps(rows)[:-1]) == rows
