"""The message of a turn as it grows, and the frames that tell it."""

from collections.abc import Iterable, Sequence

from usechat.protocol.chunks import Chunk
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader

__all__ = ["GrowingMessage"]


class GrowingMessage:
    """Takes the chunks of a turn in their order: each becomes a frame with the next index, and part of the message."""

    __slots__ = ("_count", "_deltas", "_frames", "_part", "_reader")

    def __init__(self, frames: Frames, continues: UIMessage | None) -> None:
        self._frames = frames
        self._reader = MessageReader(continues)
        self._count = 0
        # The text part that the last deltas went to, and where they are kept.
        self._part = ""
        self._deltas: list[str] = []

    @property
    def message(self) -> UIMessage:
        """The message so far; later chunks change it."""
        return self._reader.message

    def add(self, chunk: Chunk, most: int | None = None) -> bytes | None:
        """Take a chunk in, and give its frame; one whose frame has more bytes than `most` is left out."""
        # A chunk that has no frame is none.
        frame = self._frames.frame(self._count + 1, chunk)
        if most is not None and len(frame) > most:
            return None
        self._part = ""
        self._reader.apply(chunk)
        self._count += 1
        return frame

    def add_all(self, chunks: Iterable[Chunk]) -> list[bytes]:
        return [frame for chunk in chunks if (frame := self.add(chunk)) is not None]

    def add_texts(self, part: str, texts: Sequence[str]) -> list[bytes]:
        """Take in the deltas of an open text part, at little more than the price of their bytes."""
        if part != self._part:
            self._part, self._deltas = part, self._reader.deltas_of(part)
        self._deltas += texts
        frames = self._frames.texts(part, self._count + 1, texts)
        self._count += len(frames)
        return frames
