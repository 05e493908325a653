"""The one loop that moves events: from whatever drives an agent, through its mapper, to its output."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, closing, nullcontext, suppress
from typing import Any, Final, TypeAlias, TypeVar, cast

from usechat.errors import MappingError
from usechat.events import Mapper
from usechat.turns.output import Output
from usechat.turns.threads import Threads

__all__ = ["Events", "Unused", "closing_events", "pump"]

_Event = TypeVar("_Event")
Events: TypeAlias = AsyncIterator[_Event] | Iterator[_Event]
"""What a driver gives; a sync iterator is run in a thread."""

_log = logging.getLogger("usechat")
_KINDS: Final = 100
# Let the loop run after 256 short texts, or after 2 ms of work on other events.
_IN_A_ROW: Final = 256
_SECONDS_IN_A_ROW: Final = 0.002
# An agent that holds the loop for 10 ms is made to let it run after each of its events; one second is logged.
_HOLDS: Final = 0.010
_HOLDS_LONG: Final = 1.0
# Look at one in eight of the events that come that slowly.
_SAMPLE: Final = 8
# An agent that gives 64 events within a millisecond of each other is no longer suspected.
_QUICK: Final = 0.001
_QUICK_EVENTS: Final = 64


class Unused:
    """Counts the events that a mapper could not use, by what was wrong with them, and logs each kind once."""

    def __init__(self, count: Callable[[], None] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._count = count

    def __call__(self, error: MappingError) -> None:
        # The sender of the events names their types, so the number of kinds needs a bound.
        kind = str(error) if str(error) in self.counts or len(self.counts) < _KINDS else "others"
        if kind not in self.counts:
            _log.warning("%s", error)
        self.counts[kind] += 1
        if self._count is not None:
            self._count()


def pump(
    events: Events[_Event], mapper: Mapper[_Event], output: Output, *, unused: Unused, threads: Threads
) -> Coroutine[None, None, None]:
    """Move all events, and let the mapper end the message when they have run out.

    It stops when the output is closed, or when the task is cancelled, and closes the events. An event that the mapper
    cannot use is given to `unused`. Whatever else the events or the mapper raise is raised here.
    """
    if isinstance(events, AsyncIterable):
        return _move_async(cast("AsyncIterator[Any]", events), mapper, output, unused)
    return _move_in_thread(events, mapper, output, unused, threads)


async def _move_async(events: AsyncIterator[Any], mapper: Mapper[Any], output: Output, unused: Unused) -> None:
    clock, full, watch = time.perf_counter, output.full, _LoopWatch()
    texts, slow, worked, last = 0, 0, 0.0, clock()
    async with closing_events(events):
        async for event in events:
            now = clock()
            try:
                output.write_event(mapper, event, now)
            except MappingError as error:
                unused(error)
            if type(event) is str:
                # Cheaper to count than to time.
                texts += 1 + (len(event) >> 6)
            else:
                worked += clock() - now
            if output.closed:
                break
            if full is not None and full():
                # Its memory is not kept while nobody reads.
                del event
                await output.drain()
            gap, last = now - last, now
            if gap >= _HOLDS:
                slow += 1
            if watch.suspects or (gap >= _HOLDS and (watch.is_marked or slow % _SAMPLE == 0)):
                watch.look(gap)
            if watch.suspects or texts >= _IN_A_ROW or worked >= _SECONDS_IN_A_ROW:
                # An agent that never waits would keep all others waiting.
                await asyncio.sleep(0)
                texts, worked, last = 0, 0.0, clock()
                watch.yielded()
    output.write(mapper.end)


async def _move_in_thread(
    events: Iterator[Any], mapper: Mapper[Any], output: Output, unused: Unused, threads: Threads
) -> None:
    loop, full = asyncio.get_running_loop(), output.full

    def move() -> None:
        with closing(cast("Any", events)) if hasattr(events, "close") else nullcontext():
            for event in events:
                if output.closed:
                    return
                try:
                    output.write(mapper.map, event)
                except MappingError as error:
                    unused(error)
                if full is not None and full():
                    asyncio.run_coroutine_threadsafe(output.drain(), loop).result()

    await threads.run(move)
    output.write(mapper.end)


def closing_events(events: AsyncIterable[Any]) -> AbstractAsyncContextManager[Any]:
    """Close the events at the end, if they can be closed."""
    return _Closing(cast("Any", events)) if hasattr(events, "aclose") else nullcontext()


class _Closing(AbstractAsyncContextManager[None]):
    def __init__(self, events: Any) -> None:
        self._events = events

    async def __aexit__(self, *_: object) -> None:
        if getattr(self._events, "ag_running", False):
            # A GeneratorExit out of what an agent waits for leaves its generator marked as running before Python 3.13,
            # and `await aclose()` refuses it. This closes it all the same, unless it waits in a `finally`.
            with suppress(StopIteration):
                self._events.aclose().throw(GeneratorExit())
        else:
            await self._events.aclose()


class _LoopWatch:
    """Finds out whether an agent lets the loop run while it works on its next event.

    A mark is left with the loop before the first event, after each event of an agent that is suspected, and after one
    in eight of those that came slowly: if the mark is still there when the next event comes, the loop did not run.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.is_marked = False
        # For how many quick events the agent is still suspected.
        self.suspects = 0
        self._logged = False
        self._mark()

    def look(self, gap: float) -> None:
        """An event has come, `gap` seconds after the one before."""
        if gap < _HOLDS:
            self.suspects -= gap < _QUICK
        elif self.is_marked:
            self._catch(gap)
        else:
            self._mark()

    def yielded(self) -> None:
        if self.suspects:
            self._mark()

    def _catch(self, gap: float) -> None:
        self.suspects = _QUICK_EVENTS
        if gap >= _HOLDS_LONG and not self._logged:
            self._logged = True
            _log.warning(
                "an agent held the event loop for %.1f seconds, so that nobody else was answered: use an async client, "
                "or make the agent a plain def generator, which gets a thread",
                gap,
            )

    def _mark(self) -> None:
        if not self.is_marked:
            self.is_marked = True
            self._loop.call_soon(self._ran)

    def _ran(self) -> None:
        self.is_marked = False
