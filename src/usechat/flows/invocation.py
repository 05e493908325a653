"""One invocation of a node: its attempts, its time limit, and how it is interrupted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import UNSET, Struct

from usechat.flows.context import CancelReason, NodeContext, NodeFunction, as_json
from usechat.flows.spec import Policy

__all__ = ["Done", "Failed", "Invocation", "Outcome", "Stopped"]

_log = logging.getLogger("usechat")


class Done(Struct, frozen=True):
    output: Any


class Failed(Struct, frozen=True):
    error: str


class Stopped(Struct, frozen=True):
    """The node was interrupted; `output` is what a paused one gave in spite of that, or UNSET."""

    output: Any = UNSET


Outcome: TypeAlias = Done | Failed | Stopped


class Invocation:
    """A node on its way with one input; each attempt gets a context of its own."""

    def __init__(self, node: NodeFunction, new_context: Callable[[], NodeContext], policy: Policy) -> None:
        self._node = node
        self._new_context = new_context
        self._policy = policy
        self._context = new_context()
        self._interrupted = asyncio.Event()

    def interrupt(self, reason: CancelReason) -> None:
        """End the node; what it returns now counts only if it is paused."""
        self._interrupted.set()
        self._context.cancel.cancel(reason)

    async def run(self, value: dict[str, Any]) -> Outcome:
        """Run the node until it succeeds, has no attempt left, or is interrupted."""
        retry = self._policy.retry
        left = retry.max_attempts if retry else 1
        while True:
            outcome = await self._attempt(value)
            left -= 1
            if not isinstance(outcome, Failed) or not left:
                return outcome
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), retry.backoff_ms / 1000 if retry else 0)
            if self._interrupted.is_set():
                return Stopped()
            self._context = self._new_context()

    async def _attempt(self, value: dict[str, Any]) -> Outcome:
        context, limit = self._context, self._policy.timeout_ms
        task = asyncio.ensure_future(self._call(value))
        context.cancel.on_cancel(task.cancel)
        timer = limit and asyncio.get_running_loop().call_later(limit / 1000, context.cancel.cancel, "timeout")
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # The run itself is cancelled, and must not leave its node behind.
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            if timer:
                timer.cancel()
            context.close()
        return self._outcome(task)

    async def _call(self, value: dict[str, Any]) -> Any:
        try:
            return await self._node(self._context, as_json(value))
        except (Exception, asyncio.CancelledError):
            raise
        # A task that raises one of the others ends the process, or at least its event loop.
        except BaseException as error:
            raise RuntimeError(str(error) or type(error).__name__) from error

    def _outcome(self, task: asyncio.Future[Any]) -> Outcome:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("node %s failed", self._context.node_id, exc_info=error)
        match self._context.cancel.reason:
            case "timeout":
                return Failed(f"Node execution timed out after {self._policy.timeout_ms}ms")
            case "pause":
                return Stopped(UNSET if task.cancelled() or error else as_json(task.result()))
            case "abort":
                return Stopped()
            case None if error is not None:
                return Failed(str(error) or type(error).__name__)
            case None:
                return Failed("The node cancelled itself.") if task.cancelled() else Done(as_json(task.result()))
