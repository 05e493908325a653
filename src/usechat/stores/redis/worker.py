"""This process on Redis: its connections, its tasks, and what it must not believe of a Redis that was away.

A worker has four connections, whatever it does: a pipeline for what is small, one for what is large to read, one for
what is published, and one of the thread that renews leases. Claims, mirrors and the reaper share a worker; it has
none of them. Three hooks lead back to them: `on_away_changed`, `on_heard_again` and `on_expired`.

`Outages` knows when Redis was away for the last time, or had forgotten everything; `noted` begins this anew:

- A turn that Redis does not have may have an owner who gives it back. Owners do so within 2 seconds after Redis is
  back, and lookups that find nothing wait that long (`ask`).
- A lease that has ended says nothing until owners had the time of one lease to renew theirs: since this worker began,
  since Redis was away, and since somebody set the clock of Redis (`leases_count`).
- The clock of Redis was set if it is earlier or later there than it can be by the monotonic clock of this process
  (`possible`). Half a lease is the tolerance.
- A Redis that was emptied has another identity. The first worker that notices it gives it a new one, and all workers
  hear of it on their control channel.

All of it belongs to the event loop.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import Meter, StoreAwayError, TurnHead
from usechat.stores.log import Outcome
from usechat.stores.redis.channels import Channels
from usechat.stores.redis.driver import Part, Reply, ThreadWire, Wire
from usechat.stores.redis.keys import Keys, Settings
from usechat.stores.redis.lease import Leases
from usechat.stores.redis.pipeline import Pipeline
from usechat.stores.redis.scripts import IDENTIFY, STATUS

__all__ = ["GIVEN_BACK", "TurnStatus", "Worker", "frames_of"]

_log = logging.getLogger("usechat")

GIVEN_BACK: Final = 2.0
"""In how many seconds after Redis is back living owners have given back what it forgot."""
_AGAIN: Final = 0.1
# Of a lease.
_SLACK: Final = 0.5
_T = TypeVar("_T")


class TurnStatus(msgspec.Struct, frozen=True):
    """A turn as it is in Redis; `phase` is None if there is none, and `expired` is for the lease of its owner."""

    phase: str | None
    epoch: int = 0
    last: int = 0
    expired: bool = False
    outcome: Outcome = "lost"
    continues: UIMessage | None = None

    @property
    def is_held(self) -> bool:
        return self.phase in ("claimed", "open", "sealed")

    def is_of(self, epoch: int) -> bool:
        """Whether the owner with this epoch still has it."""
        return self.is_held and self.epoch == epoch


class Worker:
    """One of the processes that share a Redis, from `open` on."""

    def __init__(self, url: str, keys: Keys, settings: Settings, meter: Meter) -> None:
        self.id = secrets.token_hex(8).encode()
        self.keys = keys
        self.settings = settings
        self.meter = meter
        # Redis has gone away or come back; the channels were not heard for a while; the lease of a turn has ended.
        self.on_away_changed: Callable[[], None] = lambda: None
        self.on_heard_again: Callable[[], None] = lambda: None
        self.on_expired: Callable[[TurnHead], None] = lambda _: None
        lease = settings.lease
        seconds = min(3.0, max(lease / 3, 0.5))
        self.pipeline = Pipeline(Wire(url, seconds), meter, lambda: self.on_away_changed())
        self.reading = Pipeline(Wire(url, 2 * seconds), meter, lambda: None)
        self.channels = Channels(lambda: Wire(url, seconds), lease / 3, lambda: self.on_heard_again())
        self.leases = Leases(ThreadWire(url, min(2.0, max(lease / 5, 0.2))), keys.running, lease)
        self.outages = Outages(self.pipeline, keys, settings)
        self.is_open = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Keep the connections, whether Redis is there or not; at the end all tasks are cancelled."""
        for run in (self.pipeline.run(), self.reading.run(), self.channels.run(), self.outages.learn()):
            self.start(run)
        self.leases.start()
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False
            self.leases.stop()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do it in a task that its caller cannot cancel."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do it beside; that Redis is away is no reason to complain."""
        return self.start(_quietly(work))

    async def status(self, head: TurnHead, pipeline: Pipeline | None = None) -> TurnStatus:
        """The turn as it is in Redis; if its owner is gone, somebody takes it over.

        Raises:
            StoreAwayError: Redis is away.
        """
        pipeline, key = pipeline or self.pipeline, self.keys.of(head).turn
        reply = await pipeline.call(STATUS, 1, key, within=self.settings.patience)
        if reply[0] == b"GONE":
            return TurnStatus(None)
        phase, epoch, last, expired, outcome, continues = reply
        status = TurnStatus(
            phase.decode(),
            int(epoch),
            last,
            expired == 1,
            "lost" if outcome is None else msgspec.convert(outcome.decode(), Outcome),
            None if continues is None else msgspec.json.decode(continues, type=UIMessage),
        )
        if status.expired and status.is_held:
            self.on_expired(head)
        return status

    async def wait_until(self, head: TurnHead, holds: Callable[[TurnStatus], bool]) -> TurnStatus:
        """Wait until it holds for the turn, wherever that happens.

        Raises:
            StoreAwayError: Redis is away.
        """
        status = await self.status(head)
        if holds(status):
            return status
        channel, heard = self.keys.of(head).turn, asyncio.Event()

        def hear(_: bytes) -> None:
            heard.set()

        await self.join(channel, hear)
        try:
            while not holds(status := await self.status(head)):
                # Messages may be lost.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.lease / 2):
                        await heard.wait()
                heard.clear()
            return status
        finally:
            self.channels.leave(channel, hear)

    async def join(self, channel: bytes, hear: Callable[[bytes], None]) -> None:
        """Hear a channel from now on.

        Raises:
            StoreAwayError: Redis is away.
        """
        try:
            async with asyncio.timeout(self.settings.patience):
                await self.channels.join(channel, hear)
        except TimeoutError:
            raise StoreAwayError from None


class Outages:
    """When Redis was away for the last time, as this worker saw it, and what time it is there."""

    def __init__(self, pipeline: Pipeline, keys: Keys, settings: Settings) -> None:
        self._pipeline = pipeline
        self._keys = keys
        self._settings = settings
        self._identity = b""
        self._since = time.monotonic()
        self._given_back = 0.0
        # How much the clock of Redis is ahead of ours, in microseconds.
        self._ahead: float | None = None

    def noted(self) -> None:
        """Redis is away, or back, or was emptied."""
        self._since = time.monotonic()
        self._given_back = self._since + GIVEN_BACK

    @property
    def leases_count(self) -> bool:
        """Whether an owner whose lease has ended is gone."""
        return time.monotonic() - self._since >= self._settings.lease

    @property
    def left(self) -> float:
        """In how many seconds owners have given back what Redis forgot."""
        return max(0.0, self._given_back - time.monotonic())

    @property
    def possible(self) -> tuple[int, int]:
        """The earliest and the latest time, in microseconds, that it can be in Redis if nobody has set its clock."""
        if self._ahead is None:
            return 0, 0
        now = self._ahead + _ours()
        return int(now - self._slack), int(now + self._slack)

    def learn_time(self, now: int, asked: float) -> None:
        """It was `now` in Redis at some moment since `asked`."""
        if time.monotonic() - asked > self._slack / 2e6:
            # The moment is not known well enough.
            return
        ahead = now - _ours()
        if self._ahead is not None and abs(ahead - self._ahead) > self._slack:
            _log.warning("the clock of Redis was set, or this machine has slept: leases count again later")
            self._since = time.monotonic()
        self._ahead = ahead

    @property
    def _slack(self) -> float:
        return _SLACK * self._settings.lease * 1e6

    async def learn(self) -> None:
        """Learn the identity of Redis."""
        self._identity = await self._identify(None)

    async def ask(self, question: Callable[[], Awaitable[_T]], is_there: Callable[[_T], bool]) -> _T:
        """Ask for something, and again as long as an owner may still give back what is not there."""
        answer = await question()
        while not is_there(answer) and self.left > 0:
            await asyncio.sleep(_AGAIN)
            answer = await question()
        return answer

    async def call(self, *command: Part) -> Reply:
        """Send a command; the check whether Redis was emptied goes on the same trip.

        Raises:
            StoreAwayError: Redis is away.
        """
        within = self._pipeline.patience(self._settings.patience)
        look_up = (b"HGET", self._keys.identity, b"m")
        reply, identity = await self._pipeline.call_all([command, look_up], within=within)
        if identity != self._identity:
            await self.check_identity()
        return reply

    async def check_identity(self) -> None:
        """Note an outage if Redis was emptied.

        Raises:
            StoreAwayError: Redis is away.
        """
        before, self._identity = self._identity, await self._identify(self._settings.patience)
        if before not in (b"", self._identity):
            self.noted()

    async def _identify(self, within: float | None) -> bytes:
        identity = secrets.token_hex(8).encode()
        return await self._pipeline.call(IDENTIFY, 1, self._keys.identity, identity, self._keys.workers, within=within)


def frames_of(data: bytes) -> list[bytes]:
    """The frames of a batch, each of which ends with an empty line."""
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except StoreAwayError:
        pass
    # No caller waits for it.
    except Exception:  # noqa: BLE001
        _log.exception("what a turn left to do has failed")


def _ours() -> float:
    return time.monotonic() * 1e6
