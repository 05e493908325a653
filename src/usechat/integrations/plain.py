"""Plain agents: a function that takes the chat and yields, returns or writes."""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

from usechat.events import AgentEvent
from usechat.turns.chat import Chat
from usechat.turns.pump import Events, closing_events
from usechat.turns.threads import THREADS, Threads, is_any

__all__ = ["PlainAgent", "PlainFunction", "is_plain"]

PlainFunction: TypeAlias = Callable[
    [Chat], AsyncIterable[AgentEvent] | Iterable[AgentEvent] | Awaitable[AgentEvent | None] | AgentEvent | None
]


def is_plain(thing: object) -> bool:
    """Whether this is a function, or another callable, that takes the chat."""
    if not callable(thing) or inspect.isclass(thing):
        return False
    try:
        inspect.signature(thing).bind(None)
    except (TypeError, ValueError):
        return False
    return True


class PlainAgent:
    """Drives a function: an async or sync generator, any other async iterable, a coroutine, or one that returns text.

    A sync function gets a thread, since it may block.
    """

    def __init__(self, function: PlainFunction, threads: Threads = THREADS) -> None:
        self._function: Callable[[Chat], Any] = function
        self._threads = threads

    def run(self, chat: Chat) -> Events[AgentEvent]:
        if is_any(inspect.isasyncgenfunction, self._function) or is_any(inspect.isgeneratorfunction, self._function):
            return self._function(chat)
        return self._called(chat)

    def translator(self, _: Chat) -> None:
        """None: it yields `usechat.events` itself."""

    async def _called(self, chat: Chat) -> AsyncIterator[AgentEvent]:
        said = await self._threads.call(self._function, chat)
        if isinstance(said, AsyncIterable):
            events = aiter(cast("AsyncIterable[AgentEvent]", said))
            async with closing_events(events):
                async for event in events:
                    yield event
        elif _has_items(said):
            rest: Iterator[Any] = iter(said)
            while (found := await self._threads.run(_next, rest)) is not None:
                yield found[0]
        elif said is not None:
            yield said


def _has_items(said: object) -> bool:
    return isinstance(said, Iterable) and not isinstance(said, str | bytes | dict)


def _next(events: Iterator[Any]) -> tuple[Any] | None:
    return next(((event,) for event in events), None)
