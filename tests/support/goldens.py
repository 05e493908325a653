"""The golden files of an integration: `<case>.events.jsonl`, `<case>.chunks.jsonl`, perhaps `<case>.options.json`."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from usechat.events.mapper import TranslatingMapper
from usechat.integrations import load_log_translators
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.writer import MessageWriter
from usechat.stream import map_events
from usechat.turns.failures import MASKED

__all__ = ["CASES", "Case", "cases", "mapped"]

_TRANSLATORS: Final = load_log_translators()


class Case(NamedTuple):
    source: str
    name: str
    events: list[dict[str, Any]]
    options: dict[str, Any]
    log: Path
    chunks: Path


def cases(source: str) -> list[Case]:
    folder = Path(__file__).parents[1] / "golden" / source.replace("-", "_")
    return [_case(source, log) for log in sorted(folder.glob("*.events.jsonl"))]


def _case(source: str, log: Path) -> Case:
    name = log.name.removesuffix(".events.jsonl")
    options = log.with_name(f"{name}.options.json")
    return Case(
        source,
        name,
        [json.loads(line) for line in log.read_text("utf-8").splitlines()],
        json.loads(options.read_text("utf-8")) if options.exists() else {},
        log,
        log.with_name(f"{name}.chunks.jsonl"),
    )


CASES: Final = [case for source in _TRANSLATORS for case in cases(source)]
"""The golden files of all integrations whose logs can be mapped."""


def mapped(
    source: str, events: list[dict[str, Any]], options: dict[str, Any], client: ClientName = "portable"
) -> list[Chunk]:
    """The stream of these events, with ids that are always the same."""
    numbers = count(1)
    writer = MessageWriter("message-1", new_id=lambda: f"id-{next(numbers)}", client=client)

    async def come() -> AsyncIterator[dict[str, Any]]:
        for event in events:
            yield event

    async def collect() -> list[Chunk]:
        mapper = TranslatingMapper(_TRANSLATORS[source](options), writer)
        return [chunk async for chunk in map_events(come(), mapper, writer, error_text=lambda _: MASKED)]

    return asyncio.run(collect())
