"""Plays chats in child processes, each of which is killed one step of the database later than the one before."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy import Engine, event

from usechat.database import Database
from usechat.history import History, StoredChat
from usechat.protocol.messages import UIMessage

__all__ = ["ACTS", "STATES"]


def _said(message_id: str, text: str) -> UIMessage:
    return UIMessage(message_id, "user" if message_id[0] == "u" else "assistant", [{"type": "text", "text": text}])


_U1, _A1, _U2, _A2, _A3 = (_said(name, f"This is {name}.") for name in ("u1", "a1", "u2", "a2", "a3"))
_EDITED = _said("u1", "This is another u1.")

ACTS: list[Callable[[History, str], Awaitable[object]]] = [
    lambda history, chat: history.begin(chat, "ann", "t1", [_U1]),
    lambda history, chat: history.end(chat, "t1", _A1),
    lambda history, chat: history.begin(chat, "ann", "t2", [_U1, _A1, _U2]),
    lambda history, chat: history.end(chat, "t2", _A2),
    lambda history, chat: history.begin(chat, "ann", "t3", [_U1, _A1, _U2]),
    lambda history, chat: history.end(chat, "t3", _A3),
    lambda history, chat: history.begin(chat, "ann", "t4", [_EDITED]),
    lambda history, chat: history.begin(chat, "ann", "t5", [_EDITED, _U2]),
    lambda history, chat: history.end(chat, "t4", _A1),
    lambda history, chat: history.end(chat, "t5", _A2),
]
# What is stored before the first act, and after each.
STATES: list[StoredChat | None] = [
    None,
    StoredChat("ann", [_U1]),
    StoredChat("ann", [_U1, _A1]),
    StoredChat("ann", [_U1, _A1, _U2]),
    StoredChat("ann", [_U1, _A1, _U2, _A2]),
    StoredChat("ann", [_U1, _A1, _U2]),
    StoredChat("ann", [_U1, _A1, _U2, _A3]),
    StoredChat("ann", [_EDITED]),
    StoredChat("ann", [_EDITED, _U2]),
    StoredChat("ann", [_EDITED, _A1, _U2]),
    StoredChat("ann", [_EDITED, _A1, _U2, _A2]),
]


async def _play(directory: Path, url: str, chat: str) -> None:
    history = History(Database(url.format(chat)))
    with (directory / f"{chat}.done").open("wb", buffering=0) as done:
        for act in ACTS:
            await act(history, chat)
            done.write(b".")


def _be_killed(directory: Path, url: str, after: int) -> None:
    steps = itertools.count()

    def count_step(*_: object) -> None:
        if next(steps) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count_step)
    event.listen(Engine, "commit", count_step)
    asyncio.run(_play(directory, url, f"{after:03}"))


def main(directory: Path, url: str) -> None:
    """Play the chats 000, 001 …, each in the database of the URL with this name for `{}`, and count the acts done."""
    # It loads the driver, which takes longer than a child lives.
    Database(url)
    for after in itertools.count():
        child = os.fork()
        if child == 0:
            _be_killed(directory, url, after)
            return
        _, status = os.waitpid(child, 0)
        if (code := os.waitstatus_to_exitcode(status)) != -signal.SIGKILL:
            sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
