"""Whose history counts: the server's own, or the one that the client sends with each request."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from usechat.errors import DatabaseBusyError, ProtocolError, RequestError
from usechat.history import ChatEntry, HistoryStore, StateStore, StoredChat
from usechat.history.store import decode
from usechat.ids import new_id
from usechat.protocol.codec import decode_chunk, encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.replay import chunks_of_parts
from usechat.protocol.state import StreamState
from usechat.protocol.writer import MessageWriter
from usechat.server.admission import EXPIRED, ApprovalSigner, AskedCall, admit, admit_unkept, signed_approval_ids
from usechat.slices import Slices
from usechat.stores import TurnHead
from usechat.turns.chat import NO_STATE
from usechat.turns.pending import Admission, PendingTurn
from usechat.turns.turns import NOT_FOUND

__all__ = ["ChatHistory", "ClientHistory", "ServerHistory"]

_T = TypeVar("_T")

_log = logging.getLogger("usechat")

_BROKEN: Final = (msgspec.MsgspecError, ProtocolError, AttributeError, KeyError, TypeError, ValueError)
# How long the end of a turn waits for its answer to be stored, and how long to wait before the next attempt.
_STORE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_PING_SECONDS: Final = 2.0


class ServerHistory:
    """Keeps chats in a `HistoryStore`. An approval counts for `approval_ttl` seconds after its message was written.

    If the database does not take an answer within 5 seconds, `late` is called, and this process keeps the answer until
    the database takes it.
    """

    def __init__(self, history: HistoryStore, approval_ttl: float, late: Callable[[], None]) -> None:
        self._history = history
        self._states = history if isinstance(history, StateStore) and history.keeps_state else None
        self._approval_ttl = approval_ttl
        self._late = late
        # The answers that are on their way into the database, by their chats.
        self._writing: dict[str, tuple[UIMessage, asyncio.Task[None]]] = {}

    def key(self, chat_id: str, owner: str) -> str:
        """The chat's id in the store of turns."""
        return chat_id

    def names(self, head: TurnHead) -> Mapping[str, str]:
        """The fields of a log line that name the turn's chat."""
        return {"chat": head.chat}

    async def admit(self, pending: PendingTurn) -> Admission:
        if pending.chat_id in self._writing:
            # The admission as a whole has a deadline.
            await asyncio.wait([self._writing[pending.chat_id][1]])
        look = partial(admit, pending.asked, writing=pending.writing)
        if self._states is None:
            reading = self._history.read(pending.chat_id, pending.head.owner, look)
        else:
            reading = self._states.read(pending.chat_id, pending.head.owner, partial(_with_state, look))
        admission = await _or_not_found(reading)
        if admission.approvals and admission.after.written + self._approval_ttl <= time.time():
            raise RequestError(EXPIRED, status=409)
        return admission

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        head, kept = pending.head, pending.admission
        beginning = self._history.begin(
            head.chat, head.owner, head.turn, after=kept.after, keep=kept.keep, new=kept.new, epoch=epoch
        )
        await _or_not_found(beginning)

    async def has_ended(self, head: TurnHead) -> bool:
        try:
            return await self._history.has_ended(head.chat, head.turn)
        except DatabaseBusyError:
            return False

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        if not message.parts and state is None:
            return
        writing = asyncio.create_task(self._write(head, epoch, message, state))
        self._writing[head.chat] = message, writing
        writing.add_done_callback(partial(self._written, head.chat))
        _, late = await asyncio.wait([writing], timeout=_STORE_SECONDS)
        if late:
            self._late()
            _log.error("the answer of turn %s could not be stored in time; the attempts go on", head.turn)

    async def load(self, head: TurnHead) -> list[UIMessage]:
        return await self._history.load(head.chat, head.owner)

    async def messages(
        self, chat_id: str, owner: str, before: str | None, limit: int | None
    ) -> list[tuple[str, bytes]]:
        """The ids and the JSON of the last messages before one of them; none if the chat belongs to another user.

        Raises:
            RequestError: The client keeps the messages. So it is for `chats`, `check_keeps` and `delete`.
        """
        writing = self._writing.get(chat_id)
        try:
            rows = await self._history.load_json(chat_id, owner, before=before, limit=limit)
        except PermissionError:
            # As for a new chat, so that users cannot find out which chats others have.
            return []
        slices = Slices()
        for position, (_, body) in enumerate(rows):
            # A row that was broken in the database must not reach a page.
            decode(chat_id, position, body)
            await slices.pause()
        if writing is not None and writing[0].parts and before is None:
            last = writing[0].id, msgspec.json.encode(writing[0])
            rows = [*(row for row in rows if row[0] != last[0]), last]
        return rows

    async def chats(self, owner: str, after: str | None, limit: int) -> list[ChatEntry]:
        """The owner's chats after this place in the list, the newest first.

        Raises:
            RequestError: It is not a place.
        """
        try:
            return await self._history.chats(owner, after=after, limit=limit)
        except ValueError as error:
            raise RequestError(str(error)) from error

    def check_keeps(self) -> None:
        """Raise if this history has nothing to delete."""

    async def delete(self, chat_id: str, owner: str) -> bool:
        """Delete the chat; False if it belongs to another user."""
        try:
            await self._history.delete(chat_id, owner)
        except PermissionError:
            return False
        if chat_id in self._writing:
            self._writing[chat_id][1].cancel()
        return True

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        return MessageWriter(
            head.message_id, new_id=new_id, client=head.client, continues=continues, value_limit=value_limit
        )

    async def ping(self) -> bool:
        """Whether chats can be stored now."""
        try:
            await self._history.ping(within=_PING_SECONDS)
        except DatabaseBusyError:
            return False
        return True

    async def _write(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        if self._states is None:
            end = partial(self._history.end, head.chat, head.turn, epoch, message)
        else:
            end = partial(self._states.end, head.chat, head.turn, epoch, message, state)
        while True:
            try:
                if not await end():
                    _log.info("the answer of turn %s was not kept: a newer turn has its place", head.turn)
                return
            except DatabaseBusyError:
                await asyncio.sleep(_RETRY_SECONDS)
            # Another attempt would fail in the same way.
            except Exception:  # noqa: BLE001
                _log.exception("the answer of turn %s cannot be stored", head.turn)
                return

    def _written(self, chat_id: str, task: asyncio.Task[None]) -> None:
        if chat_id in self._writing and self._writing[chat_id][1] is task:
            del self._writing[chat_id]


class ClientHistory:
    """Takes the messages of each request for the chat. Only approvals are checked: their ids are signed."""

    def __init__(self, signer: ApprovalSigner, new_id: Callable[[], str] = new_id) -> None:
        self._signer = signer
        self._new_id = new_id

    def key(self, chat_id: str, owner: str) -> str:
        # Two users may choose the same id, since no chat is kept that could belong to one of them. Ids have no line
        # breaks.
        return f"{owner}\n{chat_id}"

    def names(self, head: TurnHead) -> Mapping[str, str]:
        return {"chat": _chat_id(head)}

    async def admit(self, pending: PendingTurn) -> Admission:
        messages, slices = list[UIMessage](), Slices()
        for message in pending.asked.decoded():
            messages.append(message)
            await slices.pause()

        def verify(approval_id: str, call_id: str, tool: str, value: Any) -> str:
            asked = AskedCall(pending.chat_id, pending.head.owner, call_id, tool, value)
            return self._signer.verify(approval_id, asked)

        admission = admit_unkept(pending.asked, messages, verify)
        if admission.continues is not None:
            _check_continuable(admission.continues)
        return admission

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        # The store of turns lets each approval count once. Here a used one is refused before it ends a running turn.
        for approval_id in pending.admission.approval_ids:
            self._signer.use(approval_id)

    async def has_ended(self, head: TurnHead) -> bool:
        return False

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        pass

    async def _keeps_none(self, *_: Any, **__: Any) -> Any:
        raise _no_messages()

    load = messages = chats = delete = _keeps_none

    def check_keeps(self) -> None:
        raise _no_messages()

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        return MessageWriter(
            head.message_id,
            new_id=self._new_id,
            client=head.client,
            continues=continues,
            value_limit=value_limit,
            approval_id=signed_approval_ids(self._signer, _chat_id(head), head.owner),
        )

    async def ping(self) -> bool:
        return True


ChatHistory: TypeAlias = ServerHistory | ClientHistory
"""A `TurnHistory`, and the routes' access to it."""


def _no_messages() -> RequestError:
    return RequestError("This server keeps no messages.", status=404)


async def _or_not_found(reading: Awaitable[_T]) -> _T:
    try:
        return await reading
    except PermissionError:
        raise RequestError(NOT_FOUND, status=404) from None


def _with_state(look: Callable[[StoredChat], Admission], stored: StoredChat) -> Admission:
    """Add the state that the turn begins with: what the messages before the user's have left."""
    admission = look(stored)
    question = admission.keep + len(admission.new) - 1
    before = question if admission.question.role == "user" else question + 1
    return msgspec.structs.replace(admission, state=stored.state(before) or NO_STATE)


def _chat_id(head: TurnHead) -> str:
    return head.chat.partition("\n")[2]


def _check_continuable(message: UIMessage) -> None:
    """Refuse a message that no turn could have written, on which the writer, reader or replay would fail later."""
    if not isinstance(message.metadata, dict | msgspec.UnsetType | None):
        raise RequestError("The metadata of the message to continue must be an object.")
    try:
        StreamState(message.id, message.parts)
        MessageReader(message)
        for chunk in chunks_of_parts(message.parts):
            decode_chunk(encode_chunk(chunk))
    except _BROKEN:
        raise RequestError("The message to continue has a part that is wrong.") from None
