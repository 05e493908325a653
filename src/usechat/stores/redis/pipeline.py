"""One connection that sends all that waits to Redis on one trip, and goes again as soon as it is back.

Everything here belongs to the event loop, and one task runs `run`. A job is *queued* by `put`. `run` asks it for its
command when a trip begins, at most 128 jobs and about 1 MiB together. Then it is *on a trip*, until `done` hands it the
reply. So an idle pipeline sends a command at once, and the busier it is, the more it sends on a trip.

Redis is *there* or *away*, and `changed` is called at each change:

    there -> away   a trip failed, or Redis refused a job for now: it is full, read-only, loading, …
    away -> there   a trip came back, and Redis refused nothing for now

Away, the pipeline tries again after 20 ms, then twice as long each time, up to a second. Nobody can say whether Redis
did what was on a trip that failed, so each job decides in `retries` whether it is queued again.

Redis is *silent* from a trip that failed until one comes back with a reply that is no such refusal. A `PING` is queued
then, so that the pipeline notices the end of the silence even if nobody asks for anything. `patience` counts from its
beginning.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from usechat.stores import Meter, StoreAwayError
from usechat.stores.redis.driver import AWAY, Command, Part, Reply, Wire, is_replica, is_transient

__all__ = ["Job", "Pipeline"]

_log = logging.getLogger("usechat")

# What goes on one trip: enough to be cheap, and not so much that the loop is held or a neighbour waits for long.
_MOST: Final = 128
_MOST_BYTES: Final = 1024 * 1024
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Job(Protocol):
    """Something to send to Redis, at the moment when there is room for it."""

    def command(self) -> Command | None:
        """What to send; None if there is nothing to send any more."""
        ...

    def done(self, reply: Reply) -> None:
        """Redis has replied, perhaps with an error."""
        ...

    def retries(self) -> bool:
        """Whether to queue it again, now that a trip with it has failed."""
        ...


class _Call:
    """Has a future for the reply; a `once` fails with a trip of the pipeline, also if it was not on it."""

    __slots__ = ("_command", "_once", "future")

    def __init__(self, command: Command, *, once: bool = False) -> None:
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


class _Send:
    """Nobody waits for the reply."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Command]) -> None:
        self._make = make

    def command(self) -> Command | None:
        return self._make()

    def done(self, reply: Reply) -> None:
        pass

    def retries(self) -> bool:
        return False


class Pipeline:
    """Takes jobs, for as long as `run` runs."""

    def __init__(self, wire: Wire, meter: Meter, changed: Callable[[], None]) -> None:
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
        """How much is left of `seconds`, counted from when Redis became silent.

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

    def send(self, *command: Part) -> None:
        """Send a command once, and drop the reply."""
        self.send_late(lambda: command)

    def send_late(self, make: Callable[[], Command]) -> None:
        """Send once what the function makes when the trip begins, and drop the reply."""
        self.put(_Send(make))

    async def call(self, *command: Part, within: float | None, once: bool = False) -> Reply:
        """Send a command again until Redis replies, or `once`: then it fails as soon as a trip does.

        Raises:
            StoreAwayError: there was no reply within `within` seconds, or it was an error.
        """
        return await self._reply(_Call(command, once=once), within)

    async def call_all(self, commands: Sequence[Command], *, within: float | None) -> list[Reply]:
        """Send the commands one after the other, on the same trip unless it is full.

        Raises:
            StoreAwayError: there was no reply within `within` seconds, or one of them was an error.
        """
        return await asyncio.gather(*(self._reply(_Call(command), within) for command in commands))

    async def _reply(self, call: _Call, within: float | None) -> Reply:
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
                self._jobs.append(_Call((b"PING",)))
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
                    self._meter.store_failed()
                    _log.error("Redis refused a command: %s", reply)
                _hand_over(job, reply)
        if len(refused) < len(trip):
            self._silent_since = None
        if refused:
            if is_replica(problem):
                # Another Redis has become the one to write to, and a new connection may lead to it.
                await self._wire.close()
            await self._failed(problem, refused)
        else:
            self._succeeded()

    async def _failed(self, error: Exception, jobs: list[Job]) -> None:
        # A call that is for the Redis that was there is not for the next one, also if it was not on the trip.
        waiting = [job for job in self._jobs if not isinstance(job, _Call) or job.retries()]
        self._jobs = deque([*(job for job in jobs if job.retries()), *waiting])
        self._meter.store_failed()
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


def _hand_over(job: Job, reply: Reply) -> None:
    try:
        job.done(reply)
    # The other jobs of the trip have replies, too.
    except Exception:  # noqa: BLE001
        _log.exception("a reply of Redis could not be used")
