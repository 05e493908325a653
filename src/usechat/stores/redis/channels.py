"""The one subscription of a process: to its control channels, and to those of the turns that it follows.

Everything belongs to the event loop. `run` keeps one connection, and makes a new one when it breaks or Redis has given
no sign of life for two and a half beats. A topic is *joining* until Redis has confirmed its subscription, then *ready*:
from then on no message is lost while the connection lasts. What is published while there is none is lost, so `up` is
called when there is one again.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, TypeAlias

from usechat.stores.redis.driver import AWAY, Wire

__all__ = ["Channels", "Listener"]

_log = logging.getLogger("usechat")

Listener: TypeAlias = Callable[[bytes], None]

_PAUSE: Final = 0.5
# Ping Redis once a beat, and take it for away after two and a half beats without a sign of life.
_SILENCE: Final = 2.5


class _Topic:
    __slots__ = ("listeners", "ready")

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Channels:
    """Hands what is published to listeners, for as long as `run` runs."""

    def __init__(self, make: Callable[[], Wire], beat: float, up: Callable[[], None]) -> None:
        self._make = make
        self._beat = beat
        self._up = up
        self._topics: dict[bytes, _Topic] = {}
        # Subscriptions that Redis has not confirmed yet.
        self._asked: Counter[bytes] = Counter()
        self._outbox: deque[tuple[bytes, ...]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._is_up = self._was_up = False

    async def join(self, channel: bytes, listener: Listener) -> None:
        """Hear the channel; it returns when Redis has confirmed that."""
        topic = self._topics.get(channel)
        if topic is None:
            topic = self._topics[channel] = _Topic()
            self._send(b"SUBSCRIBE", channel)
        topic.listeners.append(listener)
        try:
            await asyncio.shield(topic.ready)
        except BaseException:
            self.leave(channel, listener)
            raise

    def leave(self, channel: bytes, listener: Listener) -> None:
        topic = self._topics.get(channel)
        if topic is not None and listener in topic.listeners:
            # A new list, since the listeners may be called at the moment.
            topic.listeners = [other for other in topic.listeners if other != listener]
            if not topic.listeners:
                del self._topics[channel]
                self._send(b"UNSUBSCRIBE", channel)

    async def run(self) -> None:
        while True:
            wire = self._make()
            try:
                await wire.connect()
                self._begin()
                await self._read_and_write(wire)
            except AWAY:
                pass
            finally:
                self._is_up = False
                await wire.close()
            await asyncio.sleep(_PAUSE * random.random())  # noqa: S311

    async def _read_and_write(self, wire: Wire) -> None:
        # Not a TaskGroup: before Python 3.13 it forgets a cancellation that comes while one of its tasks fails.
        tasks = [asyncio.create_task(self._read(wire)), asyncio.create_task(self._write(wire))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _begin(self) -> None:
        self._is_up = True
        self._heard = asyncio.get_running_loop().time()
        self._outbox.clear()
        self._asked.clear()
        for channel, topic in self._topics.items():
            if topic.ready.done():
                topic.ready = asyncio.get_running_loop().create_future()
            self._send(b"SUBSCRIBE", channel)
        if self._was_up:
            self._up()
        self._was_up = True

    def _send(self, *command: bytes) -> None:
        if self._is_up:
            if command[0] == b"SUBSCRIBE":
                self._asked[command[1]] += 1
            self._outbox.append(command)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _write(self, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._outbox:
                await wire.send(*self._outbox.popleft())
            self._waiter = loop.create_future()
            try:
                async with asyncio.timeout(self._beat):
                    await self._waiter
            except TimeoutError:
                if loop.time() - self._heard > _SILENCE * self._beat:
                    raise ConnectionError("Redis gives no sign of life.") from None
                await wire.send(b"PING")

    async def _read(self, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await wire.read()
            self._heard = loop.time()
            if isinstance(message, Exception):
                raise ConnectionError(str(message)) from message
            kind, channel = message[:2]
            if kind == b"message":
                topic = self._topics.get(channel)
                for listener in topic.listeners if topic is not None else ():
                    _hand_over(listener, message[2])
            elif kind == b"subscribe":
                self._confirm(channel)

    def _confirm(self, channel: bytes) -> None:
        self._asked[channel] -= 1
        if self._asked[channel] > 0:
            # It was left and joined again meanwhile.
            return
        del self._asked[channel]
        topic = self._topics.get(channel)
        if topic is not None and not topic.ready.done():
            topic.ready.set_result(None)


def _hand_over(listener: Listener, message: bytes) -> None:
    try:
        listener(message)
    # The other listeners hear it all the same.
    except Exception:  # noqa: BLE001
        _log.exception("a message of another worker could not be used")
