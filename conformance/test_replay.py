"""A client that comes back at any moment of a turn ends with the same message as one that never left."""

from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from msgspec import UNSET

from judge import Judge
from promises import release_of
from same_json import as_json, strict
from streams import Turn, answered, turns
from support.soak import SEED, draws
from test_reader import MANY, V5, V6, V7
from usechat.protocol.chunks import Chunk, MessageMetadata, Start, ToolApprovalResponse
from usechat.protocol.messages import UIMessage
from usechat.protocol.replay import Fold
from usechat.protocol.values import plain


def as_logged(chunks: list[Chunk]) -> list[Chunk]:
    """The chunks as the log of a turn has them: one `start`, which names the message."""
    said: list[Chunk] = [Start("m")]
    for chunk in chunks:
        if not isinstance(chunk, Start):
            said.append(chunk)
        elif chunk.message_metadata is not UNSET:
            said.append(MessageMetadata(chunk.message_metadata))
    return said


def folded(chunks: list[Chunk], continues: UIMessage | None) -> list[Chunk]:
    fold = Fold(continues)
    for chunk in chunks:
        fold.add(chunk)
    return list(fold.chunks())


def as_told(message: dict[str, Any], client: str) -> dict[str, Any]:
    """The message without what no chunk of the client's release can bring back into a message that it continues."""
    # Text as metadata is taken apart by its UTF-16 units, which no JSON of ours holds.
    message = plain(message)
    return message if client == V7 else {**message, "parts": [_as_told(part) for part in message["parts"]]}


def _as_told(part: dict[str, Any]) -> dict[str, Any]:
    if "input" not in part:
        # v5 keeps the metadata of a call only with its input, except for a wrong one.
        part = {name: value for name, value in part.items() if name != "callProviderMetadata"}
    if "approval" in part:
        # Only v7 has a chunk for the answer to an approval.
        asked = {name: value for name, value in part["approval"].items() if name not in ("approved", "reason")}
        state = "approval-requested" if part["state"] == "approval-responded" else part["state"]
        part = {**part, "state": state, "approval": asked}
    return part


@pytest.mark.parametrize(("client", "streams"), [(V5, 30), (V6, 30), (V7, 50)])
def test_a_client_that_comes_back_ends_with_the_same_message(judge: Judge, client: str, streams: int) -> None:
    @seed(SEED)
    @settings(MANY, max_examples=draws(streams, 20), database=None, phases=[Phase.generate])
    @given(turns(release_of(client)), st.integers(0, 1000))
    def check(turn: Turn, cut: int) -> None:
        continues = None
        if turn.before:
            built = judge.read(turn.before, [client])[client]["accumulated"]
            continues = msgspec.convert(built, UIMessage)
            continues.parts = answered(continues.parts, turn.answers)
        chunks = as_logged(turn.chunks)
        cut %= len(chunks) + 1
        again = [*folded(chunks[:cut], continues), *chunks[cut:]]
        if client != V7:
            again = [chunk for chunk in again if not isinstance(chunk, ToolApprovalResponse)]
        stayed = judge.read(chunks, [client], continues=None if continues is None else as_json(continues))[client]
        came_back = judge.read(again, [client])[client]
        expected, actual = as_told(stayed["accumulated"], client), as_told(came_back["accumulated"], client)
        replay = f"{client}, cut {cut}, USECHAT_SEED={SEED}"
        assert came_back["error"] == stayed["error"], replay
        assert strict(actual) == strict(expected), replay

    check()
