"""Agent Ops: what the frames of one turn of a session say, in either vocabulary; and a log of frames.

Frames are snapshots: each update of a turn has all of its calls, and the end of a turn has its text once more. So a
turn remembers which of its calls are over, and how much text it said.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, cast

from msgspec import Struct

from usechat import events as e
from usechat.errors import MappingError
from usechat.integrations.agent_ops import frames as f
from usechat.integrations.agent_ops.options import AgentOpsOptions, read_options
from usechat.integrations.agent_ops.turns import PromptTracker
from usechat.protocol import chunks as c
from usechat.protocol.values import mend, plain

__all__ = ["AgentOpsLog", "AgentOpsTranslator", "log_translator"]

_DEFAULT: Final = AgentOpsOptions()
_STATUS: Final = "agent-status"
# The user sees the first 500 characters of an error.
_ERROR_LENGTH: Final = 500
# The last 64 characters of a text tell it from another of the same length.
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


class _Call(Struct):
    name: str
    over: bool = False


class _Turn:
    """One turn of the runner: a prompt that is tried again has another."""

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.form: Literal["chunk", "text-delta"] | None = None
        self.all = _Said()
        self.since_tool = _Said()
        self.calls: dict[str, _Call] = {}
        self.ending: f.Ending | None = None
        self._half = ""

    @property
    def silent(self) -> bool:
        return not (self.all.length or self.calls)

    def open_calls(self) -> list[str]:
        return [call_id for call_id, call in self.calls.items() if not call.over]

    def say(self, text: str) -> str:
        self.all.add(text)
        self.since_tool.add(text)
        return text

    def joined(self, text: str) -> str:
        """The text, without the half of an emoji at its end, which is kept for the text that follows."""
        if self._half:
            text, self._half = mend(self._half + text[0]) + text[1:], ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text

    def rest_of(self, whole: str) -> str:
        """What of the turn's final text no delta brought.

        That text is all that the turn said, or what it said since its last tool. Where it is neither, the deltas count.
        """
        if not self.all.length:
            return whole
        for said in (self.all, self.since_tool):
            if said.begins(whole):
                return whole[said.length :]
        return "" if self.since_tool.length or self.all.ends_with(whole) else whole


class AgentOpsTranslator:
    """Translates the frames of one turn into one message; what comes after its end is dropped.

    `ended` says that the message is complete. The translator does not ask whose turn a frame belongs to: the
    `PromptTracker` has chosen the frames.
    """

    def __init__(self, options: AgentOpsOptions = _DEFAULT) -> None:
        self.ended = False
        self._options = options
        self._turn: _Turn | None = None
        self._earlier: set[str] = set()
        self._earlier_calls: set[str] = set()
        self._status_shown: dict[str, Any] = {}
        self._questions: dict[str, dict[str, Any]] = {}

    def translate(self, event: f.SessionFrame) -> Iterator[e.AgentEvent]:
        """What one frame says.

        Raises:
            MappingError: the frame is unusable, or belongs to a turn that has not begun.
        """
        if self.ended:
            return
        yield from self._translate(event.says)
        kind = event.raw["type"]
        if kind in self._options.forward and not self.ended:
            payload = {name: value for name, value in event.raw.items() if name != "type"}
            yield e.Data(kind, payload["data"] if set(payload) == {"data"} else payload)

    def end(self) -> Iterable[e.AgentEvent]:
        """End the message because no more frames come; nothing if it has ended."""
        if self.ended:
            return []
        if self._turn is not None and self._turn.ending is not None:
            return self._finish(self._turn.ending)
        return self._fail(_INTERRUPTED)

    def _translate(self, says: f.FrameType) -> Iterable[e.AgentEvent]:
        match says:
            case f.Delta():
                return self._delta(says)
            case f.TurnUpdate():
                return self._update(says)
            case f.Begun():
                return self._begin(says.turn)
            case f.Question():
                # As it is shown: what is cut off is not kept, either.
                data = self._questions[says.id] = plain({"questionId": says.id, "state": "open", **says.data})
                return [e.Data("question", data, id=says.id)]
            case f.Answered() if says.id in self._questions:
                end = {"state": "expired"} if says.answer is None else {"state": "answered", "answer": says.answer}
                return [e.Data("question", self._questions.pop(says.id) | end, id=says.id)]
            case f.Completed():
                turn = self._turn
                if turn is None or (turn.silent and turn.ending is None):
                    return self._fail(_NO_ANSWER)
                return self._finish(turn.ending)
            case f.Unusable():
                raise MappingError(says.problem)
            case _:
                return self._about_prompt(says)

    def _about_prompt(self, says: f.FrameType) -> Iterable[e.AgentEvent]:
        match says:
            case f.AgentStatus():
                return self._show({"status": says.status} | ({"detail": says.detail} if says.detail else {}))
            # What waits once ours has a turn, or is dropped then, are prompts of others.
            case f.Queued() if self._turn is None:
                return self._show({"status": "queued", "position": says.position})
            case f.Cleared(by="clear") if self._turn is None:
                return self._end(c.Abort())
            case f.ModelSwitched():
                about = {"detail": says.reason, "fromModel": says.source, "toModel": says.target}
                return self._retry({name: text for name, text in about.items() if text})
            case f.RunnerLost():
                return self._retry({"detail": _LOST})
            case f.Aborted():
                return self._end(c.Abort())
            case f.Failed():
                return self._fail(says.text or _FAILED)
            case f.SessionOver():
                return self._fail(says.text)
            case _:
                return []

    def _begin(self, turn_id: str) -> Iterator[e.AgentEvent]:
        before = self._turn
        if before is not None and (turn_id == before.id or turn_id in self._earlier):
            return
        if before is not None:
            yield from self._cut_off() if before.silent else self._retry({"detail": _BEGUN_ANEW})
        self._earlier.discard(turn_id)
        self._turn = _Turn(turn_id)
        yield c.Start(message_metadata={"turnId": turn_id})

    def _retry(self, about: dict[str, Any]) -> Iterator[e.AgentEvent]:
        yield from self._cut_off()
        yield from self._show({"status": "retrying", **about})

    def _cut_off(self) -> Iterator[e.AgentEvent]:
        """Close what the turn left open, since another one follows; what it still says is dropped."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._earlier.add(turn.id)
            if not turn.silent:
                self._earlier_calls = set(turn.calls)
            yield e.EndPart()
            for call_id in turn.open_calls():
                yield e.ToolError(call_id, _CUT_OFF)

    def _delta(self, delta: f.Delta) -> Iterator[e.AgentEvent]:
        turn = self._turn_of(delta.turn)
        if turn is None or turn.ending is not None or not delta.text:
            return
        if turn.form is None:
            turn.form = delta.form
        if turn.form == delta.form and (text := turn.joined(delta.text)):
            yield turn.say(text)

    def _update(self, update: f.TurnUpdate) -> Iterator[e.AgentEvent]:
        turn = self._turn_of(update.turn)
        if turn is None:
            return
        for call in update.calls:
            yield from self._call(turn, call)
        if update.ending is not None and turn.ending is None:
            turn.ending = update.ending
            if rest := turn.rest_of(update.ending.text):
                yield turn.say(rest)
        match turn.ending:
            case f.Ending(reason="canceled"):
                yield from self._end(c.Abort())
            case f.Ending(reason="error"):
                yield from self._fail(turn.ending.error or _FAILED)
            # The results of the calls that are still open come after the turn's end.
            case f.Ending() if not turn.open_calls():
                yield from self._finish(turn.ending)
            case _:
                pass

    def _call(self, turn: _Turn, update: f.CallUpdate) -> Iterator[e.AgentEvent]:
        call = turn.calls.get(update.id)
        if call is None:
            if turn.silent and update.id in self._earlier_calls:
                # In the same step it would be taken for the one that was cut off.
                yield e.Step()
            turn.since_tool = _Said()
            call = turn.calls[update.id] = _Call(update.name)
        if call.over:
            return
        call.over = update.over
        if update.over or (update.status == "running" and update.args is not None):
            yield e.ToolCall(update.id, call.name, {} if update.args is None else update.args)
        else:
            yield e.ToolInputStart(update.id, call.name)
        if update.status == "error":
            yield e.ToolError(update.id, update.error or _TOOL_FAILED)
        elif update.over:
            yield e.ToolResult(update.id, update.result)

    def _turn_of(self, turn_id: str | None) -> _Turn | None:
        """The turn that runs, or None if the frame belongs to an earlier one."""
        turn = self._turn
        if turn_id in self._earlier:
            return None
        if turn is None or turn_id not in (None, turn.id):
            raise MappingError("An Agent Ops frame belongs to a turn that has not begun.")
        return turn

    def _show(self, status: dict[str, Any]) -> Iterator[e.AgentEvent]:
        if status != self._status_shown:
            self._status_shown = status
            yield e.Data(_STATUS, status, id=_STATUS, transient=self._options.transient_status)

    def _finish(self, ending: f.Ending | None) -> list[e.AgentEvent]:
        return self._end(c.Finish("stop" if ending is not None and ending.reason == "end_turn" else "other"))

    def _fail(self, text: str) -> list[e.AgentEvent]:
        return self._end(c.Error(text[:_ERROR_LENGTH]))

    def _end(self, chunk: c.Finish | c.Abort | c.Error) -> list[e.AgentEvent]:
        self.ended = True
        return [chunk]


class AgentOpsLog:
    """Translates the lines of a log: frames as they are, or `{"dir": "recv" | "send" | "note", "frame": …}`.

    The turn is that of the first prompt that the log sends, or, if it sends none, the first one on the channel.
    """

    def __init__(self, options: AgentOpsOptions) -> None:
        self._translator = AgentOpsTranslator(options)
        self._channel = options.channel
        self._tracker: PromptTracker | None = None
        # What was received before it is known whether the log sends a prompt.
        self._before: list[f.Frame] = []

    def translate(self, event: dict[str, Any]) -> Iterable[e.AgentEvent]:
        """What one line says.

        Raises:
            MappingError: the line is of no use.
        """
        if "dir" not in event:
            return self._received(event, self._tracker or self._first_turn())
        frame, direction = event.get("frame"), event["dir"]
        if direction == "note":
            return []
        if direction not in ("recv", "send") or not isinstance(frame, dict):
            raise MappingError("A line of an Agent Ops log has no usable `dir` and `frame`.")
        line = cast("f.Frame", frame)
        if direction == "recv" and self._tracker is not None:
            return self._received(line, self._tracker)
        if direction == "recv":
            self._before.append(line)
        elif self._tracker is None and line.get("type") == "prompt":
            self._prompt(line)
        return []

    def end(self) -> Iterator[e.AgentEvent]:
        """End the message because the log has no more lines; nothing if it has ended."""
        if self._tracker is None:
            tracker = self._first_turn()
            for frame in self._before:
                with suppress(MappingError):
                    yield from self._received(frame, tracker)
        yield from self._translator.end()

    def _first_turn(self) -> PromptTracker:
        self._tracker = PromptTracker(None, channel=self._channel)
        return self._tracker

    def _prompt(self, prompt: f.Frame) -> None:
        content = prompt.get("content")
        text = content if isinstance(content, str) else ""
        self._tracker = PromptTracker(text, channel=f.channel_of(prompt) or self._channel)
        for frame in self._before:
            self._tracker.see(frame)
        self._before.clear()
        self._tracker.mark_sent()

    def _received(self, frame: f.Frame, tracker: PromptTracker) -> Iterable[e.AgentEvent]:
        shown = tracker.see(frame)
        return [] if shown is None else self._translator.translate(shown)


def log_translator(options: Mapping[str, Any]) -> AgentOpsLog:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option, or it cannot have that value.
    """
    return AgentOpsLog(read_options(options))
