import pytest
from msgspec import UNSET

from usechat.protocol.partial import parse_partial


@pytest.mark.parametrize(
    ("text", "value"),
    [
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
    ],
)
def test_the_value_is_the_one_that_the_client_shows(text: str, value: object) -> None:
    assert parse_partial(text) == value
