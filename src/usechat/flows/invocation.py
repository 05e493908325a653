"""One invocation of a node: its attempts, its time limit, and how it is interrupted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec import UNSET, Struct

from usechat.flows.context import CancelReason, NodeContext, NodeFunction, as_json
from usechat.flows.spec import Policy

__all__ = ["Done", "Failed", "Invocation", "Outcome", "Stopped"]

_log = logging.getLogger("usechat")
# How long a node may go on after it was cancelled before the run goes on without it.
_WIND_DOWN: Final = 1.0
_ABANDONED: Final[set[asyncio.Task[None]]] = set()


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
        context, limit, loop = self._context, self._policy.timeout_ms, asyncio.get_running_loop()
        # What comes after the node's last step changes nothing, and a task that was cancelled in it keeps no result.
        ended: list[Outcome] = []
        task = loop.create_task(self._call(value, ended))
        given_up = loop.create_future()
        context.cancel.on_cancel(task.cancel)
        context.cancel.on_cancel(lambda: loop.call_later(_WIND_DOWN, given_up.set_result, None))
        timer = limit and loop.call_later(limit / 1000, context.cancel.cancel, "timeout")
        try:
            await asyncio.wait({task, given_up}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The run itself is cancelled, and must not leave its node behind.
            task.cancel()
            await asyncio.wait({task}, timeout=_WIND_DOWN)
            raise
        finally:
            if timer:
                timer.cancel()
            context.close()
            if not task.done():
                self._abandon(task)
        return ended[0] if ended else self._outcome(None)

    async def _call(self, value: dict[str, Any], ended: list[Outcome]) -> None:
        try:
            output = as_json(await self._node(self._context, as_json(value)))
            ended.append(self._outcome(Done(output)))
        except asyncio.CancelledError:
            raise
        # A task that raises what is meant to end the process ends at least its event loop.
        except BaseException as error:  # noqa: BLE001
            _log.warning("node %s failed", self._context.node_id, exc_info=error)
            ended.append(self._outcome(Failed(_text(error))))

    def _abandon(self, task: asyncio.Task[None]) -> None:
        _log.warning("node %s goes on although it was cancelled, and is left to itself", self._context.node_id)
        # The event loop alone would not keep it.
        _ABANDONED.add(task)
        task.add_done_callback(_ABANDONED.discard)

    def _outcome(self, result: Done | Failed | None) -> Outcome:
        match self._context.cancel.reason:
            case "timeout":
                return Failed(f"Node execution timed out after {self._policy.timeout_ms}ms")
            case "pause":
                return Stopped(result.output if isinstance(result, Done) else UNSET)
            case "abort":
                return Stopped()
            case None:
                return result or Failed("The node cancelled itself.")


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    # The text of an error is the node author's code, too.
    except BaseException:  # noqa: BLE001
        return type(error).__name__
