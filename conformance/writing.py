"""Any sequence of calls of the writer, and what the real clients that its profile promises make of it."""

from collections.abc import Callable
from itertools import count
from typing import Any, Final, get_args

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import UNSET

from judge import Judge
from promises import PROMISES, V7, promised, release_of
from same_json import as_json, strict
from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Custom,
    Data,
    End,
    Error,
    Finish,
    FinishReason,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    Start,
    StartStep,
    SteeringMessage,
    SteeringText,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.state import StreamState
from usechat.protocol.writer import MessageWriter

__all__ = ["Writing", "call_part"]

# Each lane has characters of its own, so that what mixes shows.
ALPHABETS: Final = {"": "ab 😀", "left": 'cd"🐍', "right": "ef\u2028𐏿"}
LANES: Final = st.sampled_from(tuple(ALPHABETS))
CALLS: Final = st.sampled_from(("one", "two", "three"))
NAMES: Final = st.sampled_from(("weather", "search-web"))
FLAGS: Final = st.booleans()
MAYBE: Final = st.sampled_from((UNSET, False, True))
VALUES: Final = st.sampled_from((None, {}, {"city": "Köln"}, [1, "two"], float("nan"), "text", {"__proto__": 1}))
METADATA: Final = st.sampled_from((UNSET, {"provider": {"signature": "s", "none": None}}))
OBJECTS: Final = st.sampled_from(({}, {"a": 1}, {"a": {"b": None}}))
REASONS: Final[tuple[FinishReason, ...]] = get_args(FinishReason)
ENDS: Final[list[End]] = [
    *(Finish(reason) for reason in REASONS),
    *(Finish("tool-calls", {"a": 3}), Finish("stop", {"a": 3}), Finish("tool-calls"), Finish("stop")),
    *(Abort(), Abort("bye"), Error("It broke: ✗"), Error("")),
]
TERMINAL: Final = ("output-available", "output-error", "output-denied")
WAITS: Final = ("input-available", "approval-requested")

ASSORTED: Final = st.sampled_from(
    (
        TextStart("raw"),
        TextDelta("raw", "123"),
        TextEnd("raw"),
        ReasoningStart("raw"),
        ReasoningDelta("raw", "456"),
        ReasoningEnd("raw"),
        Start("another", {"a": 2}),
        StartStep(),
        FinishStep(),
        ResetStep(),
        MessageMetadata(None),
        Custom("provider.kind"),
        ReasoningFile("data:,x", "image/png"),
        SteeringMessage("s", [SteeringText("wait")]),
        Data("data-x", None, UNSET, True),
        ToolInputStart("raw", "weather", dynamic=True),
        ToolInputDelta("raw", "{"),
        ToolInputAvailable("raw", "weather", {}, dynamic=True),
        ToolInputError("raw", "weather", {}, "no", dynamic=True),
        ToolOutputAvailable("raw", 1, dynamic=True),
        ToolOutputError("raw", "no", dynamic=True),
        ToolOutputDenied("one"),
        ToolApprovalRequest("asked", "one"),
        ToolApprovalResponse("asked", True),
        ToolApprovalResponse("asked", False),
    )
)


def call_part(id_: str, state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-weather", "toolCallId": id_, "state": state, "input": {}, **fields}


WAITING: Final = call_part("one", "input-available")
ANSWERED: Final = call_part("one", "output-available", output=21)
BROKEN: Final = call_part("two", "output-error", errorText="no")
RUNNING: Final = call_part("two", "output-available", output=1, preliminary=True)
ASKED: Final = call_part("one", "approval-requested", approval={"id": "asked"})
APPROVED: Final = call_part("one", "approval-responded", approval={"id": "asked", "approved": True})
REFUSED: Final = call_part("two", "approval-responded", approval={"id": "other", "approved": False})
STEP: Final = {"type": "step-start"}
TEXT: Final = {"type": "text", "text": "old", "state": "done"}
CONTINUED: Final[tuple[list[dict[str, Any]], ...]] = (
    [],
    [STEP, TEXT],
    [STEP, WAITING],
    [STEP, ANSWERED],
    [STEP, WAITING, BROKEN],
    [STEP, ANSWERED, BROKEN],
    [STEP, WAITING, RUNNING],
    [STEP, WAITING, STEP, TEXT],
    [STEP, ASKED],
    [STEP, APPROVED, REFUSED],
    [STEP, REFUSED],
    [STEP, APPROVED, BROKEN, STEP, TEXT],
)


def has_approvals(message: UIMessage | None) -> bool:
    return message is not None and any("approval" in part for part in message.parts)


def halves(text: str) -> list[str]:
    """The text in pieces that end inside its rarer characters."""
    units = [text.encode("utf-16-le")[index : index + 2] for index in range(0, len(text.encode("utf-16-le")), 2)]
    return [unit.decode("utf-16-le", "surrogatepass") for unit in units]


class Writing(RuleBasedStateMachine):
    """A turn that is written at random; the judge reads it when it is over."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self._judge = judge

    @initialize(
        profile=st.sampled_from(tuple(PROMISES)),
        parts=st.none() | st.sampled_from(CONTINUED),
        last=st.sampled_from(ENDS),
        sends=FLAGS,
    )
    def begin(self, profile: ClientName, parts: list[dict[str, Any]] | None, last: End, sends: bool) -> None:
        self._continues = None if parts is None else UIMessage("m", "assistant", msgspec.to_builtins(parts))
        if profile == "v5" and parts is not None and any("approval" in part or "preliminary" in part for part in parts):
            # The first v5 knows neither, so no page of it posts such a message.
            self._continues = None
        numbers = count()
        self._writer = MessageWriter(
            "m", new_id=lambda: f"id-{next(numbers)}", client=profile, continues=self._continues
        )
        self._profile: ClientName = profile
        self._last = last
        self._sends = sends
        self._chunks: list[Chunk] = []
        self._state = StreamState("m", () if self._continues is None else self._continues.parts)
        self._written: dict[tuple[str, str], str] = {}
        self._stepped_by_hand = False
        self._called_by_hand = False

    def _collect(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._state.apply(chunk)
        self._chunks += chunks

    def _attempt(self, write: Callable[[], list[Chunk]]) -> None:
        """Write what may be illegal here; what the writer wrote before it found out comes with the next call."""
        try:
            chunks = write()
        except LocalProtocolError:
            return
        self._collect(chunks)

    def _write_text(self, kind: str, lane: str, text: str, apart: bool) -> None:
        for delta in halves(text) if apart else [text]:
            write = self._writer.text if kind == "text" else self._writer.reasoning
            self._collect(write(delta, lane=lane))
        self._written[kind, lane] = self._written.get((kind, lane), "") + text

    @rule(data=st.data(), kind=st.sampled_from(("text", "reasoning")), lane=LANES, apart=FLAGS)
    def text(self, data: st.DataObject, kind: str, lane: str, apart: bool) -> None:
        self._write_text(kind, lane, data.draw(st.text(ALPHABETS[lane], max_size=4)), apart)

    @rule(lane=LANES, metadata=METADATA)
    def end_part(self, lane: str, metadata: Any) -> None:
        self._collect(self._writer.end_part(lane=lane, metadata=metadata))

    @rule(metadata=st.just(UNSET) | OBJECTS)
    def start(self, metadata: Any) -> None:
        self._collect(self._writer.start(metadata))

    @rule(id_=CALLS, name=NAMES, lane=LANES, dynamic=FLAGS, executed=MAYBE, metadata=METADATA)
    def tool_input_start(self, id_: str, name: str, lane: str, dynamic: bool, executed: Any, metadata: Any) -> None:
        options: dict[str, Any] = {"lane": lane, "dynamic": dynamic, "provider_executed": executed}
        self._collect(self._writer.tool_input_start(id_, name, title="T", metadata=metadata, **options))

    @rule(id_=CALLS, delta=st.sampled_from(('["Kö",', "")))
    def tool_input_delta(self, id_: str, delta: str) -> None:
        self._attempt(lambda: self._writer.tool_input_delta(id_, delta))

    @rule(id_=CALLS, name=NAMES, value=VALUES, lane=LANES, dynamic=FLAGS, executed=MAYBE, metadata=METADATA)
    def tool_input(
        self, id_: str, name: str, value: Any, lane: str, dynamic: bool, executed: Any, metadata: Any
    ) -> None:
        options: dict[str, Any] = {"lane": lane, "dynamic": dynamic, "provider_executed": executed}
        self._whole_input(lambda: self._writer.tool_input(id_, name, value, metadata=metadata, **options))

    @rule(id_=CALLS, name=NAMES, value=VALUES, lane=LANES, dynamic=FLAGS)
    def tool_input_error(self, id_: str, name: str, value: Any, lane: str, dynamic: bool) -> None:
        self._whole_input(lambda: self._writer.tool_input_error(id_, name, value, "no", lane=lane, dynamic=dynamic))

    @rule(id_=CALLS, lane=LANES, dynamic=FLAGS, ending=st.sampled_from(("input", "wrong input", "output", "step")))
    def streamed_call(self, id_: str, lane: str, dynamic: bool, ending: str) -> None:
        self.tool_input_start(id_, "weather", lane, dynamic, UNSET, UNSET)
        self._collect(self._writer.tool_input_delta(id_, '["Kö",'))
        if ending == "input":
            self.tool_input(id_, "ignored", ["Köln"], lane, dynamic, UNSET, UNSET)
        elif ending == "wrong input":
            self.tool_input_error(id_, "ignored", ["Köln"], lane, dynamic)
        elif ending == "output":
            self._collect(self._writer.tool_output(id_, 1))
        else:
            self._collect(self._writer.step())

    def _whole_input(self, write: Callable[[], list[Chunk]]) -> None:
        # Only a step that was begun by hand can come between the beginning of an input and the rest.
        if self._stepped_by_hand:
            self._attempt(write)
        else:
            self._collect(write())

    @rule(id_=CALLS, output=VALUES, preliminary=FLAGS, executed=MAYBE, metadata=METADATA)
    def tool_output(self, id_: str, output: Any, preliminary: bool, executed: Any, metadata: Any) -> None:
        options: dict[str, Any] = {"provider_executed": executed, "metadata": metadata}
        self._attempt(lambda: self._writer.tool_output(id_, output, preliminary=preliminary, **options))

    @rule(id_=CALLS, executed=MAYBE, metadata=METADATA)
    def tool_error(self, id_: str, executed: Any, metadata: Any) -> None:
        self._attempt(lambda: self._writer.tool_error(id_, "no", provider_executed=executed, metadata=metadata))

    @rule(id_=CALLS)
    def tool_denied(self, id_: str) -> None:
        self._attempt(lambda: self._writer.tool_denied(id_))

    @rule(id_=CALLS, approval_id=st.sampled_from((None, "asked")))
    def approval_request(self, id_: str, approval_id: str | None) -> None:
        self._attempt(lambda: self._writer.approval_request(id_, approval_id=approval_id, reason="costs money"))

    @rule(move=st.sampled_from(("source_url", "source_document", "file", "data", "metadata", "step")), value=OBJECTS)
    def anything_else(self, move: str, value: dict[str, Any]) -> None:
        writer = self._writer
        moves: dict[str, Callable[[], list[Chunk]]] = {
            "source_url": lambda: writer.source_url("https://a.example", title="A"),
            "source_document": lambda: writer.source_document("A", "text/plain", filename="a.txt"),
            "file": lambda: writer.file("data:,x", "image/png"),
            "data": lambda: writer.data("chart", value, id="d"),
            "metadata": lambda: writer.metadata(value),
            "step": writer.step,
        }
        self._collect(moves[move]())

    @rule(chunk=ASSORTED)
    def send(self, chunk: Chunk) -> None:
        self._stepped_by_hand |= isinstance(chunk, StartStep)
        self._called_by_hand |= isinstance(chunk, ToolInputStart)
        self._attempt(lambda: self._writer.send(chunk))

    def teardown(self) -> None:
        if not hasattr(self, "_writer"):
            return
        self._collect(self._end())
        self._texts_are_whole()
        clients = [
            client
            for client in promised(self._profile, self._chunks)
            if not has_approvals(self._continues) or release_of(client).major > 5
        ]
        continues = None if self._continues is None else as_json(self._continues)
        results = self._judge.read(self._chunks, clients, continues=continues)
        for client in clients:
            self._accepted(client, results[client])
        if V7 in clients:
            reader = MessageReader(self._continues)
            for chunk in self._chunks:
                reader.apply(chunk)
            assert strict(as_json(reader.message)) == strict(results[V7]["accumulated"])
        assert self._judge.posts(self._chunks, clients[-1:], continues=continues) == dict.fromkeys(clients[-1:], 1)

    def _end(self) -> list[Chunk]:
        match self._last:
            case last if self._sends:
                return self._writer.send(last)
            case Finish(finish_reason=reason, message_metadata=metadata):
                assert reason is not UNSET
                return self._writer.finish(reason, metadata)
            case Abort(reason=reason):
                return self._writer.abort(reason)
            case Error(error_text=text):
                return self._writer.fail(text)

    def _texts_are_whole(self) -> None:
        texts: dict[tuple[str, str], str] = {}
        for kind, starts, deltas in (("text", TextStart, TextDelta), ("reasoning", ReasoningStart, ReasoningDelta)):
            parts = {chunk.id: "" for chunk in self._chunks if isinstance(chunk, starts) and chunk.id != "raw"}
            for chunk in self._chunks:
                if isinstance(chunk, deltas) and chunk.id != "raw":
                    parts[chunk.id] += chunk.delta
            for text in parts.values():
                lane = next(lane for lane, alphabet in ALPHABETS.items() if text[0] in alphabet)
                assert set(text) <= set(ALPHABETS[lane])
                texts[kind, lane] = texts.get((kind, lane), "") + text
        assert texts == {owner: text for owner, text in self._written.items() if text}

    def _accepted(self, client: str, result: dict[str, Any]) -> None:
        failed = isinstance(self._last, Error)
        error = {"name": "Error", "message": self._last.error_text} if isinstance(self._last, Error) else None
        assert (result["status"], result["error"]) == ("error" if failed else "ready", error), client
        [message] = result["messages"]
        assert failed or result["resubmits"] is False, client
        states = [part["state"] for part in message["parts"] if "state" in part]
        assert "streaming" not in states, client
        assert "input-streaming" not in states, client
        assert result["valid"] in (True, None) or not self._is_validated(message["parts"]), client
        waits = isinstance(self._last, Finish) and self._last.finish_reason == "tool-calls"
        ended = TERMINAL + WAITS if waits else TERMINAL
        calls = [part for part in message["parts"] if "toolCallId" in part]
        assert [call for call in calls if call["state"] not in ended or call.get("preliminary")] == [], client

    def _is_validated(self, parts: list[dict[str, Any]]) -> bool:
        """Some call these invalid that they built themselves: calls without input, unanswered approvals, no parts."""
        if self._stepped_by_hand or self._called_by_hand or parts == []:
            return False
        wrong = any(isinstance(chunk, ToolInputError) for chunk in self._chunks)
        return not wrong and not any("approval" in part for part in parts)
