"""Nodes: the context of a node function, the node types that every flow has, and checks of node functions.

Everything here runs in the thread of the event loop. A `NodeContext` is for one attempt. When the attempt is over,
`close` cuts it off from the run: a function that ignores its cancellation changes nothing any more.
"""

import asyncio
import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from usechat.errors import MappingError
from usechat.flows.scheduling import Command
from usechat.flows.spec import Flow, suggestion
from usechat.protocol.values import plain
from usechat.turns.pump import Unused
from usechat.turns.threads import is_any

__all__ = [
    "BUILT_IN",
    "RESUME_MESSAGE",
    "AgentFunction",
    "Cancel",
    "CancelReason",
    "Inbox",
    "NodeContext",
    "NodeFunction",
    "State",
    "as_json",
    "check_nodes",
    "uses_state",
    "without_state",
]

_Node = TypeVar("_Node", bound=Callable[..., Awaitable[Any]])
CancelReason: TypeAlias = Literal["pause", "abort", "timeout"]

RESUME_MESSAGE: Final = "continue"
"""The message of a `resume` command without one."""

# Only the runtime emits events of these types.
_OF_THE_RUNTIME: Final = ("flow:", "node:", "edge:", "loop:", "command:", "runtime:")

_log = logging.getLogger("usechat")


def as_json(value: object) -> Any:
    """Copy any value as plain JSON, so that later changes to the value do not reach the run."""
    return plain(value, sys.maxsize)


class Cancel:
    """Whether and why the node has to end.

    The node's task is cancelled as well, so most nodes do not need this. A paused node may catch the `CancelledError`
    and return what it has so far.
    """

    def __init__(self) -> None:
        self.reason: CancelReason | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def cancelled(self) -> bool:
        return self.reason is not None

    def on_cancel(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call the listener when the node has to end, or now if it already has to; the result removes it."""
        if self.cancelled:
            _call(listener)
            return lambda: None
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def raise_if_cancelled(self) -> None:
        """Raise `CancelledError` if the node has to end."""
        if self.cancelled:
            raise asyncio.CancelledError(f"Cancelled: {self.reason}")

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the node; the first reason counts."""
        if self.cancelled:
            return
        self.reason = reason
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            _call(listener)


def _call(listener: Callable[[], object]) -> None:
    try:
        listener()
    # The listener is the node author's: its error must neither skip the other listeners nor end the process.
    except BaseException:  # noqa: BLE001
        _log.exception("a listener of a cancelled node failed")


class Inbox:
    """The `send` and `reply` commands for one invocation of a node, in the order of their arrival."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = asyncio.Event()
        self._readers = 0

    @property
    def waiting(self) -> bool:
        """Whether the node waits for a command."""
        return self._readers > 0

    async def next(self) -> Command:
        """Wait for the next command."""
        self._readers += 1
        try:
            while not self._commands:
                self._arrived.clear()
                await self._arrived.wait()
            return self._commands.popleft()
        finally:
            self._readers -= 1

    def drain(self) -> list[Command]:
        """Take all commands that are there."""
        commands = list(self._commands)
        self._commands.clear()
        return commands

    def put(self, command: Command) -> None:
        self._commands.append(command)
        self._arrived.set()

    def pending(self) -> list[Command]:
        return list(self._commands)


class State:
    """The state of a run, by dot paths (`plan.steps`). It copies values in and out; once closed, it ignores changes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._closed = False

    def get(self, path: str) -> Any:
        """The value at the path, or None; the empty path is the whole state."""
        found: Any = self._values
        for name in _names(path):
            if not isinstance(found, dict) or name not in found:
                return None
            found = cast("dict[str, Any]", found)[name]
        return as_json(found)

    def set(self, path: str, value: Any) -> None:
        """Set the value at the path, and create the objects on the way.

        Raises:
            TypeError: the path is empty, and the value is not an object.
        """
        if self._closed:
            return
        *way, last = _names(path) or [""]
        if not last:
            self._replace(as_json(value))
            return
        inner = self._values
        for name in way:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[last] = as_json(value)

    def patch(self, patch: Mapping[str, Any]) -> None:
        """Apply `{op: set | merge, path, value}`, the patch of a `state:patch` event.

        As in the original, a merge replaces a value that is not an object, merges an array by its indices, and ignores
        any other value.

        Raises:
            TypeError: the path is empty, and the value is not an object.
        """
        path, value = patch.get("path") or "", as_json(patch.get("value"))
        if patch.get("op") == "set":
            self.set(path, value)
            return
        old = self.get(path)
        merged = cast("dict[str, Any]", old) if isinstance(old, dict) else {}
        match value:
            case dict():
                merged.update(cast("dict[str, Any]", value))
            case list():
                merged.update((str(place), item) for place, item in enumerate(cast("list[Any]", value)))
            case _:
                pass
        self.set(path, merged)

    def close(self) -> None:
        self._closed = True

    def snapshot(self) -> dict[str, Any]:
        return as_json(self._values)

    def _replace(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise TypeError("The state of a run must be an object.")
        self._values.clear()
        self._values.update(cast("dict[str, Any]", value))


def _names(path: str) -> list[str]:
    return [name for name in path.split(".") if name]


class NodeContext:
    """One attempt of a node: its ids, its inbox, and what it can do to the run.

    - `emit` takes an event without `nodeId`, `runId` and `timestamp`. It drops events that only the runtime emits
      (`flow:*`, `node:*`, `edge:*`, `loop:*`, `command:*`, `runtime:*`) and counts them in `unused`.
    - `session` is what `set_session` stored, also before the run was paused.
    - `resume_message` is set in a node that runs again after it paused the run, or that was running when a command
      paused the run. It stays the same if the node is interrupted once more.
    - `await drain()` waits until the page has been sent most of the run's events. A node that emits thousands of events
      in a row should call it.

    After the node's end, events and state changes are dropped.
    """

    def __init__(
        self,
        *,
        node_id: str,
        run_id: str,
        emit: Callable[[Mapping[str, Any]], None],
        state: State,
        inbox: Inbox,
        sessions: dict[str, str],
        resume_message: str | None,
        unused: Unused,
        drain: Callable[[], Awaitable[None]],
        pause: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.run_id = run_id
        self.state = state
        self.inbox = inbox
        self.cancel = Cancel()
        self.resume_message = resume_message
        self.unused = unused
        self.drain = drain
        self._emit = emit
        self._pause = pause
        self._sessions = sessions
        self._closed = False

    @property
    def session(self) -> str | None:
        return self._sessions.get(self.node_id)

    def set_session(self, session: str) -> None:
        if not self._closed:
            self._sessions[self.node_id] = session

    def emit(self, payload: Mapping[str, Any]) -> None:
        if self._closed:
            return
        kind = payload.get("type")
        if kind == "event" and isinstance(payload.get("event"), Mapping):
            # A frame of the WebSocket: only the event in it counts.
            payload = cast("Mapping[str, Any]", payload["event"])
            kind = payload.get("type")
            if kind == "event":
                self.unused(MappingError("A node emitted a frame in a frame."))
                return
        if isinstance(kind, str) and kind.startswith(_OF_THE_RUNTIME):
            self.unused(MappingError(f"Only the runtime emits {kind!a}; a node did."))
            return
        self._emit({**payload, "nodeId": self.node_id, "runId": self.run_id})

    def pause(self) -> None:
        """Pause the run, which interrupts all running nodes, this one too, at their next `await`.

        What this node returns before that is stored as its output so far. When the run is resumed, this node runs again
        from its beginning with the `resume_message`, and the other nodes without it. If several nodes pause the run,
        the first one gets the message, and the others have to pause it again.
        """
        if not self._closed:
            self._pause()

    def close(self) -> None:
        self._closed = True
        self.state.close()


NodeFunction: TypeAlias = Callable[[NodeContext, dict[str, Any]], Awaitable[Any]]


def without_state(node: _Node) -> _Node:
    """Mark a node that neither reads nor changes the state of the run, so that it may run beside those that do."""
    cast("Any", node).uses_state = False
    return node


def uses_state(node: NodeFunction) -> bool:
    """Whether the node may read or change the state of the run."""
    return getattr(node, "uses_state", True)


@without_state
async def _constant(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return {"value": value.get("value")}


@without_state
async def _echo(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return value


BUILT_IN: Final[Mapping[str, NodeFunction]] = {"constant": _constant, "echo": _echo}
"""`constant` returns `{value}` of its input, `echo` its whole input."""


class AgentFunction:
    """A node function that runs an agent, whose prompt is a text."""

    uses_state = False

    def __init__(self, run: NodeFunction) -> None:
        self._run = run

    async def __call__(self, context: NodeContext, value: dict[str, Any]) -> Any:
        return await self._run(context, value)


def check_nodes(flow: Flow, functions: Mapping[str, NodeFunction]) -> None:
    """Check that each node has a function that can run it.

    Raises:
        FlowError: a node could not run.
    """
    for number, node in enumerate(flow.nodes):
        path = f"nodes[{number}]"
        if node.type not in functions:
            remedy = f"{suggestion(node.type, functions)} Or add it to the nodes."
            raise flow.error(f"{path}.type", f"There is no node type {node.type!r}.", remedy)
        wrong = _wrong_function(functions[node.type])
        if wrong is not None:
            raise flow.error(f"{path}.type", f"The node type {node.type!r} is {wrong[0]}.", wrong[1])
        prompt = node.input.get("prompt", "")
        if isinstance(functions[node.type], AgentFunction) and not isinstance(prompt, str):
            problem = f"An agent's prompt must be a string, not {prompt!r}."
            raise flow.error(f"{path}.input.prompt", problem, "Write it in quotes.")


def _wrong_function(function: object) -> tuple[str, str] | None:
    """What is wrong with a node's function, and the remedy."""
    if not callable(function):
        return "not a function", "Wrap an agent in agent_node(…)."
    if any(is_any(kind, function) for kind in (inspect.isasyncgenfunction, inspect.isgeneratorfunction)):
        return "a generator function, like an agent", "Wrap it in agent_node(…)."
    if _is_plain(function):
        return "a plain function", "Write `async def`, or wrap an agent in agent_node(…)."
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        remedy = "Let it take `(context, input)`, or wrap an agent in agent_node(…)."
        return "a function with other parameters", remedy
    except ValueError:
        # Some functions in C have no signature.
        pass
    return None


def _is_plain(function: Callable[..., Any]) -> bool:
    """Whether it is a `def` that returns nothing to await.

    A lambda or an inner function may return a coroutine.
    """
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function)):
        return False
    result = str(function.__annotations__.get("return", ""))
    awaitable = any(word in result for word in ("Awaitable", "Coroutine", "Future", "Task"))
    return function.__closure__ is None and function.__name__ != "<lambda>" and not awaitable
