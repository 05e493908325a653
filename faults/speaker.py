"""The agent of the fault suite, and what it and its worker note down: a line for each thing that happened.

What a page sends is the script: how many pieces the agent says, and how fast.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec import json as msgspec_json

from usechat.events import AgentEvent, Reasoning, ToolCall, ToolResult
from usechat.protocol.messages import UIMessage
from usechat.stores import Outcome
from usechat.turns.chat import Chat

__all__ = ["Note", "Notes", "Script", "Speaker"]


class Script(Struct, frozen=True):
    """What the agent is to do: wait for `hold` seconds, then say `pieces`, `gap` seconds apart on average.

    Then it waits for `lasts` seconds: an answer that is to be cut off does not end by itself on a slow machine.
    One that `waits` does so until it is let go.
    """

    seed: int
    pieces: int = 40
    gap: float = 0.01
    hold: float = 0.0
    size: int = 0
    lasts: float = 0.0
    waits: bool = False

    @property
    def last(self) -> str:
        """The text that only a whole answer has."""
        return f"{self.seed} is told."


class Note(Struct, frozen=True):
    """One thing that happened in a worker, at a time of the clock that all processes of a machine share."""

    what: str
    subject: str
    at: float
    pid: int
    detail: str = ""


class Notes:
    """A file to which all workers add lines; what was written stays when its writer is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, subject: str, detail: str = "") -> None:
        line = msgspec_json.encode(Note(what, subject, time.monotonic(), os.getpid(), detail)) + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def let_go(self, script: Script) -> None:
        """Let the answer end that waits for it."""
        self._gate(script).touch()

    async def gone(self, script: Script) -> None:
        """Wait until it is let go."""
        while not self._gate(script).exists():
            await asyncio.sleep(0.02)

    def _gate(self, script: Script) -> Path:
        return self.path.with_name(f"{script.seed}.gone")

    def read(self) -> list[Note]:
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return [msgspec_json.decode(line, type=Note) for line in lines]


class Speaker:
    """The agent and the hooks of one worker."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def __call__(self, chat: Chat) -> AsyncGenerator[AgentEvent, None]:
        script = msgspec_json.decode(chat.text, type=Script)
        subject = f"{chat.id} {script.seed}"
        self._notes.add("began", subject)
        try:
            await asyncio.sleep(script.hold)
            async for event in _said(script):
                yield event
            if script.waits:
                await self._notes.gone(script)
            yield script.last
            self._notes.add("said all", subject)
        # The second, if what it had said was being passed on at that moment.
        except (asyncio.CancelledError, GeneratorExit) as error:
            self._notes.add("cancelled", subject, type(error).__name__)
            raise

    async def on_end(self, outcome: Outcome, message: UIMessage) -> None:
        self._notes.add("ended", message.id, outcome)


async def _said(script: Script) -> AsyncGenerator[AgentEvent, None]:
    draw = random.Random(script.seed)  # noqa: S311
    for number in range(script.pieces):
        for event in _piece(draw, script, number):
            yield event
        await asyncio.sleep(draw.uniform(0, 2 * script.gap))
    await asyncio.sleep(script.lasts)


def _piece(draw: random.Random, script: Script, number: int) -> list[AgentEvent]:
    match draw.randrange(12):
        case 0:
            return [Reasoning(f"Ich überlege {number} "), Reasoning("noch… ")]
        case 1:
            call = f"call-{script.seed}-{number}"
            data: dict[str, Any] = {"number": number, "word": "naïve\u2028"}
            return [ToolCall(call, "weather", data), ToolResult(call, {"warm": [number, None, 1.5]})]
        case 2:
            return [f"{number}: ", "👩🏽‍🚀 ", "x" * draw.randrange(300), " "]
        case _:
            return [f"{number} {'.' * script.size}"]


def script_text(script: Script) -> str:
    """The script as a page sends it."""
    return json.dumps({name: getattr(script, name) for name in script.__struct_fields__})
