"""The chats of one agent: who may begin, resume and stop a turn in which of them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from msgspec import structs

from usechat.agents import Admits, Agent, Asked, CountsUnused, ForgetsChats, GivesWay, StopsChats
from usechat.agents.chat import Chat, Request
from usechat.agents.registry import agent_of
from usechat.database import Database
from usechat.errors import RequestError, TailChangedError
from usechat.history import ChatEntry
from usechat.ids import new_id, new_turn_id
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.admission import Admission
from usechat.server.begun_turns import BegunTurns
from usechat.server.chat_history import ChatHistory
from usechat.server.chat_settings import ChatSettings
from usechat.server.metrics import Metrics
from usechat.server.tracing import Span
from usechat.stores import Claim, Metered, Outcome, Reader, StopReason, TurnHead, TurnLog, TurnStore
from usechat.turns.failures import explain
from usechat.turns.opening import Prepared
from usechat.turns.places import busy
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import Threads
from usechat.turns.turn import Turn
from usechat.turns.turns import Turns

__all__ = ["ChatOpening", "Chats"]

_ATTEMPTS: Final = 3
_DELETE_SECONDS: Final = 9.0


class Chats:
    """The turns of one agent, and what they count in `metrics`.

    Raises:
        TypeError: it is not an agent.
    """

    def __init__(
        self, agent: object, store: TurnStore, history: ChatHistory, settings: ChatSettings, metrics: Metrics
    ) -> None:
        self.metrics = metrics
        self.threads = Threads(settings.threads)
        self.agent: Agent[Any] = agent_of(agent, self.threads)
        # Asked once: to look whether an object has the methods of a protocol takes as long as much of a turn.
        self.admits = self.agent if isinstance(self.agent, Admits) else None
        self.history = history
        self.settings = settings
        self.unused = Unused(partial(metrics.event_dropped, "unknown"))
        if isinstance(self.agent, CountsUnused):
            self.agent.unused = self.unused
        self._begun = BegunTurns(metrics)
        self._store = store
        self.are_spent = store.are_spent
        self._turns = Turns(
            store,
            history,
            settings.turns,
            explain=partial(explain, error_text=settings.error_text),
            ended=self._ended,
            fenced=self._fenced,
        )
        if isinstance(store, Metered):
            store.meter = metrics

    @asynccontextmanager
    async def serve(self, database: Database | None = None) -> AsyncGenerator[None, None]:
        """Let the store of turns work, for as long as the app runs; then end them, and after them the database."""
        async with AsyncExitStack() as stack:
            if database is not None:
                stack.push_async_callback(database.aclose)
            await stack.enter_async_context(self._turns.serve())
            # Turns that nobody reads any more still have a message to store, and an end to tell.
            stack.push_async_callback(self.drain, 0)
            yield

    @property
    def ready(self) -> bool:
        """Whether new turns are taken."""
        return self._turns.ready

    async def problem(self) -> str | None:
        """What keeps new turns from being taken, in a few words; None if nothing does."""
        if not self._turns.ready:
            return "draining"
        if not await self._store.answers():
            return "the store of turns does not answer"
        return None if await self.history.answers() else "the database does not answer"

    async def begin(
        self, request: ChatRequest, user: str | None, headers: Mapping[str, str], context: Any = None, address: str = ""
    ) -> Reader:
        """Begin the turn that a request from this address asks for, and read it; the agent gets the request's context.

        Raises:
            RequestError: the chat is somebody else's, the request claims what is not true, or too much is running.
        """
        return await self.open(self.opening(request, user, headers, context, address))

    def opening(
        self, request: ChatRequest, user: str | None, headers: Mapping[str, str], context: Any = None, address: str = ""
    ) -> "ChatOpening":
        """What `open` begins; it can be stopped before that."""
        if not request.last.id:
            request = structs.replace(request, last=structs.replace(request.last, id=new_id()))
        return ChatOpening(self, request, user, Request(request.extra, headers, context), address)

    async def open(self, opening: "ChatOpening") -> Reader:
        """Begin the turn, and read it.

        Raises:
            RequestError: as for `begin`.
        """
        return await self._turns.begin(opening)

    async def live(self, chat_id: str, user: str | None) -> TurnHead | None:
        """The turn that runs in the user's chat; None also if the chat is somebody else's."""
        head = await self._store.live(self._key(chat_id, user))
        return head if head is not None and head.owner == (user or "") else None

    async def follow(self, chat_id: str, user: str | None, mark: str = "", index: int = 0) -> Reader | None:
        """Read on after a chunk of the turn with this mark, or tell the turn that runs from its beginning.

        None if nothing runs, or if the chat is somebody else's.
        """
        reader = await self._found(chat_id, user, mark, index)
        if reader is not None:
            self.metrics.turn_resumed()
        return reader

    async def _found(self, chat_id: str, user: str | None, mark: str, index: int) -> Reader | None:
        head = await self._store.find(self._key(chat_id, user), mark) if mark else None
        if head is not None and head.owner == (user or ""):
            reader = await self._store.follow(head)
            if reader is not None and index <= reader.log.end:
                reader.seek(index)
                return reader
            if reader is not None:
                reader.leave()
        return await self._rewound(await self.live(chat_id, user))

    async def stop(self, chat_id: str, user: str | None, turn_id: str | None) -> None:
        """Stop the turn that runs in the user's chat, if it is this one.

        If none is named and none runs, whatever the agent has of the chat between its turns is stopped.
        """
        head = await self.live(chat_id, user)
        if head is not None and turn_id in (None, head.turn):
            await self._turns.stop(head)
        elif head is None and turn_id is None and isinstance(self.agent, StopsChats):
            await self.agent.stop(chat_id, user)

    async def messages(
        self, chat_id: str, user: str | None, before: str | None = None, limit: int | None = None
    ) -> list[bytes]:
        """The JSON of the user's messages, without the one that a running turn writes: its replay has all of that.

        A chat that is new, or somebody else's, has none.

        Raises:
            RequestError: this server keeps no messages.
        """
        head = await self.live(chat_id, user)
        for _ in range(_ATTEMPTS):
            rows = await self.history.messages(chat_id, user or "", before, limit)
            still = await self.live(chat_id, user)
            if still == head:
                break
            # A turn that has ended meanwhile has stored its answer, which may not be among them.
            head = still
        else:
            rows = await self.history.messages(chat_id, user or "", before, limit)
        written = None if head is None else head.message_id
        return [message for message_id, message in rows if message_id != written]

    async def entries(self, user: str | None, after: str | None, limit: int) -> list[ChatEntry]:
        """The user's chats after this place of their list, the newest first.

        Raises:
            RequestError: this server keeps no messages, or it is not a place.
        """
        return await self.history.chats(user or "", after, limit)

    async def delete(self, chat_id: str, user: str | None) -> None:
        """Stop the turn that runs in the user's chat, and delete the chat, if it is the user's.

        What fails or takes too long leaves the messages; another call deletes what is left.

        Raises:
            RequestError: this server keeps no messages, or it took too long.
        """
        self.history.check_keeps()
        try:
            async with asyncio.timeout(_DELETE_SECONDS):
                await self._delete(chat_id, user)
        except TimeoutError:
            raise busy() from None

    async def _delete(self, chat_id: str, user: str | None) -> None:
        await self.stop(chat_id, user, None)
        # Before the messages: an agent that remembers a chat that nobody sees would go on with it under the same id.
        if isinstance(self.agent, ForgetsChats):
            await self.agent.forget(chat_id, user)
        if await self.history.delete(chat_id, user or ""):
            await self._store.forget(self._key(chat_id, user))

    async def drain(self, grace: float) -> None:
        """Take no new turns, give the running ones `grace` seconds, then stop them and what outlives them."""
        deadline = time.monotonic() + grace
        await self._turns.drain(grace)
        close: Callable[[float], Awaitable[None]] | None = getattr(self.agent, "aclose", None)
        if close is not None:
            await close(max(deadline - time.monotonic(), 0.0))

    def _key(self, chat_id: str, user: str | None) -> str:
        return self.history.key(chat_id, user or "")

    async def _rewound(self, head: TurnHead | None) -> Reader | None:
        reader = None if head is None else await self._store.follow(head)
        if reader is None:
            return None
        try:
            if reader.log.outcome is None:
                await reader.rewind()
                return reader
        except BaseException:
            reader.leave()
            raise
        reader.leave()
        return None

    def opened(self, head: TurnHead, came: Request, arrived: float, log: TurnLog) -> Span:
        """A turn begins, of a request that arrived then; its agent is to work inside of the span."""
        return self._begun.opened(head, self.history.names(head), came.headers, arrived, log)

    async def _ended(self, head: TurnHead, outcome: Outcome, message: UIMessage) -> None:
        self._begun.ended(head, self.history.names(head), outcome)
        if self.settings.on_end is not None:
            await self.settings.on_end(outcome, message)

    def _fenced(self, head: TurnHead) -> None:
        self._begun.taken(head, self.history.names(head))


class ChatOpening:
    """One request for a turn; `stopped` says that it is to be stopped as soon as it has begun."""

    __slots__ = (
        "_admission",
        "_arrived",
        "_came",
        "_chats",
        "_edits",
        "_request",
        "_span",
        "_user",
        "_writing",
        "address",
        "head",
        "regenerates",
        "stopped",
    )

    def __init__(self, chats: Chats, request: ChatRequest, user: str | None, came: Request, address: str = "") -> None:
        self.address = address
        self._chats = chats
        self._request = request
        self._user = user
        self._came = came
        self._arrived = time.monotonic()
        self._admission: Admission | None = None
        self._span: Span | None = None
        self._writing: str | None = None
        self._edits = False
        self.stopped: StopReason | None = None
        regenerates = request.trigger == "regenerate-message"
        # Without an id it is the last answer.
        self.regenerates = (request.message_id or "") if regenerates else None
        continues = request.last.role == "assistant" and not regenerates
        self.head = TurnHead(
            turn=new_turn_id(),
            chat=chats.history.key(request.id, user or ""),
            owner=user or "",
            message_id=request.last.id if continues else new_id(),
            client=chats.settings.client,
            event_names=chats.settings.event_names,
        )

    async def check(self, running: TurnHead) -> None:
        admission = await self._chats.history.admit(self._request, self.head.owner, running.message_id)
        if admission.spends and await self._chats.are_spent(self.head.chat, admission.spends):
            # To begin would be refused as well, but the turn that runs would have been stopped for it.
            raise RequestError("This approval was answered before.", status=409)
        self._edits = self._request.message_id is not None or admission.keep < admission.after.length
        # An answer without a single part is not stored, and can be written again all the same.
        self._writing = running.message_id if self.regenerates is not None else None

    def may_replace(self) -> bool:
        agent = self._chats.agent
        # Whoever edits a message does not want the rest of its answer.
        return self._edits or not isinstance(agent, GivesWay) or agent.gives_way(self._request.id, self._user)

    def is_awaited(self) -> bool:
        agent = self._chats.agent
        if self._edits or self._request.last.role != "user" or not isinstance(agent, GivesWay):
            return False
        return agent.awaits_message(self._request.id, self._user)

    async def prepare(self, claim: Claim) -> Prepared:
        admission = self._admission = await self._begin(claim.epoch)
        settings = self._chats.settings
        writer = self._chats.history.writer(
            self.head, admission.continues, client=settings.client, value_limit=settings.value_limit
        )
        return Prepared(writer, admission.continues, admission.spends)

    def opened(self, log: TurnLog) -> None:
        self._span = self._chats.opened(self.head, self._came, self._arrived, log)

    def drive(self, turn: Turn) -> Awaitable[None]:
        if self._span is not None:
            self._span.enter()
        chats = self._chats
        events = chats.agent.events(self._chat(turn))
        mapper = chats.agent.mapper(turn.output.writer)
        return pump(events, mapper, turn.output, unused=chats.unused, threads=chats.threads)

    async def _begin(self, epoch: int) -> Admission:
        history = self._chats.history
        for _ in range(_ATTEMPTS):
            admission = await history.admit(self._request, self.head.owner, self._writing)
            await self._ask_agent(admission)
            try:
                await history.begin(self.head, epoch, admission)
            except TailChangedError:
                # Another process has written to the chat; what it wrote counts, too.
                continue
            return admission
        raise RequestError("The chat was changed at the same time. Try again.", status=409)

    async def _ask_agent(self, admission: Admission) -> None:
        admits, request = self._chats.admits, self._request
        if admits is not None:
            approvals, message, context = admission.approvals, admission.question, self._came.context
            asked = Asked(request.id, self._user, message, request.extra, approvals, request.trigger, context)
            await admits.admit(asked)

    def _chat(self, turn: Turn) -> Chat:
        request, admission, chats = self._request, self._admission, self._chats
        if admission is None:
            raise RuntimeError("A turn is prepared before it is driven.")
        return Chat(
            turn,
            id=request.id,
            text=admission.text,
            messages=[admission.question] if admission.messages is None else admission.messages,
            request=self._came,
            client=chats.settings.client,
            user=self._user,
            trigger=request.trigger,
            continues=admission.continues,
            tool_results=admission.tool_results,
            approvals=admission.approvals,
            load=partial(chats.history.load, self.head) if admission.messages is None else None,
        )
