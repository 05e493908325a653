"""What an expression is, before it is evaluated: whether it is right, and which names it reads."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, cast

from msgspec import UNSET, Struct

from usechat.flows.expression_worker import failure, import_jsonata

__all__ = ["Parsed", "parse"]

_jsonata: Final = import_jsonata()
# Functions that take what is around them for an argument that is missing, when the one argument they have is another.
_WANT_TWO: Final = ("each", "lookup", "sift")
_LITERALS: Final = ("number", "string", "value")
# The parts of each kind of expression that see the same names as the whole.
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "apply": ("lhs", "rhs"),
    "binary": ("lhs", "rhs"),
    "bind": ("lhs", "rhs"),
    "block": ("expressions",),
    "condition": ("condition", "then", "_else"),
    "function": ("procedure", "arguments"),
    "lambda": ("body",),
    "operator": (),
    "partial": ("procedure", "arguments"),
    "regex": (),
    "transform": (),
    "unary": ("expression", "expressions", "lhs_object"),
    "variable": (),
    **dict.fromkeys(_LITERALS, ()),
}


class Parsed(Struct, frozen=True):
    """An expression.

    `path` is set if it is nothing but names (`a.b.c`), `variable` if it is one (`$iteration`), `literal` if it is
    `true`, a number or a text. `heads` are the first names of its paths that begin at the top, each with the name that
    follows; `whole` says that it may read more of what is there.
    """

    path: tuple[str, ...] | None
    variable: str | None
    literal: Any
    heads: frozenset[tuple[str, str | None]]
    whole: bool


@lru_cache(1024)
def parse(text: str) -> Parsed:
    """Read an expression.

    Raises:
        ValueError: it is wrong; the text is a sentence.
    """
    try:
        tree = _jsonata.Jsonata(text).ast
        reads = _Reads()
        reads.top(tree)
    # Over some wrong expressions the library raises KeyError, TypeError or RecursionError of its own.
    except Exception as error:
        raise ValueError(failure(text, error)) from error
    return Parsed(
        _path(tree),
        tree.value if tree.type == "variable" and tree.value not in ("", "$") and _is_bare(tree) else None,
        tree.value if tree.type in _LITERALS and _is_bare(tree) else UNSET,
        frozenset(reads.heads),
        reads.whole,
    )


def _path(tree: Any) -> tuple[str, ...] | None:
    if tree.type != "path" or tree.keep_singleton_array or not _is_bare(tree):
        return None
    plain = all(step.type == "name" and _is_bare(step) for step in tree.steps)
    return tuple(step.value for step in tree.steps) if plain else None


def _is_bare(symbol: Any) -> bool:
    """Whether nothing is done to what the symbol gives: no filter, group, index or variable, and no `[]`."""
    marks = ("stages", "predicate", "group", "focus", "index", "tuple", "ancestor", "keep_array", "consarray")
    return not any(getattr(symbol, mark, None) for mark in marks)


class _Reads:
    """Goes through the tree of an expression; what it does not know may read everything."""

    def __init__(self) -> None:
        self.heads: set[tuple[str, str | None]] = set()
        self.whole = False

    def top(self, symbol: Any) -> None:
        """Look at an expression that sees the names at the top."""
        self._within([getattr(symbol, name, None) for name in ("stages", "predicate", "group")])
        if symbol.type == "path":
            self._path(symbol.steps)
            return
        self.whole = self.whole or symbol.type not in _PARTS or _takes_all(symbol)
        for name in _PARTS.get(symbol.type, ()):
            for part in _flat(getattr(symbol, name, None)):
                self.top(part)
        if symbol.type == "transform":
            self._within([symbol.pattern, symbol.update, symbol.delete])

    def _path(self, steps: list[Any]) -> None:
        first, *rest = steps
        if first.type == "name":
            follows = rest and rest[0].type == "name" and first.focus is None
            second = rest[0].value if follows else None
            self.heads.add((first.value, second))
            self._within(first)
        else:
            self.top(first)
        # A step with a variable (`a@$v.b`) leaves the next one where it was itself.
        self.whole = self.whole or any(step.focus is not None for step in steps)
        self._within(rest)

    def _within(self, inner: Any) -> None:
        """Look for a way back to the top, in expressions that see something else."""
        for symbol in _symbols(inner, set()):
            if symbol.type == "parent" or (symbol.type == "variable" and symbol.value == "$"):
                self.whole = True


def _takes_all(symbol: Any) -> bool:
    """Whether the expression takes all that it sees, by `$` or as the argument that a function is not given."""
    match symbol.type:
        case "variable":
            return symbol.value in ("", "$")
        case "lambda":
            return symbol.signature is not None
        case "function" | "partial":
            count = len(symbol.arguments or ())
            return not count or (count == 1 and symbol.procedure.value in _WANT_TWO)
        case _:
            return False


def _flat(value: Any) -> Iterator[Any]:
    """The symbols in a symbol's field: none, one, a list, or a list of pairs."""
    if isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _flat(item)
    elif isinstance(value, _jsonata.Parser.Symbol):
        yield value


def _symbols(value: Any, seen: set[int]) -> Iterator[Any]:
    """All symbols within; some of them have a way back to the one that holds them."""
    for symbol in _flat(value):
        if id(symbol) not in seen:
            seen.add(id(symbol))
            yield symbol
            for child in cast("dict[str, Any]", vars(symbol)).values():
                yield from _symbols(child, seen)
