"""Agent Ops: what a frame can say, whichever vocabulary it is of."""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

__all__ = [
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
    "Meaning",
    "ModelSwitched",
    "Nothing",
    "Opened",
    "Prompted",
    "Question",
    "Queued",
    "RunnerBusy",
    "RunnerLost",
    "SessionOver",
    "TurnUpdate",
]


class Begun(Struct, frozen=True):
    """A turn of the assistant begins."""

    turn: str


class Delta(Struct, frozen=True):
    """A piece of text; without a turn it belongs to the current one."""

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


class TurnUpdate(Struct, frozen=True):
    """News of a turn's calls, of its end, or of both; without a turn it belongs to the current one."""

    turn: str | None
    calls: tuple[CallUpdate, ...] = ()
    ending: Ending | None = None


class AgentStatus(Struct, frozen=True):
    status: str
    detail: str = ""


class Question(Struct, frozen=True):
    id: str
    data: dict[str, Any]


class Answered(Struct, frozen=True):
    """The end of a question: its answer, or None if it expired."""

    id: str
    answer: Any


class Failed(Struct, frozen=True):
    """An `error` frame: of the agent, or about something that this socket sent."""

    text: str
    by: Literal["agent", "protocol"]


class Completed(Struct, frozen=True):
    """The prompt that ran is over, however it went; if it is not `sure`, the session may only say that it is idle."""

    sure: bool = True


class Aborted(Struct, frozen=True):
    """The prompt that ran was stopped."""


class RunnerLost(Struct, frozen=True):
    """The prompt that ran waits again, before all others."""


class ModelSwitched(Struct, frozen=True):
    """The prompt is tried again with another model."""

    source: str
    target: str
    reason: str


class Queued(Struct, frozen=True):
    """The prompt that was shown last waits, as the so manieth; 0 if that is not told."""

    position: int


class RunnerBusy(Struct, frozen=True):
    """A prompt has to wait, since another one runs."""


class Dequeued(Struct, frozen=True):
    """The first of those that wait runs now; so many still wait, None if that is not told."""

    remaining: int | None


class Cleared(Struct, frozen=True):
    """Prompts that waited are dropped: all of them, or those of one channel."""

    channel: str | None
    by: Literal["abort", "clear"]


class Collecting(Struct, frozen=True):
    """The prompt that was shown last is kept, to be sent together with others as one."""


class SessionOver(Struct, frozen=True):
    text: str


class Prompted(Struct, frozen=True):
    """Somebody's prompt, shown to everybody."""

    id: str
    text: str
    author: str


class Opened(Struct, frozen=True):
    """The first frame of a socket: whether a prompt runs, and how many wait."""

    busy: bool
    queued: int


class Nothing(Struct, frozen=True):
    """A frame that is known and tells nothing of a turn."""


Meaning: TypeAlias = (
    Begun
    | Delta
    | TurnUpdate
    | AgentStatus
    | Question
    | Answered
    | Failed
    | Completed
    | Aborted
    | RunnerLost
    | ModelSwitched
    | RunnerBusy
    | Queued
    | Dequeued
    | Cleared
    | Collecting
    | SessionOver
    | Prompted
    | Opened
    | Nothing
)
