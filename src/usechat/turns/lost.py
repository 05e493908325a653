"""How a turn ends whose owner is gone: from its log alone."""

from collections.abc import Sequence
from typing import Final

from usechat.protocol.chunks import Abort, Chunk, Error, Start
from usechat.protocol.clients import CLIENTS
from usechat.protocol.closing import closing
from usechat.protocol.frames import Frames, decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.state import StreamState
from usechat.slices import Slices
from usechat.stores import Claim, Outcome, StopReason
from usechat.turns.opening import Answers

__all__ = ["end_lost"]

_INTERRUPTED: Final = "The answer was interrupted."


async def end_lost(claim: Claim, why: StopReason | None, answers: Answers) -> tuple[Outcome, UIMessage] | None:
    """End the turn; what it ended with, if nobody has been told of it yet.

    One that was not sealed and whose answer was stored has ended before: the store of turns has lost its end.
    """
    message, last, outcome = await _end_of(claim, why)
    has_ended = False
    if claim.sealed is None:
        has_ended = await answers.has_ended(claim.head)
        if not await claim.seal(last, outcome):
            return None
    if not has_ended:
        await answers.end(claim.head, claim.epoch, message)
    return (outcome, message) if await claim.release() and not has_ended else None


async def _end_of(claim: Claim, why: StopReason | None) -> tuple[UIMessage, Sequence[bytes], Outcome]:
    """The message of the turn, the frames that end it, and its outcome: those that its owner had sealed, or others."""
    log, sealed = claim.log, claim.sealed
    parts = () if log.continues is None else log.continues.parts
    state, reader = StreamState(claim.head.message_id, parts), MessageReader(log.continues)
    frames = [*log.frames, *(() if sealed is None else sealed[0])]
    slices = Slices()
    for frame in frames:
        chunk = decode_frame(frame)
        state.apply(chunk)
        reader.apply(chunk)
        await slices.pause()
    if sealed is not None:
        return reader.message, *sealed
    last = list[bytes]()
    client, wire = CLIENTS[claim.head.client], Frames(log.mark, names=claim.head.event_names)
    for chunk in _ending(state, claim.head.message_id, why):
        for fitted in client.fit(chunk, state):
            reader.apply(fitted)
            last.append(wire.frame(len(log.frames) + len(last) + 1, fitted))
        state.apply(chunk)
    return reader.message, last, "lost" if why is None else "stopped"


def _ending(state: StreamState, message_id: str, why: StopReason | None) -> list[Chunk]:
    first: list[Chunk] = [Start(message_id)] if state.phase == "new" else []
    return [*first, *closing(state, Error(_INTERRUPTED) if why is None else Abort())]
