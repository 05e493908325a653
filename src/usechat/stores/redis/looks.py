"""What a turn is like in Redis, and what is in its log."""

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores.log import Outcome
from usechat.stores.redis.driver import Reply
from usechat.stores.redis.keys import TurnKeys
from usechat.stores.redis.line import Line
from usechat.stores.redis.steps import LOOK

__all__ = ["Look", "frames_of", "look"]


class Look(msgspec.Struct, frozen=True):
    """What a turn is like: `phase` is None if there is none, and `late` says that the lease of its owner has ended."""

    phase: str | None
    epoch: bytes = b""
    last: int = 0
    late: bool = False
    outcome: Outcome = "lost"
    continues: UIMessage | None = None

    @property
    def is_held(self) -> bool:
        return self.phase in ("claimed", "open", "sealed")


def _look_of(reply: Reply) -> Look:
    if reply[0] == b"GONE":
        return Look(None)
    phase, epoch, last, late, outcome, continues = reply
    return Look(
        phase.decode(),
        epoch,
        last,
        late == 1,
        "lost" if outcome is None else msgspec.convert(outcome.decode(), Outcome),
        None if continues is None else msgspec.json.decode(continues, type=UIMessage),
    )


async def look(line: Line, keys: TurnKeys, within: float) -> Look:
    return _look_of(await line.call(LOOK, 1, keys.turn, within=within))


def frames_of(data: bytes) -> list[bytes]:
    """The frames of a batch, each of which ends with an empty line."""
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]
