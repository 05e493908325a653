"""What is wrong with a chat after a stream: how a client refuses a stream or is left in a broken state."""

import json
from collections.abc import Iterable
from typing import Any, Final, cast

from judge import Judge

__all__ = ["INVALID", "REFUSED", "faults_of"]

INVALID: Final = "the package's own check calls the message invalid"
REFUSED: Final = "a chunk is refused"

_WHOLE_INPUTS: Final = ("tool-input-available", "tool-input-error")
_RESULTS: Final = ("tool-output-available", "tool-output-error", "tool-output-denied", "tool-input-error")


def faults_of(judge: Judge, body: str, clients: Iterable[str], *, continues: Any = None) -> dict[str, set[str]]:
    """Each client's faults after it read the stream and, if it sends automatically, posted again."""
    sent = _sent(body)
    before: list[Any] = continues["parts"] if continues else []
    clients = list(clients)
    readings = judge.read(body, clients, continues=continues)
    posts = judge.posts_after(readings, body, continues=continues, most=2)
    return {client: _faults(sent, before, readings[client], posts[client]) for client in clients}


def _sent(body: str) -> list[dict[str, Any]]:
    """The chunks of the stream; what is not JSON is left out, because it ends the stream in any case."""
    chunks: list[dict[str, Any]] = []
    for event in body.split("\n\n"):
        try:
            value = json.loads(event.removeprefix("data: "))
        except ValueError:
            continue
        if isinstance(value, dict):
            chunks.append(cast("dict[str, Any]", value))
    return chunks


def _faults(sent: list[dict[str, Any]], before: list[Any], reading: Any, posts: Any) -> set[str]:
    if "crash" in reading or isinstance(posts, dict):
        return {"the client crashes"}
    parts: list[Any] = [part for message in reading["messages"][-1:] for part in message["parts"]]
    tools = [part for part in parts if "toolCallId" in part]
    # The chunk at which the client stopped does not count.
    stopped = reading["consumed"] if reading["status"] == "error" else len(sent)
    told = [chunk["type"] for chunk in sent[stopped : stopped + 1]] == ["error"]
    found = {
        REFUSED: reading["status"] == "error" and not told,
        "nothing is read": reading["status"] == "ready" and reading["consumed"] == 0,
        "chunks are never read": told and stopped < len(sent) - 1,
        "a part stays streaming": any(part.get("state") == "streaming" for part in parts),
        "an input stays streaming": any(part["state"] == "input-streaming" for part in tools),
        "there are two messages": len(reading["messages"]) > 1,
        INVALID: isinstance(reading["valid"], str),
        "the page posts again": posts > 1,
        "calls are missing": len(tools) < _calls(sent, before),
        "calls are doubled": len(tools) > _calls(sent, before),
        "a result is lost": _lost_result(sent, before, tools),
        "a tool is run twice": len(reading["toolCalls"]) > len(set(reading["toolCalls"])),
    }
    return {name for name, is_so in found.items() if is_so}


def _calls(sent: list[dict[str, Any]], before: list[Any]) -> int:
    begun = [part["toolCallId"] for part in before if "toolCallId" in part]
    streaming = {part["toolCallId"] for part in before if part.get("state") == "input-streaming"}
    earlier = 0
    for chunk in sent:
        if chunk["type"] == "tool-input-start":
            begun.append(chunk["toolCallId"])
            streaming.add(chunk["toolCallId"])
        elif chunk["type"] in _WHOLE_INPUTS:
            begun += {chunk["toolCallId"]} - streaming
            streaming.discard(chunk["toolCallId"])
        elif chunk["type"] == "start-step":
            earlier = len(begun)
        elif chunk["type"] == "reset-step":
            del begun[earlier:]
    return len(begun)


def _lost_result(sent: list[dict[str, Any]], before: list[Any], tools: list[Any]) -> bool:
    answered = {chunk["toolCallId"] for chunk in sent if chunk["type"] in _RESULTS}
    answered |= {part["toolCallId"] for part in before if part.get("state", "").startswith("output-")}
    return any(part["toolCallId"] in answered and not part["state"].startswith("output-") for part in tools)
