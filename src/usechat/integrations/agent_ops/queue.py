"""Agent Ops: the prompts of a session, one of which runs, as far as the frames of a socket show them.

A session runs one prompt at a time, for all users and channels, first come, first served. A prompt is known here by its
channel, by `OURS`, or as `UNKNOWN` if no frame showed it, and is undecided, waiting or running:

    undecided ─► waiting    `wait`, or `echo` of another prompt while one runs
    undecided ─► running    `start`, `settle`, `advance` of an empty queue, or `echo` of another prompt while none runs
    undecided ─► gone       `collect`: it is echoed again together with others
    waiting   ─► running    `advance`
    waiting   ─► gone       `clear`, or a correction
    running   ─► waiting    `put_back`, `swap`
    running   ─► undecided  `swap`, if it had not waited
    running   ─► gone       `complete`, or another one runs

There is at most one undecided prompt, the one that was echoed last: the next frames show whether it waits or runs.
Frames may come twice, and prompts of the system wait and run without a frame, so that each step corrects what it can:
`wait` and `advance` take the numbers in their frames for true. No correction ever drops ours.
"""

from typing import Final

from usechat.integrations.agent_ops.frames import MOST_WAITING, Begun, FrameType, TurnUpdate

__all__ = ["OURS", "UNKNOWN", "SessionQueue"]

OURS: Final = "\0ours"
UNKNOWN: Final = ""


class SessionQueue:
    """The queue of one session, seen from one socket; `running` is None while no prompt runs."""

    def __init__(self, channel: str, *, undecided: str | None) -> None:
        self.running: str | None = None
        self._channel = channel
        self._undecided = undecided
        self._waiting: list[str] = []
        # How many prompts waited when the running one began without waiting; None if it had waited itself.
        self._passed: int | None = None
        # What the last dequeue left, until a frame shows that another dequeue may have left as much.
        self._left: int | None = None
        # Whether only a turn without a prompt has shown that something runs.
        self._is_guess = False

    @property
    def position(self) -> int | None:
        return self._waiting.index(OURS) + 1 if OURS in self._waiting else None

    @property
    def awaits_ours(self) -> bool:
        """Whether ours is the one that runs if the session works now."""
        return self._undecided == OURS

    @property
    def is_undecided(self) -> bool:
        return self._undecided is not None

    @property
    def has_ours(self) -> bool:
        return OURS in (self.running, self._undecided, *self._waiting)

    def open(self, waiting: int, *, busy: bool) -> None:
        """The socket begins with `waiting` prompts that wait, and perhaps one that runs."""
        if self._undecided is None and not self.has_ours:
            self._waiting = [UNKNOWN] * waiting
            self.running = UNKNOWN if busy else None

    def echo(self, prompt: str) -> bool:
        """A prompt is shown to everybody; whether this shows that the one before it runs."""
        before, self._undecided = self._undecided, prompt
        if before is None:
            return False
        if self.running is not None:
            self._enqueue(before)
            return False
        self._run(before, passed=len(self._waiting))
        return True

    def claim(self) -> None:
        """The prompt that was echoed is ours."""
        self._undecided = OURS

    def take(self) -> None:
        """What runs is ours."""
        self._run(OURS, passed=len(self._waiting))

    def collect(self) -> str | None:
        """The prompt that was echoed is kept, to be echoed again with others; which one it was."""
        collected, self._undecided = self._undecided, None
        return collected

    def wait(self, position: int) -> None:
        """The prompt that was echoed waits, in this place from 1; 0 if the frame does not name it."""
        prompt, self._undecided = self._undecided, None
        if prompt is None:
            # The frame came twice.
            return
        self._left = None
        ahead = position - 1 if position else len(self._waiting)
        # Prompts of the system wait without a frame.
        self._waiting += [UNKNOWN] * (ahead - len(self._waiting))
        self._drop_first(len(self._waiting) - ahead)
        self._enqueue(prompt)

    def advance(self, left: int | None) -> None:
        """The first of those that wait runs now, and `left` still wait; None if the frame does not say how many."""
        if left is not None and left == self._left:
            # The frame came twice.
            return
        self._left = left
        if not self._waiting and self._undecided is not None:
            self._waiting, self._undecided = [self._undecided], None
        if left is not None and self.position is not None:
            # Ours is the one that runs, or one of those that are left.
            self._drop_first(self.position - 1 - left)
        self._run(self._waiting.pop(0) if self._waiting else UNKNOWN, passed=None)

    def be_busy(self) -> None:
        """A prompt runs; those of the system begin without a frame."""
        if self.running is None:
            self.running = UNKNOWN

    def start(self) -> None:
        """The session works though nothing was known to run: what was echoed last does, or something of the system."""
        prompt, self._undecided = self._undecided, None
        self._run(UNKNOWN if prompt is None else prompt, passed=len(self._waiting))
        self._is_guess = prompt is None

    def begin(self) -> bool:
        """A turn begins on our channel; whether that shows that ours runs, and not what was guessed to."""
        shows = self._is_guess and self.awaits_ours
        if shows:
            self.start()
        return shows

    def settle(self) -> None:
        """What was echoed last runs by now, if nothing else does."""
        if self.running is None and self._undecided is not None:
            self.start()

    def complete(self) -> None:
        self.running = self._left = None

    def put_back(self) -> str | None:
        """The prompt that runs waits again, in the place that its age gives it; which one it was."""
        self.settle()
        lost = self.running
        self.complete()
        if lost is not None:
            self._enqueue(lost, self._passed or 0)
        return lost

    def swap(self, channel: str) -> None:
        """Not ours runs but one of this channel: of two prompts of the same second, either may come first."""
        self.running = channel
        if self._passed is not None:
            self._undecided, self._is_guess = OURS, True
        elif channel in self._waiting:
            self._waiting[self._waiting.index(channel)] = OURS
        else:
            self._waiting.insert(0, OURS)

    def clear(self, channel: str | None) -> bool:
        """All prompts that wait are dropped, or those of a channel; whether ours is among them."""
        before = self.position
        kept = [channel not in (None, self._channel_of(prompt)) for prompt in self._waiting]
        self._waiting = [prompt for prompt, stays in zip(self._waiting, kept, strict=True) if stays]
        if self._passed is not None:
            self._passed = sum(kept[: self._passed])
        return before is not None and self.position is None

    def heed(self, says: FrameType) -> None:
        """Note that the prompt that runs gets on, so that another dequeue may follow."""
        if isinstance(says, Begun) or (isinstance(says, TurnUpdate) and says.ending is not None):
            self._left = None

    def _run(self, prompt: str, *, passed: int | None) -> None:
        self.running, self._passed, self._is_guess = prompt, passed, False

    def _enqueue(self, prompt: str, place: int = MOST_WAITING) -> None:
        # A session that never dequeues fills no memory, and ours is always among those that wait.
        if prompt == OURS or len(self._waiting) < MOST_WAITING:
            self._waiting.insert(place, prompt)

    def _channel_of(self, prompt: str) -> str:
        return self._channel if prompt == OURS else prompt

    def _drop_first(self, count: int) -> None:
        """Drop the first `count` prompts, but not ours or those behind it."""
        ahead = len(self._waiting) if self.position is None else self.position - 1
        dropped = max(0, min(count, ahead))
        del self._waiting[:dropped]
        if self._passed is not None:
            self._passed = max(0, self._passed - dropped)
