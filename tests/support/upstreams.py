"""An upstream on a real WebSocket that says what a test wants, also what no session agent would."""

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

__all__ = ["TURN", "finished", "init", "speaking", "turn"]

Frame = dict[str, Any]

TURN: Frame = {"id": "t1", "role": "assistant", "content": "", "parts": []}


def init(messages: Iterable[Frame] = (), **data: Any) -> Frame:
    state = {"runnerBusy": False, "promptsQueued": 0, **data}
    return {"type": "init", "session": {"messages": list(messages)}, "data": state}


def finished(*calls: Frame) -> Frame:
    return {"type": "message.updated", "data": TURN | {"parts": [*calls, {"type": "finish", "reason": "end_turn"}]}}


def turn(*texts: str) -> list[Frame]:
    """The frames of a turn that says these texts."""
    said = [{"type": "chunk", "messageId": "t1", "content": text} for text in texts]
    return [{"type": "message", "data": TURN}, *said, finished()]


@asynccontextmanager
async def speaking(
    answer: Iterable[Frame], *, greeting: Iterable[Frame] | None = None
) -> AsyncGenerator[tuple[str, list[Any]]]:
    """Serve an upstream that echoes each prompt, as ana's, and gives this answer; its address, and what it hears."""
    heard: list[Any] = []

    async def speak(connection: ServerConnection) -> None:
        for frame in [init()] if greeting is None else greeting:
            await connection.send(json.dumps(frame))
        async for raw in connection:
            heard.append(message := json.loads(raw))
            if message["type"] == "prompt":
                echo = {
                    "id": f"m-{message['content']}",
                    "role": "user",
                    "content": message["content"],
                    "authorId": "ana",
                }
                for frame in ({"type": "message", "data": echo}, *answer):
                    await connection.send(json.dumps(frame))

    async with serve(speak, "127.0.0.1", 0, max_size=None) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
