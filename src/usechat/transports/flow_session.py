"""A runtime that works for a chat: how it is prompted, and who is shown what it does."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from usechat.errors import UsechatError
from usechat.flows import Event, FlowError, Runtime
from usechat.protocol.messages import UIMessage
from usechat.sources.open_harness import OpenHarnessMapper
from usechat.stream import Unused, map_event

__all__ = ["FlowSession", "RefusalError"]

_log = logging.getLogger("usechat")
_OVER: Final = ("complete", "aborted")


class RefusalError(UsechatError):
    """Why a runtime cannot take a message, in a sentence for the user."""


class FlowSession:
    """A runtime at work for a chat; at any time one turn, or none, shows what it does."""

    def __init__(self, runtime: Runtime, unused: Unused, on_end: Callable[["FlowSession"], object]) -> None:
        self._runtime = runtime
        self._unused = unused
        self._on_end = on_end
        self._prompted = ""
        self._flow_name = ""
        self._agents: dict[str, None] = {}
        self._mapper: OpenHarnessMapper | None = None
        self._ended = asyncio.Event()
        self._run: asyncio.Task[Any] | None = None
        self._leave = runtime.on_event(self._hear)

    @property
    def over(self) -> bool:
        """Whether nothing more can come: the run has ended, or whatever ran it has, or it was never begun."""
        status = self._runtime.snapshot().status
        if self._run is None:
            return status in (*_OVER, "idle")
        return status in _OVER or (status == "running" and self._run.done())

    def precedes(self, messages: Sequence[UIMessage]) -> bool:
        """Whether the last message follows the one that the run was prompted with, which an edit takes away."""
        return any(message.id == self._prompted for message in messages[:-1])

    def show(self, mapper: OpenHarnessMapper) -> asyncio.Event:
        """Let the mapper have what happens from now on; the event is set when it has ended."""
        self._mapper, self._ended = mapper, asyncio.Event()
        if self._runtime.snapshot().status == "running":
            # The mapper cannot know of a flow that began before it.
            mapper.map({"type": "flow:resumed", "flowName": self._flow_name})
        return self._ended

    def hide(self, mapper: OpenHarnessMapper) -> None:
        if self._mapper is mapper:
            self._mapper = None

    async def prompt(self, message: UIMessage, messages: Sequence[UIMessage]) -> None:
        """Give the runtime the message in the way that its status asks for."""
        text = message.text
        if not text:
            raise RefusalError("The message has no text.")
        match self._runtime.snapshot().status:
            case "idle":
                said = [{"role": one.role, "text": one.text} for one in messages]
                self._start({"message": text, "messages": said})
            case "paused":
                await self._wound_down()
                self._dispatch({"type": "resume", "message": text})
                self._start(None)
            case "running":
                self._dispatch({"type": "send", "message": text, "runId": self._inbox()})
            case _:
                raise RefusalError("The run has ended, so it takes no more messages.")
        self._prompted = message.id

    async def finished(self, ended: asyncio.Event) -> None:
        """Wait until the mapper has ended or nothing more can come.

        Raises:
            RefusalError: the flow cannot go on, or the runtime is not there.
        """
        waits = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait([waits] if self._run is None else [waits, self._run], return_when="FIRST_COMPLETED")
        finally:
            waits.cancel()
        if not ended.is_set() and self._run is not None and self._run.done():
            try:
                self._run.result()
            except FlowError as error:
                raise RefusalError("The runtime could not run the flow.") from error

    async def _wound_down(self) -> None:
        """A run says that it is paused before its nodes have stopped."""
        if self._run is not None:
            await asyncio.wait([self._run])

    def abort(self) -> None:
        try:
            self._runtime.dispatch({"type": "abort", "resumable": False})
        # The turn is over in any case.
        except Exception:  # noqa: BLE001
            _log.exception("a runtime could not be aborted")

    def close(self) -> None:
        self._leave()

    def _start(self, given: dict[str, Any] | None) -> None:
        self._run = asyncio.create_task(self._runtime.run(given))
        self._run.add_done_callback(self._ran)

    def _ran(self, run: asyncio.Task[Any]) -> None:
        # What the user reads of it says nothing, and the turn may be gone.
        if not run.cancelled() and run.exception() is not None:
            _log.error("the run of a flow failed", exc_info=run.exception())
        self._on_end(self)

    def _dispatch(self, command: dict[str, Any]) -> None:
        try:
            self._runtime.dispatch(command)
        # A runtime of somebody else may raise anything, and none of it is for the user.
        except Exception as error:
            _log.exception("a runtime refused the command %s", command["type"])
            raise RefusalError("The runtime did not take the message.") from error

    def _inbox(self) -> str:
        waiting = self._runtime.waiting
        if waiting:
            return waiting[-1]
        if not self._agents:
            raise RefusalError("The flow is running, but no node of it takes messages now.")
        return next(reversed(self._agents))

    def _hear(self, event: Event) -> None:
        self._note(event)
        mapper = self._mapper
        if mapper is None:
            return
        if event.get("type") == "runtime:lost":
            mapper.interrupt()
        else:
            map_event(mapper, event, self._unused)
        if mapper.ended:
            self._ended.set()

    def _note(self, event: Event) -> None:
        run_id = event.get("runId", "")
        match event.get("type"):
            case "flow:start":
                self._flow_name = event.get("flowName", "")
            case "agent:start":
                self._agents.pop(run_id, None)
                self._agents[run_id] = None
            case "agent:complete" | "node:complete" | "node:error":
                self._agents.pop(run_id, None)
            case _:
                pass
