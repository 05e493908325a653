"""What the turns of all chats are after each step, by the rules of the architecture alone."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from usechat.protocol.chunks import Chunk, Data, Start, TextDelta, TextStart
from usechat.protocol.frames import Frames, decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.stores import Outcome, Reader, StopReason, TurnHead

__all__ = ["ENDS", "Ending", "Freed", "Lost", "Model", "Owner", "Seen", "Stop", "Turn", "Watching", "message_of"]

ENDS: Final[list[Outcome]] = ["done", "stopped", "error", "lost"]


class Ending(NamedTuple):
    last: Sequence[bytes]
    outcome: Outcome


class Turn:
    def __init__(self, head: TurnHead, epoch: int) -> None:
        self.head = head
        self.phase: Literal["claimed", "open", "sealed", "released", "gone"] = "claimed"
        self.frames: list[bytes] = []
        self.continues: UIMessage | None = None
        self.sealed: Ending | None = None
        self.outcome: Outcome | None = None
        self.stopped: StopReason | None = None
        self.readers = 0
        self.released_at = 0.0
        self.owner = Owner(self, epoch)

    @property
    def is_held(self) -> bool:
        """Whether it has its chat."""
        return self.phase in ("claimed", "open", "sealed")

    @property
    def is_known(self) -> bool:
        """Whether it can be read."""
        return self.phase in ("open", "sealed", "released")

    @property
    def chunks(self) -> list[Chunk]:
        return [decode_frame(frame) for frame in self.frames]


class Owner:
    """Somebody who claimed a turn or took it over, and what it should have been told."""

    def __init__(self, turn: Turn, epoch: int) -> None:
        self.turn = turn
        self.epoch = epoch
        self.is_over = False
        self.has_producer = False
        self.counts: list[int] = []
        self.stops: list[StopReason] = []

    @property
    def is_fenced(self) -> bool:
        return self.turn.owner is not self or (self.turn.phase == "gone" and not self.is_over)


class Lost(NamedTuple):
    owner: Owner
    why: StopReason | None


class Seen:
    """A reader, and how far it has read."""

    def __init__(self, turn: Turn, reader: Reader) -> None:
        self.turn = turn
        self.reader = reader
        self.cursor = 0
        self.has_left = False


class Watching(NamedTuple):
    turn: Turn
    task: "asyncio.Task[Reader | None]"

    @property
    def is_answered(self) -> bool:
        return self.turn.phase != "claimed"


class Freed(NamedTuple):
    turn: Turn
    task: asyncio.Task[None]

    @property
    def is_answered(self) -> bool:
        return not self.turn.is_held


class Stop:
    """Somebody who stops a turn; with `taken` it was that one who took it over."""

    def __init__(self, turn: Turn, task: asyncio.Task[None], why: StopReason, within: float) -> None:
        self.turn = turn
        self.task = task
        self.why: StopReason = why
        self.within = within
        self.deadline = 0.0
        self.taken = False

    @property
    def is_answered(self) -> bool:
        return not self.turn.is_held


class Model:
    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[Turn] = []
        self.spent: set[tuple[str, str]] = set()
        self.seen: list[Seen] = []
        self.watching: list[Watching] = []
        self.freed: list[Freed] = []
        self.stops: list[Stop] = []
        self._heads = 0
        self._frames = 0

    def held(self, chat: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.is_held and turn.head.chat == chat), None)

    def new_head(self, chat: str) -> TurnHead:
        """A head whose mark a turn of the other chat may have, too."""
        self._heads += 1
        return TurnHead(f"{self._heads // 2:08x}{self._heads}", chat, "owner", f"m{self._heads}")

    def new_frames(self, turn: Turn, count: int) -> list[bytes]:
        """Frames that nobody else writes."""
        frames, first = Frames(turn.head.turn[:8]), len(turn.frames) + 1
        return [frames.frame(index, self._chunk(turn, index)) for index in range(first, first + count)]

    def _chunk(self, turn: Turn, index: int) -> Chunk:
        self._frames += 1
        if index <= 2:
            return Start(turn.head.message_id) if index == 1 else TextStart("t")
        return TextDelta("t", f"{self._frames} ") if index % 3 else Data("data-n", self._frames)

    def continued(self, turn: Turn) -> UIMessage:
        parts = [{"type": "step-start"}, {"type": "text", "text": "before", "state": "done"}]
        return UIMessage(turn.head.message_id, "assistant", parts)

    def claim(self, head: TurnHead, epoch: int) -> Owner:
        self.turns.append(Turn(head, epoch))
        return self.turns[-1].owner

    def open(self, owner: Owner, continues: UIMessage | None, spends: Sequence[str]) -> None:
        turn = owner.turn
        turn.phase, turn.continues, owner.has_producer = "open", continues, True
        self.spent |= {(turn.head.chat, id_) for id_ in spends}
        owner.counts.append(turn.readers)
        if turn.stopped is not None:
            owner.stops.append(turn.stopped)

    def spent_of(self, turn: Turn) -> set[str]:
        return {id_ for chat, id_ in self.spent if chat == turn.head.chat}

    def append(self, owner: Owner, frames: Sequence[bytes]) -> None:
        if not owner.is_fenced and owner.turn.phase == "open":
            owner.turn.frames += frames

    def seal(self, owner: Owner, ending: Ending) -> bool:
        turn = owner.turn
        if owner.is_fenced or turn.phase == "claimed":
            return False
        if turn.phase == "open":
            turn.phase, turn.sealed = "sealed", ending
        return True

    def release(self, owner: Owner) -> bool:
        turn = owner.turn
        if owner.is_fenced or owner.is_over:
            return not owner.is_fenced
        owner.is_over = True
        if turn.sealed is None:
            turn.phase = "gone"
        else:
            turn.phase, turn.released_at, turn.outcome = "released", self.now, turn.sealed.outcome
            turn.frames += turn.sealed.last
        return True

    def join(self, turn: Turn, reader: Reader) -> None:
        self.seen.append(Seen(turn, reader))
        self._count(turn, 1)

    def leave(self, seen: Seen) -> None:
        if not seen.has_left:
            seen.has_left = True
            self._count(seen.turn, -1)

    def _count(self, turn: Turn, change: int) -> None:
        turn.readers += change
        if turn.owner.has_producer and turn.is_held:
            turn.owner.counts.append(turn.readers)

    def stop(self, stop: Stop) -> None:
        turn, stop.deadline = stop.turn, self.now + stop.within
        self.stops.append(stop)
        if turn.is_held:
            turn.stopped = turn.stopped or stop.why
            if turn.owner.has_producer:
                turn.owner.stops.append(stop.why)

    def pass_time(self, seconds: float) -> list[Lost]:
        """The turns that are taken over by then, for their new owners to end."""
        lost, until = list[Lost](), self.now + seconds
        while True:
            due = [stop for stop in self.stops if stop.deadline <= until and stop.turn.is_held and not stop.taken]
            if not due:
                self.now = until
                return lost
            first = min(due, key=lambda stop: stop.deadline)
            self.now = first.deadline
            first.taken = True
            if first.turn.phase == "claimed":
                first.turn.phase = "gone"
            else:
                lost.append(self._take_over(first))

    def _take_over(self, by: Stop) -> Lost:
        turn = by.turn
        turn.owner = Owner(turn, turn.owner.epoch)
        for stop in self.stops:
            if stop.turn is turn and not stop.taken:
                # The new owner has as long as the old one had.
                stop.deadline = self.now + stop.within
        return Lost(turn.owner, by.why)

    def may_be_found(self, chat: str, mark: str, kept: float) -> list[TurnHead | None]:
        """What a search may give: between the time that an ended log is kept at least and at most, either is right."""
        turns = [turn for turn in self.turns if turn.head.chat == chat and mark in (turn.head.turn, turn.head.turn[:8])]
        kept_ones = [turn for turn in turns if turn.is_held or True in self.may_be_read(turn, kept)]
        is_sure = any(turn.is_held or self.may_be_read(turn, kept) == [True] for turn in turns)
        heads: list[TurnHead | None] = [turn.head for turn in kept_ones]
        return heads if is_sure else [*heads, None]

    def may_be_read(self, turn: Turn, kept: float) -> list[bool]:
        """Whether who follows the turn gets a reader."""
        if turn.phase != "released" or self.now - turn.released_at < kept:
            return [turn.is_known]
        return [True, False] if self.now - turn.released_at <= 2 * kept else [False]


def message_of(continues: UIMessage | None, chunks: Iterable[Chunk]) -> UIMessage:
    reader = MessageReader(continues)
    for chunk in chunks:
        reader.apply(chunk)
    return reader.message
