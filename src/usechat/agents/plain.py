"""Plain agents: a function that takes the chat and yields, or writes."""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, closing, suppress
from typing import Any, Final, TypeAlias

from usechat.agents.chat import Chat
from usechat.errors import MappingError
from usechat.sources.plain import PlainEvent, PlainMapper
from usechat.turns import Turn

__all__ = ["PlainAgent", "run_plain"]

PlainAgent: TypeAlias = Callable[
    [Chat], AsyncIterable[PlainEvent] | Iterable[PlainEvent] | Awaitable[PlainEvent | None]
]


# How many bytes or events may come in one go.
_BREATH: Final = 32 * 1024
_BREATHS: Final = 512


async def run_plain(
    agent: PlainAgent,
    chat: Chat,
    turn: Turn,
    *,
    threads: asyncio.Semaphore,
    unused: Callable[[MappingError], None],
) -> None:
    """Run the agent to its end.

    A sync agent gets a thread, as soon as `threads` has a place for it. An event that cannot be used goes to `unused`,
    and the agent goes on.
    """
    mapper = PlainMapper(turn.writer)

    def take(event: PlainEvent) -> None:
        try:
            turn.say(mapper.map, event)
        except MappingError as error:
            unused(error)

    said = agent(chat)
    if inspect.isasyncgen(said):
        await _pump(said, take, turn)
    elif inspect.isgenerator(said):
        async with threads:
            await _in_thread(said, take, turn)
    elif inspect.isawaitable(said):
        last = await said
        if last is not None:
            take(last)
    else:
        raise TypeError(f"An agent is a generator or a coroutine, but this one returned {type(said).__name__}.")


async def _pump(events: AsyncGenerator[Any, None], take: Callable[[Any], None], turn: Turn) -> None:
    log, size, count = turn.log, 0, 0
    async with aclosing(events):
        async for event in events:
            if type(event) is str:
                turn.say_text(event)
            else:
                take(event)
            if log.outcome is not None:
                break
            count += 1
            if log.size - size >= _BREATH or count >= _BREATHS:
                # An agent that never waits would keep all others waiting.
                await asyncio.sleep(0)
                size, count = log.size, 0


async def _in_thread(events: Generator[Any, None, None], take: Callable[[Any], None], turn: Turn) -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def iterate() -> None:
        error: BaseException | None = None
        try:
            with closing(events):
                for event in events:
                    if turn.ended:
                        break
                    take(event)
        # The thread's failure is the turn's: it is raised again where the turn waits.
        except BaseException as raised:  # noqa: BLE001
            error = raised
        # A loop that is closed has nobody who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=iterate, name="usechat agent", daemon=True).start()
    await done
