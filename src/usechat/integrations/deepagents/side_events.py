"""LangChain's deepagents: what a run does to files, todos, sub-agents and checkpoints, as DeepAgent events.

The results of its tools are read as all releases of 0.7 write them: the first ones number the lines of a file, and
tell the exit code of a command only in its text.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias, cast

from usechat.integrations.langgraph.messages import called_by, field, messages_of, output_of, result_in, text_of
from usechat.protocol.messages import UIMessage

__all__ = ["TOOLS", "DeepAgentEvents", "edits", "exit_of", "lines_read", "matches", "paths"]

Event: TypeAlias = dict[str, Any]
_Namespace: TypeAlias = tuple[str, ...]
_Key: TypeAlias = tuple[_Namespace, str]

TOOLS: Final[Mapping[str, str]] = {
    "write": "write_file",
    "edit": "edit_file",
    "read": "read_file",
    "ls": "ls",
    "glob": "glob",
    "grep": "grep",
    "execute": "execute",
    "task": "task",
}
"""What the tools do that events are derived from, and what deepagents calls them."""

_EDITS: Final = re.compile(r"replaced (\d{1,9}) instance")
# Above it there may be a notice, and below it is the file.
_READ: Final = re.compile(r"^@@ lines (\d{1,9})-(\d{1,9})\b", re.MULTILINE)
_NUMBERED: Final = re.compile(r"^ *(\d{1,9})(?:\.\d+)?  ", re.MULTILINE)
_REST_OF_FILE: Final = re.compile(r"^\[Read \d{1,9} lines? \(lines (\d{1,9})-(\d{1,9}) of ", re.MULTILINE)
_EXIT: Final = re.compile(r"^\[Command (?:succeeded|failed) with exit code (-?\d{1,9})\]$", re.MULTILINE)
# Then the end of the command stands before what it said.
_SAVED: Final = "Tool result too large"
_CUT: Final = ("[Output was truncated due to size limits]", "[Output exceeded the capture size limit")
_NONE: Final = ("No files found", "No matches found")
_LEFT_OUT: Final = "... ["
_COUNT: Final = re.compile(r": (\d{1,9})$", re.MULTILINE)
_MATCH: Final = re.compile(r"^ +\d+: ", re.MULTILINE)

_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "write": ("file_path", "content"),
    "edit": ("file_path",),
    "read": ("file_path",),
    "glob": ("pattern",),
    "grep": ("pattern",),
    "execute": ("command",),
    "task": ("subagent_type", "description"),
}


class _SubAgent:
    """A sub-agent that runs: its name, the call that it answers, and what its current step has called."""

    def __init__(self, name: str, call: str, steps: int) -> None:
        self.name = name
        self.call = call
        self._steps = steps
        self._calls: dict[str, Event] | None = None

    def update(self, messages: Iterable[Any]) -> Iterator[Event]:
        """Take the messages of one of its nodes; when its model has spoken, the step before is over."""
        for message in messages:
            if field(message, "type") == "tool":
                call = (self._calls or {}).get(text_of(field(message, "tool_call_id")))
                if call is not None:
                    call["result"] = output_of(message)
                continue
            yield from self.end_step()
            self._calls = {
                text_of(field(call, "id")): {"toolName": text_of(field(call, "name")), "args": field(call, "args")}
                for call in field(message, "tool_calls") or ()
            }

    def end_step(self) -> Iterator[Event]:
        if self._calls is not None:
            self._steps += 1
            calls, self._calls = list(self._calls.values()), None
            yield {"type": "subagent-step", "stepIndex": self._steps - 1, "toolCalls": calls, "toolCallId": self.call}


class DeepAgentEvents:
    """Derives the DeepAgent events of one run from the parts of its stream.

    They are the side events: those of files, commands, todos, sub-agents and checkpoints. Text, reasoning, tool calls,
    approvals, usage and the end are in the parts themselves, for `LangGraphTranslator`. Each event has the id of the
    call in the message that it belongs to: inside a sub-agent it is that of the sub-agent's call.

    A tool is recognised by its name, which `tools` may change, and by its arguments. Counts and exit codes are those of
    its result; without them, there is no event. `thread_id` is the name of the thread in the events, and `continues`
    the message that the run goes on with.
    """

    def __init__(self, thread_id: str, tools: Mapping[str, str] = TOOLS, continues: UIMessage | None = None) -> None:
        self._thread = thread_id
        self._kinds = {name: kind for kind, name in {**TOOLS, **tools}.items()}
        # What each open call does, with its arguments, by its namespace and id.
        self._open: dict[_Key, tuple[str, Mapping[str, Any]]] = {}
        # The call that a task of the graph answers.
        self._tasks: dict[str, str] = {}
        self._agents: dict[_Namespace, _SubAgent] = {}
        self._started: set[str] = set()
        self._steps: Counter[str] = Counter()
        # A sub-agent that goes on after an answer does not start again.
        for part in () if continues is None else continues.parts:
            call = text_of(field(part.get("data"), "toolCallId"))
            if part["type"] == "data-subagent-start":
                self._started.add(call)
            elif part["type"] == "data-subagent-step":
                self._steps[call] += 1

    def loaded(self, thread: Mapping[str, Any]) -> Event:
        """The thread is so far when the run begins."""
        return {"type": "checkpoint-loaded", "threadId": self._thread, **thread}

    def see(self, part: Mapping[str, Any]) -> Iterator[Event]:
        """The events that follow from one part of the stream."""
        move = self._MOVES.get(part["type"])
        if move is not None:
            yield from move(self, tuple(part.get("ns", ())), part["data"])

    def _checkpoint(self, namespace: _Namespace, data: Any) -> Iterator[Event]:
        upcoming = field(data, "next") or ()
        # There is one after every node; those before the model speaks and at the end are the ends of steps.
        is_end = not upcoming or "model" in upcoming
        metadata = field(data, "metadata")
        if not namespace and is_end and field(metadata, "source") == "loop":
            yield {"type": "checkpoint-saved", "threadId": self._thread, "step": field(metadata, "step")}

    def _task(self, namespace: _Namespace, data: Any) -> Iterator[Event]:
        if (called := called_by(field(data, "input"))) is not None:
            self._tasks[text_of(field(data, "id"))] = called[1]
        if field(data, "triggers") is not None:
            yield from self._enter(namespace)

    def _enter(self, namespace: _Namespace) -> Iterator[Event]:
        """Something runs in this namespace: if it is that of a sub-agent, it has started."""
        if not namespace or namespace in self._agents:
            return
        call = self._tasks.get(namespace[-1].partition(":")[2], "")
        kind, args = self._open.get((namespace[:-1], call), ("", {}))
        if kind != "task":
            return
        owner = self._owner(namespace[:-1], call)
        agent = self._agents[namespace] = _SubAgent(args["subagent_type"], owner, self._steps[owner])
        if len(namespace) > 1 or owner not in self._started:
            self._started.add(owner)
            yield {
                "type": "subagent-start",
                "name": agent.name,
                "task": args["description"],
                "toolCallId": owner,
            }

    def _updates(self, namespace: _Namespace, data: Any) -> Iterator[Event]:
        agent = self._agents.get(namespace)
        for given in cast("Mapping[str, Any]", data).values() if isinstance(data, Mapping) else ():
            for update in cast("list[Any]", given) if isinstance(given, list) else [given]:
                if not namespace:
                    yield from _todos(update)
                if agent is not None:
                    yield from agent.update(messages_of(update))

    def _tools(self, namespace: _Namespace, data: Any) -> Iterator[Event]:
        key = (namespace, text_of(field(data, "tool_call_id")))
        match field(data, "event"):
            case "tool-started":
                yield from self._tool_started(key, text_of(field(data, "tool_name")), field(data, "input"))
            case "tool-finished" if key in self._open:
                kind, args = self._open.pop(key)
                result = result_in(field(data, "output"), key[1])
                if result is not None:
                    yield from self._finish(key, kind, args, result)
            case "tool-error" if key in self._open:
                kind, args = self._open.pop(key)
                if kind == "execute":
                    yield self._of(key, "execute-finish", command=args["command"], exitCode=None, truncated=False)
            case _:
                pass

    def _tool_started(self, key: _Key, name: str, given: Any) -> Iterator[Event]:
        kind = self._kinds.get(name)
        args: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
        if kind is None or not all(isinstance(args.get(name), str) for name in _ARGUMENTS.get(kind, ())):
            return
        self._open[key] = (kind, args)
        if kind == "write":
            yield self._of(key, "file-write-start", path=args["file_path"], content=args["content"])
        elif kind == "execute":
            yield self._of(key, "execute-start", command=args["command"])

    def _finish(self, key: _Key, kind: str, args: Mapping[str, Any], result: Any) -> Iterator[Event]:
        is_error, content = field(result, "status") == "error", text_of(field(result, "content"))
        if kind == "task":
            yield from self._agent_over(key, content)
        elif kind == "execute":
            exit_code, truncated = (None, False) if is_error else exit_of(field(result, "artifact"), content)
            yield self._of(key, "execute-finish", command=args["command"], exitCode=exit_code, truncated=truncated)
        elif is_error:
            return
        elif kind == "write":
            yield self._of(key, "file-written", path=args["file_path"], content=args["content"])
        else:
            name, fields = _COUNTED[kind](args, content)
            if None not in fields.values():
                yield self._of(key, name, **fields)

    def _agent_over(self, key: _Key, result: str) -> Iterator[Event]:
        namespace, call = key
        for inner, agent in list(self._agents.items()):
            if inner[:-1] == namespace and self._tasks.get(inner[-1].partition(":")[2]) == call:
                del self._agents[inner]
                yield from agent.end_step()
                yield {"type": "subagent-finish", "name": agent.name, "result": result, "toolCallId": agent.call}

    def _owner(self, namespace: _Namespace, call: str) -> str:
        """The call of the message itself that this belongs to."""
        return self._tasks.get(namespace[0].partition(":")[2], call) if namespace else call

    def _of(self, key: _Key, name: str, **fields: Any) -> Event:
        return {"type": name, **fields, "toolCallId": self._owner(*key)}

    _MOVES: ClassVar[dict[str, Callable[["DeepAgentEvents", _Namespace, Any], Iterator[Event]]]] = {
        "checkpoints": _checkpoint,
        "tasks": _task,
        "tools": _tools,
        "updates": _updates,
    }


def edits(said: str) -> int | None:
    """In how many places a file was changed."""
    found = _EDITS.search(said)
    return None if found is None else int(found[1])


def lines_read(said: str) -> int | None:
    """How many lines of a file were read."""
    found = _READ.search(said)
    if found is None and _NUMBERED.match(said):
        # A notice about the rest of the file stands at the end; in the file itself, lines begin with their numbers.
        found = _REST_OF_FILE.search(said)
        lines = _NUMBERED.findall(said) if found is None else found.groups()
        return int(lines[-1]) - int(lines[0]) + 1
    return None if found is None else int(found[2]) - int(found[1]) + 1


def paths(said: str) -> int | None:
    """How many paths a listing has."""
    if said.startswith(_NONE):
        return 0
    # A note may follow the list.
    try:
        found: Any = ast.literal_eval(said.partition("\n\n")[0])
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    return sum(not str(path).startswith(_LEFT_OUT) for path in cast("list[object]", found))


def matches(said: str, mode: Any) -> int:
    """How many matches a search found, or how many files, if it was one for files."""
    if said.startswith(_NONE):
        return 0
    found = said.partition("\n\n")[0]
    if mode == "content":
        return len(_MATCH.findall(found))
    if mode == "count":
        return sum(map(int, _COUNT.findall(found)))
    return sum(bool(line) and not line.startswith(_LEFT_OUT) for line in found.splitlines())


def exit_of(artifact: Any, said: str) -> tuple[int | None, bool]:
    """The exit code of a command, and whether its output was cut."""
    if artifact is None:
        told = _EXIT.findall(said)
        exit_code = int(told[0 if said.startswith(_SAVED) else -1]) if told else None
        return exit_code, any(note in said for note in _CUT)
    exit_code = field(artifact, "exit_code")
    return exit_code if isinstance(exit_code, int) else None, field(artifact, "truncated") is True


_COUNTED: Final[Mapping[str, Callable[[Mapping[str, Any], str], tuple[str, dict[str, Any]]]]] = {
    "edit": lambda args, said: ("file-edited", {"path": args["file_path"], "occurrences": edits(said)}),
    "read": lambda args, said: ("file-read", {"path": args["file_path"], "lines": lines_read(said)}),
    "ls": lambda args, said: ("ls", {"path": text_of(args.get("path")) or "/", "count": paths(said)}),
    "glob": lambda args, said: ("glob", {"pattern": args["pattern"], "count": paths(said)}),
    "grep": lambda args, said: ("grep", {"pattern": args["pattern"], "count": matches(said, args.get("output_mode"))}),
}


def _todos(update: Any) -> Iterator[Event]:
    todos = field(update, "todos")
    if isinstance(todos, list):
        listed = enumerate(cast("list[Any]", todos), start=1)
        # The tool gives the todos to the state together with its result.
        calls = [text_of(field(message, "tool_call_id")) for message in messages_of(update)]
        owner = {"toolCallId": calls[0]} if len(calls) == 1 and calls[0] else {}
        yield {"type": "todos-changed", "todos": [_todo(number, todo) for number, todo in listed], **owner}


def _todo(number: int, todo: Any) -> Event:
    # LangChain's todos have no ids, and the original's do.
    return {"id": f"todo-{number}", "content": field(todo, "content"), "status": field(todo, "status")}
