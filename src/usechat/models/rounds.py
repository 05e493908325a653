"""Messages for a model as rounds: what one side said, and each tool call together with its one result."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, field

from usechat.models.files import Block
from usechat.protocol.model_messages import ModelMessage

__all__ = ["EMPTY", "Call", "Ids", "Round", "api_name", "as_roles", "rounds"]

EMPTY: Final = "(empty message)"
_NO_RESULT: Final = "This call has no result: it was not run, or was interrupted."
_REFUSED: Final = "The user refused this call."
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")


class Call(Struct):
    """A tool call. `output` is its result as the AI SDK has it; `reason` is why the user refused it."""

    id: str
    name: str
    input: dict[str, Any]
    output: dict[str, Any] | None = None
    refused: bool = False
    reason: str = ""

    @property
    def result(self) -> str:
        """The result as text, never empty: the APIs refuse a call without one."""
        kind = self.output and self.output["type"]
        if kind == "execution-denied" or (self.refused and self.failed):
            return f"{_REFUSED} Their reason: {self.reason}" if self.reason else _REFUSED
        if self.output is None:
            return _NO_RESULT
        value = self.output["value"]
        return value if isinstance(value, str) and value.strip() else msgspec.json.encode(value).decode()

    @property
    def failed(self) -> bool:
        return self.output is None or self.output["type"] in ("error-text", "error-json", "execution-denied")


class Round(Struct):
    """What one side said. The results of the `calls` come before the next round."""

    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]
    calls: list[Call] = field(default_factory=list[Call])


def rounds(messages: Iterable[ModelMessage]) -> list[Round]:
    """The rounds of a chat. A result counts wherever it stands after its call; one without a call is left out."""
    reader = _Reader()
    for message in messages:
        match message["role"]:
            case "system" | "user" as role:
                reader.rounds.append(Round(role, _parts(message["content"])))
            case "assistant":
                reader.read_answer(_parts(message["content"]))
            case _:
                reader.read_results(message["content"])
    return reader.rounds


def as_roles(
    messages: Iterable[ModelMessage], asked: Callable[[list[Block]], Any], answer: Callable[[Round], Iterable[Block]]
) -> list[Block]:
    """The messages as dicts with roles, as OpenAI and LangChain have them."""
    converted: list[Block] = []
    for each in rounds(messages):
        match each.role:
            case "system":
                if each.parts[0]["text"].strip():
                    converted.append({"role": "system", "content": each.parts[0]["text"]})
            case "user":
                converted.append({"role": "user", "content": asked(each.parts)})
            case "assistant":
                converted.extend(answer(each))
    return converted


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _Reader:
    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self._calls: dict[str, Call] = {}
        self._approvals: dict[str, str] = {}

    def read_answer(self, content: Iterable[dict[str, Any]]) -> None:
        for run in _runs(content):
            answer = Round("assistant", [])
            self.rounds.append(answer)
            for item in run:
                match item["type"]:
                    case "tool-call":
                        call = Call(item["toolCallId"], item["toolName"], _object(item.get("input")))
                        answer.calls.append(call)
                        self._calls[call.id] = call
                    case "tool-approval-request":
                        self._approvals[item["approvalId"]] = item["toolCallId"]
                    case "tool-result":
                        self.read_results([item])
                    case _:
                        answer.parts.append(item)

    def read_results(self, content: Iterable[dict[str, Any]]) -> None:
        for item in content:
            call_id = item["toolCallId"] if item["type"] == "tool-result" else self._approvals.get(item["approvalId"])
            call = None if call_id is None else self._calls.get(call_id)
            if call is None:
                continue
            if item["type"] == "tool-result":
                call.output = item["output"]
            else:
                call.refused = not item["approved"]
                call.reason = item.get("reason") or ""


def _runs(content: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The content up to each result that a provider put into it: what was said after a result knew it."""
    run: list[dict[str, Any]] = []
    for item in content:
        if run and run[-1]["type"] == "tool-result" != item["type"]:
            yield run
            run = []
        run.append(item)
    yield run


def _object(value: Any) -> dict[str, Any]:
    """The input of a call as the object that the APIs want; what a model got wrong may be anything."""
    if value is None:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"input": value}


def api_name(tool: str) -> str:
    """The name of a tool, as the APIs allow it: calls of other agents may have names that they refuse."""
    return _ILLEGAL.sub("_", tool)[:64] or "tool"


class Ids:
    """Ids of calls that are not the same twice; with `strict`, of the characters that Anthropic allows."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._counts: dict[str, int] = {}

    def take(self, call_id: str) -> str:
        wanted = (_ILLEGAL.sub("_", call_id) or "call") if self._strict else call_id
        taken = wanted
        while taken in self._counts:
            self._counts[wanted] += 1
            taken = f"{wanted}_{self._counts[wanted]}"
        self._counts[taken] = 1
        return taken
