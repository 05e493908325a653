"""What a stream did to a client, in the two levels of `usechat check`: it was refused, or left untidy, or neither."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from judge import Judge
from same_json import as_json
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage

__all__ = ["Outcome", "levels_of", "worst"]

Outcome: TypeAlias = Literal["clean", "untidy", "refused"]
_Wire: TypeAlias = dict[str, Any]

_WHOLE_INPUTS: Final = ("tool-input-available", "tool-input-error")
_RESULTS: Final = ("tool-output-available", "tool-output-error", "tool-output-denied", "tool-input-error")
_MERE_ENDS: Final = ("finish-step", "finish", "abort")


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    return "refused" if "refused" in found else "untidy" if "untidy" in found else "clean"


def levels_of(
    judge: Judge, stream: Iterable[Chunk], clients: Iterable[str], continues: UIMessage | None = None
) -> dict[str, Outcome]:
    """How each client fared with the stream, also as a page that sends automatically."""
    chunks, clients = list(stream), list(clients)
    sent: list[_Wire] = [msgspec.to_builtins(chunk) for chunk in chunks]
    posted = None if continues is None else as_json(continues)
    readings = judge.read(chunks, clients, continues=posted)
    posts = judge.posts_after(readings, chunks, continues=posted)
    before = [] if continues is None else continues.parts
    return {client: _level(sent, before, readings[client], posts[client]) for client in clients}


def _level(sent: list[_Wire], before: list[_Wire], reading: Any, posts: Any) -> Outcome:
    if "crash" in reading or isinstance(posts, dict):
        return "refused"
    messages: list[Any] = reading["messages"] or [reading["accumulated"]]
    parts: list[_Wire] = messages[-1]["parts"]
    # The chunk at which the client stopped does not count.
    stopped = reading["consumed"] if reading["status"] == "error" else len(sent)
    told = [chunk["type"] for chunk in sent[stopped : stopped + 1]] == ["error"]
    throws = reading["status"] == "error" and not told
    unread = told and any(chunk["type"] not in _MERE_ENDS for chunk in sent[stopped + 1 :])
    calls = _Calls(before)
    for chunk in sent[:stopped]:
        calls.follow(chunk)
    ends = [part for part in parts if "toolCallId" in part]
    if throws or unread or len(messages) > 1 or posts > 1 or calls.again or calls.lost(ends):
        return "refused"
    streaming = any(part.get("state") == "streaming" for part in parts[len(before) :])
    streaming = streaming or any(part["state"] == "input-streaming" for part in ends)
    return "untidy" if streaming or calls.doubled(ends) or isinstance(reading["valid"], str) else "clean"


class _Calls:
    """The calls as the stream means them: a call is known by its id and the step in which it began."""

    def __init__(self, before: list[_Wire]) -> None:
        self.again = False
        self._step = 0
        self._begun: dict[str, set[int]] = defaultdict(set)
        self._streaming: set[str] = set()
        self._answered: set[tuple[str, int]] = set()
        for part in before:
            if part["type"] == "step-start":
                self._step += 1
            elif "toolCallId" in part:
                self._begun[part["toolCallId"]].add(self._step)
                if part["state"].startswith("output-"):
                    self._answered.add((part["toolCallId"], self._step))
                elif part["state"] == "input-streaming":
                    self._streaming.add(part["toolCallId"])

    def follow(self, chunk: _Wire) -> None:
        kind, id_ = chunk["type"], chunk.get("toolCallId", "")
        if kind == "start-step":
            self._step += 1
        elif kind == "reset-step":
            self._reset()
        elif kind == "tool-input-start":
            self._begin(id_)
            self._streaming.add(id_)
        elif kind in _WHOLE_INPUTS and id_ in self._streaming:
            self._streaming.discard(id_)
        elif kind in _WHOLE_INPUTS:
            self._begin(id_)
        if kind in _RESULTS:
            self._answered.add((id_, max(self._begun[id_])))

    def _begin(self, id_: str) -> None:
        # The same call twice in one step is one part in every client.
        self.again = self.again or self._step in self._begun[id_]
        self._begun[id_].add(self._step)

    def _reset(self) -> None:
        for steps in self._begun.values():
            steps.discard(self._step)
        self._answered = {(id_, step) for id_, step in self._answered if step != self._step}

    def lost(self, ends: list[_Wire]) -> bool:
        """Whether a call has no part of its own, or its part not the result that was sent for it."""
        for id_, steps in self._begun.items():
            states = [part["state"] for part in ends if part["toolCallId"] == id_]
            if len(states) < len(steps):
                return True
            # Where a client has made two parts of a call, the last one is it.
            of_steps = zip(sorted(steps), states[-len(steps) :] if steps else [], strict=True)
            if any((id_, step) in self._answered and not state.startswith("output-") for step, state in of_steps):
                return True
        return False

    def doubled(self, ends: list[_Wire]) -> bool:
        have = Counter(part["toolCallId"] for part in ends)
        return any(have[id_] > len(steps) for id_, steps in self._begun.items())
