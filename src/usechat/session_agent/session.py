"""A session: hears its clients, queues their prompts and runs one turn at a time."""

import asyncio
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from usechat.ids import new_id
from usechat.session_agent.attachments import attachment_parts
from usechat.session_agent.frames import MODELS, Frame, audit_entry, present, unix_time
from usechat.session_agent.prompts import TurnPlay, play
from usechat.session_agent.sockets import Socket
from usechat.session_agent.state import Prompt, SessionSettings, SessionState
from usechat.session_agent.turns import Turn

__all__ = ["Session"]

_COMMANDS: Final = ("undo", "redo", "compact", "new-session")


class Session:
    """One session of an agent.

    Idle or busy: a prompt starts a turn or waits in the queue, and the end of a turn starts the next. Hibernated: the
    next prompt wakes it, and is queued until then. Terminated: prompts are refused. All is called in the event loop,
    and only a turn is a task. `frames`, if there are any, are sent for each prompt in place of a turn; `plays` are the
    turns of prompts that are not those of this package.
    """

    def __init__(
        self,
        id: str,  # noqa: A002
        settings: SessionSettings,
        frames: tuple[Frame, ...] = (),
        plays: Mapping[str, TurnPlay] = MappingProxyType({}),
    ) -> None:
        self.state = SessionState(id, settings)
        self._frames = frames
        self._plays = plays
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._collected: dict[tuple[str, str], list[Prompt]] = {}
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._closed = False

    def take(self, socket: Socket, message: Frame) -> None:
        """Do what a client says; a type that is not known is ignored."""
        match message.get("type"):
            case "prompt":
                self._take_prompt(socket, message)
            case "answer":
                self._take_answer(socket, message)
            case "abort":
                self._abort(None)
            case "revert":
                self.state.remove_from(message.get("messageId"))
            case "diff":
                files = [{"path": "a.ts", "status": "modified", "diff": "@@ -1 +1 @@"}]
                self.state.broadcast({"type": "diff", "requestId": new_id(), "data": {"files": files}})
            case "review":
                stats = dict.fromkeys(("critical", "warning", "suggestion", "nitpick"), 0)
                review: Frame = {
                    "data": {"files": [], "overallSummary": "Nothing to say.", "stats": stats},
                    "diffFiles": [],
                }
                self.state.broadcast({"type": "review-result", "requestId": new_id(), **review})
            case "command":
                self._take_command(message.get("command"))
            case _:
                pass

    def unsolicited(self, text: str, channel: dict[str, str] | None = None) -> None:
        """Let a turn come that no client asked for, as after an event of a child session."""
        self.state.say_system(text, {"systemTitle": "Event", "systemAvatarKey": "child-session"})
        self._queue_or_start(Prompt(content=text, channel=channel or {}))

    def release(self) -> None:
        """Let the turn that hangs go on."""
        self.state.released.set()

    async def aclose(self) -> None:
        """End the turn and all timers; nobody is told."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _take_prompt(self, socket: Socket, message: Frame) -> None:
        content, attachments = message.get("content"), message.get("attachments")
        if not content and not attachments:
            socket.send({"type": "error", "message": "Missing content or attachments"})
            return
        if self.state.status == "terminated":
            socket.send({"type": "error", "message": "Session has been terminated"})
            return
        named = present(channelType=message.get("channelType"), channelId=message.get("channelId"))
        channel = named if len(named) == 2 else {}
        prompt = Prompt(str(content or ""), channel, socket.user, socket, tuple(attachment_parts(attachments)))
        match message.get("queueMode"):
            case "collect":
                self._collect(prompt)
            case "steer":
                if self.state.busy:
                    self._abort(prompt if channel else None)
                self._prompt(prompt)
            case _:
                self._prompt(prompt)

    def _take_answer(self, socket: Socket, message: Frame) -> None:
        question, answer = message.get("questionId"), message.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str | bool):
            socket.send({"type": "error", "message": "Missing questionId or answer"})
            return
        self.state.answer(question, answer)

    def _take_command(self, command: Any) -> None:
        outcome = {"result": "Done"} if command in _COMMANDS else {"error": "Unknown command"}
        self.state.broadcast({"type": "command-result", "requestId": new_id(), "command": command, **outcome})

    def _prompt(self, prompt: Prompt) -> None:
        if self.state.status == "hibernated":
            self._wake()
        self._echo(prompt)
        actor = None if prompt.author is None else prompt.author.id
        summary = prompt.content or f"[{len(prompt.parts)} image attachment(s)]"
        self.state.audit(audit_entry("user.prompt", summary, actor))
        if self._queue_or_start(prompt):
            position = len(self.state.queue)
            reason = "runner busy" if self.state.busy else "no runner connected"
            why = f"Queued: {reason} (status={self.state.status}, queued={position})"
            self.state.audit(audit_entry("prompt.queued", why, actor))
            self.state.broadcast({"type": "status", "data": {"promptQueued": True, "queuePosition": position}})

    def _echo(self, prompt: Prompt) -> None:
        message = present(id=new_id(), role="user", content=prompt.content, parts=list(prompt.parts) or None)
        author = {} if prompt.author is None else prompt.author.author
        message |= {**author, **prompt.channel, "createdAt": unix_time()}
        self.state.keep(message)
        self.state.broadcast({"type": "message", "data": message})

    def _queue_or_start(self, prompt: Prompt) -> bool:
        """Whether the prompt has to wait."""
        if self.state.busy or self.state.status != "running":
            self.state.queue.append(prompt)
            return True
        self._start(prompt)
        return False

    def _collect(self, prompt: Prompt) -> None:
        """Keep a prompt until its channel has been quiet for a while."""
        self._echo(prompt)
        pieces = self._collected.setdefault(prompt.key, [])
        pieces.append(prompt)
        if len(pieces) > 1:
            self._timers[prompt.key].cancel()
        loop, wait = asyncio.get_running_loop(), self.state.settings.collect_seconds
        self._timers[prompt.key] = loop.call_later(wait, self._flush_collected, prompt.key)
        self.state.broadcast({"type": "status", "data": {"collectPending": True, "collectCount": len(pieces)}})

    def _flush_collected(self, key: tuple[str, str]) -> None:
        del self._timers[key]
        pieces = self._collected.pop(key)
        content = "\n\n---\n\n".join(piece.content for piece in pieces)
        parts = tuple(part for piece in pieces for part in piece.parts)
        self._prompt(structs.replace(pieces[-1], content=content, parts=parts))
        self.state.broadcast({"type": "status", "data": {"collectPending": False, "collectCount": 0}})

    def _wake(self) -> None:
        self._become("restoring")
        loop = asyncio.get_running_loop()
        self._timers["wake"] = loop.call_later(self.state.settings.pace, self._woken)

    def _woken(self) -> None:
        del self._timers["wake"]
        self._become("running", sandboxRunning=True)
        self.state.broadcast({"type": "status", "data": {"runnerConnected": True}})
        self.state.broadcast({"type": "models", "models": MODELS})
        self.state.broadcast({"type": "agentStatus", "status": "idle"})
        self._start(self._dequeue())

    def _become(self, status: str, **more: Any) -> None:
        self.state.status = status
        self.state.broadcast({"type": "status", "data": {"status": status, **more}})

    def _abort(self, steering: Prompt | None) -> None:
        """Abort the work and delete what is queued; a prompt that steers does so in its own channel."""
        key = None if steering is None else steering.key
        self.state.queue = deque(prompt for prompt in self.state.queue if key not in (None, prompt.key))
        if self._task is not None and self._turn is not None and key in (None, self._turn.prompt.key):
            self._task.cancel()
        self.state.broadcast({"type": "agentStatus", "status": "idle"})
        self.state.audit(audit_entry("user.abort", "User aborted agent"))

    def _start(self, prompt: Prompt | None) -> None:
        if prompt is None:
            return
        self.state.busy = True
        turn = self._turn = Turn(self.state, prompt, self.state.settings.vocabulary)
        self._task = asyncio.create_task(self._play(turn))
        self._task.add_done_callback(lambda task: self._ended(turn, task))

    async def _play(self, turn: Turn) -> None:
        if not self._frames:
            await self._plays.get(turn.prompt.content, play)(turn)
            return
        turn.completes = False
        for frame in self._frames:
            self.state.broadcast(frame)
            await turn.pause()

    def _ended(self, turn: Turn, task: asyncio.Task[None]) -> None:
        self._turn = self._task = None
        self.state.busy = False
        if self._closed:
            return
        if task.cancelled():
            turn.completes = True
            turn.aborted()
        if turn.leaves == "terminated":
            self.state.queue.clear()
            self._become("terminated", sandboxRunning=False)
            return
        self._go_on(turn)

    def _go_on(self, turn: Turn) -> None:
        """Tell that a turn has ended, and start the next."""
        if turn.completes:
            turn.completed()
        following = self._dequeue()
        if turn.completes:
            if following is None and turn.vocabulary != "v2":
                self.state.broadcast({"type": "status", "data": {"runnerBusy": False}})
            # It is the runner's, and comes after the next prompt was handed to it.
            turn.status("idle")
        self._start(following)
        if following is None and turn.leaves == "hibernated":
            self._become("hibernating")
            self._become("hibernated", sandboxRunning=False)
        if turn.afterwards:
            self.unsolicited(turn.afterwards)

    def _dequeue(self) -> Prompt | None:
        if not self.state.queue:
            return None
        prompt = self.state.queue.popleft()
        dequeued = {"promptDequeued": True, "remaining": len(self.state.queue)}
        self.state.broadcast({"type": "status", "data": dequeued})
        return prompt
