"""Waiting for a run elsewhere."""

import asyncio

from usechat.errors import FlowError
from usechat.flows.scheduling import RunSnapshot

__all__ = ["Call"]


class Call:
    """A call of `run`: it waits until the run has started, then until it has ended; `halted` if it is not wanted."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.halted = False
        self.patience: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[RunSnapshot] = loop.create_future()

    def start(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def end(self, snapshot: RunSnapshot) -> None:
        self.start()
        if not self.ended.done():
            self.ended.set_result(snapshot)

    def fail(self, error: FlowError) -> None:
        waits = self.ended if self.started.done() else self.started
        if not waits.done():
            waits.set_exception(error)
