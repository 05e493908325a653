"""Scripts: a JSON object a line, which say what a SessionAgent sends."""

from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

import msgspec

from usechat.session_agent.frames import Frame
from usechat.session_agent.sockets import Socket

__all__ = ["Script", "ScriptLine", "follow_script", "read_script"]


class ScriptLine(NamedTuple):
    """`recv` is what the client receives, `send` what it has to send before the script goes on."""

    direction: Literal["recv", "send"]
    frame: Frame


class Script(NamedTuple):
    """Either `lines`, which every socket is led through, or `frames`, which are the answer to every prompt."""

    lines: tuple[ScriptLine, ...] = ()
    frames: tuple[Frame, ...] = ()


def read_script(text: str) -> Script:
    """Read lines of the form `{"dir": "recv"|"send", "frame": …}`, where `note` is a remark, or bare frames.

    Raises:
        ValueError: a line is neither, or both forms are used.
    """
    lines: list[ScriptLine] = []
    frames: list[Frame] = []
    for number, line in enumerate(text.splitlines(), 1):
        match _decode(line):
            case None | {"dir": "note"}:
                pass
            case {"dir": "recv" | "send" as direction, "frame": {"type": str()} as frame}:
                lines.append(ScriptLine(direction, frame))
            case {"type": str()} as frame:
                frames.append(frame)
            case _:
                raise ValueError(f"Line {number} is neither a frame nor a frame with its `dir`.")
    if bool(lines) == bool(frames):
        raise ValueError("A script has either frames with their `dir` or bare frames.")
    return Script(tuple(lines), tuple(frames))


def _decode(line: str) -> Any:
    if not line.strip():
        return None
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return ()


async def follow_script(lines: tuple[ScriptLine, ...], socket: Socket, messages: AsyncIterator[Frame]) -> None:
    """Send what the client receives; where it has to send, wait for a message of that type.

    Returns when the client is gone, or with the script, of which the last frame may still be on its way.
    """
    for direction, frame in lines:
        if direction == "recv":
            socket.send(frame)
            await socket.room()
            continue
        async for message in messages:
            if message.get("type") == frame["type"]:
                break
    async for _ in messages:
        pass
