"""Random streams as other bridges might write them: legal ones in which some chunks are lost, doubled or swapped."""

from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET

from json_values import below
from promises import V5, V6, V7, release_of
from streams import answered, built, turns
from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Error,
    Finish,
    FinishStep,
    StartStep,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.clients import CLIENTS, Client, ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.state import StreamState

__all__ = ["Spoilt", "spoilt"]

_WRITTEN_FOR: Final[dict[ClientName, str]] = {
    "portable": V6,
    "v5": V5,
    "v6": V6,
    "v7": V7,
    "latest": V7,
}
_ENDS: Final = st.sampled_from((Finish(), Abort(), Error("no"), FinishStep(), StartStep()))
_DYNAMIC: Final = (ToolOutputAvailable, ToolOutputError, ToolInputAvailable)


class Spoilt(NamedTuple):
    chunks: list[Chunk]
    continues: UIMessage | None


@st.composite
def spoilt(draw: st.DrawFn, profile: ClientName) -> Spoilt:
    """A stream of which the profile's clients know every chunk, and what it continues."""
    turn = draw(turns(release_of(_WRITTEN_FOR[profile])))
    chunks = _fitted(CLIENTS[profile], turn.chunks)
    for _ in range(draw(below(4))):
        if chunks:
            _spoil(draw, chunks, draw(below(len(chunks))))
    if not turn.before:
        return Spoilt(chunks, None)
    continues = built(turn.before)
    continues.parts = answered(continues.parts, turn.answers)
    return Spoilt(chunks, continues)


def _fitted(client: Client, chunks: list[Chunk]) -> list[Chunk]:
    fitted: list[Chunk] = []
    for chunk in chunks:
        try:
            fitted += client.fit(chunk, StreamState())
        except LocalProtocolError:
            continue
    return fitted


def _spoil(draw: st.DrawFn, chunks: list[Chunk], at: int) -> None:
    match draw(below(5)):
        case 0:
            del chunks[at]
        case 1:
            chunks.insert(draw(below(len(chunks) + 1)), chunks[at])
        case 2:
            chunks[at : at + 2] = reversed(chunks[at : at + 2])
        case 3:
            chunks.append(draw(_ENDS))
        case _:
            chunks[at] = _other_kind(chunks[at])


def _other_kind(chunk: Chunk) -> Any:
    if not isinstance(chunk, _DYNAMIC):
        return chunk
    return msgspec.structs.replace(chunk, dynamic=UNSET if chunk.dynamic is True else True)
