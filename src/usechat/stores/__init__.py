"""Where the logs of running turns are kept, so that whoever comes back can read on."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

__all__ = ["Outcome", "TurnLog", "TurnStore"]

Outcome: TypeAlias = Literal["done", "stopped", "error", "lost"]


class TurnLog:
    """What a turn has said so far: one frame of bytes for each chunk, read by any number of readers.

    A chunk's index is its place in `frames`, counted from 1. A reader is a cursor and, while it waits, one callback.
    """

    def __init__(self, turn: str, chat: str, owner: str) -> None:
        self.turn = turn
        self.chat = chat
        self.owner = owner
        self.frames: list[bytes] = []
        self.size = 0
        self.outcome: Outcome | None = None
        self.on_stop: Callable[[], None] = _nothing
        self._waiting: list[Callable[[], None]] = []

    def append(self, frame: bytes) -> None:
        """Add a frame; whoever did it calls `wake` in the event loop's thread."""
        self.frames.append(frame)
        self.size += len(frame)

    def extend(self, frames: list[bytes]) -> None:
        """Add some frames at once."""
        self.frames += frames
        self.size += sum(map(len, frames))

    def close(self, outcome: Outcome) -> None:
        self.outcome = outcome
        # So that the turn is gone with its last reader, and does not wait for the garbage collector.
        self.on_stop = _nothing

    def wake(self) -> None:
        """Call everyone who waits, once."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def call_when_changed(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)


class TurnStore(Protocol):
    """Keeps the log of the turn that runs in each chat."""

    async def open(self, log: TurnLog) -> None:
        """Make this the turn that runs in its chat."""
        ...

    async def live(self, chat: str) -> TurnLog | None:
        """The log of the turn that runs in the chat."""
        ...

    async def close(self, log: TurnLog) -> None:
        """The turn has ended; a newer turn of the chat is left alone."""
        ...

    async def stop(self, chat: str, turn: str | None = None) -> bool:
        """Ask the chat's running turn to stop, wherever it runs; False if none does or if it is another one."""
        ...


def _nothing() -> None:
    pass
