"""Any Python value as JSON that every client takes, and JSON values as JavaScript compares them.

The client's parser ends the stream if it meets `NaN` or one of the keys `__proto__` and `constructor.prototype`.
Python's encoders raise on lone surrogates, unknown types, cycles and depth. Here each of these costs one value, never
the turn.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Final, cast

import msgspec

__all__ = [
    "MAX_DEPTH",
    "UNLIMITED",
    "VALUE_LIMIT",
    "canonical",
    "has_forbidden_key",
    "may_hold_forbidden_key",
    "mend",
    "plain",
]

VALUE_LIMIT: Final = 1024 * 1024
"""The most bytes of JSON that one value may take on the wire, unless the app sets another limit."""

UNLIMITED: Final = 1 << 62

MAX_DEPTH: Final = 56
"""A value comes back inside a request, whose nesting is limited to 64 with the message around it."""

_MANY: Final = 100_000
_SCALARS: Final = frozenset[type]((str, int, float, bool, NoneType, bytes))
_STR: Final = frozenset[type]((str,))
_TROUBLE: Final = (TypeError, ValueError, RecursionError, OverflowError)
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE: Final = re.compile("[\ud800-\udfff]")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def mend(text: str) -> str:
    """Join surrogate pairs that arrived as two halves, and replace a lone half by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
        return _LONE.sub("\ufffd", joined)
    return text


def plain(value: object, limit: int = VALUE_LIMIT) -> Any:
    """Copy a value as plain JSON of about `limit` bytes at most, with a short marker where something is left out."""
    # Nearly every value can be sent as msgspec encodes it.
    try:
        if not _unusual(value):
            payload = _encode(value)
            if len(payload) <= limit and not may_hold_forbidden_key(payload) and not _too_deep(payload):
                return msgspec.json.decode(payload)
    # Foreign code may raise anything, and one value must not cost the turn.
    except Exception:  # noqa: BLE001, S110
        pass
    return _Copy(limit).of(value)


def _unusual(value: object) -> bool:
    """Whether msgspec would encode this wrongly: a dataclass that is an exception, or keys that become equal."""
    nodes = [value]
    seen = 0
    while nodes and seen < _MANY:
        node = nodes.pop()
        seen += 1
        if isinstance(node, BaseException):
            return True
        if isinstance(node, dict):
            entries = cast("dict[object, object]", node)
            if not _STR.issuperset(map(type, entries)):
                return True
            children: Collection[object] = entries.values()
        elif isinstance(node, (list, tuple, set, frozenset)):
            children = cast("Collection[object]", node)
        elif type(node) in _SCALARS:
            continue
        else:
            children = [child for _, child in _entries(node) or ()]
        if not _SCALARS.issuperset(map(type, children)):
            nodes += children
    # A cycle, or a value so large that the slow copy costs little more.
    return bool(nodes)


def has_forbidden_key(value: object) -> bool:
    """Whether the client's parser would refuse the whole chunk because of a key in this JSON value."""
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += cast("list[object]", node)
        elif isinstance(node, dict):
            entries = cast("dict[str, object]", node)
            inner = entries.get("constructor")
            if "__proto__" in entries or (isinstance(inner, dict) and "prototype" in inner):
                return True
            nodes += entries.values()
    return False


def may_hold_forbidden_key(payload: bytes) -> bool:
    """Whether this JSON may hold a key that the client's parser refuses. A string that quotes one looks the same."""
    # `in` is twice as slow: it first tries its operand as a number, and catches the error.
    return payload.find(b'__proto__"') >= 0 or payload.find(b'"constructor"') >= 0


def _too_deep(payload: bytes) -> bool:
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return False
    nested = _STRING.sub(b"", payload).translate(_TO_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        nested = nested.replace(b"[]", b"")
    return bool(nested)


def _foreign(value: object) -> object:
    """The replacement for a value of a type that msgspec does not know."""
    try:
        return _known(value)
    # As above.
    except Exception:  # noqa: BLE001
        return f"[{type(value).__name__}]"


def _known(value: object) -> object:
    match value:
        case str():
            return str.__str__(value)
        case int():
            # One that msgspec refuses has too many digits for Python's own limit.
            return "[int]" if type(value) is int else int(value)
        case float():
            return float(value)
        case BaseException():
            # The text of an exception may hold secrets, so only its type is shown.
            return {"error": type(value).__name__}
        case os.PathLike():
            return os.fspath(cast("os.PathLike[str]", value))
        case Mapping():
            return dict(cast("Mapping[object, object]", value))
        case Collection():
            return list(cast("Collection[object]", value))
        case _:
            return _converted(value)


def _converted(value: object) -> object:
    """The value by the conversion that its own type offers: pydantic's `model_dump`, numpy's `tolist`."""
    fields = dict(getattr(value, "__dict__", {}))
    if _unusual(fields):
        return _Copy(VALUE_LIMIT).of(fields)
    for name, arguments in (("model_dump", {"mode": "json"}), ("model_dump", {}), ("tolist", {})):
        try:
            return getattr(value, name)(**arguments)
        # As above; the next conversion may do.
        except Exception:  # noqa: BLE001, S112
            continue
    return f"[{type(value).__name__}]"


_encode = msgspec.json.Encoder(enc_hook=_foreign).encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class _Copy:
    """One slow copy of a value that cannot be encoded as it is."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._path: list[int] = []

    def of(self, value: object) -> Any:
        if id(value) in self._path:
            return "[circular]"
        self._path.append(id(value))
        try:
            return self._copy(value)
        # As above: a mapping or a field that cannot be read.
        except Exception:  # noqa: BLE001
            return f"[{type(value).__name__}]"
        finally:
            self._path.pop()

    def _copy(self, value: object) -> Any:
        if isinstance(value, str):
            return self._text(mend(str.__str__(value)))
        if len(self._path) > MAX_DEPTH and not isinstance(value, (int, float, NoneType)):
            return "[nested too deeply]"
        entries = None if isinstance(value, BaseException) else _entries(value)
        if entries is not None:
            return self._object(entries)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._array(cast("Collection[object]", value))
        if isinstance(value, BaseException):
            return self.of(_foreign(value))
        try:
            payload = _encode(value)
        except _TROUBLE:
            return self.of(_foreign(value))
        result = msgspec.json.decode(payload)
        if isinstance(result, (str, list, dict)):
            return self.of(cast("object", result))
        self._left -= len(payload)
        return result

    def _text(self, text: str) -> str:
        size = len(_encode(text))
        if size <= self._left:
            self._left -= size
            return text
        kept = text.encode()[: max(self._left, 0)].decode(errors="ignore")
        self._left = 0
        return f"{kept}… [{len(text) - len(kept)} more characters left out]"

    def _array(self, items: Iterable[object]) -> list[Any]:
        result: list[Any] = []
        for item in items:
            if self._left <= 0:
                return [*result, "… [the rest left out]"]
            self._left -= 1
            result.append(self.of(item))
        return result

    def _object(self, entries: Iterable[tuple[object, object]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, child in entries:
            if self._left <= 0:
                return {**result, "…": "[the rest left out]"}
            name = _name(key)
            self._left -= len(name) + 4
            copied = self.of(child)
            result[_free(_harmless(name, copied), result)] = copied
        return result


def _entries(value: object) -> Iterable[tuple[object, object]] | None:
    """The keys and values of an object-like value; None for every other value."""
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).items()
    if isinstance(value, msgspec.Struct):
        return _struct_entries(value)
    kind = type(value)
    names: Iterable[str] = getattr(kind, "__dataclass_fields__", ())
    names = names or [attribute.name for attribute in getattr(kind, "__attrs_attrs__", ())]
    return [(name, getattr(value, name, None)) for name in names] or None


def _struct_entries(value: msgspec.Struct) -> Iterator[tuple[object, object]]:
    if value.__struct_config__.tag is not None:
        yield value.__struct_config__.tag_field, value.__struct_config__.tag
    for wire, attribute in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True):
        child = getattr(value, attribute)
        if child is not msgspec.UNSET:
            yield wire, child


def _name(key: object) -> str:
    """A key as in JavaScript: a string, or the JSON text of another value."""
    name = plain(key)
    return name if isinstance(name, str) else _encode(name).decode()


def _harmless(name: str, child: object) -> str:
    if name == "__proto__":
        return "_proto_"
    if name == "constructor" and isinstance(child, dict) and "prototype" in child:
        return "_constructor"
    return name


def _free(name: str, taken: Mapping[str, object]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def canonical(value: Any) -> bytes:
    """Encode a JSON value. Two values give the same bytes exactly if they are equal in JavaScript.

    There all numbers are floats, a number that is too large becomes null, and the order of keys does not matter.
    """
    return _encode_sorted(_as_javascript(value))


def _as_javascript(value: Any) -> Any:
    match value:
        case dict():
            return {name: _as_javascript(item) for name, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_as_javascript(item) for item in cast("list[Any]", value)]
        case bool():
            return value
        case int() | float():
            return _as_double(cast("float", value))
        case _:
            return value


def _as_double(number: float) -> float | None:
    try:
        # JavaScript writes -0 as 0.
        return float(number) or 0.0
    except OverflowError:
        return None
