"""JSONata in flows: conditions (`when`) and bindings (`{{ … }}`).

Expressions are the author's, values are anybody's. A value is only ever data here: what a binding gives is not looked
at for bindings again, and `$eval`, which would run a value, is refused. What is more than a path of names is evaluated
by another process, with limits, so that no value can make this one stand still.
"""

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.errors import UsechatError
from usechat.flows.parsing import Parsed, parse
from usechat.flows.workers import WORKERS, WorkerError

__all__ = [
    "Check",
    "Condition",
    "Expression",
    "ExpressionError",
    "Scope",
    "Template",
    "condition",
    "template",
]

_BINDING: Final = "{{"
# From here on JavaScript writes a whole number with an exponent.
_LONG: Final = 1e21
_ELSEWHERE: Final = object()
_OPERATORS: Final = ("equals", "not", "and", "or")


class ExpressionError(UsechatError):
    """An expression that is wrong, or that failed over the values it was given.

    `place` is where it stands within the value or the tree that it was found in.
    """

    def __init__(self, problem: str, *, remedy: str = "Correct the expression (JSONata).") -> None:
        super().__init__(problem)
        self.remedy = remedy
        self.place = ""


class Scope(Struct, frozen=True):
    """What an expression sees: names, and variables (`$iteration`)."""

    names: Mapping[str, Any]
    variables: Mapping[str, Any] = {}


Condition: TypeAlias = Callable[[Scope], Awaitable[bool]]
Template: TypeAlias = Callable[[Scope], Awaitable[Any]]
Check: TypeAlias = Callable[[Parsed], None]
"""Is given each expression while it is made ready, and raises an `ExpressionError` over one that cannot be meant."""


def _unchecked(_parsed: Parsed) -> None:
    pass


class Expression:
    def __init__(self, text: str) -> None:
        """Check the expression.

        Raises:
            ExpressionError: it is wrong.
        """
        self.text = text
        try:
            self.parsed = parse(text)
        except ValueError as error:
            raise ExpressionError(str(error)) from error

    async def evaluate(self, scope: Scope) -> Any:
        """The value as a copy; UNSET for what is not there, which JSONata tells from null.

        Raises:
            ExpressionError: it failed, took too long, or needed too much memory.
        """
        found = self._look_up(scope)
        return await self._ask(scope) if found is _ELSEWHERE else found

    def _look_up(self, scope: Scope) -> Any:
        """The value, if that takes no more than to look it up."""
        parsed = self.parsed
        if parsed.literal is not UNSET:
            return parsed.literal
        if parsed.variable is not None and parsed.variable in scope.variables:
            return _copy(scope.variables[parsed.variable])
        if parsed.path is None:
            return _ELSEWHERE
        found: Any = scope.names
        for name in parsed.path:
            if isinstance(found, list):
                # The rest of the path counts for each of them.
                return _ELSEWHERE
            if not isinstance(found, Mapping) or name not in found:
                return UNSET
            found = cast("Mapping[str, Any]", found)[name]
        return _copy(found)

    async def _ask(self, scope: Scope) -> Any:
        names = scope.names
        if not self.parsed.whole:
            names = {name: names[name] for name, _ in self.parsed.heads if name in names}
        try:
            answer = await WORKERS.ask({"text": self.text, "names": names, "variables": scope.variables})
        except WorkerError as error:
            raise ExpressionError(f"The expression {self.text.strip()!r} {error}") from error
        if "error" in answer:
            raise ExpressionError(answer["error"])
        return answer.get("value", UNSET)


def condition(when: str | Mapping[str, Any] | None, check: Check = _unchecked) -> Condition:
    """Make the condition that a `when` stands for; none at all is true.

    Raises:
        ExpressionError: it is wrong.
    """
    match when:
        case None:
            return _always
        case str():
            return _holds(_checked(when, check))
        case dict() if sum(operator in when for operator in _OPERATORS) == 1:
            return _tree(when, check)
        case _:
            raise _wrong_tree()


def template(value: Any, check: Check = _unchecked) -> Template:
    """Make what fills the bindings in a value of the flow; it gives UNSET if the value is a binding that finds nothing.

    Raises:
        ExpressionError: one of its expressions is wrong.
    """
    match value:
        case str() if _BINDING in value:
            return _text(list(_pieces(value, check)))
        case dict():
            members = cast("dict[str, Any]", value).items()
            return _object({name: _member(f".{name}", child, check) for name, child in members})
        case list():
            items = enumerate(cast("list[Any]", value))
            return _array([_member(f"[{number}]", child, check) for number, child in items])
        case _:
            return _constant(value)


def _object(members: Mapping[str, Template]) -> Template:
    """Make the object of these members; one whose binding finds nothing is left out."""

    async def fill(scope: Scope) -> dict[str, Any]:
        found = {name: await member(scope) for name, member in members.items()}
        return {name: value for name, value in found.items() if value is not UNSET}

    return fill


def _member(step: str, value: Any, check: Check) -> Template:
    with _at(step):
        return template(value, check)


@contextmanager
def _at(step: str) -> Generator[None, None, None]:
    try:
        yield
    except ExpressionError as error:
        error.place = step + error.place
        raise


def _array(items: list[Template]) -> Template:
    async def fill(scope: Scope) -> list[Any]:
        found = [await item(scope) for item in items]
        return [None if value is UNSET else value for value in found]

    return fill


def _constant(value: Any) -> Template:
    async def fill(_scope: Scope) -> Any:
        return value

    return fill


def _text(pieces: list[str | Expression]) -> Template:
    bindings = [piece for piece in pieces if isinstance(piece, Expression)]
    around = "".join(piece for piece in pieces if isinstance(piece, str))
    if len(bindings) == 1 and not around.strip():
        return bindings[0].evaluate

    async def fill(scope: Scope) -> str:
        found = [piece if isinstance(piece, str) else _interpolated(await piece.evaluate(scope)) for piece in pieces]
        return "".join(found)

    return fill


def _pieces(text: str, check: Check) -> Iterator[str | Expression]:
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
        check(expression.parsed)
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


def _checked(text: str, check: Check) -> Expression:
    expression = Expression(text)
    check(expression.parsed)
    return expression


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


def _copy(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _copy(child) for name, child in cast("Mapping[str, Any]", value).items()}
        case list():
            return [_copy(child) for child in cast("list[Any]", value)]
        case _:
            return value


def _tree(when: Mapping[str, Any], check: Check) -> Condition:
    match when:
        case {"equals": {"var": str(var), "value": value}}:
            with _at(".equals.var"):
                return _equals(_checked(var, check), value)
        case {"not": inner}:
            return _negated(_part(".not", inner, check))
        case {"and": [*items]}:
            return _decided([_part(f".and[{number}]", item, check) for number, item in enumerate(items)], by=False)
        case {"or": [*items]}:
            return _decided([_part(f".or[{number}]", item, check) for number, item in enumerate(items)], by=True)
        case _:
            raise _wrong_tree()


def _wrong_tree() -> ExpressionError:
    return ExpressionError("A condition is an expression, or one of equals {var, value}, not, and [], or [].")


def _part(step: str, inner: Any, check: Check) -> Condition:
    with _at(step):
        if inner is None:
            raise ExpressionError("A condition within another one is empty.")
        return condition(inner, check)


async def _always(_scope: Scope) -> bool:
    return True


def _holds(expression: Expression) -> Condition:
    async def holds(scope: Scope) -> bool:
        return _truthy(await expression.evaluate(scope))

    return holds


def _equals(var: Expression, value: Any) -> Condition:
    async def equals(scope: Scope) -> bool:
        found = await var.evaluate(scope)
        return found is not UNSET and _same(found, value)

    return equals


def _negated(part: Condition) -> Condition:
    async def negated(scope: Scope) -> bool:
        return not await part(scope)

    return negated


def _decided(parts: list[Condition], *, by: bool) -> Condition:
    """Make the condition that the first part which is so decides; the opposite if none is."""

    async def found(scope: Scope) -> bool:
        for part in parts:
            if await part(scope) is by:
                return by
        return not by

    return found


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
