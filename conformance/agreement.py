"""Streams of a source's mapper, and what the real clients make of them."""

from collections.abc import Iterable
from typing import Any, Final

from hypothesis import HealthCheck, settings

from judge import Judge, body_of
from promises import PROMISES, promised
from same_json import as_json, strict
from support.goldens import Case, mapped
from support.soak import draws
from usechat.protocol.chunks import Chunk, Error
from usechat.protocol.reader import MessageReader

__all__ = ["FEW", "agree", "agree_in_all_profiles", "in_common", "message_of"]

# The judge is a fixture of the whole session.
FEW: Final = settings(
    max_examples=draws(15, 20), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def message_of(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """The message that we build of these chunks."""
    reader = MessageReader()
    for chunk in chunks:
        reader.apply(chunk)
    return as_json(reader.message)


def in_common(message: dict[str, Any]) -> Any:
    """The message without what only the newest clients keep."""
    parts = [{name: value for name, value in part.items() if name != "rawInput"} for part in message["parts"]]
    for part in parts:
        if part["type"] == "reasoning":
            part.pop("id", None)
    return strict({**message, "parts": parts})


def agree(judge: Judge, chunks: list[Chunk], clients: Iterable[str] | None = None) -> None:
    """Check that these clients, or all that we promise, have our message and our end, and no page posts again."""
    clients = promised("portable", chunks) if clients is None else list(clients)
    results = judge.read(chunks, clients)
    last = chunks[-1]
    error = {"name": "Error", "message": last.error_text} if isinstance(last, Error) else None
    expected = in_common(message_of(chunks))
    for name in clients:
        assert (results[name]["status"], results[name]["error"]) == ("error" if error else "ready", error), name
        assert in_common(results[name]["accumulated"]) == expected, name
        assert error or results[name]["valid"] in (True, None) or expected["parts"] == [], name
    assert error or judge.posts_after(results, chunks) == dict.fromkeys(clients, 1)


def agree_in_all_profiles(judge: Judge, case: Case) -> None:
    """The same of a golden log in every profile; a stream that several have is read once by the clients of all."""
    streams: dict[str, list[Chunk]] = {}
    readers: dict[str, set[str]] = {}
    for profile in PROMISES:
        chunks = mapped(case.source, case.events, case.options, profile)
        body = body_of(chunks)
        streams[body] = chunks
        readers.setdefault(body, set()).update(promised(profile, chunks))
    for body, chunks in streams.items():
        agree(judge, chunks, sorted(readers[body]))
