"""Agent Ops: the frames of a session's socket, and what each of them says.

There are two vocabularies: the V2 frames, which a session's runner sends, and the frames that a client's socket
receives. `read_frame` reads both into the same frame types. It runs once per frame; behind it the raw frame is looked
at only to forward it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

__all__ = [
    "DEFAULT_CHANNEL",
    "MOST_WAITING",
    "PASSED_OVER",
    "Aborted",
    "AgentStatus",
    "Answered",
    "Begun",
    "CallUpdate",
    "Cleared",
    "Collecting",
    "Completed",
    "Delta",
    "Dequeued",
    "Ending",
    "Failed",
    "Frame",
    "FrameType",
    "ModelSwitched",
    "Nothing",
    "Opened",
    "Prompted",
    "Question",
    "Queued",
    "RunnerBusy",
    "RunnerLost",
    "SessionFrame",
    "SessionOver",
    "TurnUpdate",
    "Unusable",
    "channel_of",
    "read_frame",
]

Frame: TypeAlias = dict[str, Any]

DEFAULT_CHANNEL: Final = "web:default"
PASSED_OVER: Final = frozenset(
    {
        *("audit_log", "child-session", "command-result", "diff", "files-changed", "git-state", "messages.removed"),
        *("models", "pr-created", "review-result", "status", "title", "toast", "user.joined", "user.left"),
        *("integration-auth-required", "queue.state", "queue.withdrawn", "thread.created", "thread.updated"),
    }
)
"""The frames of which a chat shows nothing, or not all, and which can be asked for by name."""

MOST_WAITING: Final = 1_000
"""A frame that names a larger number of waiting prompts is read as one without the number."""

# What is kept of a session has these bounds, whatever it sends: ids and names in characters, words for a reader, and
# times in seconds or milliseconds, which JavaScript counts exactly up to here.
_LONGEST_ID: Final = 512
_LONGEST_WORDS: Final = 1_000
_LATEST: Final = 2**53

_NO_TYPE: Final = "An Agent Ops frame has no type."
_OVER: Final = {"terminated": "The session was terminated.", "error": "The session failed."}
_OF_CHANNEL: Final = "(channel: "
_CALL_STATES: Final = ("pending", "running", "completed", "error")
_CALL_TEXTS: Final = ("callId", "toolName", "status", "error")


class FrameType(Struct, frozen=True):
    """What a frame says."""


class Begun(FrameType, frozen=True):
    """A turn of the assistant begins."""

    turn: str


class Delta(FrameType, frozen=True):
    """A piece of text; without a turn it belongs to the one that runs."""

    turn: str | None
    text: str
    form: Literal["chunk", "text-delta"]


class CallUpdate(Struct, frozen=True):
    """What is known of a call now; `args`, `result` and `error` may be missing."""

    id: str
    name: str
    status: str
    args: Any = None
    result: Any = None
    error: str = ""

    @property
    def over(self) -> bool:
        return self.status in ("completed", "error")


class Ending(Struct, frozen=True):
    """How a turn ends: its reason, its text as a whole, and what went wrong."""

    reason: str
    text: str
    error: str


class TurnUpdate(FrameType, frozen=True):
    """News of a turn's calls, of its end, or of both; without a turn it is about the one that runs."""

    turn: str | None
    calls: tuple[CallUpdate, ...] = ()
    ending: Ending | None = None


class AgentStatus(FrameType, frozen=True):
    status: str
    detail: str = ""


class Question(FrameType, frozen=True):
    id: str
    data: dict[str, Any]


class Answered(FrameType, frozen=True):
    """The end of a question: its answer, or None if it expired."""

    id: str
    answer: Any


class Failed(FrameType, frozen=True):
    """An `error` frame: of the agent, or about something that this socket sent."""

    text: str
    by: Literal["agent", "protocol"]


class Completed(FrameType, frozen=True):
    """The prompt that ran is over, however it went; if this is not `sure`, the session may just be idle."""

    sure: bool = True


class Aborted(FrameType, frozen=True):
    """The prompt that ran was stopped."""


class RunnerLost(FrameType, frozen=True):
    """The prompt that ran waits again, before all others."""


class ModelSwitched(FrameType, frozen=True):
    """The prompt is tried again with another model."""

    source: str
    target: str
    reason: str


class Queued(FrameType, frozen=True):
    """The prompt that was shown last waits, in this place from 1; 0 if the frame does not name the place."""

    position: int


class RunnerBusy(FrameType, frozen=True):
    """A prompt has to wait, since another one runs."""


class Dequeued(FrameType, frozen=True):
    """The first of those that wait runs now, and `remaining` still wait; None if the frame does not say how many."""

    remaining: int | None


class Cleared(FrameType, frozen=True):
    """Prompts that waited are dropped: all of them, or those of one channel."""

    channel: str | None
    by: Literal["abort", "clear"]


class Collecting(FrameType, frozen=True):
    """The prompt that was shown last is kept, to be sent together with others as one."""


class SessionOver(FrameType, frozen=True):
    text: str


class Prompted(FrameType, frozen=True):
    """Somebody's prompt, shown to everybody."""

    id: str
    text: str
    author: str


class Opened(FrameType, frozen=True):
    """The first frame of a socket: whether a prompt runs, and how many wait."""

    busy: bool
    queued: int


class Nothing(FrameType, frozen=True):
    """A known frame that says nothing about a turn."""


class Unusable(FrameType, frozen=True):
    """A frame of no known type, or without what every frame of its type has."""

    problem: str


class SessionFrame(Struct, frozen=True):
    """A frame as it came, what it says, and the channel that it names, as `type:id`."""

    raw: Frame
    says: FrameType
    channel: str | None = None


class _MissingError(Exception):
    """The frame has nothing usable in the field that this names."""


_NOTHING: Final = Nothing()


def read_frame(frame: Frame) -> SessionFrame:
    try:
        read = _READERS[frame["type"]]
    except (KeyError, TypeError):
        kind = frame.get("type") if isinstance(cast("object", frame), dict) else None
        problem = f"Agent Ops has no frame of the type {kind!r:.60}." if isinstance(kind, str) else _NO_TYPE
        return SessionFrame(frame, Unusable(problem))
    try:
        return SessionFrame(frame, read(frame), channel_of(frame))
    except _MissingError as missing:
        return SessionFrame(frame, Unusable(f"An Agent Ops frame `{frame['type']}` has no usable `{missing}`."))


def channel_of(frame: Frame) -> str | None:
    """The channel that a frame names, as `type:id`."""
    for holder in (frame, _record_or_empty(frame, "data")):
        kind, name = _or_empty(holder, "channelType"), _or_empty(holder, "channelId")
        if kind and name:
            # One that is too long is nobody's, and no longer than it has to be to differ from all others.
            return f"{kind[: _LONGEST_ID + 1]}:{name[: _LONGEST_ID + 1]}"
    return None


def _tool_update(frame: Frame) -> FrameType:
    turn, call = _text(frame, "turnId"), _call(frame)
    if call is None:
        raise _MissingError(next((name for name in ("callId", "toolName") if not _or_empty(frame, name)), "status"))
    return TurnUpdate(turn, (call,))


def _finalize(frame: Frame) -> FrameType:
    # A failure before any output names no turn.
    turn = None if frame.get("turnId") is None else _text(frame, "turnId")
    ending = Ending(_or_empty(frame, "reason"), _or_empty(frame, "finalText"), _or_empty(frame, "error"))
    return TurnUpdate(turn, (), ending)


def _message(frame: Frame) -> FrameType:
    data = _record(frame, "data")
    role, parts = data.get("role"), data.get("parts")
    if role == "user":
        return Prompted(_id_or_empty(data, "id"), _or_empty(data, "content"), _id_or_empty(data, "authorId"))
    # What is forwarded from another session has content, or parts that are no list.
    if role == "assistant" and not data.get("content") and (parts is None or isinstance(parts, list)):
        return Begun(_id(data, "id"))
    return _NOTHING


def _updated(frame: Frame) -> FrameType:
    data = _record(frame, "data")
    parts = data.get("parts")
    if data.get("role") != "assistant" or not isinstance(parts, list):
        return _NOTHING
    records = _records(cast("list[object]", parts))
    calls = tuple(call for part in records if part.get("type") == "tool-call" and (call := _call(part)) is not None)
    return TurnUpdate(_id(data, "id"), calls, _ending(data, records))


def _ending(data: Frame, parts: Iterable[Frame]) -> Ending | None:
    finish: Frame | None = None
    text, error = "", ""
    for part in parts:
        match part.get("type"):
            case "finish":
                finish = part
            case "error":
                error = _or_empty(part, "message")
            case "text":
                text = _or_empty(part, "text")
            case _:
                pass
    return None if finish is None else Ending(_or_empty(finish, "reason"), _or_empty(data, "content") or text, error)


def _call(record: Frame) -> CallUpdate | None:
    # Each update of a turn has all of its calls, so that this is done for a call as often as there are updates.
    call_id, name, status, error = map(record.get, _CALL_TEXTS)
    if not (isinstance(call_id, str) and isinstance(name, str)) or status not in _CALL_STATES or not (call_id and name):
        return None
    return CallUpdate(
        call_id, name, status, record.get("args"), record.get("result"), error if isinstance(error, str) else ""
    )


def _question(frame: Frame) -> FrameType:
    options, expires = frame.get("options"), _time(frame, "expiresAt")
    data: dict[str, Any] = {"text": _or_empty(frame, "text")}
    if isinstance(options, list):
        data["options"] = options
    if expires is not None:
        data["expiresAt"] = expires
    return Question(_id(frame, "questionId"), data)


def _interactive_prompt(frame: Frame) -> FrameType:
    prompt = _record(frame, "prompt")
    actions, expires = prompt.get("actions"), _time(prompt, "expiresAt")
    texts = (_or_empty(prompt, "title"), _or_empty(prompt, "body"))
    data: dict[str, Any] = {"text": "\n".join(text for text in texts if text)}
    if isinstance(actions, list):
        records = _records(cast("list[object]", actions))
        data["options"] = [_or_empty(action, "label") for action in records]
        data["actions"] = records
    if expires is not None:
        data["expiresAt"] = expires / 1000
    return Question(_id(prompt, "id"), data)


def _resolved(frame: Frame) -> FrameType:
    # Of an action that was chosen, what the user said or saw.
    chosen = map(_record_or_empty(frame, "resolution").get, ("value", "label", "actionId"))
    answer = next((value for value in chosen if isinstance(value, str | bool)), frame.get("resolution"))
    return Answered(_id(frame, "promptId"), answer)


def _error(frame: Frame) -> FrameType:
    if "message" in frame and "error" not in frame:
        return Failed(_or_empty(frame, "message"), "protocol")
    return Failed(_or_empty(frame, "error"), "agent")


def _audit(frame: Frame) -> FrameType:
    entry = _record_or_empty(frame, "entry")
    match entry.get("eventType"):
        case "agent.turn_complete":
            return Completed()
        case "user.abort":
            _, found, channel = _or_empty(entry, "summary").rpartition(_OF_CHANNEL)
            return Cleared(channel[:-1] if found and channel.endswith(")") else None, "abort")
        case "prompt.dispatch_failed":
            return RunnerLost()
        case "prompt.queued" if "runner busy" in _or_empty(entry, "summary"):
            return RunnerBusy()
        case _:
            return _NOTHING


def _status(frame: Frame) -> FrameType:
    data = _record_or_empty(frame, "data") or frame
    for key, read in _STATUS_READERS:
        if data.get(key):
            return read(data)
    if data.get("runnerBusy") is False:
        return Completed(sure=False)
    over = _OVER.get(_or_empty(data, "status"))
    return _NOTHING if over is None else SessionOver(over)


_STATUS_READERS: Final[tuple[tuple[str, Callable[[Frame], FrameType]], ...]] = (
    ("aborted", lambda _: Aborted()),
    ("watchdogRecovery", lambda _: RunnerLost()),
    ("runnerDisconnected", lambda _: RunnerLost()),
    ("promptQueued", lambda data: Queued(_number(data, "queuePosition") or 0)),
    ("promptDequeued", lambda data: Dequeued(_number(data, "remaining"))),
    ("queueCleared", lambda _: Cleared(None, "clear")),
    ("collectPending", lambda _: Collecting()),
    ("questionAnswered", lambda data: Answered(_id_or_empty(data, "questionAnswered"), data.get("answer", ""))),
    ("questionExpired", lambda data: Answered(_id_or_empty(data, "questionExpired"), None)),
)


def _init(frame: Frame) -> FrameType:
    data = _record_or_empty(frame, "data")
    return Opened(data.get("runnerBusy") is True, _number(data, "promptsQueued") or 0)


_READERS: Final[dict[str, Callable[[Frame], FrameType]]] = {
    **dict.fromkeys((*PASSED_OVER, "pong", "stream"), lambda _: _NOTHING),
    "chunk": lambda frame: Delta(_text_or_none(frame, "messageId"), _text(frame, "content"), "chunk"),
    "message.part.text-delta": lambda frame: Delta(_text(frame, "turnId"), _text(frame, "delta"), "text-delta"),
    "message.part.tool-update": _tool_update,
    "message.create": lambda frame: Begun(_id(frame, "turnId")),
    "message.finalize": _finalize,
    "message": _message,
    "message.updated": _updated,
    "agentStatus": lambda frame: AgentStatus(_text(frame, "status")[:_LONGEST_WORDS], _words(frame, "detail")),
    "question": _question,
    "interactive_prompt": _interactive_prompt,
    "interactive_prompt_resolved": _resolved,
    "interactive_prompt_expired": lambda frame: Answered(_id(frame, "promptId"), None),
    "error": _error,
    "model-switched": lambda frame: ModelSwitched(
        *(_words(frame, name) for name in ("fromModel", "toModel", "reason"))
    ),
    "audit_log": _audit,
    "status": _status,
    "init": _init,
    "complete": lambda _: Completed(),
    "aborted": lambda _: Aborted(),
}


def _record(frame: Frame, name: str) -> Frame:
    value = frame.get(name)
    if not isinstance(value, dict):
        raise _MissingError(name)
    return cast("Frame", value)


def _record_or_empty(holder: Frame, name: str) -> Frame:
    value = holder.get(name)
    return cast("Frame", value) if isinstance(value, dict) else {}


def _records(values: Iterable[object]) -> list[Frame]:
    return [cast("Frame", value) for value in values if isinstance(value, dict)]


def _id(holder: Frame, name: str) -> str:
    value = _id_or_empty(holder, name)
    if not value:
        raise _MissingError(name)
    return value


def _id_or_empty(holder: Frame, name: str) -> str:
    value = _or_empty(holder, name)
    return value if len(value) <= _LONGEST_ID else ""


def _words(holder: Frame, name: str) -> str:
    return _or_empty(holder, name)[:_LONGEST_WORDS]


def _text(frame: Frame, name: str) -> str:
    value = frame.get(name)
    if not isinstance(value, str):
        raise _MissingError(name)
    return value


def _text_or_none(holder: Frame, name: str) -> str | None:
    value = holder.get(name)
    return value if isinstance(value, str) else None


def _or_empty(holder: Frame, name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _number(holder: Frame, name: str) -> int | None:
    value = holder.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WAITING else None


def _time(holder: Frame, name: str) -> int | float | None:
    value = holder.get(name)
    return value if isinstance(value, int | float) and 0 <= value <= _LATEST else None
