"""Agent Ops: which of the frames on a session's socket belong to the prompt that we sent.

A socket carries the turns of all users and channels, and nothing links a prompt to its turn. So a `PromptTracker` keeps
the session's queue as the frames describe it (`SessionQueue`), with our prompt in it:

    unsent ── mark_sent() ──► sent ── our echo ──► undecided ──► running ──► ended
                                                       │           ▲ │
                                                  promptQueued     │ the runner is lost
                                                       ▼   dequeued│ ▼
                                                       └─────► queued ── dropped ──► ended

- An undecided prompt runs as soon as the session works while no other prompt runs, and when a turn begins on its
  channel while another prompt was only guessed to run.
- A prompt that is collected goes back from undecided to sent. The echo of all collected prompts as one is then ours.
- The end of the session leads from every state but unsent to ended, and an error about our prompt from sent to ended.
- Where V2 frames come without an echo of any prompt, the first of them leads from sent to running; but not if the
  socket was greeted with prompts that run or wait.
- While ours runs and has no turn yet, signs of work on another channel make that channel its `rival`. If a turn begins
  there, or the prompt that ran is over, it was the rival's, and ours is undecided or queued as before: of two prompts
  of the same second, either may come first.

Nothing here waits or does I/O. A tracker belongs to one socket, and only the task that reads the socket calls `see`.
"""

from typing import Final

from usechat.integrations.agent_ops import frames as f
from usechat.integrations.agent_ops.queue import OURS, UNKNOWN, SessionQueue

__all__ = ["PromptTracker", "queued_frame"]

_SEPARATOR: Final = "\n\n---\n\n"
_V2: Final = ("message.create", "message.finalize", "complete")
# Up to this many characters of prompts that others send are kept, to know them when they come again together with ours.
_MOST_COLLECTED: Final = 1_000_000
_AT_WORK: Final = ("thinking", "streaming", "tool_calling", "error")
_DROPPED: Final = f.read_frame({"type": "status", "data": {"queueCleared": True}})


def queued_frame(position: int) -> f.SessionFrame:
    """What the translator is given for a prompt that waits in this place, where the session has no frame for it."""
    return f.read_frame({"type": "status", "data": {"promptQueued": True, "queuePosition": position}})


class PromptTracker:
    """Follows one prompt through the frames of a session's socket, from `init` to the end of its turn.

    `claimed` has the ids of the echoes that trackers took for theirs. Trackers of one session share it, so that each of
    several equal prompts of one user gets a turn of its own. It is needed for as long as the session has a socket.

    Without a text the tracker follows the first turn of the channel, for any prompt.
    """

    def __init__(
        self,
        text: str | None,
        *,
        user_id: str | None = None,
        channel: str = f.DEFAULT_CHANNEL,
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
        self._collected: list[f.Prompted] = []
        self._others_size = 0
        self._last_echo: f.Prompted = f.Prompted("", "", "")
        self._queue = SessionQueue(channel, undecided=None if text is not None else OURS)
        self._progress = _Progress()
        # No frame has shown yet that the session echoes prompts, or works for somebody else.
        self._is_bare = True
        self._is_greeted = False

    @property
    def running(self) -> bool:
        """Whether our prompt is the one that runs: only then may we abort, since that stops whatever runs."""
        return self._queue.running == OURS and not self._progress.rival and not self.ended

    @property
    def position(self) -> int | None:
        """Our place among the prompts that wait, from 1; None if ours does not wait."""
        return None if self.ended else self._queue.position

    @property
    def question_open(self) -> bool:
        """Whether our turn waits for an answer."""
        return self.running and bool(self._progress.questions)

    def asks(self, question_id: str) -> bool:
        """Whether our turn waits for the answer to this question."""
        return self.running and question_id in self._progress.questions

    def mark_sent(self) -> None:
        """The prompt was sent: its echo may come from here on."""
        self._sent = True

    def see(self, raw: f.Frame) -> f.SessionFrame | None:
        """Take in the next frame of the socket, and give what the translator should be given, if anything.

        A frame that cannot be read is given as well: the translator refuses it, and refused frames are counted.
        """
        if self.ended:
            return None
        frame, position = f.read_frame(raw), self.position
        if isinstance(frame.says, f.Unusable):
            return frame
        if self._is_bare:
            self._take_unechoed(frame)
        # Nearly all frames are these.
        shown = self._of_turn(frame) if isinstance(frame.says, f.Delta | f.TurnUpdate) else self._see(frame)
        if shown is None and self._text is not None and self.position not in (None, position):
            shown = queued_frame(self.position)
        return shown

    def _take_unechoed(self, frame: f.SessionFrame) -> None:
        """Take the turn for ours where V2 frames come without an echo of any prompt."""
        match frame.says:
            case f.Prompted() | f.Queued() | f.Dequeued():
                self._is_bare = False
            case f.Opened(busy=busy, queued=queued):
                self._is_greeted = True
                # A prompt that waits while none runs has lost its runner, whose last frames are still to come.
                self._is_bare = not (busy or queued)
            case says if self._sent and self._text is not None:
                # An error has no vocabulary, but a socket that greets also echoes before it has an error.
                is_early_error = isinstance(says, f.Failed) and says.by == "agent" and not self._is_greeted
                if is_early_error or frame.raw["type"] in _V2:
                    self._is_bare = False
                    self._queue.take()
            case _:
                pass

    def _see(self, frame: f.SessionFrame) -> f.SessionFrame | None:
        """Take a frame in; what the translator should be given."""
        match frame.says:
            case f.Prompted() as prompt:
                self._prompted(prompt, frame.channel or f.DEFAULT_CHANNEL)
            case f.Collecting():
                self._collect(self._queue.collect())
            case f.Opened() | f.RunnerBusy() | f.Queued() | f.Dequeued() as says:
                self._move_queue(says)
            case f.Cleared(channel=channel) if self._text is not None:
                return self._end(_DROPPED) if self._queue.clear(channel) else None
            case f.RunnerLost():
                self._progress = _Progress()
                return frame if self._queue.put_back() == OURS else None
            case f.SessionOver():
                return self._end(frame) if self._sent else None
            case f.Failed(by="protocol"):
                # It is about something that this socket sent: later it may be an answer.
                unheard = self._sent and not (self.echo_id or self._collected or self.running)
                return self._end(frame) if unheard else None
            case f.Completed(sure=sure):
                return self._over(frame, sure=sure)
            case f.Aborted():
                return self._over(frame, sure=True)
            case _:
                return self._of_turn(frame)
        return None

    def _prompted(self, prompt: f.Prompted, channel: str) -> None:
        if prompt.id and prompt.id == self._last_echo.id:
            # The frame came twice.
            return
        self._last_echo = prompt
        if self._queue.echo(channel):
            self._progress = _Progress()
        if self._is_ours(prompt, channel):
            self.echo_id = prompt.id
            self._claimed.add(prompt.id)
            self._queue.claim()
        elif len(prompt.text) > _MOST_COLLECTED:
            self._last_echo = f.Prompted(prompt.id, "", prompt.author)

    def _is_ours(self, prompt: f.Prompted, channel: str) -> bool:
        if self._text is None or not self._sent or channel != self._channel or self._queue.has_ours:
            return False
        if self._collected:
            # Collected prompts are echoed again as one, by the author of the last of them.
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

    def _move_queue(self, says: f.Opened | f.RunnerBusy | f.Queued | f.Dequeued) -> None:
        match says:
            case f.Opened():
                self._queue.open(says.queued, busy=says.busy)
            case f.RunnerBusy():
                self._queue.be_busy()
            case f.Queued():
                self._queue.wait(says.position)
            case f.Dequeued() if self._queue.running != OURS or self._progress.rival:
                self._give_way()
                self._queue.advance(says.remaining)
                self._progress = _Progress()
            case _:
                # Ours was over, and no frame said so; or the frame came twice.
                self.ended = self._progress.alive

    def _over(self, frame: f.SessionFrame, *, sure: bool) -> f.SessionFrame | None:
        if sure:
            self._queue.settle()
        if isinstance(frame.says, f.Completed):
            self._give_way()
        if self._queue.running != OURS:
            self._queue.complete()
            return None
        return self._end(frame) if sure or self._progress.alive else None

    def _give_way(self) -> None:
        """The prompt of the rival channel was the one that ran, if there is a rival."""
        if self._progress.rival:
            self._queue.swap(self._progress.rival)
            self._progress = _Progress()

    def _end(self, frame: f.SessionFrame) -> f.SessionFrame:
        self.ended = True
        return frame

    def _of_turn(self, frame: f.SessionFrame) -> f.SessionFrame | None:
        says = frame.says
        if self._queue.running is None and self._starts(says):
            self._queue.start()
            self._progress = _Progress()
        elsewhere = frame.channel not in (None, self._channel)
        if self._queue.running == OURS and not self._progress.ids and _shows_work(says):
            self._progress.rival = (frame.channel or UNKNOWN) if elsewhere else ""
            if isinstance(says, f.Begun | f.Failed):
                self._give_way()
        if isinstance(says, f.Begun) and not elsewhere and self._queue.begin():
            self._progress = _Progress()
        self._queue.heed(says)
        if elsewhere or not self.running or not self._progress.take(says):
            return None
        self.ended = self._progress.over
        return frame

    def _starts(self, says: f.FrameType) -> bool:
        """Whether this shows that a prompt runs, though none was known to."""
        if isinstance(says, f.Failed):
            return self._queue.awaits_ours
        # Before an echo a status or a question is left over from a prompt that is gone, or means nothing.
        return isinstance(says, f.Begun) or (_shows_work(says) and self._queue.is_undecided)


class _Progress:
    """What was seen of the prompt that runs; each time that it is tried, it has another turn of the runner."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.alive = False
        self.over = False
        self.questions: set[str] = set()
        # Another channel for which the session seems to work, before a turn has begun.
        self.rival = ""
        self._current: str | None = None
        self._calls: dict[str, bool] = {}
        self._finishing = False

    def take(self, says: f.FrameType) -> bool:
        """Take in what is said while the prompt runs; whether it belongs to the prompt."""
        match says:
            case f.AgentStatus(status="idle") if not self.alive:
                # It is about the prompt before.
                return False
            case f.Begun(turn=turn):
                if self._current is None or turn not in self.ids:
                    self._current, self._calls, self._finishing = turn, {}, False
                    self.ids.add(turn)
            case f.ModelSwitched():
                self._current = None
            case f.Delta() | f.TurnUpdate() if self._current is None or says.turn not in (None, self._current):
                return False
            case f.TurnUpdate():
                self._update(says)
            case f.Failed():
                self.over = True
            case f.Question():
                self.questions.add(says.id)
            case f.Answered():
                self.questions.discard(says.id)
            case _:
                pass
        self.alive = self.alive or _shows_work(says)
        return True

    def _update(self, update: f.TurnUpdate) -> None:
        for call in update.calls:
            self._calls[call.id] = call.over or self._calls.get(call.id, False)
        ending = update.ending
        self._finishing = self._finishing or ending is not None
        cut = ending is not None and ending.reason in ("canceled", "error")
        # The results of calls that are still open come after the end.
        self.over = cut or (self._finishing and all(self._calls.values()))


def _shows_work(says: f.FrameType) -> bool:
    """Whether the session does something for a prompt."""
    if isinstance(says, f.AgentStatus):
        return says.status in _AT_WORK
    return isinstance(says, f.Begun | f.Failed | f.Question | f.ModelSwitched)
