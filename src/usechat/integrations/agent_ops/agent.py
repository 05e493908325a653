"""Agent Ops sessions: a message is a prompt on a socket of its own, and its turn is followed to the end."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from websockets.exceptions import ConnectionClosed

from usechat.integrations.agent_ops.following import Following
from usechat.integrations.agent_ops.frames import Question, SessionFrame, read_frame
from usechat.integrations.agent_ops.options import AgentOpsOptions, SocketLimits
from usechat.integrations.agent_ops.socket import SessionAddress, SessionSocket, SessionSockets, SocketEvents
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.integrations.agent_ops.turns import PromptTracker, queued_frame
from usechat.turns.chat import Chat

__all__ = ["AgentOpsAgent", "Prompt", "SessionCall"]

# How long a prompt waits for withdrawn ones before it, of which one may have a socket that hears nothing.
_GIVES_WAY: Final = 600.0
# How long an abort that is due may take when the server ends, whatever its grace is.
_LAST_WORDS: Final = 0.5
# For the last 20,000 messages the agent knows what the upstream calls them.
_MOST_ECHOES: Final = 20_000


class Prompt(Struct, frozen=True):
    """What the user says: the message's own id, its text and its files as the upstream takes them."""

    message_id: str
    text: str
    attachments: tuple[dict[str, str], ...] = ()


class SessionCall(Struct, frozen=True):
    """The context of a request: where it goes, the chat as the client names it, and what is asked, if anything."""

    address: SessionAddress
    chat: str
    prompt: Prompt | None

    @property
    def key(self) -> tuple[str, str, str]:
        """The chat, as no other user or session has it."""
        return self.address.session, self.address.user, self.chat


class AgentOpsAgent:
    """Prompts the sessions of one upstream; the context of each request is a `SessionCall`.

    A turn that is stopped is aborted upstream. An abort stops whatever runs in the session, so it is sent only once our
    prompt is the one that runs, by a task that outlives the turn.
    """

    @classmethod
    def wrap(cls, thing: object) -> None:
        """The gateway makes it; nothing is recognised as one."""

    def __init__(
        self, upstream: str, token: str | None, options: AgentOpsOptions, limits: SocketLimits, events: SocketEvents
    ) -> None:
        self.sockets = SessionSockets(upstream, token, limits, events)
        self._options = options
        self._events = events
        self._following: dict[str, set[Following]] = {}
        self._claimed: dict[str, set[str]] = {}
        # What the upstream calls a message, by the key of its chat and its id.
        self._echoes: OrderedDict[tuple[tuple[str, str, str], str], str] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()

    def translator(self, chat: Chat) -> AgentOpsTranslator:
        return AgentOpsTranslator(self._options)

    async def run(self, chat: Chat) -> AsyncGenerator[SessionFrame, None]:
        """Prompt the session, and give the frames of the prompt's turn.

        Raises:
            AgentError: the session cannot be reached.
        """
        call: SessionCall = chat.request.context
        prompt = call.prompt
        if prompt is None:
            chat.write.finish()
            return
        try:
            until = time.monotonic() + _GIVES_WAY
            while (withdrawn := self._withdrawn(call.address.session)) and (left := until - time.monotonic()) > 0:
                yield queued_frame(max(one.tracker.position or 0 for one in withdrawn) + 1)
                with chat.hold():
                    await asyncio.wait([one.left for one in withdrawn], timeout=left)
            socket = await self.sockets.open(call.address)
        except BaseException:
            self._count_abort(chat)
            raise
        following = self._follow(call.address, prompt, socket)
        # Whether all that has come was read, as far as anybody can know.
        is_current = True
        try:
            await self._send_prompt(following, call, prompt)
            while not following.tracker.ended:
                frame = await following.step(chat)
                if frame is not None:
                    is_current = False
                    yield frame
                    is_current = True
        except ConnectionClosed:
            following.is_lost = True
        finally:
            following.rest()
            self._remember(call, prompt, following.tracker.echo_id)
            if not following.tracker.ended:
                self._count_abort(chat)
            task = asyncio.create_task(self._leave(call.address.session, following, is_current=is_current))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def channels(self, address: SessionAddress) -> list[tuple[str, str]]:
        """The channels of the session, as types and ids.

        Raises:
            AgentError: the session cannot be reached.
        """
        async with self.sockets.visit(address) as socket:
            return (await socket.greeted()).channels

    async def answer(self, address: SessionAddress, question_id: str, *, answer: str | bool) -> bool:
        """Answer a question of the session; False if it is not open.

        Raises:
            AgentError: the session cannot be reached.
        """
        for following in tuple(self._following.get(address.session, ())):
            # The session takes it for the answer of the user whose socket it is.
            if following.user == address.user and following.tracker.asks(question_id):
                with suppress(ConnectionClosed):
                    await following.socket.send("answer", questionId=question_id, answer=answer)
                    return True
        async with self.sockets.visit(address) as socket:
            # A new socket gets the questions that are open, and then that its user came.
            while (frame := await socket.next()).get("type") != "user.joined":
                says = read_frame(frame).says
                if isinstance(says, Question) and says.id == question_id:
                    await socket.send("answer", questionId=question_id, answer=answer)
                    return True
        return False

    async def aclose(self, grace: float) -> None:
        """Give the prompts that were withdrawn `grace` seconds to come to their turn, and leave."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=max(grace, _LAST_WORDS))
        leaving = list(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    def _follow(self, address: SessionAddress, prompt: Prompt, socket: SessionSocket) -> Following:
        tracker = PromptTracker(
            prompt.text,
            user_id=address.user,
            channel=":".join(address.channel),
            claimed=self._claimed.setdefault(address.session, set()),
        )
        following = Following(address.user, socket, tracker)
        self._following.setdefault(address.session, set()).add(following)
        return following

    def _withdrawn(self, session: str) -> list[Following]:
        """The prompts that nobody wants and that wait for their turn: their abort would drop all that wait behind."""
        return [
            one for one in self._following.get(session, ()) if one.is_withdrawn and one.tracker.position is not None
        ]

    async def _send_prompt(self, following: Following, call: SessionCall, prompt: Prompt) -> None:
        """Send the prompt; a message that the session has already goes first, with what followed it."""
        channel_type, channel_id = call.address.channel
        earlier = self._echoes.get((call.key, prompt.message_id))
        if earlier is not None and await self._may_revert(following, call, earlier):
            await following.socket.send("revert", messageId=earlier)
        fields: dict[str, Any] = {"attachments": prompt.attachments} if prompt.attachments else {}
        following.tracker.mark_sent()
        await following.socket.send(
            "prompt",
            content=prompt.text,
            queueMode="followup",
            channelType=channel_type,
            channelId=channel_id,
            **fields,
        )

    async def _may_revert(self, following: Following, call: SessionCall, earlier: str) -> bool:
        """Whether nobody but this chat has said anything since that message, all of which would go with it."""
        messages = (await following.greeted()).messages
        if messages is None:
            # Nobody knows what would go.
            return False
        ids = [message.id for message in messages]
        if earlier not in ids:
            return not ids
        own = {echo for (chat, _), echo in self._echoes.items() if chat == call.key}
        return all(message.role != "user" or message.id in own for message in messages[ids.index(earlier) :])

    def _remember(self, call: SessionCall, prompt: Prompt, echo: str) -> None:
        if echo:
            key = call.key, prompt.message_id
            self._echoes[key] = echo
            self._echoes.move_to_end(key)
            if len(self._echoes) > _MOST_ECHOES:
                self._echoes.popitem(last=False)

    async def _leave(self, session: str, following: Following, *, is_current: bool) -> None:
        try:
            if not following.is_lost:
                with suppress(ConnectionClosed, TimeoutError):
                    await following.withdraw(is_current=is_current)
        finally:
            following.left.set_result(None)
            others = self._following[session]
            others.discard(following)
            if not others:
                del self._following[session], self._claimed[session]
            await following.close()

    def _count_abort(self, chat: Chat) -> None:
        self._events.aborted("client" if chat.stopped in ("stopped", "left", "replaced") else "server")
