"""Random legal streams: a player that knows what is open and draws each next chunk among the moves it has."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args

from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from json_values import (
    CITATIONS,
    FIRST_METADATA,
    FLAGS,
    GARBAGE,
    INPUT_TEXTS,
    MORE_METADATA,
    OBJECTS,
    PROVIDERS,
    STEERING,
    TEXTS,
    VALUES,
    below,
    optional,
    pieces,
)
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Custom,
    Data,
    Error,
    File,
    Finish,
    FinishReason,
    FinishStep,
    MessageMetadata,
    ProviderMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    SourceDocument,
    SourceUrl,
    Start,
    StartStep,
    SteeringMessage,
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
from usechat.protocol.clients import Release, newer_than
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.state import Call, StreamState, closing
from usechat.protocol.tables import CALLS, UNFINISHED

__all__ = ["Part", "Turn", "answered", "built", "turns"]

_T = TypeVar("_T")
_Move: TypeAlias = Callable[[], Chunk]
Part: TypeAlias = dict[str, Any]
Answers: TypeAlias = dict[str | None, Part]

_IDS: Final = st.sampled_from("abc") | TEXTS
_NAMES: Final = st.sampled_from(("weather", "search-web", "tool-x", "dynamic-tool", "")) | TEXTS

_DATA_IDS: Final = st.sampled_from("xy")
_ENCODINGS: Final = st.sampled_from(("json", "text"))
_REASONS: Final[tuple[FinishReason, ...]] = get_args(FinishReason)


class Turn(NamedTuple):
    """A stream, what the message that it continues was built of, and what the page added to the calls in that."""

    chunks: list[Chunk]
    before: list[Chunk]
    answers: Answers


def answered(parts: list[Part], answers: Answers) -> list[Part]:
    """The parts as the page posts them back."""
    return [_with_answer(part, answers.get(part.get("toolCallId"), {})) for part in parts]


def _with_answer(part: Part, answer: Part) -> Part:
    approval = {"approval": {**part["approval"], **answer["approval"]}} if "approval" in answer else {}
    return {**part, **answer, **approval}


@st.composite
def turns(draw: st.DrawFn, release: Release) -> Turn:
    """A turn of which the release knows every chunk; one in three continues a message, which may have been cut off."""
    if draw(below(3)):
        return Turn(_Player(draw, release, StreamState()).play(), [], {})
    before = _Player(draw, release, StreamState("m")).play("m")
    message = built(before)
    answers = draw(_answers(message.parts))
    state = StreamState(message.id, answered(message.parts, answers))
    return Turn(_Player(draw, release, state).play(message.id if draw(FLAGS) else UNSET), before, answers)


def built(chunks: list[Chunk]) -> UIMessage:
    """The message that the chunks build."""
    reader = MessageReader()
    for chunk in chunks:
        reader.apply(chunk)
    return reader.message


@st.composite
def _answers(draw: st.DrawFn, parts: list[Part]) -> Answers:
    answers: Answers = {}
    for part in parts:
        if part.get("state") == "approval-requested" and draw(below(4)):
            approval = {"approved": draw(FLAGS), "reason": draw(TEXTS)}
            answers[part["toolCallId"]] = {"state": "approval-responded", "approval": approval}
        elif part.get("state") == "input-available" and draw(below(4)):
            answers[part["toolCallId"]] = {"state": "output-available", "output": draw(VALUES)}
    return answers


class _Player:
    def __init__(self, draw: st.DrawFn, release: Release, state: StreamState) -> None:
        self._draw = draw
        self._release = release
        self._state = state
        self._arguments: dict[str, list[str]] = {}
        # Every client throws when something is merged into a bare number, text or truth value.
        self._has_metadata = False
        self._results: list[tuple[str, int, _Move]] = [
            ("tool-output-available", 2, self._output),
            ("tool-output-available, preliminary", 2, self._preliminary),
            ("tool-output-error", 1, self._output_error),
        ]
        if release.major > 5:
            self._results += [("tool-approval-request", 6, self._request), ("tool-output-denied", 6, self._denied)]

    def play(self, message_id: str | UnsetType = UNSET) -> list[Chunk]:
        chunks: list[Chunk] = []
        if message_id is not UNSET or self._draw(FLAGS):
            chunks.append(
                self._apply(Start(self._maybe(TEXTS) if message_id is UNSET else message_id, self._metadata()))
            )
        for _ in range(self._draw(below(25))):
            chunks.append(self._apply(self._pick(self._moves())()))
        if self._draw(FLAGS):
            chunks += [self._apply(chunk) for chunk in list(closing(self._state, self._end()))]
        return chunks

    def _apply(self, chunk: Chunk) -> Chunk:
        self._state.apply(chunk)
        assert not list(newer_than(chunk, self._release)), chunk
        return chunk

    def _pick(self, choices: Sequence[_T]) -> _T:
        return choices[self._draw(below(len(choices)))]

    def _maybe(self, strategy: st.SearchStrategy[_T]) -> _T | UnsetType:
        return self._draw(optional(strategy))

    def _provider(self) -> ProviderMetadata | UnsetType:
        return self._maybe(PROVIDERS)

    def _other_id(self, taken: dict[str, Any]) -> str:
        id_ = self._draw(_IDS)
        while id_ in taken:
            id_ += "'"
        return id_

    def _moves(self) -> list[_Move]:
        state = self._state
        moves = [self._input, self._input, self._input_start, self._input_start, self._wrong_input, self._data]
        moves += [self._data, self._text_start, self._reasoning_start, self._whole, self._start_step, self._again]
        moves += [self._message_metadata] * 2
        # Without more weight on what is open, hardly any part would get past its start.
        if state.text:
            moves += [self._text_delta] * 3 + [self._text_end]
        if state.reasoning:
            moves += [self._reasoning_delta] * 3 + [self._reasoning_end]
        if self._unfinished("tool-input-delta"):
            moves += [self._input_delta] * 12
        if self._unfinished("tool-input-available"):
            moves += [self._input, self._wrong_input]
        if not state.text and not state.reasoning:
            moves.append(self._finish_step)
        for name, weight, move in self._results:
            moves += [move] * weight if self._calls(name) else []
        if self._release.major == 7:
            moves += [self._newest, self._reset_step]
            moves += [self._response] * 6 if self._answerable() else []
        return moves

    def _calls(self, move: str) -> list[Call]:
        return [call for call in self._state.calls.values() if call.state in CALLS[move]]

    def _unfinished(self, move: str) -> list[Call]:
        """The calls of this step whose input is not whole and can go on like this."""
        return [call for call in self._state.here if call.state in UNFINISHED and call.state in CALLS[move]]

    def _answerable(self) -> list[str]:
        move = "tool-approval-response, approved"
        return [id_ for id_, call in self._state.approvals.items() if call.state in CALLS[move]]

    def _metadata(self) -> Any:
        value = self._draw(MORE_METADATA if self._has_metadata else FIRST_METADATA)
        self._has_metadata = self._has_metadata or value not in (UNSET, None)
        return value

    def _end(self) -> Finish | Abort | Error:
        reasons: list[FinishReason | UnsetType] = [UNSET]
        for reason in _REASONS:
            if not list(newer_than(Finish(reason), self._release)):
                reasons.append(reason)
        ends: list[Finish | Abort | Error] = [
            Finish(self._pick(reasons), self._metadata()),
            Abort(self._maybe(TEXTS)),
            Error(self._draw(TEXTS)),
        ]
        return self._pick(ends)

    def _again(self) -> Chunk:
        return Start(UNSET if self._draw(FLAGS) else self._state.message_id, self._metadata())

    def _message_metadata(self) -> Chunk:
        metadata = self._metadata()
        return MessageMetadata(None if metadata is UNSET else metadata)

    def _start_step(self) -> Chunk:
        return StartStep()

    def _finish_step(self) -> Chunk:
        return FinishStep()

    def _reset_step(self) -> Chunk:
        return ResetStep()

    def _text_start(self) -> Chunk:
        return TextStart(self._other_id(self._state.text), self._provider())

    def _text_delta(self) -> Chunk:
        return TextDelta(self._pick(list(self._state.text)), self._draw(TEXTS), self._provider())

    def _text_end(self) -> Chunk:
        citations = self._maybe(CITATIONS) if self._release.major == 7 else UNSET
        return TextEnd(self._pick(list(self._state.text)), self._provider(), citations)

    def _reasoning_start(self) -> Chunk:
        return ReasoningStart(self._other_id(self._state.reasoning), self._provider())

    def _reasoning_delta(self) -> Chunk:
        return ReasoningDelta(self._pick(list(self._state.reasoning)), self._draw(TEXTS), self._provider())

    def _reasoning_end(self) -> Chunk:
        return ReasoningEnd(self._pick(list(self._state.reasoning)), self._provider())

    def _whole(self) -> Chunk:
        text = self._draw(TEXTS)
        wholes: list[Chunk] = [
            SourceUrl(text, "https://a.example", self._maybe(TEXTS), self._provider()),
            SourceDocument(text, "text/plain", "A", self._maybe(TEXTS), self._provider()),
            File(text, "image/png", self._provider()),
        ]
        return self._pick(wholes)

    def _newest(self) -> Chunk:
        text = self._draw(TEXTS)
        newest: list[Chunk] = [
            ReasoningFile(text, "image/png", self._provider()),
            Custom(text, self._provider()),
            SteeringMessage(text, self._draw(STEERING)),
        ]
        return self._pick(newest)

    def _data(self) -> Chunk:
        name = self._pick(["data-", "data-a", "data-b"])
        id_ = self._maybe(_DATA_IDS)
        return Data(name, self._draw(VALUES), id_, self._maybe(FLAGS))

    def _call(self) -> Call:
        """A call of this step whose input is not whole yet, or a new one."""
        calls = self._unfinished("tool-input-available")
        if calls and self._draw(below(4)):
            call = self._pick(calls)
            # Only a dynamic call may get another name.
            name = self._draw(_NAMES) if call.dynamic and self._draw(FLAGS) else call.name
            return Call(call.id, name, call.dynamic, call.step)
        id_ = self._other_id(self._state.calls)
        return Call(id_, self._draw(_NAMES), self._draw(FLAGS), self._state.step)

    def _dynamic(self, call: Call) -> bool | UnsetType:
        return True if call.dynamic else self._pick((UNSET, False))

    def _input_start(self) -> Chunk:
        call = Call(self._other_id(self._state.calls), self._draw(_NAMES), self._draw(FLAGS), self._state.step)
        self._arguments[call.id] = self._draw(INPUT_TEXTS.flatmap(pieces))
        executed, dynamic, title = self._maybe(FLAGS), self._dynamic(call), self._maybe(TEXTS)
        encoding = self._maybe(_ENCODINGS)
        return ToolInputStart(
            *(call.id, call.name, executed, dynamic, title, self._provider(), self._maybe(OBJECTS), encoding)
        )

    def _input_delta(self) -> Chunk:
        call = self._pick(self._unfinished("tool-input-delta"))
        planned = self._arguments.get(call.id)
        return ToolInputDelta(call.id, planned.pop(0) if planned else self._draw(GARBAGE))

    def _input(self) -> Chunk:
        call = self._call()
        value, executed, title = self._draw(VALUES), self._maybe(FLAGS), self._maybe(TEXTS)
        dynamic, provider, tool = self._dynamic(call), self._provider(), self._maybe(OBJECTS)
        return ToolInputAvailable(call.id, call.name, value, executed, dynamic, title, provider, tool)

    def _wrong_input(self) -> Chunk:
        call = self._call()
        value, text, executed = self._draw(VALUES), self._draw(TEXTS), self._maybe(FLAGS)
        dynamic, title, provider = self._dynamic(call), self._maybe(TEXTS), self._provider()
        return ToolInputError(
            *(call.id, call.name, value, text, executed, dynamic, title, provider, self._maybe(OBJECTS))
        )

    def _output(self) -> Chunk:
        return self._result("tool-output-available", self._pick((UNSET, False)))

    def _preliminary(self) -> Chunk:
        return self._result("tool-output-available, preliminary", True)

    def _result(self, move: str, preliminary: bool | UnsetType) -> Chunk:
        call = self._pick(self._calls(move))
        value, executed, dynamic = self._draw(VALUES), self._maybe(FLAGS), self._dynamic(call)
        return ToolOutputAvailable(
            *(call.id, value, executed, dynamic, preliminary, self._provider(), self._maybe(OBJECTS))
        )

    def _output_error(self) -> Chunk:
        call = self._pick(self._calls("tool-output-error"))
        text, executed, dynamic = self._draw(TEXTS), self._maybe(FLAGS), self._dynamic(call)
        return ToolOutputError(call.id, text, executed, dynamic, self._provider(), self._maybe(OBJECTS))

    def _denied(self) -> Chunk:
        return ToolOutputDenied(self._pick(self._calls("tool-output-denied")).id)

    def _request(self) -> Chunk:
        call = self._pick(self._calls("tool-approval-request"))
        others = {id_: other for id_, other in self._state.approvals.items() if other is not call}
        signature, reason, automatic = self._maybe(TEXTS), self._maybe(TEXTS), self._maybe(FLAGS)
        descriptor, schema = self._maybe(VALUES), self._maybe(VALUES)
        return ToolApprovalRequest(self._other_id(others), call.id, signature, reason, automatic, descriptor, schema)

    def _response(self) -> Chunk:
        id_ = self._pick(self._answerable())
        approved, reason, executed = self._draw(FLAGS), self._maybe(TEXTS), self._maybe(FLAGS)
        return ToolApprovalResponse(id_, approved, reason, executed, self._provider())
