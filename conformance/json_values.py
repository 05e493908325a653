"""What random chunks are filled with: texts, JSON values, and JSON texts in pieces."""

import json
from functools import cache
from typing import Any, Final, TypeVar, cast

from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from usechat.protocol.chunks import Citation, DocumentSource, SteeringFile, SteeringText, UrlSource

__all__ = [
    "ARGUMENTS",
    "CITATIONS",
    "FIRST_METADATA",
    "FLAGS",
    "GARBAGE",
    "INPUT_TEXTS",
    "MORE_METADATA",
    "OBJECTS",
    "PROVIDERS",
    "STEERING",
    "TEXTS",
    "VALUES",
    "below",
    "optional",
    "pieces",
]

_T = TypeVar("_T")


# A strategy is much slower the first time that it is drawn from, so each is made once.
@cache
def optional(strategy: st.SearchStrategy[_T]) -> st.SearchStrategy[_T | UnsetType]:
    return cast("st.SearchStrategy[_T | UnsetType]", st.just(UNSET)) | strategy


@cache
def below(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


_CHARACTERS: Final = st.sampled_from("ab \"'\\/\n\r\t\0\x7fé\u0085\u2028\u2029\ufeff\uffff😀𐏿{[:,]}-0")
TEXTS: Final = st.text(_CHARACTERS, max_size=6) | st.text(max_size=6)
FLAGS: Final = st.booleans()
_NUMBERS: Final = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_LEAVES: Final = st.one_of(st.none(), FLAGS, _NUMBERS, TEXTS)
# Few keys, so that what is merged meets often; some have a meaning to JavaScript.
_KEYS: Final = st.sampled_from(("a", "b", "c", "", "0", "toString", "prototype", "😀")) | TEXTS


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _LEAVES | st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3)


VALUES: Final = _nested(_nested(_nested(_LEAVES)))
OBJECTS: Final = st.dictionaries(_KEYS, _nested(_nested(_LEAVES)), max_size=3)
PROVIDERS: Final = st.dictionaries(_KEYS, st.dictionaries(_KEYS, _LEAVES, max_size=2), max_size=2)

_MERGED: Final = OBJECTS | st.dictionaries(st.sampled_from(("constructor", "prototype", "a")), _LEAVES, max_size=3)
FIRST_METADATA: Final = st.one_of(st.just(UNSET), st.none(), st.lists(_LEAVES, max_size=3), OBJECTS, _MERGED)
MORE_METADATA: Final = st.one_of(st.just(UNSET), VALUES, OBJECTS, _MERGED)

_SPACES: Final = st.sampled_from(((",", ":"), (", ", ": "), (" ,\n", "\t:\r ")))


def _dump(value: Any, spaces: tuple[str, str], ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, separators=spaces)


_JSON_TEXTS: Final = st.builds(_dump, VALUES, _SPACES, FLAGS)
ARGUMENTS: Final = st.builds(_dump, st.dictionaries(_KEYS, VALUES, min_size=1, max_size=4), _SPACES, FLAGS)
GARBAGE: Final = st.text(st.sampled_from('[]{}:,"\\u0123eE+-. \ntruefalsn'), max_size=12) | st.text(max_size=4)
INPUT_TEXTS: Final = _JSON_TEXTS | GARBAGE | st.builds(str.__add__, _JSON_TEXTS, GARBAGE)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text in random pieces, often in single characters."""
    if draw(FLAGS):
        return list(text)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


_SOURCES: Final = st.builds(UrlSource, TEXTS, TEXTS, optional(TEXTS), optional(PROVIDERS)) | st.builds(
    DocumentSource, TEXTS, TEXTS, TEXTS, optional(TEXTS), optional(PROVIDERS)
)
_INDEXES: Final = optional(st.integers(0, 9))
CITATIONS: Final = st.lists(st.builds(Citation, _SOURCES, _INDEXES, _INDEXES, optional(TEXTS)), max_size=2)
_STEERING_PARTS: Final = st.builds(SteeringText, TEXTS, optional(PROVIDERS)) | st.builds(
    SteeringFile,
    TEXTS,
    TEXTS,
    optional(TEXTS),
    optional(st.dictionaries(_KEYS, TEXTS, max_size=2)),
    optional(PROVIDERS),
)
STEERING: Final = st.lists(_STEERING_PARTS, max_size=2)
