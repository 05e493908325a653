"""Clients of a SessionAgent on a real socket, and the short form in which tests compare its frames."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.hang import HANG_SECONDS
from usechat.session_agent import SessionAgent

JSON = dict[str, Any]

BEARER = {"Authorization": "Bearer anybody"}


class Client:
    """A user's socket. `heard` are the frames that it has read."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.heard: list[JSON] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({**fields, "type": kind}))

    async def prompt(self, content: str, **fields: Any) -> None:
        await self.send("prompt", content=content, **fields)

    async def next(self) -> JSON:
        frame: JSON = json.loads(await self.connection.recv())
        self.heard.append(frame)
        return frame

    async def until(self, *wanted: str) -> list[JSON]:
        """The next frames, up to the last of these, in their short form."""
        read: list[JSON] = []
        for short in wanted:
            read.append(await self.next())
            while brief(read[-1]) != short:
                read.append(await self.next())
        return read

    async def briefs(self, *wanted: str) -> list[str]:
        return [brief(frame) for frame in await self.until(*wanted)]

    async def turn(self, content: str, **fields: Any) -> list[str]:
        """Prompt, and give what comes after the echo and its audit entry, up to the end of the turn."""
        await self.prompt(content, **fields)
        await self.until("audit user.prompt")
        return await self.briefs("turn_complete", "status runnerBusy=False", "idle")

    async def rest(self) -> list[JSON]:
        """All frames until the connection is closed."""
        read: list[JSON] = []
        with suppress(ConnectionClosed):
            while True:
                read.append(await self.next())
        return read


@asynccontextmanager
async def joined(
    agent: SessionAgent, user: str = "ana", session: str = "s1", **options: Any
) -> AsyncGenerator[Client, None]:
    """A client that has been greeted, and reads whatever comes, since one that is full does not hear a close."""
    url = f"{agent.url}/api/sessions/{quote(session, safe='')}/ws?role=client&userId={quote(user)}"
    given: JSON = {"additional_headers": BEARER, "max_size": None, "max_queue": None, **options}
    async with asyncio.timeout(HANG_SECONDS), connect(url, **given) as connection:
        client = Client(connection)
        await client.until("audit user.joined")
        yield client


def brief(frame: JSON) -> str:
    """A frame in a few words, without ids and times."""
    match frame:
        case {"type": "agentStatus", "status": status}:
            return f"{status} {frame.get('detail', '')}".strip()
        case {"type": "chunk", "content": text}:
            return f"+ {text}"
        case {"type": "audit_log", "entry": {"eventType": event}}:
            return "turn_complete" if event == "agent.turn_complete" else f"audit {event}"
        case {"type": "status", "data": data}:
            return " ".join(["status", *(f"{name}={value}" for name, value in data.items() if "question" not in name)])
        case {"type": "message", "data": data}:
            return f"{data['role']}: {data['content']}"
        case {"type": "message.updated", "data": data}:
            return "updated: " + " | ".join(map(part, data["parts"]))
        case {"type": "error"}:
            return f"error {frame.get('error') or frame['message']}"
        case _:
            return brief_v2(frame)


def brief_v2(frame: JSON) -> str:
    match frame:
        case {"type": "message.part.text-delta", "delta": text}:
            return f"v2+ {text}"
        case {"type": "message.part.tool-update"}:
            return f"v2 {part({**frame, 'type': 'tool-call'})}"
        case {"type": "message.finalize", "reason": reason}:
            return f"v2 finish {reason}"
        case _:
            return frame["type"]


def part(part: JSON) -> str:
    match part:
        case {"type": "text", "text": text}:
            return text
        case {"type": "tool-call", "callId": call, "status": status}:
            return f"{call} {status}"
        case {"type": "finish", "reason": reason}:
            return f"finish {reason}"
        case {"type": "error", "message": text}:
            return f"error {text}"
        case _:
            raise AssertionError(part)


async def nothing_left(agent: SessionAgent, before: set[asyncio.Task[Any]]) -> None:
    """Wait until no socket is open and no task is left of those that came since."""
    async with asyncio.timeout(HANG_SECONDS):
        await agent.until(lambda: not agent.sockets)
    await no_more_tasks(before)


async def no_more_tasks(before: set[asyncio.Task[Any]]) -> None:
    deadline = asyncio.get_running_loop().time() + HANG_SECONDS
    while not asyncio.all_tasks() <= before:
        assert asyncio.get_running_loop().time() < deadline, asyncio.all_tasks() - before
        await asyncio.sleep(0.01)
