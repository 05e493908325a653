"""The route of a DeepAgent with graphs: whose threads they are, what they begin with, and what they wait for."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import BaseMessage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from support.frameworks import (
    START,
    HumanInTheLoopMiddleware,
    InMemorySaver,
    MessagesState,
    StateGraph,
    create_agent,
    create_deep_agent,
    tool,
)
from support.hang import HANG_SECONDS
from support.loopback import parts, serving
from support.scripted_model import Reply, ScriptedModel, calls, says
from usechat import RequestError, elements_route

Part = dict[str, Any]


def user_of(request: Request) -> str:
    """A user, who signs in with a name in a header, has one thread."""
    user = request.headers.get("x-user")
    if user == "mallory":
        raise RequestError("You have no thread.", status=403)
    return f"thread of {user}" if user else ""


@contextmanager
def served(graph: Any, **options: Any) -> Generator[str]:
    app = Starlette(routes=[Route("/api/chat", elements_route(graph, **options), methods=["POST"])])
    with serving(app) as url:
        yield f"{url}/api/chat"


def post(url: str, user: str, *messages: Part) -> httpx.Response:
    body = {"id": "chat", "messages": list(messages)}
    return httpx.post(url, json=body, headers={"x-user": user}, timeout=HANG_SECONDS)


def spoken(answer: httpx.Response) -> list[str]:
    return [part["text"] for part in parts(answer.text) if part["type"] == "text"]


def said(text: str, message_id: str = "u1") -> Part:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def test_two_users_at_once_have_threads_of_their_own() -> None:
    both = threading.Barrier(2, timeout=HANG_SECONDS)

    def reply(messages: list[BaseMessage]) -> Reply:
        return says(" | ".join(str(message.content) for message in messages))

    @tool
    def meet() -> str:
        """Wait for the other user."""
        both.wait()
        return "met"

    def meeting(messages: list[BaseMessage]) -> Reply:
        return calls("c1", "meet", {}) if messages[-1].content == "meet" else reply(messages)

    model = ScriptedModel(replies=meeting)
    answers: dict[str, list[str]] = {}
    with served(create_agent(model, [meet], checkpointer=InMemorySaver()), thread_id=user_of) as url:

        def talk(user: str) -> None:
            post(url, user, said(f"I am {user}"))
            post(url, user, said("meet", "u2"))
            answers[user] = spoken(post(url, user, said("Who am I?", "u3")))

        threads = [threading.Thread(target=talk, args=[user]) for user in ("ann", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def remembered(user: str) -> str:
        first = f"I am {user} | I am {user} | meet |  | met"
        return f"{first} | {first} | Who am I?"

    assert answers == {user: [remembered(user)] for user in ("ann", "bob")}


def test_a_request_belongs_to_a_thread() -> None:
    graph = create_agent(ScriptedModel(replies=[]), [], checkpointer=InMemorySaver())
    with served(graph, thread_id=user_of) as url:
        answers = [post(url, user, said("Hello")) for user in ("", "mallory")]
        assert [(answer.status_code, answer.json()) for answer in answers] == [
            (400, {"error": "This request belongs to no thread."}),
            (403, {"error": "You have no thread."}),
        ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "this route knows no users. Pass a thread_id"),
        ({"thread_id": "everybody's"}, "function that returns the thread of a request"),
        ({"thread_id": user_of, "max_steps": 3}, "max_steps is not for graphs"),
    ],
)
def test_a_graph_whose_threads_all_would_share_is_refused(options: dict[str, Any], problem: str) -> None:
    graph = create_agent(ScriptedModel(replies=[]), [], checkpointer=InMemorySaver())
    with pytest.raises(TypeError, match=problem):
        elements_route(graph, **options)


def test_a_graph_without_threads_gets_the_messages_and_the_state_of_each_request() -> None:
    def reply(messages: list[BaseMessage]) -> Reply:
        if messages[-1].type == "human":
            return calls("c1", "read_file", {"file_path": "/plan.md"})
        return says(f"{[message.type for message in messages if message.type != 'system']} {messages[-1].content}")

    def files(request: Request) -> dict[str, Any]:
        content = f"The plan of {request.headers['x-user']}"
        return {"files": {"/plan.md": {"content": content, "encoding": "utf-8"}}}

    model = ScriptedModel(replies=reply)
    with served(create_deep_agent(model), initial_state=files) as url:
        for user in ("ann", "bob"):
            before = {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": "Yes?"}]}
            [answer] = spoken(post(url, user, said("Hello"), before, said("Go", "u2")))
            types, _, content = answer.partition("]")
            assert types == "['human', 'ai', 'human', 'ai', 'tool'"
            assert content.endswith(f"The plan of {user}")


def test_only_a_new_thread_begins_with_the_state() -> None:
    def reply(messages: list[BaseMessage]) -> Reply:
        last = messages[-1]
        if last.content == "write":
            return calls("c1", "write_file", {"file_path": "/b.md", "content": "b"})
        return calls("c2", "ls", {"path": "/"}) if last.type == "human" else says(str(last.content))

    state = {"files": {"/a.md": {"content": "a", "encoding": "utf-8"}}}
    graph = create_deep_agent(ScriptedModel(replies=reply), checkpointer=InMemorySaver())
    with served(graph, initial_state=state, thread_id=user_of) as url:
        post(url, "ann", said("write"))
        assert spoken(post(url, "ann", said("look", "u2"))) == ["['/a.md', '/b.md']"]
        assert spoken(post(url, "bob", said("look", "u2"))) == ["['/a.md']"]
    assert state == {"files": {"/a.md": {"content": "a", "encoding": "utf-8"}}}


def test_an_approval_is_the_users_whose_thread_waits() -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a letter."""
        sent.append(to)
        return f"sent to {to}"

    def reply(messages: list[BaseMessage]) -> Reply:
        last = messages[-1]
        return calls("c1", "send", {"to": str(last.content)}) if last.type == "human" else says("Done.")

    gate = HumanInTheLoopMiddleware({"send": {"allowed_decisions": ["approve", "edit"]}})
    graph = create_agent(ScriptedModel(replies=reply), [send], middleware=[gate], checkpointer=InMemorySaver())
    with served(graph, thread_id=user_of) as url:
        asked = parts(post(url, "ann", said("Kiel")).text)
        approval = asked[-1]["approval"]
        answer = {"id": "a1", "role": "assistant", "parts": asked}
        asked[-1] |= {"state": "approval-responded", "approval": {**approval, "approved": True}}
        # Bob's own thread waits, too, but not for this.
        post(url, "bob", said("Kiel"))
        refused = post(url, "bob", said("Kiel"), answer)
        assert (refused.status_code, refused.json()) == (409, {"error": "This answers no approval that is open."})
        asked[-1]["approval"]["approved"] = False
        refused = post(url, "ann", said("Kiel"), answer)
        assert (refused.status_code, sent) == (409, [])
        asked[-1]["approval"]["approved"] = True
        body = {"id": "chat", "messages": [said("Kiel"), answer]}
        edit = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "Bonn"}}}
        edited = httpx.post(
            url, json={**body, "approvals": {approval["id"]: edit}}, headers={"x-user": "ann"}, timeout=HANG_SECONDS
        )
        assert (edited.status_code, sent) == (200, ["Bonn"])
        again = post(url, "ann", said("Kiel"), answer)
        assert (again.status_code, sent) == (409, ["Bonn"])


def test_chats_that_share_a_thread_run_in_it_one_after_the_other() -> None:
    chats = [f"chat {number}" for number in range(6)]
    arrived: list[str] = []
    all_arrived = asyncio.Event()
    at_work: list[str] = []
    at_once: list[int] = []

    async def same_thread(_request: Request) -> str:
        arrived.append("one")
        if len(arrived) == len(chats):
            all_arrived.set()
        return "everybody's"

    async def work(state: Any) -> dict[str, Any]:
        at_work.append("one")
        at_once.append(len(at_work))
        await all_arrived.wait()
        at_work.pop()
        return {"messages": [("ai", f"after {len(state['messages'])}")]}

    saver = InMemorySaver()
    graph = StateGraph(MessagesState).add_node("work", work).add_edge(START, "work").compile(checkpointer=saver)
    with served(graph, thread_id=same_thread) as url, ThreadPoolExecutor(len(chats)) as pool:

        def talk(chat: str) -> int:
            body = {"id": chat, "messages": [said("Hello", chat)]}
            return httpx.post(url, json=body, timeout=HANG_SECONDS).status_code

        assert list(pool.map(talk, chats)) == [200] * len(chats)
    assert at_once == [1] * len(chats)
    kept = graph.get_state({"configurable": {"thread_id": "everybody's"}}).values["messages"]
    assert sorted(message.id for message in kept if message.type == "human") == chats
    assert [message.content for message in kept if message.type == "ai"] == [f"after {n}" for n in range(1, 12, 2)]


def test_a_run_that_is_left_or_followed_by_a_newer_message_leaves_its_thread_whole() -> None:
    works, ended = threading.Event(), threading.Event()

    @tool
    async def work() -> str:
        """Work until somebody leaves."""
        works.set()
        try:
            await asyncio.sleep(HANG_SECONDS)
        finally:
            ended.set()
        return "done"

    def reply(messages: list[BaseMessage]) -> Reply:
        if messages[-1].content == "work":
            return calls("c1", "work", {})
        return says(" | ".join(f"{message.type} {message.content}" for message in messages))

    graph = create_agent(ScriptedModel(replies=reply), [work], checkpointer=InMemorySaver())
    stopped = "tool This call has no result, since it was stopped or failed."
    with served(graph, thread_id=user_of) as url:
        body = {"id": "chat", "messages": [said("work")]}
        with httpx.stream("POST", url, json=body, headers={"x-user": "ann"}, timeout=HANG_SECONDS):
            assert works.wait(HANG_SECONDS)
        assert ended.wait(HANG_SECONDS)
        assert spoken(post(url, "ann", said("Go on", "u2"))) == [f"human work | ai  | {stopped} | human Go on"]
        works.clear()
        ended.clear()
        older: list[httpx.Response] = []
        first = threading.Thread(target=lambda: older.append(post(url, "bob", said("work"))))
        first.start()
        assert works.wait(HANG_SECONDS)
        newer = post(url, "bob", said("Go on", "u2"))
        first.join()
        assert spoken(newer) == [f"human work | ai  | {stopped} | human Go on"]
        assert ended.is_set()
        assert older[0].text.endswith('data: {"type":"abort"}\n\ndata: [DONE]\n\n')
