"""How long an approval can be answered when the server keeps the chats."""

import copy
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from support.hang import HANG_SECONDS
from support.loopback import message, serving
from usechat.database import Database
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.protocol.messages import UIMessage
from usechat.server.app import create_app
from usechat.turns.chat import Approval, Chat
from usechat.turns.settings import ChatSettings

EXPIRED = (409, "This approval has expired, so nothing was done.")
QUESTION = UIMessage("u1", "user", [{"type": "text", "text": "Hello"}])
ANSWER = UIMessage("a1", "assistant", [{"type": "text", "text": "Hi"}])
approvals: list[Approval] = []


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    approvals.extend(chat.approvals)
    for answer in chat.approvals:
        yield ToolResult(answer.call_id, "deleted")
    if not chat.approvals:
        yield ToolCall("call", "rm", {"file": "a"})
        chat.write.approval_request("call", approval_id="p")


def ask_for_approval(url: str) -> list[dict[str, Any]]:
    approvals.clear()
    httpx.post(f"{url}/api/chat", json=message("May I?"), timeout=HANG_SECONDS)
    return httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS).json()


def approve(url: str, messages: list[dict[str, Any]]) -> httpx.Response:
    answered = copy.deepcopy(messages)
    answered[-1]["parts"][-1] |= {"state": "approval-responded", "approval": {"id": "p", "approved": True}}
    return httpx.post(f"{url}/api/chat", json={"id": "chat", "messages": answered}, timeout=HANG_SECONDS)


def test_an_approval_can_be_answered_until_it_expires() -> None:
    with serving(create_app(agent, settings=ChatSettings(approval_ttl=0))) as url:
        asked = ask_for_approval(url)
        answer = approve(url, asked)
        kept = httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS).json()
    assert ((answer.status_code, answer.text), approvals, kept) == (EXPIRED, [], asked)
    with serving(create_app(agent)) as url:
        assert approve(url, ask_for_approval(url)).status_code == 200
    assert approvals == [Approval("p", "call", "rm", {"file": "a"}, approved=True)]


@pytest.mark.anyio
@pytest.mark.parametrize(("hours", "status"), [(23, 200), (24, 409)])
async def test_an_approval_counts_for_a_day_also_after_a_restart(tmp_path: Path, hours: int, status: int) -> None:
    file = f"sqlite:///{tmp_path}/chats.db"
    with serving(create_app(agent, history=file)) as url:
        asked = ask_for_approval(url)
    database = Database(file)
    earlier = text("UPDATE usechat_messages SET written = written - :seconds")
    await database.run(lambda connection: connection.execute(earlier, {"seconds": hours * 3600}))
    await database.aclose()
    with serving(create_app(agent, history=file)) as url:
        assert approve(url, asked).status_code == status
