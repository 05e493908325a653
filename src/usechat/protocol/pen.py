"""How a message is put on the wire: parts and steps open and close, and call ids stay unique, behind every call."""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from msgspec import UNSET, UnsetType

from usechat.protocol.chunks import (
    Chunk,
    FinishStep,
    Start,
    StartStep,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import CLIENTS, ClientName, Release
from usechat.protocol.closing import End, closing, closing_parts, with_input
from usechat.protocol.lanes import Kind, Lanes
from usechat.protocol.messages import TOOL_CALL_ID, UIMessage
from usechat.protocol.rules import local_error
from usechat.protocol.state import Call, StreamState
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.values import VALUE_LIMIT, mend, plain

__all__ = ["Pen", "true_or_unset"]

_DECIDES_STEP: Final = frozenset[type[Chunk]](
    (
        StartStep,
        ToolInputStart,
        ToolInputAvailable,
        ToolInputError,
        ToolOutputAvailable,
        ToolOutputError,
        ToolOutputDenied,
    )
)


class Pen:
    """What `MessageWriter` writes with. Each chunk goes through `_put`, but for a delta that just flows on."""

    def __init__(
        self,
        message_id: str,
        *,
        new_id: Callable[[], str],
        client: ClientName = "portable",
        continues: UIMessage | None = None,
        value_limit: int = VALUE_LIMIT,
    ) -> None:
        self.message_id = message_id if continues is None else continues.id
        self.state = StreamState(self.message_id, () if continues is None else continues.parts)
        self._new_id = new_id
        self.client = CLIENTS[client]
        self.state.first_release = Release(5, 0) in self.client.oldest
        self._fit = self.client.fit
        self._limit = value_limit
        self._written: list[Chunk] = []
        self._lanes = Lanes(new_id)
        # The lane and the text part of the last call, until anything else happens.
        self._open_text = self.state.text
        self._flow_lane: str | None = None
        self._flow_id = ""
        self._call_ids: dict[str, str] = {}
        self._step_asked = False
        self._step_due = self.state.has_results()

    def _take(self) -> list[Chunk]:
        # What was written before an error is kept here until the next call returns it.
        written, self._written = self._written, []
        return written

    def _put(self, chunk: Chunk) -> None:
        self._flow_lane = None
        if self.state.phase == "new" and not isinstance(chunk, Start):
            self._put(Start(self.message_id))
        fitted = self._fit(chunk, self.state)
        self.state.apply(chunk)
        self._written += fitted
        if type(chunk) in _DECIDES_STEP:
            self._consider_step()

    def _put_all(self, chunks: Iterable[Chunk]) -> None:
        # All of them are made before the first is put, since that changes the state that they are made from.
        for chunk in list(chunks):
            self._put(chunk)

    def _check_whole(self, chunk: ToolApprovalRequest) -> None:
        # Clients show it, but v5 is asked by a data part, which would leave the call streaming.
        call = self.state.calls.get(chunk.tool_call_id)
        if call is not None and call.state in UNFINISHED:
            problem = f"An approval is asked for the call {call.id!r:.60}, whose input is not whole."
            raise local_error("call-order", "tool-approval-request", problem)

    def _metadata(self, value: Any, name: str) -> Any:
        metadata = UNSET if value is UNSET else plain(value, self._limit)
        if metadata is UNSET or metadata is None or isinstance(metadata, dict):
            return cast("Any", metadata)
        # The client merges metadata as objects, and throws over anything else.
        raise local_error("shape", name, "The metadata of a message must be an object.")

    def _end(self, last: End) -> list[Chunk]:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing(self.state, last))
        return self._take()

    def _write(self, kind: Kind, delta: str, lane: str) -> list[Chunk]:
        delta = self._whole(f"{kind} {lane}", delta)
        if not delta:
            return self._take()
        self._content()
        self._put_all(self._lanes.enter(kind, lane))
        chunk = self._lanes.delta(lane, delta)
        self._put(chunk)
        if kind == "text" and not self._lanes.halves:
            self._flow_lane, self._flow_id = lane, chunk.id
        return self._take()

    def _whole(self, owner: str, text: str) -> str:
        if text.isascii() and not self._lanes.halves:
            return text
        self._flow_lane = None
        return self._lanes.whole(owner, text)

    def _content(self) -> None:
        """Open a step for what follows, where one is due or none is open."""
        if self._step_due:
            self._open_step()
        elif self.state.phase != "step":
            self._enter_step()

    def _enter_step(self) -> None:
        # The results of a continued message's open calls belong before its next step.
        between = self.state.phase in ("new", "open") and not (self.state.text or self.state.reasoning)
        if between and not self.state.open_here():
            self._put(StartStep())

    def _consider_step(self) -> None:
        streaming = any(call.state in UNFINISHED for call in self.state.here)
        self._step_due = not streaming and (self._step_asked or self.state.has_results())

    def _open_step(self) -> None:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing_parts(self.state))
        if self.state.phase == "step":
            self._put(FinishStep())
        self._step_asked = False
        self._put(StartStep())

    def _prepare_call(self, lane: str) -> None:
        self._content()
        self._put_all(self._lanes.leave(lane))

    def _fresh(self, call_id: str) -> str:
        wire_id = mend(call_id)
        while wire_id in self.state.calls or TOOL_CALL_ID(wire_id) is not None:
            wire_id = self._new_id()
        self._call_ids[call_id] = wire_id
        return wire_id

    def _streaming(self, call_id: str) -> Call | None:
        call = self.state.calls.get(self._call_ids.get(call_id, call_id))
        return call if call is not None and call.state in UNFINISHED else None

    def _before_result(self, call_id: str) -> tuple[str, bool | UnsetType]:
        call_id = self._call_ids.get(call_id, call_id)
        call = self.state.calls.get(call_id)
        if call is None:
            return call_id, UNSET
        self._put_all(with_input(call, self.state.step))
        return call_id, true_or_unset(call.dynamic)


def true_or_unset(flag: bool) -> bool | UnsetType:  # noqa: FBT001
    return True if flag else UNSET
