"""Where waiting begins: events as they come, mapped into one stream that always ends."""

import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Final, TypeVar, cast

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper, RunMapper

__all__ = ["Unused", "explain", "map_event", "map_events"]

_Event = TypeVar("_Event")

_log = logging.getLogger("usechat")
_KINDS: Final = 100


class Unused:
    """Counts the events that a mapper could not use, by what was wrong with them, and logs each kind once."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, error: MappingError) -> None:
        # Who sends the events names their types, so the number of kinds needs a bound.
        kind = str(error) if str(error) in self.counts or len(self.counts) < _KINDS else "others"
        if kind not in self.counts:
            _log.warning("%s", error)
        self.counts[kind] += 1


def map_event(mapper: Mapper[_Event], event: _Event, unused: Callable[[MappingError], None]) -> Iterable[Chunk]:
    """The chunks of one event; one that cannot be used goes to `unused` and gives none."""
    try:
        return mapper.map(event)
    except MappingError as error:
        unused(error)
        return ()


async def map_events(
    events: AsyncIterable[_Event],
    mapper: RunMapper[_Event],
    writer: MessageWriter,
    *,
    error_text: Callable[[BaseException], str | None] | None = None,
    unused: Callable[[MappingError], None] | None = None,
) -> AsyncGenerator[Chunk, None]:
    """The stream of one run, from its start to its `finish`, `abort` or `error`; `mapper` writes with `writer`.

    It ends when the mapper says so. If the events stop before, or their source fails, all parts are closed and an error
    follows, whose text `error_text` may choose for an exception; None is a masked text. An event that cannot be used is
    given to `unused`, by default a new `Unused`.
    """
    unused = Unused() if unused is None else unused
    for chunk in writer.start():
        yield chunk
    try:
        async with _closing(events):
            async for event in events:
                for chunk in map_event(mapper, event, unused):
                    yield chunk
                if mapper.ended:
                    return
        last = mapper.interrupt()
    # The border: whatever the events' source raises ends the stream with a masked error.
    except Exception as error:  # noqa: BLE001
        last = writer.fail(explain(error, error_text))
    for chunk in last:
        yield chunk


def explain(error: BaseException, error_text: Callable[[BaseException], str | None] | None = None) -> str:
    """What a user reads of an exception: what `error_text` chose, or a sentence with the id that the log has too."""
    error_id = secrets.token_hex(4)
    _log.error("an agent failed, error %s", error_id, exc_info=error)
    chosen = error_text(error) if error_text is not None else None
    return chosen or f"Something went wrong. (Error {error_id})"


def _closing(events: AsyncIterable[object]) -> AbstractAsyncContextManager[object]:
    return aclosing(cast("AsyncGenerator[object]", events)) if isinstance(events, AsyncGenerator) else nullcontext()
