"""The names in docs/concepts/architecture.md are those of the code."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "architecture.md"
WAYS = (
    "A POST",
    "A text delta",
    "A tool call",
    "An approval",
    "An event of a framework, here Open Harness",
    "A frame of an Agent Ops session",
    "A resume, on Redis, at a worker that does not write the turn",
    "A stop, on Redis, at a worker that does not write the turn",
)


def ways() -> dict[str, list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"\*\*([^*]+)\.\*\* [^`*]*((?:`usechat\.[\w.]+`(?:\s*→\s*)?){2,})", text)
    return {name: re.findall(r"`([\w.]+)`", hops) for name, hops in found}


def look_up(name: str) -> object:
    """The thing that a dotted name stands for: as much of it as can be is a module."""
    words = name.split(".")
    for end in range(len(words), 0, -1):
        try:
            module = import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, words[end:], module)
    raise LookupError(name)


def test_every_hop_is_a_function_that_exists() -> None:
    assert tuple(ways()) == WAYS
    hops = {hop for way in ways().values() for hop in way}
    assert {hop for hop in hops if not callable(look_up(hop))} == set()
