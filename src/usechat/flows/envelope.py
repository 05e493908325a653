"""The frames of the original's WebSocket, and what we add to them: the id of the run that a frame is about.

Whoever serves runs by their ids says so with a header of its answer to the WebSocket's request.
"""

from typing import Any, Final

import msgspec

from usechat.flows.scheduling import Command, Event

__all__ = ["HEADER", "command_frame", "event_frame", "refusal_frame"]

HEADER: Final = "x-usechat-runs"


def command_frame(command: Command, run: str = "") -> bytes:
    return _frame("command", run, command=command)


def event_frame(event: Event, run: str = "") -> bytes:
    return _frame("event", run, event=event)


def refusal_frame(command: str, run: str = "") -> bytes:
    """Say that a command was not taken, for which the original has no frame."""
    return _frame("refused", run, command=command)


def _frame(kind: str, run: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **({"run": run} if run else {}), **fields})
