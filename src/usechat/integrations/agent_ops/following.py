"""A prompt of a session, from its socket's first frame until nobody wants its turn any more.

Three tasks and a timer touch a `Following`, all in one event loop:

    the turn's task      greeted, step … then rest. It reads the socket, and is the only one that calls these.
    the leaving task     withdraw, then close. It begins when the turn's task has called `rest`, and reads from then on.
    the task of a ping   only sends. The timer starts it every 30 s, from the first frame until `close`.
    an `answer` request  only sends, on `socket`.

    shown ── rest ──► withdrawn ── the tracker ended, an abort was sent, or the time is over ──► left ── close ──► gone

While it is shown, each frame goes to the tracker, and what is ours to the translator. The idle clock of the turn is
held while our prompt waits in the queue or our turn waits for an answer (`_is_held`).

While it is withdrawn nobody is shown anything, but the tracker still needs the frames: an abort stops whatever runs in
the session, so it may be sent only once our prompt is known to run. If the last frame that was read did not reach the
client yet, more frames have come meanwhile, and the one that runs may be somebody else's by now: `_catch_up` reads up
to the answer to a ping first.

An upstream that answers four pings with nothing is gone, whatever its connection says: the timer cuts the socket, and
the task that reads it gets ConnectionClosed. A ping counts only while a task waits for a frame.
"""

import asyncio
from contextlib import ExitStack, suppress
from typing import Final

from websockets.exceptions import ConnectionClosed

from usechat.alarms import alarm_at
from usechat.integrations.agent_ops.frames import Frame, SessionFrame
from usechat.integrations.agent_ops.socket import Greeting, SessionSocket
from usechat.integrations.agent_ops.turns import PromptTracker
from usechat.turns.chat import Chat

__all__ = ["Following"]

_PING_SECONDS: Final = 30.0
_CATCH_UP: Final = 5.0
_UNANSWERED: Final = 4
# How long to wait for the turn of a prompt that nobody wants any more, and before that for any frame about the prompt.
_WITHDRAWS: Final = 3600.0
_IS_HEARD: Final = 60.0
# After this many frames in a row, other tasks run.
_IN_A_ROW: Final = 32


class Following:
    """A prompt of a user, on a socket of its own."""

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
        """What the first frame says of the session, or nothing if it is no `init`; `step` still sees the frame."""
        self._early = await self._next(wants_greeting=True)
        greeting, self.socket.greeting = self.socket.greeting, None
        return greeting or Greeting()

    async def step(self, chat: Chat) -> SessionFrame | None:
        """Read a frame, and give what the translator should be given, if anything.

        Raises:
            ConnectionClosed: the socket was closed.
        """
        early, self._early = self._early, None
        frame = await self._next() if early is None else early
        if frame.get("type") == "pong":
            return None
        chat.touch()
        shown = self.tracker.see(frame)
        waits = self.tracker.position is not None or self.tracker.question_open
        if waits != self._is_held:
            self._is_held = waits
            self._held.enter_context(chat.hold()) if waits else self._held.close()
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
                self.tracker.see(await self._next())
            if not self.tracker.ended:
                await self.socket.send("abort")

    async def close(self) -> None:
        self._alarm.cancel()
        if self._pinging is not None:
            self._pinging.cancel()
        await self.socket.close()

    async def _catch_up(self) -> None:
        """Read what has come while nobody read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP):
                await self.socket.send("ping")
                frame: Frame = {}
                while not self.tracker.ended and frame.get("type") != "pong":
                    frame = await self._next()
                    self.tracker.see(frame)

    async def _next(self, *, wants_greeting: bool = False) -> Frame:
        self._frames += 1
        if self._frames % _IN_A_ROW == 0:
            # A frame that has come already is read without waiting, and most frames may be other people's.
            await asyncio.sleep(0)
        self._is_reading = True
        try:
            return await self.socket.next(wants_greeting=wants_greeting)
        finally:
            self._is_reading = False
            self._unanswered = 0

    def _ping(self) -> None:
        # A task that waits for a slow client does not read the pongs.
        self._unanswered += self._is_reading
        if self._unanswered > _UNANSWERED:
            self.socket.cut()
            return
        self._alarm = alarm_at(self._loop, self._loop.time() + _PING_SECONDS, self._ping)
        if self._pinging is None or self._pinging.done():
            self._pinging = self._loop.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        # The task that reads learns that it is closed.
        with suppress(ConnectionClosed):
            await self.socket.send("ping")
