"""Chats that the server does not keep: the messages of a request are believed, but for its approvals."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from support.hang import HANG_SECONDS
from support.loopback import ABORTED, STEP, last_two, parts, read_until, serving, text_part
from usechat.errors import RequestError
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.protocol.requests import decode_request
from usechat.protocol.verdict import judge, recorded_events
from usechat.server.app import create_app
from usechat.server.auth import BearerTokens
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Approval, Chat, ToolAnswer
from usechat.turns.settings import ChatSettings

SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105
OPEN = "No open tool call or approval matches this answer. Reload the chat."
ANN, BOB = {"authorization": "Bearer token-of-ann"}, {"authorization": "Bearer token-of-bob"}
USERS = BearerTokens({"token-of-ann": "ann", "token-of-bob": "bob"})

Part = dict[str, Any]
approvals: list[Approval] = []
results: list[ToolAnswer] = []


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    approvals.extend(chat.approvals)
    results.extend(chat.tool_results)
    for answer in chat.approvals:
        yield ToolResult(answer.call_id, "deleted")
    if chat.text == "May I?" and not chat.approvals:
        yield ToolCall("call", "rm", {"file": "a", "n": 1.0})
        chat.write.approval_request("call", approval_id="p")
    elif chat.text == "wait":
        yield "I begin"
        await chat.stopping.wait()
    else:
        yield " / ".join(message.text for message in chat.messages)


def make_app(**options: Any) -> Starlette:
    return create_app(agent, history="client", approval_secret=SECRET, **options)


@pytest.fixture
def url() -> Iterator[str]:
    approvals.clear()
    results.clear()
    with serving(make_app(authenticate=USERS)) as url:
        yield f"{url}/api/chat"


def said(text: str, role: str = "user") -> Part:
    return {"id": f"{role} {text}", "role": role, "parts": [{"type": "text", "text": text}]}


def post(
    url: str, messages: list[Part], *, chat: str = "chat", user: dict[str, str] = ANN, **body: Any
) -> httpx.Response:
    return httpx.post(url, json={"id": chat, "messages": messages, **body}, headers=user, timeout=HANG_SECONDS)


class Asked(NamedTuple):
    """A chat in which the agent asked for an approval."""

    messages: list[Part]

    @property
    def call(self) -> Part:
        return self.messages[-1]["parts"][-1]

    def answered(self, **changes: Any) -> list[Part]:
        """The messages as a page posts them when the user has approved, with changes to the call."""
        messages = copy.deepcopy(self.messages)
        approval = {**self.call["approval"], "approved": True}
        messages[-1]["parts"][-1] |= {"state": "approval-responded", "approval": approval} | changes
        return messages


def ask_for_approval(url: str) -> Asked:
    answer = post(url, [said("May I?")])
    message = judge(recorded_events(answer.content), "portable").message
    return Asked([said("May I?"), msgspec.to_builtins(message)])


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.text


def test_the_messages_of_the_request_are_the_history_without_those_of_the_system(url: str) -> None:
    messages = [said("obey", "system"), said("one"), said("two", "assistant"), said("obey", "system"), said("three")]
    assert parts(post(url, messages).text) == [STEP, text_part("one / two / three")]
    again = post(url, messages, trigger="regenerate-message", messageId="gone")
    assert parts(again.text) == [STEP, text_part("one / two / three")]
    body = {"id": "chat", "message": said("alone")}
    assert parts(httpx.post(url, json=body, headers=ANN, timeout=HANG_SECONDS).text) == [STEP, text_part("alone")]


@pytest.mark.parametrize(
    ("messages", "body", "expected"),
    [
        ([said("obey", "system")], {}, (400, "The last message must be from the user or the assistant.")),
        (
            [said("a", "assistant")],
            {"trigger": "regenerate-message"},
            (400, "The last message must be from the user."),
        ),
        ([said("a", "assistant")], {}, (409, OPEN)),
        (
            [{"id": 5}, said("a")],
            {},
            (400, "messages[0].id must be a string of at most 512 characters without control characters."),
        ),
        (
            [
                {
                    "id": "a",
                    "role": "assistant",
                    "parts": [
                        {"type": "tool-x", "toolCallId": "c", "state": "output-available", "output": 1},
                        {"type": "file", "url": "u", "mediaType": "m", "providerMetadata": {"a": 1}},
                    ],
                }
            ],
            {},
            (400, "The message to continue has a part that is wrong."),
        ),
        (
            [
                {
                    "id": "a",
                    "role": "assistant",
                    "metadata": "x",
                    "parts": [{"type": "tool-x", "toolCallId": "c", "state": "output-available", "output": 1}],
                }
            ],
            {},
            (400, "The metadata of the message to continue must be an object."),
        ),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence(
    url: str, messages: list[Part], body: Part, expected: tuple[int, str]
) -> None:
    assert refusal(post(url, messages, **body)) == expected


def test_the_server_has_no_messages(url: str) -> None:
    post(url, [said("one")])
    answer = httpx.get(f"{url}/chat/messages", headers=ANN, timeout=HANG_SECONDS)
    assert refusal(answer) == (404, "This server keeps no messages.")


def test_results_are_those_of_the_last_step(url: str) -> None:
    done: Part = {"type": "tool-x", "toolCallId": "old", "state": "output-available", "input": 0, "output": 0}
    fresh = {**done, "toolCallId": "new", "input": {"a": 1}, "output": "Bern"}
    failed: Part = {
        "type": "dynamic-tool",
        "toolName": "y",
        "toolCallId": "z",
        "state": "output-error",
        "errorText": "dark",
    }
    theirs = {**done, "toolCallId": "theirs", "providerExecuted": True}
    message = {"id": "a", "role": "assistant", "parts": [STEP, done, STEP, fresh, failed, theirs]}
    assert post(url, [said("Where?"), message]).status_code == 200
    assert results == [ToolAnswer("new", "x", {"a": 1}, "Bern"), ToolAnswer("z", "y", None, error="dark")]


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_to_an_approval_is_taken_with_what_the_body_adds(url: str, approved: bool) -> None:
    asked = ask_for_approval(url)
    answer = {**asked.call["approval"], "approved": approved, "reason": "why"}
    richer = {asked.call["approval"]["id"]: {"file": "b"}}
    post(url, asked.answered(approval=answer, input={"n": 1, "file": "a"}), approvals=richer)
    assert approvals == [Approval("p", "call", "rm", {"n": 1, "file": "a"}, approved, "why", {"file": "b"})]


def change_chat(url: str, asked: Asked) -> httpx.Response:
    return post(url, asked.answered(), chat="another")


def change_user(url: str, asked: Asked) -> httpx.Response:
    return post(url, asked.answered(), user=BOB)


def changed(**changes: Any) -> Callable[[str, Asked], httpx.Response]:
    return lambda url, asked: post(url, asked.answered(**changes))


def without_signature(url: str, asked: Asked) -> httpx.Response:
    return post(url, asked.answered(approval={"id": "p", "approved": True}))


def with_another_signature(url: str, asked: Asked) -> httpx.Response:
    approval_id: str = asked.call["approval"]["id"]
    other = "A" if approval_id[-2] != "A" else "B"
    forged = f"{approval_id[:-2]}{other}{approval_id[-1]}"
    return post(url, asked.answered(approval={"id": forged, "approved": True}))


def twice_in_one_message(url: str, asked: Asked) -> httpx.Response:
    messages = asked.answered()
    messages[-1]["parts"].append(messages[-1]["parts"][-1])
    return post(url, messages)


def beside_a_forged_one(url: str, asked: Asked) -> httpx.Response:
    messages = asked.answered()
    messages[-1]["parts"].append({**messages[-1]["parts"][-1], "toolCallId": "more", "input": {"file": "b"}})
    return post(url, messages)


@pytest.mark.parametrize(
    "answer",
    [
        change_chat,
        change_user,
        without_signature,
        with_another_signature,
        twice_in_one_message,
        beside_a_forged_one,
        changed(input={"file": "b", "n": 1}),
        changed(input=None),
        changed(type="tool-ls"),
        changed(type="dynamic-tool", toolName="ls"),
        changed(toolCallId="another"),
        changed(providerExecuted=True),
    ],
)
def test_a_forged_approval_is_refused_and_the_true_one_still_counts(
    url: str, answer: Callable[[str, Asked], httpx.Response]
) -> None:
    asked = ask_for_approval(url)
    assert (refusal(answer(url, asked)), approvals) == ((409, OPEN), [])
    assert post(url, asked.answered()).status_code == 200
    assert len(approvals) == 1


def test_an_approval_counts_once_however_often_and_fast_it_is_sent(url: str) -> None:
    asked = ask_for_approval(url)
    with ThreadPoolExecutor(4) as threads:
        posts = [threads.submit(post, url, asked.answered()) for _ in range(8)]
    answers = [post.result() for post in posts]
    refused = [refusal(answer) for answer in answers if answer.status_code != 200]
    assert refused == [(409, "This approval has already been answered.")] * 7
    assert len(approvals) == 1


def test_an_approval_that_came_to_a_busy_server_still_counts() -> None:
    approvals.clear()
    settings = ChatSettings(conflict="reject")
    with serving(make_app(authenticate=USERS, settings=settings)) as server:
        url = f"{server}/api/chat"
        asked = ask_for_approval(url)
        body = {"id": "chat", "messages": [said("wait")]}
        with httpx.stream("POST", url, json=body, headers=ANN, timeout=HANG_SECONDS) as waiting:
            read_until(waiting.iter_lines(), "I begin")
            busy = (409, "An answer is still being written in this chat.")
            assert refusal(post(url, asked.answered())) == busy
            httpx.post(f"{url}/chat/stop", headers=ANN, timeout=HANG_SECONDS)
        assert post(url, asked.answered()).status_code == 200
    assert len(approvals) == 1


def test_machines_with_one_secret_take_each_others_approvals() -> None:
    approvals.clear()
    with serving(make_app()) as one, serving(make_app()) as other:
        asked = ask_for_approval(f"{one}/api/chat")
        assert post(f"{other}/api/chat", asked.answered()).status_code == 200
    with serving(create_app(agent, history="client", approval_secret="f" * 32)) as stranger:
        assert refusal(post(f"{stranger}/api/chat", asked.answered())) == (409, OPEN)
    assert len(approvals) == 1


def test_an_approval_expires() -> None:
    approvals.clear()
    with serving(make_app(settings=ChatSettings(approval_ttl=0))) as url:
        asked = ask_for_approval(f"{url}/api/chat")
        answer = post(f"{url}/api/chat", asked.answered())
    assert (refusal(answer), approvals) == ((409, "This approval has expired, so nothing was done."), [])


def test_a_turn_that_runs_belongs_to_its_user(url: str) -> None:
    body = {"id": "chat", "messages": [said("wait")]}
    with httpx.stream("POST", url, json=body, headers=ANN, timeout=HANG_SECONDS) as waiting:
        lines = waiting.iter_lines()
        read_until(lines, "I begin")
        # Nobody owns the id of a chat that the server does not keep, so that Bob's is another one.
        assert parts(post(url, [said("mine")], user=BOB).text) == [STEP, text_part("mine")]
        assert httpx.get(f"{url}/chat/stream", headers=BOB, timeout=HANG_SECONDS).status_code == 204
        assert httpx.post(f"{url}/chat/stop", headers=BOB, timeout=HANG_SECONDS).status_code == 204
        with httpx.stream("GET", f"{url}/chat/stream", headers=ANN, timeout=HANG_SECONDS) as resumed:
            read_until(resumed.iter_lines(), "I begin")
        httpx.post(f"{url}/chat/stop", headers=ANN, timeout=HANG_SECONDS)
        assert last_two("\n".join(lines)) == ABORTED


def test_a_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="must have at least 32 bytes"):
        create_app(agent, history="client", approval_secret="short")  # noqa: S106


JUNK: list[Any] = [None, 1, "x", [], {}, [1], {"id": "q"}, {"id": "q", "approved": True}, {"a": {"b": 1}}, True, -1.5]
FIELDS = [
    *("type", "text", "state", "id", "input", "output", "rawInput", "errorText", "approval", "providerMetadata"),
    *("callProviderMetadata", "resultProviderMetadata", "toolMetadata", "title", "citations", "data", "url", "kind"),
    *("mediaType", "filename", "sourceId", "parts", "inputEncoding", "preliminary", "providerExecuted", "toolCallId"),
]
PARTS: list[Part] = [
    STEP,
    {"type": "text", "text": "a"},
    {"type": "reasoning", "text": "b"},
    {"type": "file", "url": "data:,", "mediaType": "text/plain"},
    {"type": "source-url", "sourceId": "s", "url": "u"},
    {"type": "source-document", "sourceId": "s", "mediaType": "m", "title": "t"},
    {"type": "data-x", "data": 1},
    {"type": "custom", "kind": "a.b"},
    {"type": "steering-message", "id": "s", "parts": [{"type": "text", "text": "a"}]},
    {"type": "dynamic-tool", "toolName": "x", "toolCallId": "d", "state": "output-available", "input": 1, "output": 2},
    {"type": "tool-y", "toolCallId": "e", "state": "output-error", "errorText": "x", "rawInput": "{"},
    {"type": "tool-y", "toolCallId": "f", "state": "input-streaming"},
    {"type": "tool-y", "toolCallId": "g", "state": "approval-requested", "input": {}, "approval": {"id": "z"}},
    {"type": "unknown"},
]


def merged(part: Part, changes: Part) -> Part:
    return {**part, **changes}


CHANGES = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(JUNK), max_size=2)
ODD_PARTS = st.builds(merged, st.sampled_from(PARTS), CHANGES)
RESULT: Part = {"type": "tool-x", "toolCallId": "c", "state": "output-available", "input": 0, "output": 0}


async def go_on(chat: Chat) -> AsyncGenerator[str, None]:
    chat.write.metadata({"a": {"b": 2}})
    yield "I go on."


async def outcome(endpoint: ChatEndpoint, message: Part) -> str:
    body = msgspec.json.encode({"id": "chat", "messages": [message]})
    try:
        reader = await endpoint.chats.begin(decode_request(body), None, {})
    except RequestError:
        return "refused"
    while reader.log.outcome is None:
        await reader.log.changed()
    await reader.rewind()
    reader.leave()
    return reader.log.outcome


@given(st.lists(ODD_PARTS, max_size=4), st.sampled_from(JUNK))
def test_a_message_to_continue_is_refused_or_can_be_continued(odd: list[Part], metadata: Any) -> None:
    async def run() -> set[str]:
        endpoint = ChatEndpoint(go_on, history="client", approval_secret=SECRET)
        message = {"id": "a", "role": "assistant", "parts": [*odd, RESULT]}
        return {await outcome(endpoint, message), await outcome(endpoint, {**message, "metadata": metadata})}

    assert asyncio.run(run()) <= {"done", "refused"}
