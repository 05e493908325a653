"""The chat request as the client POSTs it."""

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from usechat.errors import RequestError
from usechat.protocol.messages import IDENTIFIER, MESSAGE_ID, UIMessage, one_of, read_message, shape

__all__ = ["ChatRequest", "JsonScan", "Limits", "Trigger", "check_cost", "decode_json", "decode_request", "scan_json"]

Trigger = Literal["submit-message", "regenerate-message"]

_BODY = shape(
    {"id": IDENTIFIER}, {"trigger": one_of(("submit-message", "regenerate-message")), "messageId": MESSAGE_ID}
)


class Limits(msgspec.Struct, frozen=True):
    """The most that a body may hold: bytes, fields, messages, parts of a message, levels of a message or of a field.

    `values` counts all JSON values, and `escapes` the backslashes in strings: decoding each of them costs time.
    """

    body: int = 10 * 1024 * 1024
    fields: int = 1_000
    messages: int = 1_000
    parts: int = 1_000
    nesting: int = 64
    values: int = 50_000
    escapes: int = 1_000_000


_LIMITS = Limits()


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One request of a client.

    `older` has the messages before the last one, as unchecked JSON. `only_last` says that the client sent no history,
    so the server needs its own. `extra` has the fields of the body that the protocol does not know.
    """

    id: str
    last: UIMessage
    older: Sequence[Raw] = ()
    trigger: Trigger = "submit-message"
    message_id: str | None = None
    extra: dict[str, Any] = {}
    only_last: bool = False
    limits: Limits = _LIMITS

    @functools.cached_property
    def messages(self) -> list[UIMessage]:
        """All messages. The older ones are decoded and checked on first use.

        Raises:
            RequestError: An older message is wrong.
        """
        return list(self.decoded())

    def decoded(self) -> Iterator[UIMessage]:
        """All messages, decoded and checked one by one.

        Raises:
            RequestError: An older message is wrong.
        """
        for n, raw in enumerate(self.older):
            yield _decode_message(raw, f"messages[{n}]", self.limits)
        yield self.last

    @property
    def text(self) -> str:
        """The text of the last message of the user, or "" if there is none.

        Raises:
            RequestError: The last message is not the user's, and an older one is wrong.
        """
        if self.last.role == "user":
            return self.last.text
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")


def check_cost(body: bytes, limits: Limits = _LIMITS) -> None:
    """Refuse a body that would take long to decode.

    Raises:
        RequestError: The body is too large (413), or would take too long (400).
    """
    if len(body) > limits.body:
        raise RequestError(f"The body is larger than {limits.body:,} bytes.", status=413)
    scan = scan_json(body, limits.values)
    if scan.values > limits.values:
        raise RequestError(f"The body must not hold more than {limits.values:,} values.")
    if scan.escapes > limits.escapes:
        raise RequestError(f"The body must not hold more than {limits.escapes:,} escaped characters.")
    if scan.extremes > _MOST_EXTREMES:
        most = f"{_MOST_EXTREMES:,} numbers with an exponent of three digits"
        raise RequestError(f"The body must not hold more than {most}.")
    if scan.too_long:
        raise RequestError(f"The body must not hold a number of more than {_LONGEST_NUMBER} digits.")
    if scan.long > _MOST_LONG:
        raise RequestError(f"The body must not hold more than {_MOST_LONG:,} times {_LONG_NUMBER} digits in a row.")


def decode_request(
    body: bytes, limits: Limits = _LIMITS, *, checked: bool = False, new_id: Callable[[], str] | None = None
) -> ChatRequest:
    """Read the body of a POST. Only the last of its messages is decoded and checked.

    `checked` says that the body has passed `check_cost`; a server can let other requests run between the two calls.
    With `new_id`, a request without a chat's id begins a new chat, and its last message needs no id.

    Raises:
        RequestError: The body is too large (413) or wrong (400).
    """
    if not checked:
        check_cost(body, limits)
    fields = decode_json(_FIELDS, body, "The body", "must be a JSON object")
    if len(fields) > limits.fields:
        raise RequestError(f"The body must not have more than {limits.fields:,} fields.")
    only_last = "message" in fields
    messages = _take_messages(fields, limits)
    extra = {name: _decode_value(raw, ascii(name[:40]), limits) for name, raw in fields.items()}
    if new_id is not None and extra.get("id") is None:
        extra["id"] = new_id()
    if problem := _BODY(extra):
        raise RequestError(f"{problem.removeprefix('.')}.")
    path = "message" if only_last else f"messages[{len(messages) - 1}]"
    return ChatRequest(
        id=extra.pop("id"),
        last=_decode_message(messages[-1], path, limits, needs_id=new_id is None),
        older=messages[:-1],
        trigger=extra.pop("trigger", None) or "submit-message",
        message_id=extra.pop("messageId", None),
        extra=extra,
        only_last=only_last,
        limits=limits,
    )


def _take_messages(fields: dict[str, Raw], limits: Limits) -> list[Raw]:
    if ("message" in fields) == ("messages" in fields):
        raise RequestError("The body must have messages or message, and not both.")
    if "message" in fields:
        return [fields.pop("message")]
    messages = decode_json(_ITEMS, fields.pop("messages"), "messages", "must be a list")
    if not messages:
        raise RequestError("messages must not be empty.")
    if len(messages) > limits.messages:
        raise RequestError(f"messages must not hold more than {limits.messages:,} messages.")
    return messages


def _decode_message(raw: Raw, path: str, limits: Limits, *, needs_id: bool = True) -> UIMessage:
    return read_message(_decode_value(raw, path, limits), path, max_parts=limits.parts, needs_id=needs_id)


def _decode_value(raw: Raw, path: str, limits: Limits) -> Any:
    value = decode_json(_VALUE, raw, path, "must not hold a number that is too large")
    if _is_deeper(value, limits.nesting):
        raise RequestError(f"{path} must not be nested deeper than {limits.nesting} levels.")
    return value


_CHILDREN: dict[type, Callable[[Any], Iterable[Any]]] = {dict: dict[str, Any].values, list: iter}


def _is_deeper(value: Any, levels: int) -> bool:
    if type(value) not in _CHILDREN:
        return False
    layer: list[Any] = [[value]]
    for _ in range(levels + 1):
        layer = [child for item in layer for child in _CHILDREN[type(item)](item) if type(child) in _CHILDREN]
        if not layer:
            return False
    return True


_T = TypeVar("_T")
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ITEMS = msgspec.json.Decoder(list[Raw])
_VALUE = msgspec.json.Decoder(Any)


def decode_json(decoder: msgspec.json.Decoder[_T], raw: bytes | Raw, path: str, rule: str) -> _T:
    try:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            text = bytes(raw)
            mended = _without_lone_surrogates(text)
            if mended is text:
                raise
            return decoder.decode(mended)
    except msgspec.ValidationError:
        raise RequestError(f"{path} {rule}.") from None
    except msgspec.DecodeError:
        raise RequestError(f"{path} is not valid JSON.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path} is not valid UTF-8.") from None
    except RecursionError:
        raise RequestError(f"{path} is nested too deeply.") from None


_MOST_ESCAPES: Final = 100_000
# An escape that must stay whole; or, in the group, half a surrogate pair without its other half.
_SURROGATES: Final = re.compile(
    rb"\\(?:\\|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)


def _without_lone_surrogates(text: bytes) -> bytes:
    # A browser sends half an emoji if a string was cut in the middle of one, and msgspec refuses that. More than
    # 100,000 escapes would take too long to mend.
    if b"\\" not in text or text.count(b"\\") > _MOST_ESCAPES:
        return text
    return _SURROGATES.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)


_LONGEST_NUMBER: Final = 400
"""The most digits of a number. No float needs more, and a longer integer costs the square of its length."""

_LONG_NUMBER: Final = 20
_MOST_LONG: Final = 10_000
"""How often 20 digits may follow each other: a float with more digits than it can hold takes 3 µs to read."""

_MOST_EXTREMES: Final = 1_000
"""The most numbers with an exponent of three digits: one at the end of a float's range takes 10 µs to read."""

# Each byte becomes a letter for its role. After a backslash, each of these letters is a whole Python escape.
_QUOTE, _COMMA, _OPEN, _DIGIT, _EXPONENT, _OTHER = b"a", b"v", b"f", b"r", b"t", b"n"
_LETTER_OF: Final = {
    b"\\": b"\\",
    b'"': _QUOTE,
    b",": _COMMA,
    b"[": _OPEN,
    b"{": _OPEN,
    b"e": _EXPONENT,
    b"E": _EXPONENT,
}
_LETTERS: Final = b"".join(
    _DIGIT if byte.isdigit() else _LETTER_OF.get(byte, _OTHER) for byte in (bytes((code,)) for code in range(256))
)
_LONG: Final = _DIGIT * (_LONGEST_NUMBER + 1)
# With a sign and without.
_EXTREMES: Final = (_DIGIT + _EXPONENT + _OTHER + _DIGIT * 3, _DIGIT + _EXPONENT + _DIGIT * 3)


class JsonScan(NamedTuple):
    """What a JSON text holds: `escapes` counts backslashes, `extremes` exponents of three digits.

    An empty list or object counts as two `values`. `long` is how often 20 digits follow each other, and `too_long` says
    that a number has more than 400.
    """

    values: int
    escapes: int
    extremes: int
    long: int
    too_long: bool


def scan_json(text: bytes, most_values: int) -> JsonScan:
    """What a JSON text holds, without decoding it: decoding makes objects, and a few million of them take seconds.

    If the text is not JSON, the counts are right up to the first error. The scan stops when it has found more
    than `most_values`.
    """
    escapes = text.count(b"\\") if b"\\" in text else 0
    letters = text.translate(_LETTERS)
    if escapes:
        # Without escapes, the remaining quotes begin and end strings. The added letter completes a last backslash.
        letters, _ = codecs.escape_decode(letters + _OTHER)
    # Every value may have a key, each of the two may be a string, and a string has two quotes.
    most_quotes = 4 * most_values
    between_quotes = letters.split(_QUOTE, most_quotes + 1)
    if len(between_quotes) > most_quotes + 1:
        return JsonScan(most_values + 1, escapes, 0, 0, too_long=False)
    outside = b"".join(between_quotes[::2])
    values = 1 + outside.count(_COMMA) + outside.count(_OPEN)
    if values > most_values:
        return JsonScan(values, escapes, 0, 0, too_long=False)
    extremes = sum(map(outside.count, _EXTREMES)) if _EXPONENT in outside else 0
    return JsonScan(values, escapes, extremes, outside.count(_DIGIT * _LONG_NUMBER), _LONG in outside)
