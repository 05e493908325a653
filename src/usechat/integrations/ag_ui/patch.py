"""Documents that an agent changes from outside: JSON Patch (RFC 6902), applied all or nothing, and a bound."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from usechat.errors import MappingError

__all__ = ["DOCUMENT_LIMIT", "apply_patch", "check_size"]

_Change: TypeAlias = Callable[[Any, str], Any]

DOCUMENT_LIMIT: Final = 512 * 1024
"""About how many bytes of JSON a document may take: `chat.state` takes 1 MB, and a page gets it again and again."""

_MAX_DEPTH: Final = 128
_MAX_OPERATIONS: Final = 1000


def apply_patch(document: Any, patch: Any) -> Any:
    """The document with the changes. It shares what did not change with the old one.

    Raises:
        MappingError: The patch is malformed, or does not fit the document.
    """
    if not isinstance(patch, list) or len(cast("list[Any]", patch)) > _MAX_OPERATIONS:
        raise MappingError("An AG-UI agent sent a patch that is no list of operations, or has too many.")
    for operation in cast("list[Any]", patch):
        try:
            document = _apply(document, operation)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise MappingError("An AG-UI agent sent a patch that does not fit its document.") from error
    return check_size(document)


def check_size(document: Any) -> Any:
    """The document, if it is not too large. A few `copy` operations could make it larger than any memory.

    Raises:
        MappingError: It is.
    """
    nodes, size = [document], 0
    while nodes and size <= DOCUMENT_LIMIT:
        node = nodes.pop()
        if isinstance(node, dict):
            entries = cast("dict[str, Any]", node)
            size += sum(map(len, entries)) + 4 * len(entries) + 2
            nodes += entries.values()
        elif isinstance(node, list):
            items = cast("list[Any]", node)
            size += len(items) + 2
            nodes += items
        else:
            size += len(node) + 2 if isinstance(node, str) else 8
    if nodes or size > DOCUMENT_LIMIT:
        raise MappingError(f"An AG-UI agent sent a document of more than {DOCUMENT_LIMIT:,} bytes.")
    return document


def _apply(document: Any, operation: Mapping[str, Any]) -> Any:
    path = _tokens(operation["path"])
    match operation["op"]:
        case "add":
            return _put(document, path, operation["value"])
        case "remove":
            return _change(document, path, _removed)
        case "replace":
            _get(document, path)
            return _change(document, path, lambda parent, token: _with(parent, token, operation["value"]))
        case "test":
            if _get(document, path) != operation["value"]:
                raise ValueError("The test failed.")
            return document
        case "copy":
            return _put(document, path, _get(document, _tokens(operation["from"])))
        case "move":
            source = _tokens(operation["from"])
            value = _get(document, source)
            return _put(_change(document, source, _removed), path, value)
        case _:
            raise ValueError("There is no such operation.")


def _tokens(pointer: str) -> Sequence[str]:
    if not pointer:
        return ()
    first, *tokens = pointer.split("/")
    if first or len(tokens) > _MAX_DEPTH:
        raise ValueError("This is no JSON pointer, or a very deep one.")
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]


def _get(document: Any, path: Sequence[str]) -> Any:
    for token in path:
        document = document[_index(document, token) if isinstance(document, list) else token]
    return document


def _put(document: Any, path: Sequence[str], value: Any) -> Any:
    def insert(parent: Any, token: str) -> Any:
        if not isinstance(parent, list):
            return _with(parent, token, value)
        items = cast("list[Any]", parent)
        index = len(items) if token == "-" else _index(items, token, end=1)  # noqa: S105
        return [*items[:index], value, *items[index:]]

    return _change(document, path, insert) if path else value


def _change(document: Any, path: Sequence[str], change: _Change) -> Any:
    """A copy of the document in which the value at the path's parent is changed."""
    if not path:
        return change({"": document}, "").get("")
    token, *rest = path
    if not rest:
        return change(document, token)
    return _with(document, token, _change(_get(document, [token]), rest, change))


def _with(parent: Any, token: str, value: Any) -> Any:
    if isinstance(parent, list):
        items = list(cast("list[Any]", parent))
        items[_index(items, token)] = value
        return items
    return {**parent, token: value}


def _removed(parent: Any, token: str) -> Any:
    if isinstance(parent, list):
        items = list(cast("list[Any]", parent))
        del items[_index(items, token)]
        return items
    rest = dict(parent)
    del rest[token]
    return rest


def _index(items: Any, token: str, *, end: int = 0) -> int:
    index = int(token) if token.isascii() and token.isdigit() and len(token) < 10 else -1
    if not 0 <= index < len(items) + end or str(index) != token:
        raise IndexError("There is no such item.")
    return index
