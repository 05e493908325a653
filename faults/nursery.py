"""Forks the workers of the fault suite: a line with their settings comes in, the id of a process goes out.

A worker is what `usechat serve` runs: the same app on the same server with the same signals. It is forked since to
import everything anew would take longer than most workers live here.
"""

import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from speaker import Notes, Speaker
from support.redis_server import SECRET
from usechat.cli.listening import listen, serve
from usechat.cli.options import ListenSettings
from usechat.server.app import create_app
from usechat.turns import TurnLimits
from usechat.turns.settings import ChatSettings, Conflict

__all__ = ["WorkerSettings"]


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a worker is told."""

    port: int
    store: str
    history: str
    notes: str
    errors: str
    lease: float = 1.0
    grace: float = 1.0
    conflict: Conflict = "replace"
    linger: float | None = None


def _work(settings: WorkerSettings) -> None:
    speaker = Speaker(Notes(Path(settings.notes)))
    chat_settings = ChatSettings(
        conflict=settings.conflict,
        on_end=speaker.on_end,
        turn=TurnLimits(linger=settings.linger),
        # Nobody signs in, and all requests come from here.
        turns_per_address=2_000,
    )
    app = create_app(
        speaker,
        store=settings.store,
        lease=settings.lease,
        history=settings.history,
        approval_secret=SECRET,
        settings=chat_settings,
        grace=settings.grace,
    )
    app.state.exit_hard = True
    serve(app, listen(ListenSettings(port=settings.port)))


def _become_worker(settings: WorkerSettings) -> None:
    """In the child: nothing of the nursery's but what it has imported."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing, errors = os.open(os.devnull, os.O_RDWR), os.open(settings.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(errors, 2)
    try:
        _work(settings)
    finally:
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    # Before the first worker is forked, and not by each of them.
    importlib.import_module("usechat.stores.redis")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    workers = list[int]()
    for line in sys.stdin.buffer:
        settings = msgspec.json.decode(line, type=WorkerSettings)
        worker = os.fork()
        if worker == 0:
            _become_worker(settings)
        workers.append(worker)
        sys.stdout.write(f"{worker}\n")
        sys.stdout.flush()
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


if __name__ == "__main__":
    main()
