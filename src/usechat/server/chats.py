"""The chats of one agent: who may begin, resume and stop a turn in which of them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from msgspec import structs

from usechat.database import Database
from usechat.history import ChatEntry
from usechat.ids import new_id
from usechat.integrations import CountsUnused, ForgetsChats, Integration, StopsChats, agent_of, drive
from usechat.protocol.requests import ChatRequest
from usechat.server.chat_history import ChatHistory
from usechat.server.metrics import Metrics
from usechat.server.telemetry import TurnTelemetry
from usechat.stores import Metered, Reader, TurnHead, TurnStore
from usechat.turns.chat import Request
from usechat.turns.pending import PendingTurn
from usechat.turns.pump import Unused
from usechat.turns.quota import busy
from usechat.turns.settings import ChatSettings
from usechat.turns.threads import Threads
from usechat.turns.turns import Turns

__all__ = ["Chats"]

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
        self.agent: Integration[Any] = agent_of(agent, self.threads)
        self.history = history
        self.settings = settings
        self.unused = Unused(partial(metrics.event_dropped, "unknown"))
        if isinstance(self.agent, CountsUnused):
            self.agent.unused = self.unused
        self._store = store
        self._turns = Turns(
            self.agent,
            partial(drive, self.agent, unused=self.unused, threads=self.threads),
            store,
            history,
            settings,
            TurnTelemetry(metrics, history.names),
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
        if not await self._store.ping():
            return "the store of turns does not answer"
        return None if await self.history.ping() else "the database does not answer"

    async def begin(
        self, request: ChatRequest, user: str | None, headers: Mapping[str, str], context: Any = None, address: str = ""
    ) -> Reader:
        """Begin the turn that a request from this address asks for, and read it; the agent gets the request's context.

        Raises:
            RequestError: the chat is somebody else's, the request claims what is not true, or too much is running.
        """
        return await self.open(self.pending(request, user, headers, context, address))

    def pending(
        self, asked: ChatRequest, user: str | None, headers: Mapping[str, str], context: Any = None, address: str = ""
    ) -> PendingTurn:
        """What `open` begins; it can be stopped before that."""
        if not asked.last.id:
            asked = structs.replace(asked, last=structs.replace(asked.last, id=new_id()))
        request, chat = Request(asked.extra, headers, context), self._key(asked.id, user)
        return PendingTurn(asked, request, user, self.settings, chat=chat, address=address)

    async def open(self, pending: PendingTurn) -> Reader:
        """Begin the turn, and read it.

        Raises:
            RequestError: as for `begin`.
        """
        return await self._turns.begin(pending)

    async def live(self, chat_id: str, user: str | None) -> TurnHead | None:
        """The turn that runs in the user's chat; None also if the chat is somebody else's."""
        return _owned(await self._store.live(self._key(chat_id, user)), user)

    async def follow(self, chat_id: str, user: str | None, mark: str = "", index: int = 0) -> Reader | None:
        """Read on after a chunk of the turn with this mark, or tell the turn that runs from its beginning.

        None if nothing runs, or if the chat is somebody else's.
        """
        reader = await self._found(chat_id, user, mark, index)
        if reader is not None:
            self.metrics.turn_resumed()
        return reader

    async def _found(self, chat_id: str, user: str | None, mark: str, index: int) -> Reader | None:
        found = await self._store.find(self._key(chat_id, user), mark)
        head = _owned(found.named, user)
        if head is not None:
            reader = await self._store.follow(head)
            if reader is not None and index <= reader.log.end:
                reader.seek(index)
                return reader
            if reader is not None:
                reader.leave()
        return await self._rewound(_owned(found.live, user))

    async def stop(self, chat_id: str, user: str | None, turn_id: str | None) -> None:
        """Stop the turn that runs in the user's chat, if it is this one.

        If none is named and none runs, whatever the agent has of the chat between its turns is stopped.
        """
        # A turn of this process is stopped without a look into the store.
        head = _owned(self._store.local(self._key(chat_id, user)), user) or await self.live(chat_id, user)
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


def _owned(head: TurnHead | None, user: str | None) -> TurnHead | None:
    return head if head is not None and head.owner == (user or "") else None
