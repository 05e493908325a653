"""Evaluates expressions in a separate process, so that one that never ends or needs all memory does no harm.

`expressions` runs this file as a script, with an isolated interpreter. It imports only the standard library and
JSONata, so that the process is ready in a fifth of a second. Requests and replies are JSON, each behind its length as
four bytes.

The process has one thread and does one thing after the other: read a request, set the timer, evaluate, unset the timer,
write the reply. It ends when its input is closed, when the timer runs out (1 s of processor time; the system sends
`SIGPROF`, also inside C code), and by a `MemoryError` when it needs more than 256 MB. `expressions` imports this
file as well, for its limits, its frames and its error messages.
"""

import json
import math
import os
import re
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from decimal import Decimal
from importlib import import_module
from typing import IO, Any, Final, NoReturn, cast

__all__ = ["CPU_SECONDS", "LARGEST", "MEMORY", "evaluate", "failure", "import_jsonata", "read_frame", "write_frame"]

CPU_SECONDS: Final = 1.0
"""The processor time of one evaluation."""

MEMORY: Final = 256 * 1024 * 1024
"""The address space of the process, in bytes."""

LARGEST: Final = 4 * 1024 * 1024
"""The most bytes of JSON that an expression may read, and may return."""

_DEPTH: Final = 100
_REASON: Final = 300
_LENGTH: Final = struct.Struct("!I")
# From the first on, and below the second, JavaScript writes a number with an exponent.
_LONG: Final = Decimal("1e21")
_SHORT: Final = Decimal("1e-6")

if __name__ == "__main__":
    # The path of JSONata: the interpreter runs without the paths of the environment.
    sys.path.append(sys.argv[1])


def import_jsonata() -> Any:
    """Import JSONata without its side effect: it raises the recursion limit of the process tenfold."""
    limit = sys.getrecursionlimit()
    module = import_module("jsonata")
    sys.setrecursionlimit(limit)
    return module


_jsonata: Final = import_jsonata()
_NULL: Final = _jsonata.Utils.NULL_VALUE


class _RefusedError(Exception):
    """An expression is refused; the text is the end of a sentence about it."""


def evaluate(text: str, names: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
    """Return `{value}`, `{}` if there is none (which in JSONata differs from null), or `{error}`."""
    try:
        engine = _Engine(text, stack=_DEPTH)
        engine.set_output_convert_nulls(False)
        engine.set_validate_input(False)
        engine.environment.parent = _FRAME
        found = engine.evaluate(_with_nulls(names), _with_nulls(variables))
        return {} if found is None else {"value": _plain(found)}
    except MemoryError:
        raise
    # For some expressions JSONata raises KeyError, TypeError or RecursionError.
    except Exception as error:  # noqa: BLE001
        return {"error": failure(text, error)}


def failure(text: str, error: Exception) -> str:
    """The sentence that says what is wrong with an expression."""
    match error:
        case _RefusedError():
            return f"The expression {text.strip()!r} {error}"
        case RecursionError():
            return f"The expression {text.strip()!r} failed: it is nested too deeply."
        case _:
            # Some errors repeat a whole value.
            return f"The expression {text.strip()!r} failed: {str(error)[:_REASON]}."


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one frame; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _with_nulls(value: Any) -> Any:
    """The value with JSONata's null, because its None means that there is no value."""
    match value:
        case dict():
            return {name: _with_nulls(child) for name, child in cast("dict[str, Any]", value).items()}
        case list():
            return [_with_nulls(child) for child in cast("list[Any]", value)]
        case _:
            return _NULL if value is None else value


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(child) for name, child in cast("dict[str, Any]", value).items()}
        case list():
            return [_plain(child) for child in cast("list[Any]", value)]
        case None | str() | int() | float():
            return value
        case _ if value is _NULL:
            return None
        case _:
            raise _RefusedError("returns a function instead of a value.")


def _refuse_eval(*_: Any) -> NoReturn:
    raise _RefusedError("calls $eval, which is not available in a flow: it would run a value as an expression.")


class _Engine(_jsonata.Jsonata):
    """The Python library, with the operators of JSONata 2.1 where its own differ."""

    def evaluate_numeric_expression(self, lhs: Any, rhs: Any, op: str) -> Any:
        found: Any = _jsonata.Jsonata.evaluate_numeric_expression(self, lhs, rhs, op)
        # The library drops the fraction.
        return found if op != "%" or found is None else _jsonata.Utils.convert_number(math.fmod(lhs, rhs))

    def evaluate_string_concat(self, lhs: Any, rhs: Any) -> str:
        return (_Functions.string(lhs, None) or "") + (_Functions.string(rhs, None) or "")


class _Signature(_jsonata.Signature):
    """A signature for which null is a value."""

    def get_symbol(self, value: Any) -> str:
        return "l" if value is _NULL else _jsonata.Signature.get_symbol(self, value)


class _Functions(_jsonata.Functions):
    """The functions that differ from JSONata 2.1 in the library."""

    @staticmethod
    def string(value: Any, pretty: bool | None) -> str | None:  # noqa: FBT001
        if isinstance(value, _jsonata.Utils.JList) and value.outer_wrapper:
            value = value[0]
        if value is None or isinstance(value, str):
            return value
        return "" if _is_function(value) else _json_text(value, "\n" if pretty else "")

    @staticmethod
    def sort(values: list[Any] | None, comparator: Any) -> list[Any] | None:
        if values is None or len(values) <= 1:
            return values
        if comparator is None:
            kinds = {str if isinstance(value, str) else float if _is_number(value) else None for value in values}
            if None in kinds or len(kinds) > 1:
                raise _RefusedError("sorts values that are neither all numbers nor all strings.")
            return sorted(values)
        return _merge_sorted(values, lambda left, right: _truthy(_Functions.func_apply(comparator, [left, right])))

    @staticmethod
    def replace(text: str | None, pattern: Any, replacement: Any, limit: float | None) -> str | None:
        if text is None:
            return None
        if pattern == "" or (limit is not None and limit < 0):
            raise _RefusedError("calls $replace with an empty pattern or a limit below zero.")
        most = len(text) if limit is None else math.ceil(limit)
        if not isinstance(pattern, str):
            return _replaced(text, pattern, replacement, most)
        if not isinstance(replacement, str):
            raise _RefusedError("calls $replace with a function, which needs a regular expression.")
        return text.replace(pattern, replacement, most)


def _mended(function: Any) -> Any:
    """A corrected copy of a function: other code of this process may use the library's own."""
    function = copy(function)
    function.signature = copy(function.signature)
    function.signature.__class__ = _Signature
    function.method = getattr(_Functions, function.method.__name__)
    return function


def _frame() -> Any:
    """The environment of all expressions: the functions."""
    frame = _jsonata.Jsonata.Frame(None)
    for name, function in _jsonata.Jsonata.static_frame.bindings.items():
        frame.bind(name, _mended(function))
    frame.bind("eval", _jsonata.Jsonata.JLambda(_refuse_eval))
    return frame


_FRAME: Final = _frame()


def _is_function(value: Any) -> bool:
    return isinstance(value, (_jsonata.Jsonata.JFunctionCallable, _jsonata.Parser.Symbol)) or _Functions.is_regex(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _truthy(value: Any) -> bool:
    # As in JavaScript: an empty array or object is true.
    return isinstance(value, (dict, list)) or (value is not _NULL and bool(value))


def _merge_sorted(values: list[Any], swap: Callable[[Any, Any], bool]) -> list[Any]:
    if len(values) <= 1:
        return values
    middle = len(values) // 2
    left, right = _merge_sorted(values[:middle], swap), _merge_sorted(values[middle:], swap)
    merged: list[Any] = []
    one = other = 0
    while one < len(left) and other < len(right):
        if swap(left[one], right[other]):
            merged.append(right[other])
            other += 1
        else:
            merged.append(left[one])
            one += 1
    return [*merged, *left[one:], *right[other:]]


def _replaced(text: str, pattern: Any, replacement: Any, most: int) -> str:
    pieces: list[str] = []
    position = 0
    for number, found in enumerate(pattern.finditer(text)):
        if number >= most:
            break
        if not found[0]:
            raise _RefusedError("has a regular expression that matches an empty string.")
        pieces += text[position : found.start()], _replacement(found, replacement)
        position = found.end()
    return "".join([*pieces, text[position:]])


def _replacement(found: re.Match[str], replacement: Any) -> str:
    groups = [group or "" for group in found.groups()]
    if isinstance(replacement, str):
        return re.sub(r"\$(\$|0|[1-9][0-9]*)?", lambda dollar: _substitute(dollar, found[0], groups), replacement)
    match = {"match": found[0], "start": found.start(), "end": found.end(), "groups": groups}
    result = _Functions.func_apply(replacement, [match])
    if not isinstance(result, str):
        raise _RefusedError("calls $replace with a function that does not return a string.")
    return result


def _substitute(dollar: re.Match[str], whole: str, groups: list[str]) -> str:
    """The value of `$0`, `$1`, `$$` or `$`; the 2 of `$12` is text if there are fewer than twelve groups."""
    name = dollar[1]
    if name in (None, "$"):
        return "$"
    if name == "0":
        return whole
    digits = name[: len(str(len(groups)))]
    if len(digits) > 1 and int(digits) > len(groups):
        digits = digits[:-1]
    group = groups[int(digits) - 1] if int(digits) <= len(groups) else ""
    return group + name[len(digits) :]


def _json_text(value: Any, line: str) -> str:
    """The value as `JSON.stringify` writes it; `line` begins each line, or is empty to write just one."""
    inner, colon = (f"{line}  ", ": ") if line else ("", ":")
    match value:
        case bool() | str() | None:
            return json.dumps(value, ensure_ascii=False)
        case int() | float():
            return _number_text(value)
        case dict():
            members = cast("dict[str, Any]", value).items()
            items = [f"{_json_text(name, '')}{colon}{_json_text(child, inner)}" for name, child in members]
            return "{" + inner + f",{inner}".join(items) + line + "}" if items else "{}"
        case list():
            items = [_json_text(child, inner) for child in cast("list[Any]", value)]
            return "[" + inner + f",{inner}".join(items) + line + "]" if items else "[]"
        case _:
            return "null" if value is _NULL else '""'


def _number_text(number: float) -> str:
    """A number as JavaScript writes it, with 15 digits if it has a fraction."""
    value = float(number)
    shortest = Decimal(repr(value if value.is_integer() else float(f"{value:.15g}")))
    if not shortest:
        return "0"
    if _SHORT <= abs(shortest) < _LONG:
        return format(shortest.normalize(), "f")
    digits, _, exponent = format(shortest.normalize(), "e").partition("e")
    return f"{digits}e{int(exponent):+d}"


def _answer(request: bytes) -> bytes:
    asked = json.loads(request)
    answer = evaluate(asked["text"], asked["names"], asked["variables"])
    try:
        body = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        body = _error(asked["text"], "returns a value that JSON cannot hold.")
    return body if len(body) <= LARGEST else _error(asked["text"], f"returns more than {LARGEST >> 20} MB.")


def _error(text: str, sentence: str) -> bytes:
    return json.dumps({"error": failure(text, _RefusedError(sentence))}).encode()


def _limit_memory() -> None:
    # Not every system has these limits. The time limit remains.
    with suppress(ImportError, OSError, ValueError):
        limits = import_module("resource")
        limits.setrlimit(limits.RLIMIT_AS, (MEMORY, MEMORY))
        limits.setrlimit(limits.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    """Let the system end this process after this much processor time; 0 unsets the timer."""
    with suppress(ImportError, AttributeError):
        signals = import_module("signal")
        signals.setitimer(signals.ITIMER_PROF, seconds)


def _serve() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # JSONata sometimes prints.
    sys.stdout = sys.stderr
    _limit_memory()
    while (request := read_frame(requests)) is not None:
        _limit_time(CPU_SECONDS)
        answer = _answer(request)
        _limit_time(0)
        write_frame(answers, answer)


if __name__ == "__main__":
    _serve()
