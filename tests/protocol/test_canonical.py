from typing import Any

import pytest

from usechat.protocol.canonical import canonical


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
