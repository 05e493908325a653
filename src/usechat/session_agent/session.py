"""A session: hears its clients, queues their prompts and runs one turn at a time.

    running, idle ── prompt ──► running, busy ── the turn ends ──► the next prompt of the queue, or idle
    running       ── a turn that `leaves` it so ──► hibernated ── prompt ──► restoring ──► running
    running       ── a turn that `leaves` it so ──► terminated: prompts are refused

A prompt that comes while the session is busy, restoring or without a runner waits in the queue. Everything runs in the
event loop. The turn is the only task; `_ended` is its callback, and timers flush collected prompts and end the waking.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, ValidationError, convert, structs

from usechat.ids import new_id
from usechat.session_agent.sockets import DEFAULT_CHANNEL, Frame, Socket, User, present

__all__ = [
    "MODELS",
    "Prompt",
    "Question",
    "Session",
    "SessionSettings",
    "Turn",
    "TurnPlay",
    "Vocabulary",
    "attachment_parts",
]

Vocabulary: TypeAlias = Literal["client", "v2", "both"]
ToolStatus: TypeAlias = Literal["pending", "running", "completed", "error"]

MODELS: Final = [{"provider": "usechat", "models": [{"id": "usechat/scripted", "name": "Scripted"}]}]

# A session that runs for days must not grow.
_MESSAGES: Final = 500
_AUDIT_ENTRIES: Final = 100
_PADDING: Final = 64 * 1024
_COMMANDS: Final = ("undo", "redo", "compact", "new-session")
# What a SessionAgent takes of a prompt's attachments. It drops the rest without a word.
_FILES: Final = 8
_FILE_SIZE: Final = 12_000_000
_ALL_SIZE: Final = 25_000_000
_DATA_URL: Final = re.compile(r"data:((image|audio)/[\w.+-]+)[^,]*;base64,")


class SessionSettings(Struct, frozen=True, kw_only=True):
    """How sessions behave.

    `pace` is the pause after each delta and tool update, `init_bytes` the least size of `init`, which it gets by old
    messages.
    """

    pace: float = 0.0
    question_seconds: float = 300.0
    collect_seconds: float = 3.0
    init_bytes: int = 0
    vocabulary: Vocabulary = "client"


class Question(Struct, frozen=True):
    id: str
    text: str
    options: list[str]
    answer: "asyncio.Future[str]"

    @property
    def shown(self) -> Frame:
        """What a socket that comes later sees of it."""
        return {"type": "question", "questionId": self.id, "text": self.text, "options": self.options}


class Prompt(Struct, frozen=True):
    """What somebody asked. `channel` is empty if they named none, `author` is None if nobody asked."""

    content: str
    channel: dict[str, str] = {}
    author: User | None = None
    socket: Socket | None = None
    parts: tuple[Frame, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """The channel, by which prompts are collected and steered."""
        channel = self.channel or DEFAULT_CHANNEL
        return channel["channelType"], channel["channelId"]


class Session:
    """One session of an agent; `play` is what happens in its turns."""

    def __init__(self, id: str, settings: SessionSettings, play: "TurnPlay") -> None:  # noqa: A002
        self.id = id
        self.settings = settings
        self.status = "running"
        self.busy = False
        self.has_runner = True
        self.queue: deque[Prompt] = deque()
        self.sockets: list[Socket] = []
        self.questions: dict[str, Question] = {}
        self.released = asyncio.Event()
        self._play = play
        self.messages = deque(_old_messages(settings.init_bytes), _MESSAGES + settings.init_bytes // _PADDING)
        self._audit_log: deque[Frame] = deque(maxlen=_AUDIT_ENTRIES)
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._collected: dict[tuple[str, str], list[Prompt]] = {}
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._closed = False

    @contextmanager
    def joined(self, socket: Socket) -> Generator[None]:
        """Greet a new socket: `init`, the open questions, and to everybody that its user came.

        When it leaves, the others hear of it if it was the last of its user.
        """
        self.sockets.append(socket)
        try:
            socket.send(self._init())
            for question in tuple(self.questions.values()):
                socket.send(question.shown)
            self._presence("user.joined", socket.user)
            yield
        finally:
            self.sockets.remove(socket)
            if socket.user not in self._users:
                self._presence("user.left", socket.user)

    def take(self, socket: Socket, message: Frame) -> None:
        """Do what a client says; a type that is not known is ignored."""
        match message.get("type"):
            case "prompt":
                self._take_prompt(socket, message)
            case "answer":
                question, answer = message.get("questionId"), message.get("answer")
                if isinstance(question, str) and isinstance(answer, str | bool):
                    self._answer(question, answer)
                else:
                    socket.send({"type": "error", "message": "Missing questionId or answer"})
            case "abort":
                self._abort(None)
            case "revert":
                self._remove_from(message.get("messageId"))
            case "diff":
                files = [{"path": "a.ts", "status": "modified", "diff": "@@ -1 +1 @@"}]
                self.broadcast({"type": "diff", "requestId": new_id(), "data": {"files": files}})
            case "review":
                stats = dict.fromkeys(("critical", "warning", "suggestion", "nitpick"), 0)
                data: Frame = {"files": [], "overallSummary": "Nothing to say.", "stats": stats}
                self.broadcast({"type": "review-result", "requestId": new_id(), "data": data, "diffFiles": []})
            case "command":
                command = message.get("command")
                outcome = {"result": "Done"} if command in _COMMANDS else {"error": "Unknown command"}
                self.broadcast({"type": "command-result", "requestId": new_id(), "command": command, **outcome})
            case _:
                pass

    def unsolicited(self, text: str, channel: dict[str, str] | None = None) -> None:
        """Let a turn come that no client asked for, as after an event of a child session."""
        self.say_system(text, {"systemTitle": "Event", "systemAvatarKey": "child-session"})
        self._queue_or_start(Prompt(content=text, channel=channel or {}))

    def release(self) -> None:
        """Let the turn that hangs go on."""
        self.released.set()

    async def aclose(self) -> None:
        """End the turn and all timers; nobody hears of it."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def broadcast(self, frame: Frame) -> None:
        encoded = msgspec.json.encode(frame)
        for socket in tuple(self.sockets):
            socket.post(encoded)

    def broadcast_status(self, **data: Any) -> None:
        self.broadcast({"type": "status", "data": data})

    async def drain(self) -> None:
        """Wait for the slowest socket, so that what is unsent stays bounded."""
        for socket in tuple(self.sockets):
            await socket.drain()

    def audit(self, event: str, summary: str, actor: str | None = None, metadata: Frame | None = None) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = present(eventType=event, summary=summary[:120], actorId=actor, metadata=metadata, createdAt=now)
        self._audit_log.append(entry)
        self.broadcast({"type": "audit_log", "entry": entry})

    def say(self, message: Frame) -> None:
        """Show a message to everybody, and keep it; it may change while its turn runs."""
        self.messages.append(message)
        self.broadcast({"type": "message", "data": message})

    def say_system(self, text: str, parts: Any = None) -> None:
        self.say(present(id=new_id(), role="system", content=text, parts=parts, createdAt=int(time.time())))

    def lose_runner(self, prompt: Prompt) -> None:
        """The prompt that runs waits again, before all others, until there is a runner."""
        self.has_runner = self.busy = False
        self.queue.appendleft(prompt)
        self.broadcast_status(runnerConnected=False, queuedPrompts=len(self.queue), runnerDisconnected=True)

    def find_runner(self) -> None:
        self.has_runner = True
        self.broadcast_status(runnerConnected=True)
        self.broadcast({"type": "models", "models": MODELS})

    def dequeue(self) -> Prompt | None:
        """The prompt that has waited longest, if there is one."""
        if not self.queue:
            return None
        prompt = self.queue.popleft()
        self.broadcast_status(promptDequeued=True, remaining=len(self.queue))
        return prompt

    @property
    def _users(self) -> list[User]:
        """Who has a socket, in the order in which they came."""
        return list({socket.user.id: socket.user for socket in self.sockets}.values())

    @property
    def _shown_users(self) -> list[Frame]:
        return [{"id": user.id, **user.details} for user in self._users]

    def _presence(self, event: Literal["user.joined", "user.left"], user: User) -> None:
        shown = {"userId": user.id, "userDetails": user.details, "connectedUsers": self._shown_users}
        self.broadcast({"type": event, **shown})
        self.audit(event, f"{user.id} {event.removeprefix('user.')}", user.id)

    def _init(self) -> Frame:
        session = {"id": self.id, "status": self.status, "workspace": "demo", "title": "Demo"}
        awake = self.status == "running"
        data = {
            "sandboxRunning": awake,
            "runnerConnected": awake and self.has_runner,
            "runnerBusy": self.busy,
            "promptsQueued": len(self.queue),
            "connectedClients": len(self.sockets),
            "connectedUsers": self._shown_users,
            "availableModels": MODELS,
            "auditLog": list(self._audit_log),
        }
        return {"type": "init", "session": {**session, "messages": list(self.messages)}, "data": data}

    def _take_prompt(self, socket: Socket, message: Frame) -> None:
        content, attachments = message.get("content"), message.get("attachments")
        if not content and not attachments:
            socket.send({"type": "error", "message": "Missing content or attachments"})
            return
        if self.status == "terminated":
            socket.send({"type": "error", "message": "Session has been terminated"})
            return
        named = present(channelType=message.get("channelType"), channelId=message.get("channelId"))
        channel = named if len(named) == 2 else {}
        prompt = Prompt(str(content or ""), channel, socket.user, socket, tuple(attachment_parts(attachments)))
        mode = message.get("queueMode")
        if mode == "collect":
            self._collect(prompt)
            return
        if mode == "steer" and self.busy:
            self._abort(prompt if channel else None)
        self._prompt(prompt)

    def _answer(self, question_id: str, answer: str | bool) -> None:  # noqa: FBT001
        """Take the answer to an open question; any other is ignored."""
        question = self.questions.pop(question_id, None)
        if question is None or question.answer.done():
            return
        text = answer if isinstance(answer, str) else str(answer).lower()
        self.broadcast_status(questionAnswered=question_id, answer=answer)
        self.audit("user.answer", f"Answered question: {text}", metadata={"questionId": question_id})
        question.answer.set_result(text)

    def _remove_from(self, message_id: Any) -> None:
        """Remove a message and all later ones; an id that is not known is ignored."""
        ids = [message["id"] for message in self.messages]
        if message_id in ids:
            first = ids.index(message_id)
            for _ in ids[first:]:
                self.messages.pop()
            self.broadcast({"type": "messages.removed", "messageIds": ids[first:]})

    def _prompt(self, prompt: Prompt) -> None:
        if self.status == "hibernated":
            self._wake()
        self._echo(prompt)
        actor = None if prompt.author is None else prompt.author.id
        self.audit("user.prompt", prompt.content or f"[{len(prompt.parts)} image attachment(s)]", actor)
        if self._queue_or_start(prompt):
            position = len(self.queue)
            reason = "runner busy" if self.busy else "no runner connected"
            self.audit("prompt.queued", f"Queued: {reason} (status={self.status}, queued={position})", actor)
            self.broadcast_status(promptQueued=True, queuePosition=position)

    def _echo(self, prompt: Prompt) -> None:
        message = present(id=new_id(), role="user", content=prompt.content, parts=list(prompt.parts) or None)
        author = {} if prompt.author is None else prompt.author.author
        self.say(message | {**author, **prompt.channel, "createdAt": int(time.time())})

    def _queue_or_start(self, prompt: Prompt) -> bool:
        """Whether the prompt has to wait."""
        if self.busy or not self.has_runner or self.status != "running":
            self.queue.append(prompt)
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
        self._set_timer(prompt.key, self.settings.collect_seconds, lambda: self._flush_collected(prompt.key))
        self.broadcast_status(collectPending=True, collectCount=len(pieces))

    def _flush_collected(self, key: tuple[str, str]) -> None:
        pieces = self._collected.pop(key)
        content = "\n\n---\n\n".join(piece.content for piece in pieces)
        parts = tuple(part for piece in pieces for part in piece.parts)
        self._prompt(structs.replace(pieces[-1], content=content, parts=parts))
        self.broadcast_status(collectPending=False, collectCount=0)

    def _wake(self) -> None:
        self._become("restoring")
        self._set_timer("wake", self.settings.pace, self._woken)

    def _woken(self) -> None:
        self._become("running", sandboxRunning=True)
        self.find_runner()
        self.broadcast({"type": "agentStatus", "status": "idle"})
        self._start(self.dequeue())

    def _set_timer(self, key: Any, seconds: float, then: Callable[[], None]) -> None:
        def due() -> None:
            del self._timers[key]
            then()

        self._timers[key] = asyncio.get_running_loop().call_later(seconds, due)

    def _become(self, status: str, **more: Any) -> None:
        self.status = status
        self.broadcast_status(status=status, **more)

    def _abort(self, steering: Prompt | None) -> None:
        """Abort the work and delete what is queued; a prompt that steers does so in its own channel."""
        key = None if steering is None else steering.key
        self.queue = deque(prompt for prompt in self.queue if key not in (None, prompt.key))
        if self._task is not None and self._turn is not None and key in (None, self._turn.prompt.key):
            self._task.cancel()
        self.broadcast({"type": "agentStatus", "status": "idle"})
        self.audit("user.abort", "User aborted agent")

    def _start(self, prompt: Prompt | None) -> None:
        if prompt is None:
            return
        self.busy = True
        turn = self._turn = Turn(self, prompt, self.settings.vocabulary)
        self._task = asyncio.ensure_future(self._play(turn))
        self._task.add_done_callback(lambda task: self._ended(turn, task))

    def _ended(self, turn: "Turn", task: asyncio.Future[None]) -> None:
        self._turn = self._task = None
        self.has_runner, self.busy = True, False
        if self._closed:
            return
        if task.cancelled():
            turn.completes = True
            turn.aborted()
        if turn.leaves == "terminated":
            self.queue.clear()
            self._become("terminated", sandboxRunning=False)
            return
        self._go_on(turn)

    def _go_on(self, turn: "Turn") -> None:
        """Say that a turn has ended, and start the next."""
        if turn.completes:
            turn.completed()
        following = self.dequeue()
        if turn.completes:
            if following is None and turn.vocabulary != "v2":
                self.broadcast_status(runnerBusy=False)
            # It is the runner's, and comes after the next prompt was handed to it.
            turn.status("idle")
        self._start(following)
        if following is None and turn.leaves == "hibernated":
            self._become("hibernating")
            self._become("hibernated", sandboxRunning=False)
        if turn.afterwards:
            self.unsolicited(turn.afterwards)


class Turn:
    """A turn that says something. It begins lazily: the assistant's message appears with the first text or tool.

    `completes` is False for a turn whose end Agent Ops does not announce, `leaves` the status in which it leaves the
    session, `afterwards` the event that brings an unsolicited turn after it.
    """

    def __init__(self, session: Session, prompt: Prompt, vocabulary: Vocabulary) -> None:
        self.session = session
        self.prompt = prompt
        self.vocabulary: Vocabulary = vocabulary
        self.id = new_id()
        self.completes = True
        self.leaves: Literal["running", "hibernated", "terminated"] = "running"
        self.afterwards = ""
        self._channel = prompt.channel or DEFAULT_CHANNEL
        self._status = ""
        self._message: Frame | None = None
        self._said = ""
        self._unfinished = ""

    def status(self, status: str, detail: str | None = None) -> None:
        self._status = status
        self.session.broadcast(present(type="agentStatus", status=status, detail=detail) | self.prompt.channel)

    def begin(self) -> Frame:
        """The assistant's message, which everybody sees when it is first needed."""
        if self._message is None:
            created: Frame = {"id": self.id, "role": "assistant", "content": "", "parts": []}
            self._message = {**created, "createdAt": int(time.time()), **self._channel}
            v2 = {"type": "message.create", "turnId": self.id, **self._channel, "opencodeSessionId": "ses_1"}
            self._emit(v2, {"type": "message", "data": self._message})
            self.session.messages.append(self._message)
        return self._message

    async def text(self, *pieces: str, kept: bool = True) -> None:
        """Say pieces of text, one delta each; what is not kept is in the deltas only."""
        if self._status != "streaming":
            self.status("streaming")
        self.begin()
        for piece in pieces:
            self._said += piece if kept else ""
            self._unfinished += piece if kept else ""
            chunk = {"type": "chunk", "content": piece, "messageId": self.id, **self._channel}
            self._emit({"type": "message.part.text-delta", "turnId": self.id, "delta": piece}, chunk)
            await self.pause()

    async def tool(
        self,
        call: str,
        name: str,
        status: ToolStatus,
        args: Any = None,
        *,
        result: Any = None,
        error: str | None = None,
        quiet: bool = False,
    ) -> None:
        """Say how a tool call stands; `quiet` leaves out the agent's status."""
        message = self.begin()
        if status in ("pending", "running") and not quiet:
            self.status("tool_calling", name)
        self._end_text(message)
        update = present(callId=call, toolName=name, status=status, args=args, result=result, error=error)
        part, parts = {"type": "tool-call", **update}, message["parts"]
        known = next((index for index, other in enumerate(parts) if other.get("callId") == call), len(parts))
        parts[known : known + 1] = [part]
        message["content"] = self._said
        self._emit({"type": "message.part.tool-update", "turnId": self.id, **update}, self._updated(message))
        await self.pause()

    def finish(self, reason: str = "end_turn", *, error: str | None = None, final: str | None = None) -> None:
        """End the message, as Agent Ops does it: each text part becomes the text after the last tool."""
        message = self.begin()
        final = final or self._unfinished or None
        self._end_text(message)
        parts: list[Frame] = message["parts"]
        if final is not None:
            if not self._said:
                parts.append({"type": "text", "streaming": False})
            for part in parts:
                if part["type"] == "text":
                    part["text"] = final
            message["content"] = final
        parts.append({"type": "finish", "reason": reason})
        if error is not None:
            parts.append({"type": "error", "message": error})
        finalize = present(type="message.finalize", turnId=self.id, reason=reason, finalText=final, error=error)
        self._emit(finalize, self._updated(message))

    def fail(self, text: str) -> None:
        """Report an error of the agent, outside of any message."""
        self.session.broadcast({"type": "error", "messageId": new_id(), "error": text, **self.prompt.channel})
        self.session.audit("agent.error", text)

    async def ask(self, text: str, options: list[str]) -> str | None:
        """Ask the users, and give the first answer; None if it does not come in time."""
        session, seconds = self.session, self.session.settings.question_seconds
        question = Question(f"que_{new_id()}", text, options, asyncio.get_running_loop().create_future())
        session.questions[question.id] = question
        session.broadcast({**question.shown, "expiresAt": int(time.time()) + int(seconds), **self.prompt.channel})
        toast = {"title": "Agent question", "description": f"Agent question: {text}", "variant": "warning"}
        for socket in tuple(session.sockets):
            if socket.user == self.prompt.author:
                socket.send({"type": "toast", **toast})
        try:
            async with asyncio.timeout(seconds):
                return await question.answer
        except TimeoutError:
            session.broadcast_status(questionExpired=question.id)
            return None
        finally:
            session.questions.pop(question.id, None)

    def begin_again(self) -> None:
        """Leave the message as it is, and say what follows in a new one."""
        self.id = new_id()
        self._message = None
        self._status = self._said = self._unfinished = ""

    async def pause(self, seconds: float | None = None) -> None:
        """Wait for the pace of the agent, and for sockets that are slow."""
        await asyncio.sleep(self.session.settings.pace if seconds is None else seconds)
        await self.session.drain()

    def aborted(self) -> None:
        """The runner confirms that the turn was aborted; its message never gets a finish part."""
        if self.vocabulary != "client":
            self.session.broadcast({"type": "aborted"})
        self.status("idle")
        if self.vocabulary != "v2":
            self.session.broadcast_status(runnerBusy=False, aborted=True)

    def completed(self) -> None:
        """The end of the prompt, whatever became of it."""
        if self.vocabulary != "client":
            self.session.broadcast({"type": "complete"})
        if self.vocabulary != "v2":
            self.session.audit("agent.turn_complete", "Agent turn completed")

    def _end_text(self, message: Frame) -> None:
        if self._unfinished:
            # All that was said so far, not the text after the last tool: so does Agent Ops.
            message["parts"].append({"type": "text", "text": self._said, "streaming": False})
            message["content"] = self._said
            self._unfinished = ""

    def _updated(self, message: Frame) -> Frame:
        fields = ("id", "role", "content", "parts", "channelType", "channelId")
        return {"type": "message.updated", "data": {name: message[name] for name in fields}}

    def _emit(self, v2: Frame, client: Frame) -> None:
        if self.vocabulary != "client":
            self.session.broadcast(v2)
        if self.vocabulary != "v2":
            self.session.broadcast(client)


TurnPlay: TypeAlias = Callable[[Turn], Awaitable[None]]
"""What happens in a turn, from its first words to `turn.finish()`."""


class _File(Struct):
    url: str
    filename: str | None = None


def attachment_parts(attachments: Any) -> Iterator[Frame]:
    """The parts of the echoed message: images and sounds in base64 data URLs, as many as there is room for."""
    size = 0
    try:
        files = convert(attachments or [], list[_File])
    except ValidationError:
        return
    for file in files[:_FILES]:
        kind = _DATA_URL.match(file.url)
        size += len(file.url)
        if kind is None or len(file.url) > _FILE_SIZE or size > _ALL_SIZE:
            continue
        data = file.url[kind.end() :]
        yield present(type=kind[2], data=data, mimeType=kind[1], filename=file.filename)


def _old_messages(size: int) -> list[Frame]:
    return [
        {"id": f"old-{number}", "role": "user", "content": "x" * _PADDING, "createdAt": 0}
        for number in range(-(-size // _PADDING))
    ]
