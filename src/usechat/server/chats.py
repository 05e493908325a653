"""The chats of one agent: who may begin, resume and stop a turn in which of them, and what is kept."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from msgspec import Struct, structs

from usechat.agents.chat import Chat, Request, live_writer
from usechat.agents.plain import PlainAgent, run_plain
from usechat.errors import MappingError, RequestError
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.values import VALUE_LIMIT
from usechat.server.admission import Admission
from usechat.server.chat_history import NOT_FOUND, ChatHistory, new_id
from usechat.server.metrics import Metrics
from usechat.stores import Outcome, TurnLog, TurnStore
from usechat.stream import Unused, explain
from usechat.turns import REPLACED, Turn, TurnLimits

__all__ = ["ChatSettings", "Chats", "Conflict", "ErrorText", "OnEnd"]

Conflict: TypeAlias = Literal["replace", "queue", "reject"]
ErrorText: TypeAlias = Callable[[BaseException], str | None]
OnEnd: TypeAlias = Callable[[Outcome, UIMessage], Awaitable[None]]

_log = logging.getLogger("usechat")
_RETRY_AFTER: Final = 5
# The most requests of one chat that wait for their turn, the one that begins among them.
_QUEUE: Final = 16


class ChatSettings(Struct, frozen=True, kw_only=True):
    """How the turns of an endpoint behave.

    `conflict` says what a second message does while a turn runs in its chat: it replaces the turn, waits for it, or is
    rejected. `approval_ttl` is for how many seconds an approval that was asked for can be answered. `error_text` may
    choose what the user reads of an exception; None is the masked text.
    """

    client: ClientName = "portable"
    conflict: Conflict = "replace"
    turn: TurnLimits = TurnLimits()
    turns_per_user: int = 16
    turns_per_process: int = 2_000
    threads: int = 64
    value_limit: int = VALUE_LIMIT
    approval_ttl: float = 24 * 3600.0
    error_text: ErrorText | None = None
    on_end: OnEnd | None = None


class Chats:
    """The turns of one agent, and what they count in `metrics`."""

    def __init__(self, agent: PlainAgent, store: TurnStore, chat_history: ChatHistory, settings: ChatSettings) -> None:
        self.metrics = Metrics()
        self._agent = agent
        self._store = store
        self._chat_history = chat_history
        self._settings = settings
        self._turns: dict[str, Turn] = {}
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = asyncio.Semaphore(settings.threads)
        self._unused = Unused()
        self._draining = False

    @property
    def ready(self) -> bool:
        """Whether new turns are taken."""
        return not self._draining

    async def begin(self, request: ChatRequest, user: str | None, headers: Mapping[str, str]) -> Turn:
        """Begin the turn that a request asks for.

        Raises:
            RequestError: the chat is somebody else's, the request claims what is not true, or too much is running.
        """
        if not request.last.id:
            request = structs.replace(request, last=structs.replace(request.last, id=new_id()))
        async with self._turn_of(request.id):
            # A request that is refused leaves the turn alone that it would have replaced.
            admission = await self._chat_history.admit(request, user or "")
            replaces = await self._make_way(request.id, user)
            if not replaces:
                self._check_room(user)
            with self._place_of(user or ""):
                if replaces:
                    # The turn that ended has left its answer.
                    admission = await self._chat_history.admit(request, user or "")
                return await self._start(request, user, headers, admission)

    @asynccontextmanager
    async def _turn_of(self, chat_id: str) -> AsyncGenerator[None, None]:
        """Wait for those who began in the chat before."""
        if self._waiting[chat_id] >= _QUEUE:
            raise RequestError("Too many messages wait in this chat.", status=429, retry_after=_RETRY_AFTER)
        self._waiting[chat_id] += 1
        try:
            async with self._locks.setdefault(chat_id, asyncio.Lock()):
                yield
        finally:
            self._waiting -= Counter((chat_id,))

    async def live(self, chat_id: str, user: str | None) -> Turn | None:
        """The turn that runs in the user's chat; None also if the chat is somebody else's."""
        log = await self._store.live(chat_id)
        if log is None or log.owner != (user or ""):
            return None
        return self._turns.get(log.turn)

    async def stop(self, chat_id: str, user: str | None, turn_id: str | None) -> None:
        """Stop the turn that runs in the user's chat, if it is this one."""
        turn = await self.live(chat_id, user)
        if turn is not None and await self._store.stop(chat_id, turn_id):
            await turn.settled()

    async def messages(self, chat_id: str, user: str | None) -> list[UIMessage]:
        """The messages of the user's chat, without one that a running turn continues: its replay has all of that.

        Raises:
            RequestError: there is no such chat, or it is somebody else's.
        """
        messages = await self._chat_history.messages(chat_id, user or "")
        turn = await self.live(chat_id, user)
        if turn is not None and messages and messages[-1].id == turn.writer.message_id:
            return messages[:-1]
        return messages

    async def drain(self, grace: float) -> None:
        """Take no new turns, give the running ones `grace` seconds, then stop them."""
        self._draining = True
        turns = list(self._turns.values())
        ends = [asyncio.create_task(turn.settled()) for turn in turns]
        if ends:
            await asyncio.wait(ends, timeout=grace)
        for turn in turns:
            turn.stop()
        await asyncio.gather(*ends)

    async def _make_way(self, chat_id: str, user: str | None) -> bool:
        """End the turn that runs in the chat, as the app chose; False if none does."""
        if self._draining:
            raise _busy()
        log = await self._store.live(chat_id)
        if log is not None and log.owner != (user or ""):
            raise RequestError(NOT_FOUND, status=404)
        running = self._turns.get(log.turn) if log is not None else None
        if running is None:
            return False
        if self._settings.conflict == "reject":
            raise RequestError("An answer is still being written in this chat.", status=409)
        if self._settings.conflict == "replace":
            running.stop(REPLACED)
        await running.settled()
        return True

    def _check_room(self, user: str | None) -> None:
        if self._running.total() >= self._settings.turns_per_process:
            raise _busy()
        if self._running[user or ""] >= self._settings.turns_per_user and user is not None:
            sentence = "Too many answers are being written for you at once."
            raise RequestError(sentence, status=429, retry_after=_RETRY_AFTER)

    @contextmanager
    def _place_of(self, owner: str) -> Generator[None, None, None]:
        """Count a turn that is about to begin, so that those that begin meanwhile find its place taken."""
        self._running[owner] += 1
        try:
            yield
        except BaseException:
            self._leave(owner)
            raise

    def _leave(self, owner: str) -> None:
        self._running[owner] -= 1
        self._running += Counter()

    async def _start(
        self, request: ChatRequest, user: str | None, headers: Mapping[str, str], admission: Admission
    ) -> Turn:
        log = TurnLog(secrets.token_hex(16), request.id, user or "")
        await self._chat_history.begin(log, admission)
        # From here to the turn's place in `_turns` nothing waits, so that `drain` sees each turn that begins.
        if self._draining:
            raise _busy()
        writer = self._chat_history.writer(
            log, admission.continues, client=self._settings.client, value_limit=self._settings.value_limit
        )
        turn = Turn(
            log,
            writer,
            admission.continues,
            limits=self._settings.turn,
            explain=partial(explain, error_text=self._settings.error_text),
            on_end=partial(self._ended, log, time.monotonic()),
        )
        self._turns[log.turn] = turn
        try:
            await self._store.open(log)
        except BaseException:
            self._turns.pop(log.turn, None)
            raise
        self.metrics.turn_started()
        turn.start(partial(self._run, turn, self._chat(turn, request, user, headers, admission)))
        return turn

    def _chat(
        self, turn: Turn, request: ChatRequest, user: str | None, headers: Mapping[str, str], admission: Admission
    ) -> Chat:
        asked = [message for message in admission.messages if message.role == "user"]
        return Chat(
            id=request.id,
            text=asked[-1].text if asked else "",
            messages=admission.messages,
            request=Request(request.extra, headers),
            user=user,
            trigger=request.trigger,
            continues=admission.continues,
            tool_results=admission.tool_results,
            approvals=admission.approvals,
            stopping=turn.stopping,
            client=self._settings.client,
            write=live_writer(turn),
        )

    async def _run(self, turn: Turn, chat: Chat) -> None:
        await run_plain(self._agent, chat, turn, threads=self._threads, unused=self._note_unused)

    async def _ended(self, log: TurnLog, began: float, outcome: Outcome, message: UIMessage) -> None:
        self.metrics.turn_ended(outcome, time.monotonic() - began)
        try:
            if not await self._chat_history.end(log, message) and message.parts:
                _log.info("the answer of turn %s was not kept: a newer turn has its place", log.turn)
            if self._settings.on_end is not None:
                await self._settings.on_end(outcome, message)
        # The app's own hook may raise anything; the turn is over all the same.
        except Exception:  # noqa: BLE001
            _log.exception("what follows the end of turn %s failed", log.turn)
        finally:
            del self._turns[log.turn]
            self._leave(log.owner)
            await self._store.close(log)

    def _note_unused(self, error: MappingError) -> None:
        self.metrics.event_dropped("unknown")
        self._unused(error)


def _busy() -> RequestError:
    return RequestError("The server is busy. Try again in a moment.", status=503, retry_after=_RETRY_AFTER)
