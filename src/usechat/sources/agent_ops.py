"""Agent Ops: the frames of one turn of a session, as one message."""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, cast

from msgspec import Struct

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk
from usechat.protocol.values import mend, plain
from usechat.protocol.writer import MessageWriter
from usechat.sources.agent_ops_frames import Frame, read_frame
from usechat.sources.agent_ops_meanings import (
    Aborted,
    AgentStatus,
    Answered,
    Begun,
    CallUpdate,
    Cleared,
    Completed,
    Delta,
    Ending,
    Failed,
    Meaning,
    ModelSwitched,
    Question,
    Queued,
    RunnerLost,
    SessionOver,
    TurnUpdate,
)
from usechat.sources.agent_ops_options import AgentOpsOptions, read_options

__all__ = ["AgentOpsMapper", "AgentOpsOptions", "read_options"]

_DEFAULT: Final = AgentOpsOptions()
_STATUS: Final = "agent-status"
# So much of what an error says is shown.
_ERROR_LENGTH: Final = 500
# So much of the end of a text tells it from another of the same length.
_TAIL: Final = 64
_FAILED: Final = "The turn failed."
_NO_ANSWER: Final = "The agent gave no answer."
_INTERRUPTED: Final = "Stream interrupted"
_TOOL_FAILED: Final = "The tool failed."
_CUT_OFF: Final = "The call was cut off, and the prompt is tried again."
_LOST: Final = "The runner was lost."
_BEGUN_ANEW: Final = "The answer is begun anew."


class _Said:
    """How much text was sent, and its end: enough to tell what of a whole text is left to say."""

    def __init__(self) -> None:
        self.length = 0
        self._tail = ""

    def add(self, text: str) -> None:
        self.length += len(text)
        self._tail = (self._tail + text)[-_TAIL:]

    def begins(self, whole: str) -> bool:
        return 0 < self.length <= len(whole) and whole.endswith(self._tail, 0, self.length)

    def ends_with(self, text: str) -> bool:
        return len(text) <= self.length and (text.endswith(self._tail) or self._tail.endswith(text))


class _Turn:
    """One turn of the runner: a prompt that is tried again has another."""

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.form: Literal["chunk", "text-delta"] | None = None
        self.all = _Said()
        self.since_tool = _Said()
        self.calls: dict[str, _Call] = {}
        self.ending: Ending | None = None
        self._half = ""

    @property
    def silent(self) -> bool:
        return not (self.all.length or self.calls)

    def open_calls(self) -> list[str]:
        return [call_id for call_id, call in self.calls.items() if call.state != "over"]

    def joined(self, text: str) -> str:
        """The text, without the half of an emoji at its end, which is kept for the text that follows."""
        if self._half:
            text, self._half = mend(self._half + text[0]) + text[1:], ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text

    def rest_of(self, whole: str) -> str:
        """What of the turn's final text no delta brought.

        That text is all that the turn said, or what it said since its last tool.
        """
        if not self.all.length:
            return whole
        for said in (self.all, self.since_tool):
            if said.begins(whole):
                return whole[said.length :]
        return "" if self.since_tool.length or self.all.ends_with(whole) else whole


class _Call(Struct):
    name: str
    state: Literal["started", "running", "over"]


class AgentOpsMapper:
    """Turns the frames of one turn, in either vocabulary, into one message; what comes after its end is dropped.

    `ended` tells that the message is complete. Whose turn a frame belongs to is not looked at: `PromptTracker` of
    `usechat.sources.agent_ops_turns` tells that.
    """

    def __init__(self, writer: MessageWriter, options: AgentOpsOptions = _DEFAULT) -> None:
        self.ended = False
        self._writer = writer
        self._options = options
        self._turn: _Turn | None = None
        self._earlier: set[str] = set()
        self._status_shown: dict[str, Any] = {}
        self._questions: dict[str, dict[str, Any]] = {}

    def map(self, event: Frame) -> list[Chunk]:
        """The chunks of one frame.

        Raises:
            MappingError: the frame has no type that Agent Ops has, lacks what every frame of its type has, or belongs
                to a turn that has not begun.
        """
        if self.ended:
            return []
        meaning = read_frame(event)
        move = self._MOVES.get(type(meaning))
        chunks = [] if move is None else move(self, meaning)
        if event["type"] in self._options.forward and not self.ended:
            chunks += self._forward(event)
        return chunks

    def end(self) -> list[Chunk]:
        """End the message because no more frames come; nothing if it has ended."""
        if self.ended:
            return []
        if self._turn is not None and self._turn.ending is not None:
            return self._finish(self._turn.ending)
        return self._fail(_INTERRUPTED)

    def _begin(self, begun: Begun) -> list[Chunk]:
        before = self._turn
        if before is not None and (begun.turn == before.id or begun.turn in self._earlier):
            return []
        chunks: list[Chunk] = []
        if before is not None:
            chunks = self._retry({"detail": _BEGUN_ANEW}) if not before.silent else self._cut_off()
        self._earlier.discard(begun.turn)
        self._turn = _Turn(begun.turn)
        return chunks + self._writer.start({"turnId": begun.turn})

    def _cut_off(self) -> list[Chunk]:
        """Close what the turn left open, since another one follows; what it still says is dropped."""
        turn, self._turn = self._turn, None
        if turn is None:
            return []
        self._earlier.add(turn.id)
        chunks = self._writer.end_part()
        for call_id in turn.open_calls():
            chunks += self._writer.tool_error(call_id, _CUT_OFF)
        return chunks

    def _delta(self, delta: Delta) -> list[Chunk]:
        turn = self._turn_of(delta.turn)
        if turn is None or turn.ending is not None or not delta.text:
            return []
        if turn.form is None:
            turn.form = delta.form
        text = turn.joined(delta.text) if turn.form == delta.form else ""
        return self._say(turn, text) if text else []

    def _say(self, turn: _Turn, text: str) -> list[Chunk]:
        turn.all.add(text)
        turn.since_tool.add(text)
        return self._writer.text(text)

    def _update(self, update: TurnUpdate) -> list[Chunk]:
        turn = self._turn_of(update.turn)
        if turn is None:
            return []
        chunks = [chunk for call in update.calls for chunk in self._call(turn, call)]
        if update.ending is not None and turn.ending is None:
            turn.ending = update.ending
            if rest := turn.rest_of(update.ending.text):
                chunks += self._say(turn, rest)
        return chunks + self._end_turn(turn)

    def _end_turn(self, turn: _Turn) -> list[Chunk]:
        ending = turn.ending
        if ending is None:
            return []
        match ending.reason:
            case "canceled":
                return self._abort()
            case "error":
                return self._fail(ending.error or _FAILED)
            case _:
                # The results of the calls that are still open come after the turn's end.
                return [] if turn.open_calls() else self._finish(ending)

    def _call(self, turn: _Turn, update: CallUpdate) -> list[Chunk]:
        known = turn.calls.get(update.id)
        chunks: list[Chunk] = []
        whole = update.over or (update.status == "running" and update.args is not None)
        if known is None:
            turn.since_tool = _Said()
            known = turn.calls[update.id] = _Call(update.name, "started")
            chunks = [] if whole else self._writer.tool_input_start(update.id, update.name)
        if known.state == "started" and whole:
            known.state = "running"
            chunks += self._writer.tool_input(update.id, known.name, {} if update.args is None else update.args)
        if known.state == "running" and update.over:
            known.state = "over"
            chunks += self._result(update)
        return chunks

    def _result(self, update: CallUpdate) -> list[Chunk]:
        if update.status == "error":
            return self._writer.tool_error(update.id, update.error or _TOOL_FAILED)
        return self._writer.tool_output(update.id, update.result)

    def _turn_of(self, turn_id: str | None) -> _Turn | None:
        """The current turn, or None if the frame belongs to an earlier one."""
        turn = self._turn
        if turn_id in self._earlier:
            return None
        if turn is None or turn_id not in (None, turn.id):
            raise MappingError("An Agent Ops frame belongs to a turn that has not begun.")
        return turn

    def _agent_status(self, status: AgentStatus) -> list[Chunk]:
        return self._show({"status": status.status} | ({"detail": status.detail} if status.detail else {}))

    def _queued(self, queued: Queued) -> list[Chunk]:
        # Later ones are of prompts that others sent.
        return [] if self._turn is not None else self._show({"status": "queued", "position": queued.position})

    def _cleared(self, cleared: Cleared) -> list[Chunk]:
        # Of prompts that others sent, once ours has a turn.
        return self._abort() if cleared.by == "clear" and self._turn is None else []

    def _switched(self, switched: ModelSwitched) -> list[Chunk]:
        told = {"detail": switched.reason, "fromModel": switched.source, "toModel": switched.target}
        return self._retry({name: text for name, text in told.items() if text})

    def _lost(self, _: RunnerLost) -> list[Chunk]:
        return self._retry({"detail": _LOST})

    def _retry(self, told: dict[str, Any]) -> list[Chunk]:
        return self._cut_off() + self._show({"status": "retrying", **told})

    def _show(self, status: dict[str, Any]) -> list[Chunk]:
        if status == self._status_shown:
            return []
        self._status_shown = status
        return self._writer.data(_STATUS, status, id=_STATUS, transient=self._options.transient_status)

    def _question(self, question: Question) -> list[Chunk]:
        # As it is shown: what is cut off is not kept, either.
        data = plain({"questionId": question.id, "state": "open", **question.data})
        self._questions[question.id] = data
        return self._writer.data("question", data, id=question.id)

    def _answered(self, answered: Answered) -> list[Chunk]:
        asked = self._questions.pop(answered.id, None)
        if asked is None:
            return []
        end = {"state": "expired"} if answered.answer is None else {"state": "answered", "answer": answered.answer}
        return self._writer.data("question", asked | end, id=answered.id)

    def _completed(self, _: Completed) -> list[Chunk]:
        turn = self._turn
        if turn is None or (turn.silent and turn.ending is None):
            return self._fail(_NO_ANSWER)
        return self._finish(turn.ending)

    def _aborted(self, _: Aborted) -> list[Chunk]:
        return self._abort()

    def _failed(self, failed: Failed) -> list[Chunk]:
        return self._fail(failed.text or _FAILED)

    def _session_over(self, over: SessionOver) -> list[Chunk]:
        return self._fail(over.text)

    def _forward(self, frame: Frame) -> list[Chunk]:
        payload = {name: value for name, value in frame.items() if name != "type"}
        return self._writer.data(frame["type"], payload["data"] if set(payload) == {"data"} else payload)

    def _finish(self, ending: Ending | None) -> list[Chunk]:
        self.ended = True
        return self._writer.finish("stop" if ending is not None and ending.reason == "end_turn" else "other")

    def _abort(self) -> list[Chunk]:
        self.ended = True
        return self._writer.abort()

    def _fail(self, text: str) -> list[Chunk]:
        self.ended = True
        return self._writer.fail(text[:_ERROR_LENGTH])

    _MOVES: ClassVar = cast(
        "dict[type[Meaning], Callable[[AgentOpsMapper, Meaning], list[Chunk]]]",
        {
            Begun: _begin,
            Delta: _delta,
            TurnUpdate: _update,
            AgentStatus: _agent_status,
            Queued: _queued,
            Cleared: _cleared,
            ModelSwitched: _switched,
            RunnerLost: _lost,
            Question: _question,
            Answered: _answered,
            Completed: _completed,
            Aborted: _aborted,
            Failed: _failed,
            SessionOver: _session_over,
        },
    )
