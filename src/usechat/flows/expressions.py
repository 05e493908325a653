"""JSONata in flows: conditions (`when`) and bindings (`{{ … }}`).

Expressions are the flow author's, values may be a stranger's. So a value is only ever data here: a binding inside a
value is not filled in, and `$eval`, which would run a value, is refused. This process looks up paths of names, literals
and variables itself. Worker processes evaluate everything else, with limits, so that no value can make this one stand
still (`expression_worker`).

A worker is idle, asked, or ended. `Workers.evaluate` runs in any event loop, and `_ask` in one of `size` threads, which
takes an idle worker or starts one, writes the request and reads the reply. Then one of these happens:

- The reply comes in time: the worker is idle again.
- The worker ends by itself, over its limit of processor time or memory: the thread finds its pipe closed.
- `timeout` passes, or the caller is cancelled: `evaluate` kills the worker, and the thread finds its pipe closed.

`_lock` guards `_all`, `_idle` and the `taken` of each call. `taken` holds the worker while it is asked, for `evaluate`
to kill. The thread, after it has the reply, and `evaluate`, when it gives up, both look at `_all` and `taken` under the
lock: so an idle worker is never killed, and a killed one never idle. A thread that finds its worker gone from `_all`
ends it.
"""

import asyncio
import atexit
import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.errors import UsechatError
from usechat.flows import expression_worker
from usechat.flows.expression_worker import CPU_SECONDS, LARGEST, MEMORY, import_jsonata, read_frame, write_frame
from usechat.turns.threads import Threads

__all__ = [
    "OPERATORS",
    "WORKERS",
    "Check",
    "Condition",
    "Expression",
    "ExpressionError",
    "Parsed",
    "Scope",
    "Template",
    "Worker",
    "Workers",
    "condition",
    "parse",
    "template",
]

_jsonata: Final = import_jsonata()
# Without the paths and the start-up files of the environment: the process needs the standard library and JSONata.
_LIBRARY: Final = str(Path(_jsonata.__file__).parents[1])
_COMMAND: Final = (sys.executable, "-I", "-S", str(expression_worker.__file__), _LIBRARY)
_SIZE: Final = 4
_TIMEOUT_SECONDS: Final = 20.0
_BINDING: Final = "{{"
# From here on JavaScript writes a whole number with an exponent.
_LONG: Final = 1e21
_ELSEWHERE: Final = object()
OPERATORS: Final = ("equals", "not", "and", "or")
"""The names of a condition that is a tree."""

# With one argument, these functions take the context as the other one.
_WANT_TWO: Final = ("each", "lookup", "sift")
# Without arguments, these functions do not take the context.
_WANT_NONE: Final = ("millis", "now", "random")
_LITERALS: Final = ("number", "string", "value")
# The parts of each kind of expression that have the same context as the whole.
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


class ExpressionError(UsechatError):
    """An expression is wrong, or failed with the values that it read.

    `place` is its path within the value or the condition that contains it.
    """

    def __init__(self, problem: str, *, remedy: str = "Correct the expression (JSONata).") -> None:
        super().__init__(problem)
        self.remedy = remedy
        self.place = ""


class Worker:
    """One process. It ends when its input is closed, and so when this process ends."""

    def __init__(self) -> None:
        # A group of its own: a Ctrl-C in the terminal is for the server, which may still want to finish a run.
        self.process = subprocess.Popen(  # noqa: S603
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        self._requests = cast("IO[bytes]", self.process.stdin)
        self._replies = cast("IO[bytes]", self.process.stdout)

    def ask(self, request: bytes) -> bytes | None:
        """The reply, or None if the process ended over the request. This waits, so call it in a thread."""
        with suppress(OSError, ValueError):
            write_frame(self._requests, request)
            return read_frame(self._replies)
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes, so that the process ends as soon as it has nothing to do."""
        for pipe in (self._requests, self._replies):
            # `close` writes what is still buffered, and the process may be gone.
            with suppress(OSError):
                pipe.close()


class Workers:
    """Up to `size` workers for all runs of this process, of any thread and event loop."""

    def __init__(self, size: int = _SIZE, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._size = size
        self._timeout = timeout
        self._all: set[Worker] = set()
        self.forget()

    @property
    def alive(self) -> list[Worker]:
        with self._lock:
            return list(self._all)

    def forget(self) -> None:
        """Start afresh in a forked process, which has none of the threads and children of its parent."""
        for worker in self._all:
            worker.let_go()
            worker.process.returncode = 0
        self._threads = Threads(self._size)
        self._lock = threading.Lock()
        self._all = set()
        self._idle: list[Worker] = []

    def end(self) -> None:
        with self._lock:
            ending, self._idle, self._all = self._all, [], set()
        for worker in ending:
            worker.end()

    async def evaluate(self, text: str, names: Mapping[str, Any], variables: Mapping[str, Any]) -> Any:
        """Let the next free worker evaluate an expression; UNSET if it finds nothing.

        Raises:
            ExpressionError: it failed, took too long, or needed too much memory.
        """

        def error(reason: str) -> ExpressionError:
            return ExpressionError(f"The expression {text.strip()!r} {reason}")

        body = msgspec.json.encode({"text": text, "names": names, "variables": variables})
        if len(body) > LARGEST:
            raise error(f"reads more than {LARGEST >> 20} MB.")
        taken: list[Worker] = []
        try:
            async with asyncio.timeout(self._timeout):
                reply = await self._threads.run(self._ask, body, taken)
        except TimeoutError as failed:
            raise error(f"did not end within {self._timeout:g} s.") from failed
        except (OSError, RuntimeError) as failed:
            raise error("could not be evaluated: the system cannot start another process.") from failed
        finally:
            # Empty if the worker has replied.
            with self._lock:
                for worker in taken:
                    self._all.discard(worker)
                    worker.process.kill()
        if reply is None:
            raise error(f"took longer than {CPU_SECONDS:g} s, or needed more than {MEMORY >> 20} MB.")
        found = msgspec.json.decode(reply)
        if "error" in found:
            raise ExpressionError(found["error"])
        return found.get("value", UNSET)

    def _ask(self, body: bytes, taken: list[Worker]) -> bytes | None:
        worker = self._take() or Worker()
        with self._lock:
            self._all.add(worker)
            taken.append(worker)
        reply = worker.ask(body)
        with self._lock:
            if reply is not None and worker in self._all:
                self._idle.append(worker)
                taken.clear()
                return reply
            self._all.discard(worker)
        worker.end()
        return None

    def _take(self) -> Worker | None:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
                if worker is None or worker.process.poll() is None:
                    return worker
                # Something else has killed it.
                self._all.discard(worker)
            worker.end()


WORKERS: Final = Workers()

atexit.register(WORKERS.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.forget)


class Scope(Struct, frozen=True):
    """What an expression sees: names, and variables (`$iteration`)."""

    names: Mapping[str, Any]
    variables: Mapping[str, Any] = {}


class Parsed(Struct, frozen=True):
    """A parsed expression.

    `path` is set if it consists of names only (`a.b.c`), `variable` if it is a variable (`$iteration`), `literal` if it
    is `true`, a number or a string. `heads` has the first name of each path that begins at the top, with the name after
    it; `whole` says that the expression may read everything.
    """

    path: tuple[str, ...] | None
    variable: str | None
    literal: Any
    heads: frozenset[tuple[str, str | None]]
    whole: bool


Condition: TypeAlias = Callable[[Scope], Awaitable[bool]]
Template: TypeAlias = Callable[[Scope], Awaitable[Any]]
Check: TypeAlias = Callable[[Parsed], None]
"""Checks each expression when it is compiled, and raises an `ExpressionError` if it cannot be right."""


def _unchecked(_parsed: Parsed) -> None:
    pass


class Expression:
    def __init__(self, text: str, check: Check = _unchecked) -> None:
        """Check the expression, and raise an `ExpressionError` if it is wrong."""
        self.text = text
        try:
            self._parsed = parse(text)
        except ValueError as error:
            raise ExpressionError(str(error)) from error
        check(self._parsed)

    async def evaluate(self, scope: Scope) -> Any:
        """A copy of the value; UNSET if there is none, which in JSONata differs from null.

        Raises:
            ExpressionError: it failed, took too long, or needed too much memory.
        """
        found = self._look_up(scope)
        if found is not _ELSEWHERE:
            return found
        names = scope.names
        if not self._parsed.whole:
            names = {name: names[name] for name, _ in self._parsed.heads if name in names}
        return await WORKERS.evaluate(self.text, names, scope.variables)

    def _look_up(self, scope: Scope) -> Any:
        """The value if it can be looked up without JSONata, or `_ELSEWHERE`."""
        parsed = self._parsed
        if parsed.literal is not UNSET:
            return parsed.literal
        if parsed.variable is not None and parsed.variable in scope.variables:
            return msgspec.to_builtins(scope.variables[parsed.variable])
        if parsed.path is None:
            return _ELSEWHERE
        found: Any = scope.names
        for name in parsed.path:
            if isinstance(found, list):
                # JSONata applies the rest of the path to each item.
                return _ELSEWHERE
            if not isinstance(found, Mapping) or name not in found:
                return UNSET
            found = cast("Mapping[str, Any]", found)[name]
        return msgspec.to_builtins(found)


def condition(when: str | Mapping[str, Any] | None, check: Check = _unchecked) -> Condition:
    """Compile a `when`; a missing one is true.

    Raises:
        ExpressionError: it is wrong.
    """
    tree = None if when is None else _tree(when, check)
    return lambda scope: _holds(tree, scope)


def _tree(when: Any, check: Check, step: str = "") -> Any:
    """The condition with an `Expression` in place of each text."""
    with _at(step):
        match when:
            case str():
                return Expression(when, check)
            case dict() if sum(operator in when for operator in OPERATORS) != 1:
                pass
            case {"equals": {"var": str(var), "value": value}}:
                with _at(".equals.var"):
                    return {"equals": Expression(var, check), "value": value}
            case {"not": part}:
                return {"not": _tree(part, check, ".not")}
            case {"and": [*parts]}:
                return {"and": [_tree(part, check, f".and[{number}]") for number, part in enumerate(parts)]}
            case {"or": [*parts]}:
                return {"or": [_tree(part, check, f".or[{number}]") for number, part in enumerate(parts)]}
            case _:
                pass
        raise ExpressionError("A condition is an expression, or one of equals {var, value}, not, and [], or [].")


async def _holds(tree: Any, scope: Scope) -> bool:
    match tree:
        case Expression():
            found = await tree.evaluate(scope)
            # As in JavaScript: an empty array or object is true.
            return isinstance(found, dict | list) or (found is not UNSET and bool(found))
        case {"equals": Expression() as var, "value": value}:
            found = await var.evaluate(scope)
            return found is not UNSET and _same(found, value)
        case {"not": part}:
            return not await _holds(part, scope)
        case {"and": parts}:
            for part in parts:
                if not await _holds(part, scope):
                    return False
            return True
        case {"or": parts}:
            for part in parts:
                if await _holds(part, scope):
                    return True
            return False
        case _:
            return True


def template(value: Any, check: Check = _unchecked) -> Template:
    """Compile the bindings in a value of the flow. The result is UNSET if the value is a binding that finds nothing.

    Raises:
        ExpressionError: one of its expressions is wrong.
    """
    compiled = _compile(value, check)
    return lambda scope: _fill(compiled, scope)


class _Text(Struct, frozen=True):
    pieces: list[str | Expression]


def _compile(value: Any, check: Check, step: str = "") -> Any:
    """The value with an `Expression` or a `_Text` in place of each text that has bindings."""
    with _at(step):
        match value:
            case str() if _BINDING in value:
                pieces = list(_pieces(value, check))
                bindings = [piece for piece in pieces if isinstance(piece, Expression)]
                alone = len(bindings) == 1 and not any(isinstance(piece, str) and piece.strip() for piece in pieces)
                return bindings[0] if alone else _Text(pieces)
            case dict():
                members = cast("dict[str, Any]", value).items()
                return {name: _compile(child, check, f".{name}") for name, child in members}
            case list():
                return [_compile(item, check, f"[{n}]") for n, item in enumerate(cast("list[Any]", value))]
            case _:
                return value


async def _fill(compiled: Any, scope: Scope) -> Any:
    match compiled:
        case Expression():
            return await compiled.evaluate(scope)
        case _Text(pieces):
            texts = [one if isinstance(one, str) else _interpolated(await one.evaluate(scope)) for one in pieces]
            return "".join(texts)
        case dict():
            members = cast("dict[str, Any]", compiled).items()
            found = {name: await _fill(child, scope) for name, child in members}
            # A member whose binding finds nothing is left out.
            return {name: value for name, value in found.items() if value is not UNSET}
        case list():
            items = [await _fill(item, scope) for item in cast("list[Any]", compiled)]
            return [None if item is UNSET else item for item in items]
        case _:
            return compiled


@contextmanager
def _at(step: str) -> Generator[None, None, None]:
    try:
        yield
    except ExpressionError as error:
        error.place = step + error.place
        raise


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
        yield Expression(expression, check)


def _first_binding(text: str) -> tuple[str, str]:
    """The expression up to the first `}}` that is not part of it, and the text after that."""
    failures: list[ValueError] = []
    for end in re.finditer(r"(?=\}\})", text):
        try:
            parse(text[: end.start()])
        except ValueError as error:
            failures.append(error)
        else:
            return text[: end.start()], text[end.start() + 2 :]
    raise ExpressionError(str(failures[0]))


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
        raise ValueError(expression_worker.failure(text, error)) from error
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
    """Whether the symbol has no filter, group, index, variable or `[]`."""
    marks = ("stages", "predicate", "group", "focus", "index", "tuple", "ancestor", "keep_array", "consarray")
    return not any(getattr(symbol, mark, None) for mark in marks)


class _Reads:
    """Finds the names that an expression reads. A kind of symbol that it does not know may read everything."""

    def __init__(self) -> None:
        self.heads: set[tuple[str, str | None]] = set()
        self.whole = False

    def top(self, symbol: Any) -> None:
        """Visit an expression whose context is the top."""
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
        # After a step with a variable (`a@$v.b`), the next step has the same context as this one.
        self.whole = self.whole or any(step.focus is not None for step in steps)
        self._within(rest)

    def _within(self, inner: Any) -> None:
        """Look for a way back to the top in expressions with another context."""
        for symbol in _symbols(inner, set()):
            if symbol.type == "parent" or (symbol.type == "variable" and symbol.value == "$"):
                self.whole = True


def _takes_all(symbol: Any) -> bool:
    """Whether the expression reads its whole context, by `$` or as a function's missing argument."""
    match symbol.type:
        case "variable":
            return symbol.value in ("", "$")
        case "bind":
            return symbol.lhs.value in _WANT_NONE
        case "lambda":
            return symbol.signature is not None or any(one.value in _WANT_NONE for one in symbol.arguments)
        case "function" | "partial":
            count, name = len(symbol.arguments or ()), symbol.procedure.value
            return (not count and name not in _WANT_NONE) or (count == 1 and name in _WANT_TWO)
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
    """All symbols within a symbol, some of which refer back to it."""
    for symbol in _flat(value):
        if id(symbol) not in seen:
            seen.add(id(symbol))
            yield symbol
            for child in cast("dict[str, Any]", vars(symbol)).values():
                yield from _symbols(child, seen)
