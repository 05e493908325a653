"""The chats of the gateway: sessions keep what is said in them, so that here nothing is kept."""

import secrets
from collections.abc import Mapping
from typing import Final

from usechat.errors import DatabaseBusyError, RequestError
from usechat.history import Tail
from usechat.protocol.requests import ChatRequest
from usechat.server.admission import Admission
from usechat.server.chat_history import ClientHistory
from usechat.server.sessions.directory import SessionDirectory
from usechat.server.signatures import ApprovalSigner
from usechat.stores import TurnHead

__all__ = ["SessionHistory", "scoped"]

_PING_SECONDS: Final = 2.0


def scoped(session: str, chat_id: str) -> str:
    """The id of a chat of this session; neither id has line breaks."""
    return f"{session}\n{chat_id}"


class SessionHistory(ClientHistory):
    """Takes the last message of a request and nothing else; chats are those of a user and a session."""

    def __init__(self, directory: SessionDirectory) -> None:
        # No session asks for an approval.
        super().__init__(ApprovalSigner(secrets.token_hex(), 0.0))
        self._directory = directory

    def names(self, head: TurnHead) -> Mapping[str, str]:
        user, session, chat = head.chat.split("\n")
        return {"session": session, "chat": chat, "user": user}

    async def admit(self, request: ChatRequest, owner: str, writing: str | None = None) -> Admission:
        last = request.last
        if last.role == "system":
            raise RequestError("The last message must be from the user or the assistant.")
        return Admission(Tail(0), 0, [last], last, last.text, messages=[last])

    async def answers(self) -> bool:
        try:
            await self._directory.ping(within=_PING_SECONDS)
        except DatabaseBusyError:
            return False
        return True
