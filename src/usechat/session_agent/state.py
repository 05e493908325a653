"""What all of a session share: its sockets, its messages, its audit log and the questions that are open."""

import asyncio
from collections import deque
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from usechat.ids import new_id
from usechat.session_agent.frames import DEFAULT_CHANNEL, MODELS, Frame, audit_entry, present, unix_time
from usechat.session_agent.sockets import Socket, User

__all__ = ["Prompt", "Question", "SessionSettings", "SessionState", "Vocabulary"]

Vocabulary: TypeAlias = Literal["client", "v2", "both"]

# A session that is asked for days must not grow.
_MESSAGES: Final = 500
_AUDIT_ENTRIES: Final = 100
_PADDING: Final = 64 * 1024


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


class SessionState:
    """A session, as far as a turn and a client see it."""

    def __init__(self, id: str, settings: SessionSettings) -> None:  # noqa: A002
        self.id = id
        self.settings = settings
        self.status = "running"
        self.busy = False
        self.has_runner = True
        self.queue: deque[Prompt] = deque()
        self.sockets: list[Socket] = []
        self.questions: dict[str, Question] = {}
        self.released = asyncio.Event()
        self._messages = deque(_old_messages(settings.init_bytes), _MESSAGES + settings.init_bytes // _PADDING)
        self._audit_log: deque[Frame] = deque(maxlen=_AUDIT_ENTRIES)

    @property
    def users(self) -> list[User]:
        """Who has a socket, in the order in which they came."""
        return list({socket.user.id: socket.user for socket in self.sockets}.values())

    def broadcast(self, frame: Frame) -> None:
        encoded = msgspec.json.encode(frame)
        for socket in tuple(self.sockets):
            socket.post(encoded)

    def tell(self, user: User, frame: Frame) -> None:
        """Send a frame to the sockets of one user."""
        for socket in tuple(self.sockets):
            if socket.user == user:
                socket.send(frame)

    async def room(self) -> None:
        """Wait for the slowest socket, so that what is unsent stays bounded."""
        for socket in tuple(self.sockets):
            await socket.room()

    def audit(self, entry: Frame) -> None:
        self._audit_log.append(entry)
        self.broadcast({"type": "audit_log", "entry": entry})

    def keep(self, message: Frame) -> None:
        """Take a message into the transcript; it may change while its turn runs."""
        self._messages.append(message)

    def say_system(self, text: str, parts: Any = None) -> None:
        message = present(id=new_id(), role="system", content=text, parts=parts, createdAt=unix_time())
        self.keep(message)
        self.broadcast({"type": "message", "data": message})

    def remove_from(self, message_id: Any) -> None:
        """Remove a message and all later ones; an id that is not known is ignored."""
        ids = [message["id"] for message in self._messages]
        if message_id in ids:
            first = ids.index(message_id)
            for _ in ids[first:]:
                self._messages.pop()
            self.broadcast({"type": "messages.removed", "messageIds": ids[first:]})

    def lose_runner(self, prompt: Prompt) -> None:
        """The prompt that runs waits again, before all others, until there is a runner."""
        self.has_runner = self.busy = False
        self.queue.appendleft(prompt)
        data = {"runnerConnected": False, "queuedPrompts": len(self.queue), "runnerDisconnected": True}
        self.broadcast({"type": "status", "data": data})

    def find_runner(self) -> None:
        self.has_runner = True
        self.broadcast({"type": "status", "data": {"runnerConnected": True}})
        self.broadcast({"type": "models", "models": MODELS})

    def dequeue(self) -> Prompt | None:
        """The prompt that has waited longest, if there is one."""
        if not self.queue:
            return None
        prompt = self.queue.popleft()
        dequeued = {"promptDequeued": True, "remaining": len(self.queue)}
        self.broadcast({"type": "status", "data": dequeued})
        return prompt

    def ask(self, text: str, options: list[str], channel: dict[str, str]) -> Question:
        question = Question(f"que_{new_id()}", text, options, asyncio.get_running_loop().create_future())
        self.questions[question.id] = question
        expires = unix_time() + int(self.settings.question_seconds)
        self.broadcast({**_shown(question), "expiresAt": expires, **channel})
        return question

    def answer(self, question_id: str, answer: str | bool) -> None:  # noqa: FBT001
        """Take the answer to an open question; any other is ignored."""
        question = self.questions.pop(question_id, None)
        if question is None or question.answer.done():
            return
        text = answer if isinstance(answer, str) else str(answer).lower()
        self.broadcast({"type": "status", "data": {"questionAnswered": question_id, "answer": answer}})
        self.audit(audit_entry("user.answer", f"Answered question: {text}", metadata={"questionId": question_id}))
        question.answer.set_result(text)

    def join(self, socket: Socket) -> None:
        """Greet a new socket: `init`, the open questions, and to everybody that its user came."""
        self.sockets.append(socket)
        socket.send(self._init())
        for question in tuple(self.questions.values()):
            socket.send(_shown(question))
        self._presence("user.joined", socket.user, "joined")

    def leave(self, socket: Socket) -> None:
        """Forget a socket, and tell the others if it was the last of its user."""
        self.sockets.remove(socket)
        if socket.user not in self.users:
            self._presence("user.left", socket.user, "left")

    def _presence(self, event: str, user: User, verb: str) -> None:
        users = [{"id": other.id, **other.details} for other in self.users]
        self.broadcast({"type": event, "userId": user.id, "userDetails": user.details, "connectedUsers": users})
        self.audit(audit_entry(event, f"{user.details['name']} {verb}", user.id))

    def _init(self) -> Frame:
        session = {"id": self.id, "status": self.status, "workspace": "demo", "title": "Demo"}
        awake = self.status == "running"
        data = {
            "sandboxRunning": awake,
            "runnerConnected": awake and self.has_runner,
            "runnerBusy": self.busy,
            "promptsQueued": len(self.queue),
            "connectedClients": len(self.sockets),
            "connectedUsers": [{"id": user.id, **user.details} for user in self.users],
            "availableModels": MODELS,
            "auditLog": list(self._audit_log),
        }
        return {"type": "init", "session": {**session, "messages": list(self._messages)}, "data": data}


def _shown(question: Question) -> Frame:
    """What a socket that comes later sees of a question."""
    return {"type": "question", "questionId": question.id, "text": question.text, "options": question.options}


def _old_messages(size: int) -> list[Frame]:
    return [
        {"id": f"old-{number}", "role": "user", "content": "x" * _PADDING, "createdAt": 0}
        for number in range(-(-size // _PADDING))
    ]
