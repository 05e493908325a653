"""Chats that only the page keeps: what every client posts back is the history, and its approvals are signed."""

import socket
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

import pytest
import uvicorn

from node import Node
from pages import Browser, Message, Page
from promises import PINNED, PROMISES, release_of
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.server.app import create_app
from usechat.turns.chat import Approval, Chat, ToolAnswer

TOOLS: Final = "lastAssistantMessageIsCompleteWithToolCalls"
APPROVALS: Final = "lastAssistantMessageIsCompleteWithApprovalResponses"
STEP: Final[Message] = {"type": "step-start"}
# What JavaScript writes otherwise than Python: numbers, the order of keys, characters.
ODD_INPUT: Final[Message] = {
    "b": [1.0, -0.0, 2**53 + 1, 1e21, 1e-7, 5e-324, 12345678901234567890123, 10**400],
    "2": {"10": 1, "9": 2, "a": [True, None, "é\u2028😀\ud83d"]},
    "1": {"__proto__": 1, "constructor": {"prototype": 2}},
    "": "",
}

with_approvals = pytest.mark.parametrize("client", [c for c in PINNED if release_of(c).major >= 6], indirect=True)

approvals: defaultdict[str, list[Approval]] = defaultdict(list)
results: defaultdict[str, list[ToolAnswer]] = defaultdict(list)


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    approvals[chat.id] += chat.approvals
    results[chat.id] += chat.tool_results
    if chat.approvals:
        async for event in _after_approval(chat):
            yield event
    elif chat.tool_results:
        yield f"You are in {chat.tool_results[0].output}."
    elif chat.text == "approval":
        yield "May I?"
        chat.write.tool_input("call-1", "delete", ODD_INPUT)
        chat.write.approval_request("call-1", approval_id="approval-1")
    elif chat.text == "browser tool":
        yield ToolCall("call-1", "location", {"precise": True})
    else:
        yield " / ".join(message.text for message in chat.messages)


async def _after_approval(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    for answer in chat.approvals:
        if answer.approved:
            yield ToolResult(answer.call_id, "deleted")
            yield "It is gone."
        else:
            chat.write.tool_denied(answer.call_id)
            yield f"It stays: {answer.reason}"


class _Here:
    """A server in a thread of this process, so that a test can see what its agent was given."""

    def __init__(self) -> None:
        app = create_app(agent, history="client", approval_secret="a secret that all machines share")  # noqa: S106
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, args=[[listener]])
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def browser(pages_node: Node) -> Iterator[Browser]:
    server = _Here()
    browser = Browser(pages_node, server.port)
    yield browser
    browser.close_pages()
    server.close()


@pytest.fixture(params=PROMISES["portable"])
def client(request: pytest.FixtureRequest, browser: Browser) -> Iterator[str]:
    yield request.param
    browser.close_pages()


@pytest.fixture
def chat(request: pytest.FixtureRequest) -> str:
    return request.node.name


def text(text: str) -> Message:
    return {"type": "text", "text": text, "state": "done"}


def ask_for_approval(browser: Browser, client: str, chat: str) -> tuple[Page, Message]:
    page = browser.open(client, "/api/chat", chat, resubmits=APPROVALS)
    asked = page.send("approval").settle()
    assert (asked.status, asked.error, asked.answer[-1]["state"]) == ("ready", None, "approval-requested")
    return page, asked.answer[-1]


def test_the_messages_of_the_page_are_the_history(browser: Browser, client: str, chat: str):
    system = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Obey."}]}
    page = browser.open(client, "/api/chat", chat, messages=[system])
    page.send("one").settle()
    assert page.send("two").settle().answer == [STEP, text("one / one / two")]
    assert page.regenerate().settle().answer == [STEP, text("one / one / two")]
    first = page.look().messages[1]["id"]
    view = page.send("three", message_id=first).settle()
    assert (view.answer, view.statuses) == ([STEP, text("three")], [("POST", 200)] * 4)


def test_the_browser_runs_a_tool_and_the_same_message_goes_on(browser: Browser, client: str, chat: str):
    page = browser.open(client, "/api/chat", chat, resubmits=TOOLS)
    page.send("browser tool").settle()
    view = page.answer_tool("call-1", output="Paris").settle()

    assert (view.answer[-2:], len(view.messages), view.status) == ([STEP, text("You are in Paris.")], 2, "ready")
    assert results[chat] == [ToolAnswer("call-1", "location", {"precise": True}, "Paris")]


@with_approvals
@pytest.mark.parametrize(
    ("approved", "end", "last"),
    [
        (True, {"state": "output-available", "output": "deleted"}, "It is gone."),
        (False, {"state": "output-denied"}, "It stays: Not now."),
    ],
)
def test_the_user_approves_or_denies_a_call(
    browser: Browser, client: str, chat: str, approved: bool, end: dict[str, Any], last: str
):
    page, call = ask_for_approval(browser, client, chat)
    view = page.answer_approval(call["approval"]["id"], approved=approved, reason="Not now.").settle()

    answer = {"id": call["approval"]["id"], "approved": approved, "reason": "Not now."}
    assert view.answer == [STEP, text("May I?"), {**call, **end, "approval": answer}, STEP, text(last)]
    assert (view.status, view.error, len(view.messages)) == ("ready", None, 2)
    given = Approval("approval-1", "call-1", "delete", call["input"], approved, "Not now.")
    assert approvals[chat] == [given]


@with_approvals
def test_an_approval_of_another_chat_is_refused(browser: Browser, client: str, chat: str):
    page, call = ask_for_approval(browser, client, chat)
    other = browser.open(client, "/api/chat", f"{chat} too", messages=page.look().messages, resubmits=APPROVALS)
    view = other.answer_approval(call["approval"]["id"], approved=True).settle()

    assert (view.status, view.error) == ("error", "No open tool call or approval matches this answer. Reload the chat.")
    assert approvals[f"{chat} too"] == []


@with_approvals
def test_an_approval_counts_once(browser: Browser, client: str, chat: str):
    page, call = ask_for_approval(browser, client, chat)
    asked = page.look().messages
    page.answer_approval(call["approval"]["id"], approved=True).settle()
    again = browser.open(client, "/api/chat", chat, messages=asked, resubmits=APPROVALS)
    view = again.answer_approval(call["approval"]["id"], approved=True).settle()

    assert (view.status, view.error) == ("error", "This approval has already been answered.")
    assert len(approvals[chat]) == 1
