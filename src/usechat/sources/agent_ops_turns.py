"""Agent Ops: which of the frames on a session's socket belong to the prompt that we sent."""

from typing import Final, Literal

from msgspec import Struct

from usechat.errors import MappingError
from usechat.sources.agent_ops_frames import DEFAULT_CHANNEL, Frame, channel_of, read_frame
from usechat.sources.agent_ops_meanings import (
    Aborted,
    AgentStatus,
    Answered,
    Begun,
    Cleared,
    Collecting,
    Completed,
    Delta,
    Dequeued,
    Failed,
    Meaning,
    ModelSwitched,
    Opened,
    Prompted,
    Question,
    Queued,
    RunnerBusy,
    RunnerLost,
    SessionOver,
    TurnUpdate,
)
from usechat.sources.agent_ops_queue import OURS, UNKNOWN, SessionQueue

__all__ = ["PromptTracker", "Sight"]

_SEPARATOR: Final = "\n\n---\n\n"
_V2: Final = ("message.create", "message.finalize", "complete")
# So many characters of prompts that others send are kept, to know them when they come again together with ours.
_MOST_COLLECTED: Final = 1_000_000
_AT_WORK: Final = ("thinking", "streaming", "tool_calling", "error")


class Sight(Struct, frozen=True):
    """What a frame is to our prompt, and what of it the mapper should be given, if anything.

    `other` is not ours. `queued`: ours waits, at the tracker's `position`. `began`: ours runs from here on. `ours`
    belongs to our turn. `ended`: ours is over with this frame.
    """

    kind: Literal["other", "queued", "began", "ours", "ended"]
    frame: Frame | None = None


_OTHER: Final = Sight("other")


class PromptTracker:
    """Follows one prompt through the frames of a session's socket, from `init` to the end of its turn.

    Nothing links a prompt to its turn, so the tracker keeps the session's queue as the frames tell it, with ours in it:

        unsent ── mark_sent() ──► sent ── our echo ──► undecided ──► running ──► ended
                                                           │           ▲ │
                                                      promptQueued     │ the runner is lost
                                                           ▼   dequeued│ ▼
                                                           └─────► queued ── dropped ──► ended

    An undecided prompt runs as soon as the session works while no other prompt runs, and when a turn begins on its
    channel while another prompt was only guessed to run. In collect mode the first echo is
    forgotten, and that of the collected prompts counts.

    `claimed` has the ids of the echoes that trackers took for theirs. Trackers of one session share it, so that each of
    several equal prompts of one user gets a turn of its own; it is needed for as long as the session has a socket.

    Without a text the tracker follows the first turn of the channel, whoever asked for it.
    """

    def __init__(
        self,
        text: str | None,
        *,
        user_id: str | None = None,
        channel: str = DEFAULT_CHANNEL,
        claimed: set[str] | None = None,
    ) -> None:
        self.ended = False
        self.echo_id = ""
        """The upstream's id of our message, which `revert` takes; empty before its echo."""
        self._text = text
        self._user_id = user_id
        self._channel = channel
        self._claimed: set[str] = set() if claimed is None else claimed
        self._sent = text is None
        # Our prompt and those that are collected after it, to be echoed again as one.
        self._collected: list[Prompted] = []
        self._others_size = 0
        self._last_echo: Prompted = Prompted("", "", "")
        self._queue = SessionQueue(channel, undecided=None if text is not None else OURS)
        self._turn = _Turn()
        # Nothing has told yet that the session echoes prompts, or works for somebody else.
        self._is_bare = True
        self._is_greeted = False

    @property
    def running(self) -> bool:
        """Whether our prompt is the one that runs: only then may we abort, since that stops whatever runs."""
        return self._queue.running == OURS and not self._turn.rival and not self.ended

    @property
    def position(self) -> int | None:
        """Our place among the prompts that wait, from 1; None if ours does not wait."""
        return None if self.ended else self._queue.position

    @property
    def question_open(self) -> bool:
        """Whether our turn waits for an answer."""
        return self.running and bool(self._turn.questions)

    def asks(self, question_id: str) -> bool:
        """Whether our turn waits for the answer to this question."""
        return self.running and question_id in self._turn.questions

    def mark_sent(self) -> None:
        """The prompt was sent: its echo may come from here on."""
        self._sent = True

    def see(self, frame: Frame) -> Sight:
        """What the next frame of the socket is to our prompt.

        A frame that cannot be read is handed on, since the mapper counts those.
        """
        if self.ended:
            return _OTHER
        try:
            meaning = read_frame(frame)
        except MappingError:
            return Sight("other", frame)
        ran, position = self.running, self.position
        self._take_unechoed(meaning, frame)
        shown = self._see(meaning, frame)
        if self.ended:
            return Sight("ended", shown)
        if self.running:
            return Sight("ours" if ran else "began", shown) if shown is not None or not ran else _OTHER
        if shown is None and self._text is not None and self.position not in (None, position):
            shown = {"type": "status", "data": {"promptQueued": True, "queuePosition": self.position}}
        return _OTHER if shown is None else Sight("queued", shown)

    def _take_unechoed(self, meaning: Meaning, frame: Frame) -> None:
        """Take the turn for ours where V2 frames come without an echo of any prompt."""
        match meaning:
            case Prompted() | Queued() | Dequeued() | Opened(busy=True):
                self._is_bare = False
            case Opened():
                self._is_greeted = True
            case _ if self._is_bare and self._sent and self._text is not None:
                # An error has no vocabulary, but a socket that greets also echoes before it tells of one.
                is_early_error = isinstance(meaning, Failed) and meaning.by == "agent" and not self._is_greeted
                if is_early_error or frame["type"] in _V2:
                    self._is_bare = False
                    self._queue.take()
            case _:
                pass

    def _see(self, meaning: Meaning, frame: Frame) -> Frame | None:
        """Take a frame in; what the mapper should be given."""
        match meaning:
            case Prompted():
                self._prompted(meaning, channel_of(frame) or DEFAULT_CHANNEL)
            case Collecting():
                self._collect(self._queue.collect())
            case Opened() | RunnerBusy() | Queued() | Dequeued():
                self._move_queue(meaning)
            case Cleared() if self._text is not None:
                if self._queue.clear(meaning.channel):
                    return self._end({"type": "status", "data": {"queueCleared": True}})
            case RunnerLost():
                return self._lost(frame)
            case SessionOver():
                return self._end(frame) if self._sent else None
            case Failed(by="protocol"):
                # It is about something that this socket sent: later it may be an answer.
                unheard = self._sent and not (self.echo_id or self._collected or self.running)
                return self._end(frame) if unheard else None
            case Completed() | Aborted():
                return self._over(meaning, frame)
            case _:
                return self._of_turn(meaning, frame, channel_of(frame))
        return None

    def _prompted(self, prompt: Prompted, channel: str) -> None:
        if prompt.id and prompt.id == self._last_echo.id:
            # The frame came twice.
            return
        self._last_echo = prompt
        if self._queue.echo(channel):
            self._turn = _Turn()
        if self._is_ours(prompt, channel):
            self.echo_id = prompt.id
            self._claimed.add(prompt.id)
            self._queue.claim()
        elif len(prompt.text) > _MOST_COLLECTED:
            self._last_echo = Prompted(prompt.id, "", prompt.author)

    def _is_ours(self, prompt: Prompted, channel: str) -> bool:
        if self._text is None or not self._sent or channel != self._channel or self._queue.has_ours:
            return False
        if self._collected:
            # What was collected is echoed again as one prompt, by whoever sent the last of it.
            together = _SEPARATOR.join(piece.text for piece in self._collected)
            whole = prompt.text == together or prompt.text.endswith(_SEPARATOR + together)
            return whole and prompt.author == self._collected[-1].author
        if self.echo_id or prompt.id in self._claimed or prompt.text != self._text:
            return False
        return not prompt.author or self._user_id in (None, prompt.author)

    def _collect(self, prompt: str | None) -> None:
        if prompt == OURS:
            self._collected.append(self._last_echo)
        elif self._collected and prompt == self._channel:
            # An empty one is kept, too.
            self._others_size += len(self._last_echo.text) + 1
            if self._others_size <= _MOST_COLLECTED:
                self._collected.append(self._last_echo)

    def _move_queue(self, meaning: Opened | RunnerBusy | Queued | Dequeued) -> None:
        match meaning:
            case Opened():
                self._queue.open(meaning.queued, busy=meaning.busy)
            case RunnerBusy():
                self._queue.be_busy()
            case Queued():
                self._queue.wait(meaning.position)
            case Dequeued() if self._queue.running != OURS or self._turn.rival:
                self._give_way()
                self._queue.advance(meaning.remaining)
                self._turn = _Turn()
            case _:
                # Ours was over, and nobody said so; or the frame came twice.
                self.ended = self._turn.alive

    def _lost(self, frame: Frame) -> Frame | None:
        lost = self._queue.put_back()
        self._turn = _Turn()
        return frame if lost == OURS else None

    def _over(self, meaning: Completed | Aborted, frame: Frame) -> Frame | None:
        sure = isinstance(meaning, Aborted) or meaning.sure
        if sure:
            self._queue.settle()
        if isinstance(meaning, Completed):
            self._give_way()
        if self._queue.running != OURS:
            self._queue.complete()
            return None
        return self._end(frame) if sure or self._turn.alive else None

    def _give_way(self) -> None:
        """The prompt of the other channel was the one that ran, if one was taken to."""
        if self._turn.rival:
            self._queue.swap(self._turn.rival)
            self._turn = _Turn()

    def _end(self, frame: Frame) -> Frame:
        self.ended = True
        return frame

    def _of_turn(self, meaning: Meaning, frame: Frame, channel: str | None) -> Frame | None:
        if self._queue.running is None and self._starts(meaning):
            self._queue.start()
            self._turn = _Turn()
        elsewhere = channel not in (None, self._channel)
        if self._queue.running == OURS and not self._turn.ids and _shows_work(meaning):
            self._turn.rival = (channel or UNKNOWN) if elsewhere else ""
            if isinstance(meaning, Begun | Failed):
                self._give_way()
        if isinstance(meaning, Begun) and not elsewhere and self._queue.begin():
            self._turn = _Turn()
        self._queue.heed(meaning)
        if elsewhere or not self.running or not self._turn.take(meaning):
            return None
        self.ended = self._turn.over
        return frame

    def _starts(self, meaning: Meaning) -> bool:
        """Whether a prompt runs by this, though none was known to."""
        if isinstance(meaning, Failed):
            return self._queue.awaits_ours
        # Before an echo a status or a question is left over from a prompt that is gone, or tells of nothing.
        return isinstance(meaning, Begun) or (_shows_work(meaning) and self._queue.is_undecided)


class _Turn:
    """What was seen of the prompt that runs; each time that it is tried, it has another turn of the runner."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.alive = False
        self.over = False
        self.questions: set[str] = set()
        # Another channel that seems to be the one that is worked for, before a turn has begun.
        self.rival = ""
        self._current: str | None = None
        self._calls: dict[str, bool] = {}
        self._finishing = False

    def take(self, meaning: Meaning) -> bool:
        """Take in what is said while the prompt runs; whether it belongs to the prompt."""
        match meaning:
            case AgentStatus(status="idle") if not self.alive:
                # The prompt before tells that it is over.
                return False
            case Begun():
                self._begin(meaning.turn)
            case ModelSwitched():
                self._current = None
            case Delta() | TurnUpdate() if self._current is None or meaning.turn not in (None, self._current):
                return False
            case TurnUpdate():
                self._update(meaning)
            case Failed():
                self.over = True
            case Question():
                self.questions.add(meaning.id)
            case Answered():
                self.questions.discard(meaning.id)
            case _:
                pass
        self.alive = self.alive or _shows_work(meaning)
        return True

    def _begin(self, turn: str) -> None:
        if self._current is None or turn not in self.ids:
            self._current = turn
            self._calls, self._finishing = {}, False
            self.ids.add(turn)

    def _update(self, update: TurnUpdate) -> None:
        for call in update.calls:
            self._calls[call.id] = call.over or self._calls.get(call.id, False)
        ending = update.ending
        self._finishing = self._finishing or ending is not None
        cut = ending is not None and ending.reason in ("canceled", "error")
        # The results of calls that are still open come after the end.
        self.over = cut or (self._finishing and all(self._calls.values()))


def _shows_work(meaning: Meaning) -> bool:
    """Whether the session does something for a prompt."""
    if isinstance(meaning, AgentStatus):
        return meaning.status in _AT_WORK
    return isinstance(meaning, Begun | Failed | Question | ModelSwitched)
