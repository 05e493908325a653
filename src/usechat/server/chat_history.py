"""Who keeps the messages of the chats: the server, in a history, or the client, which sends them with each request."""

import secrets
import time
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from usechat.errors import ProtocolError, RequestError
from usechat.history import History
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import decode_chunk, encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.part_chunks import chunks_of_parts
from usechat.protocol.reader import MessageReader
from usechat.protocol.requests import ChatRequest
from usechat.protocol.state import StreamState
from usechat.protocol.writer import MessageWriter
from usechat.server.admission import EXPIRED, Admission, admit, admit_unkept
from usechat.server.signatures import ApprovalSigner, AskedCall, SigningWriter
from usechat.stores import TurnLog

__all__ = ["NOT_FOUND", "ChatHistory", "ClientHistory", "ServerHistory", "new_id"]

NOT_FOUND: Final = "There is no such chat."
_BROKEN: Final = (msgspec.MsgspecError, ProtocolError, AttributeError, KeyError, TypeError, ValueError)


def new_id() -> str:
    return secrets.token_urlsafe(12)


class ChatHistory(Protocol):
    """Says what of a request is believed, and keeps what is to be kept of a turn."""

    async def admit(self, request: ChatRequest, owner: str) -> Admission:
        """Say with which messages a turn would begin; nothing is written yet.

        Raises:
            RequestError: The chat is somebody else's, or the request claims what is not true.
        """
        ...

    async def begin(self, log: TurnLog, admission: Admission) -> None:
        """The turn begins.

        Raises:
            RequestError: The chat has become somebody else's.
        """
        ...

    async def end(self, log: TurnLog, message: UIMessage) -> bool:
        """The turn has ended with this message; False if it could not be kept."""
        ...

    async def messages(self, chat_id: str, owner: str) -> list[UIMessage]:
        """The messages of a chat.

        Raises:
            RequestError: There are none, or they are somebody else's.
        """
        ...

    def writer(
        self, log: TurnLog, continues: UIMessage | None, *, client: ClientName, value_limit: int
    ) -> MessageWriter:
        """Make the writer of the turn's message."""
        ...


class ServerHistory:
    """The messages are in a history; an approval counts for `approval_ttl` seconds after the message was written."""

    def __init__(self, history: History, approval_ttl: float) -> None:
        self._history = history
        self._approval_ttl = approval_ttl

    async def admit(self, request: ChatRequest, owner: str) -> Admission:
        admission = admit(request, await self._own(request.id, owner) or [])
        if admission.approvals and await self._history.written(request.id) + self._approval_ttl <= time.time():
            raise RequestError(EXPIRED, status=409)
        return admission

    async def begin(self, log: TurnLog, admission: Admission) -> None:
        try:
            await self._history.begin(log.chat, log.owner, log.turn, admission.messages)
        except PermissionError:
            raise RequestError(NOT_FOUND, status=404) from None

    async def end(self, log: TurnLog, message: UIMessage) -> bool:
        return await self._history.end(log.chat, log.turn, message)

    async def messages(self, chat_id: str, owner: str) -> list[UIMessage]:
        messages = await self._own(chat_id, owner)
        if messages is None:
            raise RequestError(NOT_FOUND, status=404)
        return messages

    def writer(
        self, log: TurnLog, continues: UIMessage | None, *, client: ClientName, value_limit: int
    ) -> MessageWriter:
        return MessageWriter(new_id(), new_id=new_id, client=client, continues=continues, value_limit=value_limit)

    async def _own(self, chat_id: str, owner: str) -> list[UIMessage] | None:
        stored = await self._history.load(chat_id)
        if stored is None:
            return None
        if stored.owner != owner:
            raise RequestError(NOT_FOUND, status=404)
        return stored.messages


class ClientHistory:
    """The messages are those of each request; of what they say only the approvals are sure to be true."""

    def __init__(self, signer: ApprovalSigner) -> None:
        self._signer = signer

    async def admit(self, request: ChatRequest, owner: str) -> Admission:
        admission = admit_unkept(request, partial(self._verify, request.id, owner))
        if admission.continues is not None:
            _check_continuable(admission.continues)
        return admission

    async def begin(self, log: TurnLog, admission: Admission) -> None:
        for approval_id in admission.approval_ids:
            self._signer.use(approval_id)

    async def end(self, log: TurnLog, message: UIMessage) -> bool:
        return True

    async def messages(self, chat_id: str, owner: str) -> list[UIMessage]:
        raise RequestError("This server keeps no messages.", status=404)

    def writer(
        self, log: TurnLog, continues: UIMessage | None, *, client: ClientName, value_limit: int
    ) -> MessageWriter:
        return SigningWriter(
            new_id(),
            signer=self._signer,
            chat=log.chat,
            owner=log.owner,
            new_id=new_id,
            client=client,
            continues=continues,
            value_limit=value_limit,
        )

    def _verify(self, chat_id: str, owner: str, approval_id: str, call_id: str, tool: str, value: Any) -> str:
        return self._signer.verify(approval_id, AskedCall(chat_id, owner, call_id, tool, value))


def _check_continuable(message: UIMessage) -> None:
    """Refuse a message that no turn of ours could have written: its writer, reader and replay would fail later."""
    if not isinstance(message.metadata, dict | msgspec.UnsetType | None):
        raise RequestError("The metadata of the message to continue must be an object.")
    try:
        StreamState(message.id, message.parts)
        MessageReader(message)
        for chunk in chunks_of_parts(message.parts):
            decode_chunk(encode_chunk(chunk))
    except _BROKEN:
        raise RequestError("The message to continue has a part that is wrong.") from None
