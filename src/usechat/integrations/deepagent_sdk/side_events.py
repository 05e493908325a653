"""DeepAgent: which call a side event belongs to, since the original does not say it, and side events in batches."""

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec
from msgspec import Struct

from usechat.errors import MappingError
from usechat.integrations.deepagent_sdk.events import BATCH, EVENTS, SIDE_EVENTS, Event, kind_of, read_side_event

__all__ = ["OpenCalls", "SideEventBatches"]

# The tool of the original that each event comes from.
_TOOLS: Final = {
    "todos-changed": "write_todos",
    "file-write-start": "write_file",
    "file-written": "write_file",
    "file-edited": "edit_file",
    "file-read": "read_file",
    "ls": "ls",
    "glob": "glob",
    "grep": "grep",
    "execute-start": "execute",
    "execute-finish": "execute",
    "web-search-start": "web_search",
    "web-search-finish": "web_search",
    "http-request-start": "http_request",
    "http-request-finish": "http_request",
    "fetch-url-start": "fetch_url",
    "fetch-url-finish": "fetch_url",
    "subagent-start": "task",
    "subagent-step": "task",
    "subagent-finish": "task",
}
# What tells one call of a tool from another, where its arguments have the same value.
_TELLING: Final = ("path", "pattern", "command", "query", "url", "task")


class _Open(Struct, frozen=True):
    id: str
    tool: str
    values: frozenset[str]


class OpenCalls:
    """Follows the calls and the sub-agents of a run.

    The owner of a side event is the only open call, or of several the one of the event's tool and with the event's
    path, pattern, command, query, address or task among its arguments. What happens inside the only sub-agent that
    runs belongs to the call of that sub-agent; of several with one name, the first to start is the first to finish.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._agents: list[tuple[str, str | None]] = []

    def __contains__(self, call: str) -> bool:
        return call in self._open

    def in_agent(self, owner: str | None) -> bool:
        """Whether what belongs to this call happens inside a sub-agent; None is what belongs to no call."""
        return any(owner is None or call in (None, owner) for _, call in self._agents)

    def see(self, event: Event) -> str | None:
        """Take in the next event of the run; the id of the call that it belongs to, if it is a side event of one."""
        kind, given = event.get("type"), event.get("toolCallId")
        call = str.__str__(given) if isinstance(given, str) and given else None
        match kind:
            case "tool-call" | "tool-input-start" if call is not None:
                self._open[call] = _Open(call, _text(event, "toolName"), _values(event.get("args")))
            case "tool-result" if call is not None:
                self._open.pop(call, None)
            case "subagent-start":
                call = call or self._for_agent(event)
                self._agents.append((_text(event, "name"), call))
                return call
            case "subagent-finish":
                return self._finish(_text(event, "name"), call)
            case str() if kind in _TOOLS:
                return call or self._owner(_TOOLS[kind], event)
            case _:
                pass
        return None

    def _owner(self, tool: str, event: Event) -> str | None:
        calls = list(self._open.values())
        if len(calls) == 1:
            return calls[0].id
        same = [call for call in calls if call.tool == tool]
        inside = self._agents[0][1] if len(self._agents) == 1 else None
        return _only(_matching(same, event)) or inside or (None if self._agents else _only(same))

    def _for_agent(self, event: Event) -> str | None:
        taken = {call for _, call in self._agents}
        free = [call for call in self._open.values() if call.id not in taken]
        tasks = [call for call in free if call.tool == _TOOLS["subagent-start"]]
        matching = _matching(tasks, event) or tasks or (free if len(free) == 1 else [])
        return matching[0].id if matching else None

    def _finish(self, name: str, call: str | None) -> str | None:
        for number, agent in enumerate(self._agents):
            if agent[0] == name and call in (None, agent[1]):
                del self._agents[number]
                return agent[1] or call
        return call


def _matching(calls: Iterable[_Open], event: Event) -> list[_Open]:
    telling = {value for name in _TELLING if isinstance(value := event.get(name), str)}
    return [call for call in calls if telling & call.values]


def _only(calls: list[_Open]) -> str | None:
    return calls[0].id if len(calls) == 1 else None


def _values(args: object) -> frozenset[str]:
    if not isinstance(args, Mapping):
        return frozenset()
    return frozenset(value for value in cast("Mapping[object, object]", args).values() if isinstance(value, str))


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


# Side events wait beside these, since nothing is shown of them that has an order.
_UNORDERED: Final = frozenset({"source", "usage", "text-segment", "user-message"})
_BATCHED: Final = frozenset(SIDE_EVENTS) - {"todos-changed"}
_ENDS_BATCH: Final = EVENTS - _BATCHED - _UNORDERED
_BATCH_BYTES: Final = 256 * 1024


class SideEventBatches:
    """Puts up to `most` side events that come in a row into one event, `batch`.

    A batch holds only events in `transient`, or none of them. Todos are a part that is replaced in place, and go alone.
    `waiting` are the events of the next batch.
    """

    def __init__(self, most: int, transient: Iterable[str]) -> None:
        self._most = most
        self._transient = frozenset(transient)
        self.waiting: list[Event] = []
        self._size = 0

    def take(self, event: Event) -> list[Event]:
        """The events to go on with; a side event waits for others until `flush`."""
        kind = kind_of(event)
        if kind not in _BATCHED:
            return [*(self.flush() if kind in _ENDS_BATCH else ()), event]
        try:
            data = read_side_event(event)
        except MappingError:
            # The translator says what is wrong with it.
            return [event]
        is_other = bool(self.waiting) and (self.waiting[0]["type"] in self._transient) != (kind in self._transient)
        passed = self.flush() if is_other else []
        self.waiting.append({"type": kind, **data})
        self._size += len(msgspec.json.encode(data))
        if len(self.waiting) >= self._most or self._size > _BATCH_BYTES:
            passed += self.flush()
        return passed

    def flush(self) -> list[Event]:
        """What waits, as one event; nothing if nothing waits."""
        waiting, self.waiting, self._size = self.waiting, [], 0
        return [{"type": BATCH, "events": waiting}] if len(waiting) > 1 else waiting
