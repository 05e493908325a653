"""Partial JSON: the value that the client shows for a tool input that still streams.

The client cuts the text after the last usable character, closes what is open and parses the result. Other parsers of
partial JSON repair the text in other ways. This one accepts and drops exactly what the client does.
"""

import re
from collections.abc import Sequence
from functools import cache
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
_HEX: Final = frozenset("0123456789abcdefABCDEF")
# A deeper value is not shown at all: Python versions differ in how deep their parser goes.
_DEEPEST: Final = 1_000

# A run is taken in one step: the inside of a string, a key, or whole members or items in a row, if they hold no more
# than two levels. The rest is read character by character.
_INSIDE: Final = r'[^"\\]*+(?:\\(?:[^u]|u[0-9a-fA-F]{4})[^"\\]*+)*+'
_NUMBER: Final = r"-?[0-9]++(?:\.[0-9]++)?+(?:[eE]-?[0-9]++)?+"
# The client knows no escapes in keys.
_KEY: Final = r'\s*+"[^"]*+"\s*+:\s*+'


def _value(levels: int) -> str:
    simple = rf'"{_INSIDE}"|{_NUMBER}|true|false|null'
    if not levels:
        return rf"(?:{simple}|\[\]|\{{\}})"
    inner = _value(levels - 1)
    # Each one is followed by the end, or by a comma and another one.
    items = rf"\[\s*+(?:{inner}\s*+(?:(?=\])|,\s*+(?!\])))*+\]"
    members = rf"\{{\s*+(?:{_KEY}{inner}\s*+(?:(?=\}})|,\s*+(?!\}})))*+\}}"
    return rf"(?:{simple}|{items}|{members})"


@cache
def _runs() -> dict[str, Sequence[tuple[re.Pattern[str], str]]]:
    """The runs of each state, and the state after each. Compiled on first use, because that takes long."""
    value = _value(2)
    item, member = rf"\s*+{value}(?=[\s,\]])", rf"{_KEY}{value}(?=[\s,}}])"
    first_item = ((re.compile(item, re.DOTALL), "after-item"),)
    first_member = ((re.compile(member, re.DOTALL), "after-member"), (re.compile(_KEY), "member"))
    return {
        "string": ((re.compile(_INSIDE, re.DOTALL), "string"),),
        "array": first_item,
        "array-comma": first_item,
        "after-item": ((re.compile(rf"(?:\s*+,{item})++", re.DOTALL), "after-item"),),
        "object": first_member,
        "object-comma": first_member,
        "after-member": ((re.compile(rf"(?:\s*+,{member})++", re.DOTALL), "after-member"),),
    }


def parse_partial(text: str) -> Any:
    """The value of a JSON text or of its beginning; UNSET if the client shows none."""
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
        self._runs = _runs()
        self._open = ["root"]
        self._good = 0
        self._literal = 0
        self._digits = 0
        index = 0
        while index < len(text) and len(self._open) <= _DEEPEST:
            index = self._run(index) or self._take(index)

    @property
    def repaired(self) -> str:
        """The text that the client parses; "" if it is nested too deeply."""
        if len(self._open) > _DEEPEST:
            return ""
        endings = [self._rest_of_literal()]
        endings += [_ENDINGS.get(state, "") for state in reversed(self._open)]
        return self._text[: self._good] + "".join(endings)

    def _run(self, index: int) -> int:
        """Take a run and return where it ends; 0 if there is none."""
        for pattern, state in self._runs.get(self._open[-1], ()):
            run = pattern.match(self._text, index)
            if run and run.end() > index:
                self._open[-1] = state
                if state != "member":
                    self._good = run.end()
                return run.end()
        return 0

    def _take(self, index: int) -> int:
        char = self._text[index]
        match self._open[-1]:
            case "string":
                return self._string(char, index)
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
        if char == '"':
            self._open.pop()
            self._good = index + 1
            return index + 1
        # A run takes all escapes except one that is cut off or lacks its four digits.
        self._open.append("unicode")
        self._digits = 0
        return index + 2

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
