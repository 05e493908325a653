"""A prompt of a session, from its socket's first frame until nobody wants its turn any more."""

import asyncio
from contextlib import ExitStack, suppress
from typing import Final

from websockets.exceptions import ConnectionClosed

from usechat.agents.agent_ops_socket import Greeting, SessionSocket
from usechat.agents.chat import Chat
from usechat.alarms import alarm_at
from usechat.sources.agent_ops_frames import Frame
from usechat.sources.agent_ops_turns import PromptTracker

__all__ = ["Following"]

_PING_SECONDS: Final = 30.0
# How long to read what has come meanwhile, before it is known whether our prompt is the one that runs.
_CATCH_UP: Final = 5.0
# An upstream that answers so many pings with nothing at all is gone, whatever its connection says.
_UNANSWERED: Final = 4
# How long to wait for the turn of a prompt that nobody wants any more, and before that to hear of the prompt at all.
_WITHDRAWS: Final = 3600.0
_IS_HEARD: Final = 60.0
# After so many frames others get their turn.
_IN_A_ROW: Final = 32


class Following:
    """A prompt of ours, which is a user's, on a socket of its own."""

    def __init__(self, user: str, socket: SessionSocket, tracker: PromptTracker) -> None:
        self.user = user
        self.socket = socket
        self.tracker = tracker
        self.is_lost = False
        self.is_withdrawn = False
        self._early: Frame | None = None
        self._held = ExitStack()
        self._is_held = False
        self._is_reading = False
        self._unanswered = 0
        self._frames = 0
        self._loop = asyncio.get_running_loop()
        self.left: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing more is sent."""
        self._alarm = alarm_at(self._loop, self._loop.time() + _PING_SECONDS, self._ping)
        self._pinging: asyncio.Task[None] | None = None

    async def greeted(self) -> Greeting:
        """What the session says of itself in its first frame, or nothing if that is another one; it is seen later."""
        self._early = await self._next(wants_greeting=True)
        greeting, self.socket.greeting = self.socket.greeting, None
        return greeting or Greeting()

    async def step(self, chat: Chat) -> Frame | None:
        """Read a frame, and give what the mapper should be given, if anything.

        Raises:
            ConnectionClosed: the socket was closed.
        """
        early, self._early = self._early, None
        frame = await self._next() if early is None else early
        if frame.get("type") == "pong":
            return None
        chat.touch()
        # One that cannot be read is for the mapper, which counts it.
        shown = self.tracker.see(frame).frame if frame else frame
        waits = self.tracker.position is not None or self.tracker.question_open
        if waits and not self._is_held:
            self._held.enter_context(chat.hold())
        elif self._is_held and not waits:
            self._held.close()
        self._is_held = waits
        return shown

    def rest(self) -> None:
        """Nothing more is shown."""
        self.is_withdrawn = True
        self._held.close()

    async def withdraw(self, *, is_current: bool) -> None:
        """Abort the turn of our prompt, as soon as it runs, unless it has ended.

        Raises:
            ConnectionClosed: the socket was closed.
            TimeoutError: it did not run for too long.
        """
        until = self._loop.time() + _WITHDRAWS
        async with asyncio.timeout(_IS_HEARD) as timeout:
            if not is_current and not self.tracker.ended:
                await self._catch_up()
            while not self.tracker.ended and not self.tracker.running:
                if self.tracker.position is not None:
                    timeout.reschedule(until)
                self._see(await self._next())
            if not self.tracker.ended:
                await self.socket.send("abort")

    async def close(self) -> None:
        self._alarm.cancel()
        if self._pinging is not None:
            self._pinging.cancel()
        await self.socket.close()

    async def _catch_up(self) -> None:
        """Read what has come while nobody read: by now the turn that runs may be somebody else's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP):
                await self.socket.send("ping")
                while not self.tracker.ended and not self._see_pong(await self._next()):
                    pass

    async def _next(self, *, wants_greeting: bool = False) -> Frame:
        self._frames += 1
        if self._frames % _IN_A_ROW == 0:
            # What has come already is read without waiting, and most of it may be other people's.
            await asyncio.sleep(0)
        self._is_reading = True
        try:
            return await self.socket.next(wants_greeting=wants_greeting)
        finally:
            self._is_reading = False
            self._unanswered = 0

    def _see_pong(self, frame: Frame) -> bool:
        self._see(frame)
        return frame.get("type") == "pong"

    def _see(self, frame: Frame) -> None:
        if frame:
            self.tracker.see(frame)

    def _ping(self) -> None:
        # Whoever waits for a slow client does not hear the answers.
        self._unanswered += self._is_reading
        if self._unanswered > _UNANSWERED:
            self.socket.cut()
            return
        self._alarm = alarm_at(self._loop, self._loop.time() + _PING_SECONDS, self._ping)
        if self._pinging is None or self._pinging.done():
            self._pinging = self._loop.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        # Whoever reads learns that it is closed.
        with suppress(ConnectionClosed):
            await self.socket.send("ping")
