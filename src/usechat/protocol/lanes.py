"""The text and the reasoning of a message while they are written: each lane has at most one part open."""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from usechat.protocol.chunks import (
    Chunk,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
)
from usechat.protocol.values import mend

__all__ = ["Kind", "Lanes"]

Kind: TypeAlias = Literal["text", "reasoning"]

_STARTS: Final = {"text": TextStart, "reasoning": ReasoningStart}
_DELTAS: Final = {"text": TextDelta, "reasoning": ReasoningDelta}
_ENDS: Final = {"text": TextEnd, "reasoning": ReasoningEnd}


class Lanes:
    """Knows which part is open in which lane; its methods return the chunks to write."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._open: dict[str, tuple[Kind, str]] = {}
        self.halves: dict[str, str] = {}

    def whole(self, owner: str, text: str) -> str:
        """Keep back half a character at the end of a delta: the owner's next delta has the other half."""
        text = self.halves.pop(owner, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self.halves[owner] = text[-1]
            text = text[:-1]
        return mend(text)

    def enter(self, kind: Kind, lane: str) -> list[Chunk]:
        """Begin a part of this kind, unless the lane has one open."""
        if lane in self._open and self._open[lane][0] == kind:
            return []
        ended = self.leave(lane)
        self._open[lane] = (kind, self._new_id())
        return [*ended, _STARTS[kind](self._open[lane][1])]

    def delta(self, lane: str, text: str) -> TextDelta | ReasoningDelta:
        kind, id_ = self._open[lane]
        return _DELTAS[kind](id_, text)

    def leave(self, lane: str) -> list[Chunk]:
        """End the part that the lane has open."""
        if lane not in self._open:
            return []
        kind, id_ = self._open.pop(lane)
        lost = self.halves.pop(f"{kind} {lane}", None)
        return [_DELTAS[kind](id_, "\ufffd"), _ENDS[kind](id_)] if lost else [_ENDS[kind](id_)]

    def leave_all(self) -> list[Chunk]:
        return [chunk for lane in list(self._open) for chunk in self.leave(lane)]

    def forget(self) -> None:
        """Nothing is open any more."""
        self._open.clear()
        self.halves.clear()
