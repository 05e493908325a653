"""One connection that takes what everybody has to say to Redis together, and goes again as soon as it is back."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from redis.exceptions import ReadOnlyError

from usechat.stores import Meter, StoreAwayError
from usechat.stores.redis.driver import AWAY, Command, Reply, Wire, is_transient
from usechat.stores.redis.lua import Step

__all__ = ["Job", "Line", "NoMeter"]

_log = logging.getLogger("usechat")

# What goes on one trip: enough to be cheap, and not so much that the loop is held or a neighbour waits for long.
_MOST: Final = 128
_MOST_BYTES: Final = 1024 * 1024
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class NoMeter:
    """Counts nothing."""

    def appended(self, seconds: float) -> None: ...

    def store_failed(self) -> None: ...

    def lagged(self, chunks: int) -> None: ...

    def turn_orphaned(self) -> None: ...


class Job(Protocol):
    """Something to be said to Redis, at the moment when there is room for it."""

    def command(self) -> Command | None:
        """What to say; None if there is nothing to say any more."""
        ...

    def done(self, reply: Reply) -> None:
        """Redis has answered, perhaps with an error."""
        ...

    def retries(self) -> bool:
        """Whether to say it again when Redis is back; whether it was done is not known."""
        ...


class _Call:
    __slots__ = ("_command", "_once", "future")

    def __init__(self, command: Command, *, once: bool) -> None:
        self._command = command
        self._once = once
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def command(self) -> Command | None:
        return None if self.future.done() else self._command

    def done(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def retries(self) -> bool:
        if self._once and not self.future.done():
            self.future.set_exception(StoreAwayError())
        return not self.future.done()


class _Word:
    __slots__ = ("_command",)

    def __init__(self, command: Command) -> None:
        self._command = command

    def command(self) -> Command | None:
        return self._command

    def done(self, reply: Reply) -> None:
        pass

    def retries(self) -> bool:
        return False


class Line:
    """Takes jobs, and does all that wait on one trip, one trip at a time, for as long as `run` runs.

    An idle line says a thing at once; the busier it is, the more it says on a trip. Redis is *away* after a trip that
    failed, until one succeeds; jobs wait meanwhile. `changed` is called when it goes away and comes back. It is
    *silent* while trips get no answer at all, and is asked for one again and again.
    """

    def __init__(self, wire: Wire, meter: Callable[[], Meter], changed: Callable[[], None]) -> None:
        self._wire = wire
        self._meter = meter
        self._changed = changed
        self._jobs: deque[Job] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failures = 0
        self._silent_since: float | None = None

    @property
    def is_away(self) -> bool:
        return self._failures > 0

    def patience(self, seconds: float) -> float:
        """What is left of so many seconds in which to wait for an answer: they count from when Redis became silent.

        Raises:
            StoreAwayError: nothing is left.
        """
        if self._silent_since is None:
            return seconds
        left = self._silent_since + seconds - asyncio.get_running_loop().time()
        if left <= 0:
            raise StoreAwayError
        return left

    def put(self, job: Job) -> None:
        self._jobs.append(job)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def say(self, *command: "bytes | Step | int") -> None:
        """Say one thing once, whether it is heard or not."""
        self.put(_Word(command))

    async def call(self, *command: "bytes | Step | int", within: float | None, once: bool = False) -> Reply:
        """Say one thing, again and again while Redis is away, or `once`, if it has not been away since.

        Raises:
            StoreAwayError: there was no answer in so many seconds, or it was an error.
        """
        call = _Call(command, once=once)
        self.put(call)
        try:
            async with asyncio.timeout(within):
                reply = await call.future
        except TimeoutError:
            raise StoreAwayError from None
        if isinstance(reply, Exception):
            raise StoreAwayError from reply
        return reply

    async def run(self) -> None:
        try:
            while True:
                if not self._jobs:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
                await self._go(self._next())
        finally:
            await self._wire.close()

    def _next(self) -> list[tuple[Job, Command]]:
        trip, size = list[tuple[Job, Command]](), 0
        while self._jobs and len(trip) < _MOST and size < _MOST_BYTES:
            job = self._jobs.popleft()
            command = job.command()
            if command is not None:
                trip.append((job, command))
                size += sum(len(part) for part in command if isinstance(part, bytes))
        return trip

    async def _go(self, trip: list[tuple[Job, Command]]) -> None:
        if not trip:
            return
        try:
            replies = await self._wire.trip([command for _, command in trip])
        except AWAY as error:
            if self._silent_since is None:
                self._silent_since = asyncio.get_running_loop().time()
                self._jobs.append(_Call((b"PING",), once=False))
            await self._failed(error, [job for job, _ in trip])
            return
        refused = list[Job]()
        problem: Reply = None
        for (job, _), reply in zip(trip, replies, strict=True):
            if is_transient(reply):
                refused.append(job)
                problem = reply
            else:
                if isinstance(reply, Exception):
                    self._meter().store_failed()
                    _log.error("Redis refused a step: %s", reply)
                _tell(job, reply)
        if len(refused) < len(trip):
            self._silent_since = None
        if refused:
            if isinstance(problem, ReadOnlyError):
                # Another one has become the one to write to.
                await self._wire.close()
            await self._failed(problem, refused)
        else:
            self._succeeded()

    async def _failed(self, error: Exception, jobs: list[Job]) -> None:
        # What is to be said once, to the Redis that was there, is not said to the next one either.
        waiting = [job for job in self._jobs if not isinstance(job, _Call) or job.retries()]
        self._jobs = deque([*(job for job in jobs if job.retries()), *waiting])
        self._meter().store_failed()
        self._failures += 1
        if self._failures == 1:
            _log.warning("Redis is away: %s", error or type(error).__name__)
            self._changed()
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        # Not all workers come back at the same moment.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    def _succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            _log.warning("Redis is back")
            self._changed()


def _tell(job: Job, reply: Reply) -> None:
    try:
        job.done(reply)
    # The others on the line must not wait for ever because of one.
    except Exception:  # noqa: BLE001
        _log.exception("an answer of Redis could not be used")
