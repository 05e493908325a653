"""Plays chats in child processes, each of which is killed some steps of the database later than the one before."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, event

from support.histories import begin, said
from support.soak import SOAK
from usechat.database import Database
from usechat.history import History
from usechat.protocol.messages import UIMessage

__all__ = ["ACTS", "STATES"]

STRIDE: Final = 1 if SOAK else 3

_U1, _A1, _U2, _A2, _A3 = (said(name, f"This is {name}.") for name in ("u1", "a1", "u2", "a2", "a3"))
_EDITED = said("u1", "This is another u1.")

ACTS: list[Callable[[History, str], Awaitable[object]]] = [
    lambda history, chat: begin(history, "t1", 0, [_U1], chat_id=chat),
    lambda history, chat: history.end(chat, "t1", 1, _A1, b"1"),
    lambda history, chat: begin(history, "t2", 2, [_U2], chat_id=chat),
    lambda history, chat: history.end(chat, "t2", 1, _A2, b"2"),
    lambda history, chat: begin(history, "t3", 3, [], chat_id=chat),
    lambda history, chat: history.end(chat, "t3", 1, _A3, b"3"),
    lambda history, chat: begin(history, "t4", 0, [_EDITED], chat_id=chat),
    lambda history, chat: begin(history, "t5", 1, [_U2], chat_id=chat),
    lambda history, chat: history.end(chat, "t4", 1, _A1),
    lambda history, chat: history.end(chat, "t5", 1, _A2, b"5"),
]
# What is stored before the first act, and after each: the messages and the state.
STATES: list[tuple[list[UIMessage], bytes | None]] = [
    ([], None),
    ([_U1], None),
    ([_U1, _A1], b"1"),
    ([_U1, _A1, _U2], b"1"),
    ([_U1, _A1, _U2, _A2], b"2"),
    ([_U1, _A1, _U2], b"1"),
    ([_U1, _A1, _U2, _A3], b"3"),
    ([_EDITED], None),
    ([_EDITED, _U2], None),
    ([_EDITED, _A1, _U2], None),
    ([_EDITED, _A1, _U2, _A2], b"5"),
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
    """Play the chats 000 and on, each in the database of the URL with this name for `{}`, and count the acts done."""
    # It loads the driver, which takes longer than a child lives.
    Database(url)
    for after in itertools.count(0, STRIDE):
        child = os.fork()
        if child == 0:
            _be_killed(directory, url, after)
            return
        _, status = os.waitpid(child, 0)
        if (code := os.waitstatus_to_exitcode(status)) != -signal.SIGKILL:
            sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
