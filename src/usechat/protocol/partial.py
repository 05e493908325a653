"""Tool input while it streams: the value that the client shows for a JSON text that is not whole yet.

The client cuts the text after the last character that can stand, closes what is open and parses the result. Other
parsers of partial JSON repair it otherwise, so this one follows the client, in what it accepts as in what it drops.
"""

import re
from typing import Any, Final

from msgspec import UNSET

from usechat.protocol.codec import parse_json
from usechat.protocol.values import has_forbidden_key

__all__ = ["parse_partial"]

_AFTER_VALUE: Final = {"root": "end", "member": "after-member", "array": "after-item", "array-comma": "after-item"}
_MOVES: Final = {
    ("object", '"'): "key",
    ("object-comma", '"'): "key",
    ("key", '"'): "after-key",
    ("after-key", ":"): "member",
    ("after-member", ","): "object-comma",
    ("after-item", ","): "array-comma",
}
_CLOSES: Final = frozenset((("object", "}"), ("after-member", "}"), ("array", "]"), ("after-item", "]")))
_VALUES: Final = {
    '"': "string",
    "{": "object",
    "[": "array",
    "-": "number",
    **dict.fromkeys("0123456789", "number"),
    **dict.fromkeys("tfn", "literal"),
}
_LITERALS: Final = ("true", "false", "null")
_ENDINGS: Final = {
    "string": '"',
    **dict.fromkeys(("object", "key", "after-key", "member", "after-member", "object-comma"), "}"),
    **dict.fromkeys(("array", "after-item", "array-comma"), "]"),
}
_SPECIAL: Final = re.compile(r'["\\]')
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def parse_partial(text: str) -> Any:
    """The value of a JSON text or of its beginning; UNSET where the client has none."""
    value = _parse(text)
    return _parse(_Scan(text).repaired) if value is UNSET else value


def _parse(text: str) -> Any:
    try:
        value = parse_json(text)
    except ValueError:
        return UNSET
    return UNSET if has_forbidden_key(value) else value


class _Scan:
    """One pass over the text: what is open at its end, and where its last usable character is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open = ["root"]
        self._good = 0
        self._literal = 0
        self._digits = 0
        index = 0
        while index < len(text):
            index = self._take(index)

    @property
    def repaired(self) -> str:
        endings = [self._rest_of_literal()]
        endings += [_ENDINGS.get(state, "") for state in reversed(self._open)]
        return self._text[: self._good] + "".join(endings)

    def _take(self, index: int) -> int:
        char = self._text[index]
        match self._open[-1]:
            case "string":
                return self._string(char, index)
            case "escape":
                self._escape(char, index)
            case "unicode":
                self._unicode(char, index)
            case "number":
                self._number(char, index)
            case "literal":
                self._in_literal(char, index)
            case state:
                self._structure(state, char, index)
        return index + 1

    def _structure(self, state: str, char: str, index: int) -> None:
        if (state, char) in _CLOSES:
            self._open.pop()
            self._good = index + 1
        elif (state, char) in _MOVES:
            self._open[-1] = _MOVES[state, char]
        elif state in _AFTER_VALUE and char in _VALUES:
            self._open[-1:] = [_AFTER_VALUE[state], _VALUES[char]]
            self._literal = index
            if char != "-":
                self._good = index + 1
        elif state == "after-item":
            self._good = index + 1

    def _string(self, char: str, index: int) -> int:
        if char == "\\":
            self._open.append("escape")
            return index + 1
        if char == '"':
            self._open.pop()
            self._good = index + 1
        else:
            special = _SPECIAL.search(self._text, index)
            self._good = special.start() if special else len(self._text)
        return self._good

    def _escape(self, char: str, index: int) -> None:
        self._open.pop()
        if char == "u":
            self._open.append("unicode")
            self._digits = 0
        else:
            self._good = index + 1

    def _unicode(self, char: str, index: int) -> None:
        self._digits += char in _HEX
        if self._digits == 4:
            self._open.pop()
            self._good = index + 1

    def _number(self, char: str, index: int) -> None:
        if char.isdecimal() and char.isascii():
            self._good = index + 1
        elif char not in "eE-.":
            self._open.pop()
            self._close_value(char, index)

    def _in_literal(self, char: str, index: int) -> None:
        if self._spells(self._text[self._literal : index + 1]):
            self._good = index + 1
        else:
            self._open.pop()
            self._close_value(char, index)

    def _close_value(self, char: str, index: int) -> None:
        if char in ",}]" and self._open[-1] in ("after-member", "after-item"):
            state = self._open[-1]
            if (state, char) in _CLOSES or (state, char) in _MOVES:
                self._structure(state, char, index)

    def _spells(self, beginning: str) -> bool:
        return any(literal.startswith(beginning) for literal in _LITERALS)

    def _rest_of_literal(self) -> str:
        if self._open[-1] != "literal":
            return ""
        beginning = self._text[self._literal :]
        return next((word[len(beginning) :] for word in _LITERALS if word.startswith(beginning)), "")
