"""A model of an Agent Ops session: its queue, its runner and its sockets, which get the frames in the same order."""

import random
from collections import deque
from itertools import count
from typing import Any, Literal

from msgspec import Struct, field

from support.session_frames import classify
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.integrations.agent_ops.turns import PromptTracker
from usechat.protocol.chunks import Chunk, TextDelta
from usechat.protocol.writer import MessageWriter

__all__ = ["Model", "Prompt", "Socket"]

Frame = dict[str, Any]


class Prompt(Struct, eq=False):
    """A prompt, whose it is, what the runner said for it each time, and how it ended first.

    One that was finished may run again, if its runner is lost before it says so.
    """

    id: str
    text: str
    author: str | None
    channel: str
    sender: "Socket | None" = None
    said: list[str] = field(default_factory=list[str])
    end: Literal["", "finish", "abort"] = ""

    def ends(self, end: Literal["finish", "abort"]) -> None:
        self.end = self.end or end


class Socket:
    """A client's socket: what is on its way to it, and what it makes of that."""

    def __init__(self, user: str, channel: str, text: str, claimed: set[str]) -> None:
        self.user = user
        self.channel = channel
        self.text = text
        self.inbox: deque[Frame] = deque()
        self.tracker = PromptTracker(text, user_id=user, channel=channel, claimed=claimed)
        numbers = count()
        self.translator = AgentOpsTranslator()
        self.mapper = TranslatingMapper(self.translator, MessageWriter("m", new_id=lambda: str(next(numbers))))
        self.chunks: list[Chunk] = []
        self.sent = False
        self.kinds: list[str] = []

    def deliver(self) -> None:
        kind, shown = classify(self.tracker, self.inbox.popleft())
        self.kinds.append(kind)
        if shown is not None and kind != "other":
            self.chunks += self.mapper.map(shown)
        assert self.tracker.ended or not self.translator.ended

    @property
    def read(self) -> str:
        return "".join(chunk.delta for chunk in self.chunks if isinstance(chunk, TextDelta))


class _Try(Struct):
    """The runner's work on a prompt: the frames that are still to come, turn by turn."""

    prompt: Prompt
    frames: deque[Frame] = field(default_factory=deque[Frame])


class Model:
    """One session. Each method is one thing that happens; what it broadcasts reaches every socket in that order."""

    def __init__(self, seed: int, *, doubles: bool = False, strays: bool = False) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.sockets: list[Socket] = []
        self.queue: list[Prompt] = []
        self.prompts: list[Prompt] = []
        self.connected = True
        self._doubles = doubles
        self._strays = strays
        self._try: _Try | None = None
        self._numbers = count(1)
        self._claimed: set[str] = set()
        self._collected: list[Prompt] = []

    @property
    def running(self) -> Prompt | None:
        return None if self._try is None else self._try.prompt

    def connect(self, user: str, channel: str, text: str) -> Socket:
        socket = Socket(user, channel, text, self._claimed)
        data = {
            "runnerBusy": self._try is not None,
            "promptsQueued": len(self.queue),
            "runnerConnected": self.connected,
        }
        socket.inbox.append({"type": "init", "session": {"messages": []}, "data": data})
        if self._strays:
            socket.inbox += [self._stray() for _ in range(self.random.randrange(3))]
        self.sockets.append(socket)
        self._broadcast({"type": "user.joined", "userId": user, "connectedUsers": []})
        self._audit("user.joined", user)
        return socket

    def prompt(self, socket: Socket, mode: str = "followup") -> None:
        """The session hears of the prompt that the socket sent."""
        self._ask(Prompt(self._id("m"), socket.text, socket.user, socket.channel, socket), mode)

    def foreign_prompt(self, text: str, author: str | None, channel: str, mode: str = "followup") -> None:
        """Somebody asks who has no socket of ours: in the session's own page, or from Slack."""
        self._ask(Prompt(self._id("m"), text, author, channel), mode)

    def system_prompt(self) -> None:
        """A child session is idle: that is a prompt, too, and it waits without a word."""
        prompt = Prompt(self._id("s"), "Child session event", None, "web:default")
        self.prompts.append(prompt)
        self._broadcast({"type": "message", "data": {"id": prompt.id, "role": "system", "content": prompt.text}})
        if self.connected and self._try is None:
            self._dispatch(prompt)
        else:
            self.queue.append(prompt)

    def work(self) -> None:
        """The runner goes on with its prompt, or takes one that waits."""
        if not self.connected:
            return
        if self._try is None:
            if self.queue:
                self._broadcast({"type": "agentStatus", "status": "idle"})
                self._next()
        elif self._try.frames:
            frame = self._try.frames.popleft()
            self._broadcast(frame)
            if frame["type"] == "message.updated" and not self._try.frames:
                self._try.prompt.ends("finish")
            elif frame["type"] == "status" and frame["data"].get("aborted"):
                self._try.prompt.ends("abort")
                self._complete()
        else:
            self._complete()

    def switch_model(self) -> None:
        if self._try is not None and any(frame["type"] == "message.updated" for frame in self._try.frames):
            self._broadcast({"type": "model-switched", "fromModel": "a", "toModel": "b", "reason": "Overloaded"})
            self._plan(self._try)

    def lose_runner(self) -> None:
        self.connected = False
        if self._try is not None:
            self.queue = sorted([self._try.prompt, *self.queue], key=self.prompts.index)
            self._try = None
        data = {"runnerConnected": False, "queuedPrompts": len(self.queue), "runnerDisconnected": True}
        self._broadcast({"type": "status", "data": data})

    def find_runner(self) -> None:
        if not self.connected:
            self.connected = True
            self._broadcast({"type": "status", "data": {"runnerConnected": True}})

    def abort(self, channel: str | None = None) -> None:
        for prompt in [prompt for prompt in self.queue if channel in (None, prompt.channel)]:
            prompt.ends("abort")
            self.queue.remove(prompt)
        self._broadcast({"type": "agentStatus", "status": "idle"})
        self._audit("user.abort", summary="User aborted agent" + (f" (channel: {channel})" if channel else ""))
        if self._try is not None and self.connected:
            # The runner will confirm.
            self._try.frames = deque(
                [{"type": "agentStatus", "status": "idle"}, _status(runnerBusy=False, aborted=True)]
            )

    def clear_queue(self) -> None:
        cleared, self.queue = self.queue, []
        for prompt in cleared:
            prompt.ends("abort")
        self._broadcast(_status(queueCleared=True, cleared=len(cleared)))

    def flush_collected(self) -> None:
        """What was collected becomes one prompt, by whoever sent the last of it."""
        channels = {prompt.channel for prompt in self._collected}
        for channel in sorted(channels):
            pieces = [prompt for prompt in self._collected if prompt.channel == channel]
            merged = Prompt(
                self._id("m"), "\n\n---\n\n".join(piece.text for piece in pieces), pieces[-1].author, channel
            )
            self._ask(merged, "followup")
        if self._collected:
            self._collected = []
            self._broadcast(_status(collectPending=False, collectCount=0))

    def noise(self) -> None:
        frames: list[Frame] = [
            {"type": "pong"},
            {"type": "git-state", "data": {"branch": "main"}},
            {"type": "files-changed", "files": []},
            {"type": "toast", "title": "Hello"},
            {"type": "totally-new"},
            {"type": "message", "data": {"id": self._id("f"), "role": "assistant", "content": "x", "parts": {"a": 1}}},
            {"type": "message", "data": {"id": self._id("n"), "role": "system", "content": "Screenshot"}},
        ]
        self._broadcast(self.random.choice(frames))

    def stray(self) -> None:
        """Something is told that looks like work and is none."""
        self._broadcast(self._stray())

    def _stray(self) -> Frame:
        question = f"q-{self.random.randrange(3)}"
        frames: list[Frame] = [
            {"type": "question", "questionId": question, "text": "?"},
            {"type": "interactive_prompt", "prompt": {"id": question, "title": "?"}},
            {"type": "interactive_prompt_resolved", "promptId": question, "resolution": "yes"},
            {"type": "interactive_prompt_expired", "promptId": question},
            _status(questionAnswered=question, answer="yes"),
            _status(questionExpired=question),
            *(
                {"type": "agentStatus", "status": status}
                for status in ("thinking", "streaming", "tool_calling", "error")
            ),
        ]
        if self._try is None:
            # While a prompt runs, they are about it.
            frames.append({"type": "model-switched", "fromModel": "a", "toModel": "b", "reason": "Overloaded"})
            frames.append({"type": "error", "messageId": "e", "error": "boom"})
        return self.random.choice(frames) | _channel(self.random.choice(("web:default", "slack:C1")))

    def _ask(self, prompt: Prompt, mode: str) -> None:
        if mode == "steer" and self._try is not None:
            self.abort(prompt.channel if prompt.channel != "web:default" else None)
        self.prompts.append(prompt)
        data = {"id": prompt.id, "role": "user", "content": prompt.text, "authorId": prompt.author}
        self._broadcast({"type": "message", "data": {**data, **_channel(prompt.channel)}})
        if mode == "collect":
            self._collected.append(prompt)
            self._broadcast(_status(collectPending=True, collectCount=len(self._collected)))
            return
        self._audit("user.prompt", prompt.author)
        if self.connected and self._try is None:
            self._dispatch(prompt)
            return
        self.queue.append(prompt)
        self._audit(
            "prompt.queued", summary="Queued: runner busy (…)" if self.connected else "Queued: no runner connected"
        )
        self._broadcast(_status(promptQueued=True, queuePosition=len(self.queue)))

    def _dispatch(self, prompt: Prompt) -> None:
        self._try = _Try(prompt)
        self._plan(self._try)

    def _plan(self, work: _Try) -> None:
        """What the runner will say for its prompt, from the beginning."""
        prompt, turn = work.prompt, self._id("t")
        where = _names(prompt.channel)
        parts: list[Frame] = []
        frames: list[Frame] = [{"type": "agentStatus", "status": "thinking", **_channel(prompt.channel)}]
        frames.append(
            {"type": "message", "data": {"id": turn, "role": "assistant", "content": "", "parts": [], **where}}
        )
        words = [f"<{prompt.id}>", *(self.random.choice(("a", "a", "b ")) for _ in range(self.random.randrange(4)))]
        for word in words:
            frames.append({"type": "chunk", "content": word, "messageId": turn, **where})
        if self.random.random() < 0.3:
            parts.append(
                {"type": "tool-call", "callId": f"c-{turn}", "toolName": "bash", "status": "running", "args": {}}
            )
            frames.append(_updated(turn, parts, where))
        if self.random.random() < 0.2:
            frames.append({"type": "question", "questionId": f"q-{turn}", "text": "?", **_channel(prompt.channel)})
            frames.append(_status(questionAnswered=f"q-{turn}", answer="yes"))
        finish: Frame = {"type": "finish", "reason": "end_turn"}
        frames.append(_updated(turn, [*parts, finish], where, "".join(words)))
        if parts:
            done = {**parts[0], "status": "completed", "result": "ok"}
            frames.append(_updated(turn, [done, finish], where, "".join(words)))
        work.frames = deque(frames)
        prompt.said.append("".join(words))

    def _complete(self) -> None:
        assert self._try is not None
        self._try = None
        self._audit("agent.turn_complete")
        if self.queue:
            self._next()
        else:
            self._broadcast(_status(runnerBusy=False))
        self._broadcast({"type": "agentStatus", "status": "idle"})

    def _next(self) -> None:
        self._dispatch(self.queue.pop(0))
        self._broadcast(_status(promptDequeued=True, remaining=len(self.queue)))

    def _audit(self, event: str, actor: str | None = None, summary: str = "") -> None:
        self._broadcast({"type": "audit_log", "entry": {"eventType": event, "summary": summary, "actorId": actor}})

    def _broadcast(self, frame: Frame) -> None:
        twice = self._doubles and self.random.random() < 0.3 and frame.get("type") != "chunk"
        for socket in self.sockets:
            socket.inbox += [frame, frame] if twice else [frame]

    def _id(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


def _status(**data: Any) -> Frame:
    return {"type": "status", "data": data}


def _channel(channel: str) -> Frame:
    """Only what was asked on a channel of its own names it."""
    return {} if channel == "web:default" else _names(channel)


def _names(channel: str) -> Frame:
    kind, _, name = channel.partition(":")
    return {"channelType": kind, "channelId": name}


def _updated(turn: str, parts: list[Frame], where: Frame, content: str = "") -> Frame:
    data = {"id": turn, "role": "assistant", "content": content, "parts": [dict(part) for part in parts], **where}
    return {"type": "message.updated", "data": data}
