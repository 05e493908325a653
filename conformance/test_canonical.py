"""Values that Node reads and writes again: what has the same canonical form is the same to it, and nothing else is."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from json_values import TEXTS, VALUES
from same_json import strict
from support.soak import draws
from usechat.protocol.values import canonical, plain

_AGAIN: Final = "JSON.parse(fs.readFileSync(0)).map(text => JSON.stringify(JSON.parse(text)))"
_NODE: Final = ["node", "--print", f"JSON.stringify({_AGAIN})"]

_NUMBERS: Final = st.one_of(
    st.integers(),
    st.integers(2**52, 2**70),
    st.integers(10**300, 10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((0.0, -0.0, 1.0, 1e21, 1e20, 123456789e-14, 1e-7, 5e-324, 1.7976931348623157e308, 2**53 + 1)),
)
_KEYS: Final = st.sampled_from(("10", "9", "01", "-1", "4294967295", "__proto__", "constructor", "prototype")) | TEXTS
_LEAVES: Final = _NUMBERS | st.text(max_size=4) | st.booleans() | st.none()
_ODD: Final = st.dictionaries(_KEYS, _LEAVES | st.dictionaries(_KEYS, _LEAVES, max_size=3), max_size=4)
_MANY: Final = st.lists(_LEAVES | _ODD | VALUES, min_size=20, max_size=60)


def through_node(values: Sequence[Any]) -> list[Any]:
    texts = json.dumps([msgspec.json.encode(value).decode() for value in values])
    written = subprocess.run(_NODE, input=texts.encode(), capture_output=True, check=True).stdout  # noqa: S603
    return [msgspec.json.decode(text) for text in json.loads(written)]


@settings(max_examples=draws(5, 24), deadline=None)
@given(_MANY)
def test_a_value_has_one_canonical_form_before_and_after_node(values: list[Any]):
    sent = [plain(value) for value in values]
    assert [canonical(value) for value in through_node(sent)] == [canonical(value) for value in sent]


@settings(max_examples=draws(5, 24), deadline=None)
@given(_MANY)
def test_values_with_the_same_canonical_form_are_the_same_to_node(values: list[Any]):
    sent = [plain(value) for value in values]
    forms: dict[bytes, Any] = {}
    for value, returned in zip(sent, through_node(sent), strict=True):
        assert strict(forms.setdefault(canonical(value), returned)) == strict(returned)
