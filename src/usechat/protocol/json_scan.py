"""What a JSON text holds, seen without decoding it: decoding makes objects, and a few million of them take seconds."""

import codecs
from typing import Final, NamedTuple

__all__ = ["LONGEST_NUMBER", "LONG_NUMBER", "MOST_EXTREMES", "MOST_LONG", "JsonScan", "scan_json"]

LONGEST_NUMBER: Final = 400
"""How many digits a number may have: no float needs more, and longer whole numbers cost the square of their length."""

LONG_NUMBER: Final = 20
MOST_LONG: Final = 10_000
"""How many times so many digits in a row there may be: a float of more digits than it can hold takes 3 µs to read."""

MOST_EXTREMES: Final = 1_000
"""How many numbers may have an exponent of three digits: those at the ends of a float's range cost 10 µs each."""

# Each byte becomes a letter for what it may be: a letter that is a whole escape of Python's after a backslash.
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
_LONG: Final = _DIGIT * (LONGEST_NUMBER + 1)
# With a sign and without.
_EXTREMES: Final = (_DIGIT + _EXPONENT + _OTHER + _DIGIT * 3, _DIGIT + _EXPONENT + _DIGIT * 3)


class JsonScan(NamedTuple):
    """An empty list or object counts as two values; `escapes` are backslashes, `extremes` exponents of three digits.

    `long` is how many times there are so many digits in a row as a long number has.
    """

    values: int
    escapes: int
    extremes: int
    long: int
    too_long: bool


def scan_json(text: bytes, most_values: int) -> JsonScan:
    """Scan a text, which need not be JSON: what stands before the first error is counted as a parser would see it.

    With more than `most_values` it stops as soon as it knows that there are more.
    """
    escapes = text.count(b"\\") if b"\\" in text else 0
    letters = text.translate(_LETTERS)
    if escapes:
        # Without its escapes, the quotes that are left begin and end strings. Of a last backslash half is missing.
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
    return JsonScan(values, escapes, extremes, outside.count(_DIGIT * LONG_NUMBER), _LONG in outside)
