"""What the results of deepagents' tools tell in numbers; None where they do not.

They are read as all releases of 0.7 write them: the first ones number the lines of a file, and tell the exit code of a
command only in its text.
"""

import ast
import re
from typing import Any, Final, cast

from usechat.sources.langgraph_messages import field

__all__ = ["edits", "exit_of", "lines_read", "matches", "paths"]

_EDITS: Final = re.compile(r"replaced (\d{1,9}) instance")
# Above it there may be a notice, and below it is the file.
_READ: Final = re.compile(r"^@@ lines (\d{1,9})-(\d{1,9})\b", re.MULTILINE)
_NUMBERED: Final = re.compile(r"^ *(\d{1,9})(?:\.\d+)?  ", re.MULTILINE)
_REST_OF_FILE: Final = re.compile(r"^\[Read \d{1,9} lines? \(lines (\d{1,9})-(\d{1,9}) of ", re.MULTILINE)
_EXIT: Final = re.compile(r"^\[Command (?:succeeded|failed) with exit code (-?\d{1,9})\]$", re.MULTILINE)
# Then the end of the command stands before what it said.
_SAVED: Final = "Tool result too large"
_CUT: Final = ("[Output was truncated due to size limits]", "[Output exceeded the capture size limit")
_NONE: Final = ("No files found", "No matches found")
_LEFT_OUT: Final = "... ["
_COUNT: Final = re.compile(r": (\d{1,9})$", re.MULTILINE)
_MATCH: Final = re.compile(r"^ +\d+: ", re.MULTILINE)


def edits(said: str) -> int | None:
    """In how many places a file was changed."""
    found = _EDITS.search(said)
    return None if found is None else int(found[1])


def lines_read(said: str) -> int | None:
    """How many lines of a file were read."""
    found = _READ.search(said)
    if found is None and _NUMBERED.match(said):
        # A notice about the rest of the file stands at the end; in the file itself, lines begin with their numbers.
        found = _REST_OF_FILE.search(said)
        lines = _NUMBERED.findall(said) if found is None else found.groups()
        return int(lines[-1]) - int(lines[0]) + 1
    return None if found is None else int(found[2]) - int(found[1]) + 1


def paths(said: str) -> int | None:
    """How many paths a listing has."""
    if said.startswith(_NONE):
        return 0
    # A note may follow the list.
    try:
        found: Any = ast.literal_eval(said.partition("\n\n")[0])
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    return sum(not str(path).startswith(_LEFT_OUT) for path in cast("list[object]", found))


def matches(said: str, mode: Any) -> int:
    """How many matches a search found, or how many files, if it was one for files."""
    if said.startswith(_NONE):
        return 0
    found = said.partition("\n\n")[0]
    if mode == "content":
        return len(_MATCH.findall(found))
    if mode == "count":
        return sum(map(int, _COUNT.findall(found)))
    return sum(bool(line) and not line.startswith(_LEFT_OUT) for line in found.splitlines())


def exit_of(artifact: Any, said: str) -> tuple[int | None, bool]:
    """The exit code of a command, and whether its output was cut."""
    if artifact is None:
        told = _EXIT.findall(said)
        exit_code = int(told[0 if said.startswith(_SAVED) else -1]) if told else None
        return exit_code, any(note in said for note in _CUT)
    exit_code = field(artifact, "exit_code")
    return exit_code if isinstance(exit_code, int) else None, field(artifact, "truncated") is True
