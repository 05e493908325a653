"""JSONata in flows: conditions (`when`) and bindings (`{{ … }}`).

Expressions are the author's, values are anybody's. A value is only ever data here: what a binding gives is not looked
at for bindings again, and `$eval`, which would run a value, is refused.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, NoReturn, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.errors import UsechatError

__all__ = [
    "Condition",
    "Expression",
    "ExpressionError",
    "Scope",
    "Template",
    "condition",
    "object_template",
    "template",
]

# An expression blocks the event loop while it is evaluated, so it gets little time. JSONata looks at the clock between
# its steps, not within a function of its own such as a regular expression.
_TIMEOUT_MS: Final = 1_000
_DEPTH: Final = 100
_BINDING: Final = "{{"
# From here on JavaScript writes a whole number with an exponent.
_LONG: Final = 1e21


class ExpressionError(UsechatError):
    """An expression that is wrong, or that failed over the values it was given."""


class Scope(Struct, frozen=True):
    """What an expression sees: names, and variables (`$iteration`)."""

    names: Mapping[str, Any]
    variables: Mapping[str, Any] = {}


Condition: TypeAlias = Callable[[Scope], bool]
Template: TypeAlias = Callable[[Scope], Any]


def _import_jsonata() -> Any:
    # Its import raises the recursion limit of the whole process tenfold, and with it how deep a stranger's JSON may go.
    limit = sys.getrecursionlimit()
    module = import_module("jsonata")
    sys.setrecursionlimit(limit)
    return module


_jsonata: Final = _import_jsonata()
_NULL: Final = import_module("jsonata.utils").Utils.NULL_VALUE


class Expression:
    def __init__(self, text: str) -> None:
        """Check the expression.

        Raises:
            ExpressionError: it is wrong.
        """
        self.text = text
        self._compile()

    def evaluate(self, scope: Scope) -> Any:
        """The value as a copy; UNSET for what is not there, which JSONata tells from null.

        Raises:
            ExpressionError: it failed, or took too long.
        """
        found = self._guard(lambda: self._compile().evaluate(scope.names, scope.variables))
        return UNSET if found is None else self._json(found)

    def _compile(self) -> Any:
        # A fresh one for each use: the library measures the time limit and `$now()` from here.
        compiled = self._guard(lambda: _jsonata.Jsonata(self.text, timeout=_TIMEOUT_MS, stack=_DEPTH))
        compiled.set_output_convert_nulls(False)
        compiled.set_validate_input(False)
        compiled.register_lambda("eval", _refuse_eval)
        return compiled

    def _guard(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except ExpressionError:
            raise
        # Over some wrong expressions the library raises KeyError, TypeError or RecursionError of its own.
        except Exception as error:
            raise ExpressionError(f"The expression {self.text.strip()!r} failed: {_reason(error)}") from error

    def _json(self, value: Any) -> Any:
        match value:
            case dict():
                return {name: self._json(child) for name, child in cast("dict[str, Any]", value).items()}
            case list():
                return [self._json(child) for child in cast("list[Any]", value)]
            case None | str() | int() | float():
                return value
            case _ if value is _NULL:
                return None
            case _:
                raise ExpressionError(f"The expression {self.text.strip()!r} gives a function instead of a value.")


def condition(when: str | Mapping[str, Any] | None) -> Condition:
    """Make the condition that a `when` stands for; none at all is true.

    Raises:
        ExpressionError: it is wrong.
    """
    match when:
        case None:
            return lambda _scope: True
        case str():
            expression = Expression(when)
            return lambda scope: _truthy(expression.evaluate(scope))
        case {"equals": {"var": str(var), "value": value, **rest}, **more} if not rest and not more:
            return _equals(Expression(var), value)
        case {"not": inner, **more} if not more:
            negated = _part(inner)
            return lambda scope: not negated(scope)
        case {"and": [*items], **more} if not more:
            every = [_part(item) for item in items]
            return lambda scope: all(part(scope) for part in every)
        case {"or": [*items], **more} if not more:
            some = [_part(item) for item in items]
            return lambda scope: any(part(scope) for part in some)
        case _:
            raise ExpressionError("A condition is an expression, or one of equals {var, value}, not, and [], or [].")


def template(value: Any) -> Template:
    """Make what fills the bindings in a value of the flow; it gives UNSET if the value is a binding that finds nothing.

    Raises:
        ExpressionError: one of its expressions is wrong.
    """
    match value:
        case str() if _BINDING in value:
            return _text(list(_pieces(value)))
        case dict():
            return object_template({name: template(child) for name, child in cast("dict[str, Any]", value).items()})
        case list():
            items = [template(child) for child in cast("list[Any]", value)]
            return lambda scope: [None if (found := item(scope)) is UNSET else found for item in items]
        case _:
            return lambda _scope: value


def object_template(members: Mapping[str, Template]) -> Template:
    """Make the object of these members; one whose binding finds nothing is left out."""

    def fill(scope: Scope) -> dict[str, Any]:
        found = {name: member(scope) for name, member in members.items()}
        return {name: value for name, value in found.items() if value is not UNSET}

    return fill


def _text(pieces: list[str | Expression]) -> Template:
    bindings = [piece for piece in pieces if isinstance(piece, Expression)]
    around = "".join(piece for piece in pieces if isinstance(piece, str))
    if len(bindings) == 1 and not around.strip():
        return bindings[0].evaluate
    return lambda scope: "".join(
        piece if isinstance(piece, str) else _interpolated(piece.evaluate(scope)) for piece in pieces
    )


def _pieces(text: str) -> Iterator[str | Expression]:
    while text:
        before, opened, rest = text.partition(_BINDING)
        if before:
            yield before
        if not opened:
            return
        if "}}" not in rest:
            # Braces that nothing closes are text, as in the original.
            yield opened + rest
            return
        expression, text = _first_binding(rest)
        yield expression


def _first_binding(text: str) -> tuple[Expression, str]:
    """The expression up to the first `}}` that is not its own, and what follows."""
    failures: list[ExpressionError] = []
    for end in re.finditer(r"(?=\}\})", text):
        try:
            return Expression(text[: end.start()]), text[end.start() + 2 :]
        except ExpressionError as error:
            failures.append(error)
    raise failures[0]


def _interpolated(value: Any) -> str:
    match value:
        case None | UnsetType():
            return ""
        case str():
            return value
        case float() if value.is_integer() and abs(value) < _LONG:
            return str(int(value))
        case _:
            return msgspec.json.encode(value).decode()


def _part(inner: Any) -> Condition:
    if inner is None:
        raise ExpressionError("A condition within another one is empty.")
    return condition(inner)


def _equals(var: Expression, value: Any) -> Condition:
    def equals(scope: Scope) -> bool:
        found = var.evaluate(scope)
        return found is not UNSET and _same(found, value)

    return equals


def _same(left: Any, right: Any) -> bool:
    # In Python, but not in JSON, True equals 1.
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(cast("list[Any]", left), cast("list[Any]", right), strict=False)
        return len(cast("list[Any]", left)) == len(cast("list[Any]", right)) and all(_same(*pair) for pair in pairs)
    if isinstance(left, dict) and isinstance(right, dict):
        one, other = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return left == right


def _truthy(value: Any) -> bool:
    # As in JavaScript: an empty array or object is true.
    return isinstance(value, dict | list) or (value is not UNSET and bool(value))


def _refuse_eval(*_: Any) -> NoReturn:
    raise ExpressionError("$eval is not available in a flow: it would run a value as an expression.")


def _reason(error: Exception) -> str:
    return "it is nested too deeply." if isinstance(error, RecursionError) else f"{error}."
