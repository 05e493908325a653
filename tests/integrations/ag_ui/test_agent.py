"""An agent behind HTTP that sends the events that a test gives it, and an app that serves it to pages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from support.hang import HANG_SECONDS
from support.loopback import serving
from usechat import Chat, create_app
from usechat.integrations.ag_ui import AGUIAgent
from usechat.server.auth import BearerTokens

GUIDE = Path(__file__).parents[3] / "docs/guides/ag-ui.md"
START: dict[str, Any] = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
END: dict[str, Any] = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
TOOL = {"name": "locate", "description": "Where the user is."}


def said(text: str, message_id: str = "m1") -> dict[str, Any]:
    return {"type": "TEXT_MESSAGE_CHUNK", "messageId": message_id, "delta": text}


def called(call_id: str, name: str) -> dict[str, Any]:
    return {
        "type": "TOOL_CALL_CHUNK",
        "toolCallId": call_id,
        "toolCallName": name,
        "parentMessageId": "m1",
        "delta": "{}",
    }


def interrupted(*interrupts: dict[str, Any]) -> dict[str, Any]:
    return {**END, "outcome": {"type": "interrupt", "interrupts": list(interrupts)}}


class Upstream:
    """Sends the next of `runs`, and keeps what it was asked with."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.inputs: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/agent/", self._run, methods=["POST"]),
                Route("/agent", RedirectResponse("/agent/", 307)),
                Route("/away", RedirectResponse("http://127.0.0.2:1/agent", 307)),
                Route("/round", RedirectResponse("/round", 307)),
            ]
        )

    async def _run(self, request: Request) -> Response:
        self.inputs.append(await request.json())
        self.headers.append(dict(request.headers))
        run = self.runs.pop(0)
        if isinstance(run, Response):
            return run
        lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n" for event in run]
        return StreamingResponse(iter(lines), media_type="text/event-stream")


class Page:
    """A page that posts messages to one chat."""

    def __init__(self, url: str, **headers: str) -> None:
        self._url = f"{url}/api/chat"
        self._headers = headers
        self._number = 0

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        body = {"id": "c1", **body}
        return httpx.post(self._url, json=body, trust_env=False, timeout=HANG_SECONDS, headers=self._headers)

    def post(self, message: Any = None, **body: Any) -> list[dict[str, Any]]:
        answer = self._post({**({"message": message} if message else {}), **body})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    def say(self, text: str, **body: Any) -> list[dict[str, Any]]:
        self._number += 1
        parts = [{"type": "text", "text": text}]
        return self.post({"id": f"u{self._number}", "role": "user", "parts": parts}, **body)

    def kept(self) -> list[dict[str, Any]]:
        return httpx.get(f"{self._url}/c1/messages", trust_env=False, timeout=HANG_SECONDS).json()

    def approve(self, approved: bool = True, **body: Any) -> httpx.Response:
        message = self.kept()[-1]
        for part in message["parts"]:
            if part.get("state") == "approval-requested":
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], "approved": approved}
        return self._post({"message": message, **body})


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    with serving(upstream.app) as url:
        upstream.url = url
        yield upstream


@pytest.fixture
def page(upstream: Upstream) -> Iterator[Page]:
    with serving(create_app(AGUIAgent(f"{upstream.url}/agent", tools=[TOOL]))) as url:
        yield Page(url)


def texts(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def test_the_agent_of_the_guide_answers() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if "StreamingResponse" in block), names)  # noqa: S102
    with serving(names["app"]) as url, serving(create_app(AGUIAgent(f"{url}/agent"))) as served:
        assert texts(Page(served).say("Hello")) == "You said: Hello"


def test_messages_go_out_with_the_ids_that_the_agent_gave_them(upstream: Upstream, page: Page) -> None:
    result = {"type": "TOOL_CALL_RESULT", "messageId": "m2", "toolCallId": "k1", "content": '{"a": 1}'}
    upstream.runs = [[START, said("Let me "), said("look."), called("k1", "look"), result, said("Done.", "m3"), END]]
    upstream.runs += [[START, said("Bye.", "m4"), END]]
    page.say("Hello")
    assert texts(page.say("And now?")) == "Bye."
    call = {"id": "k1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert upstream.inputs[1]["messages"] == [
        {"id": "u1", "role": "user", "content": "Hello"},
        {"id": "m1", "role": "assistant", "content": "Let me look.", "toolCalls": [call]},
        {"id": "m2", "role": "tool", "toolCallId": "k1", "content": '{"a":1}'},
        {"id": "m3", "role": "assistant", "content": "Done."},
        {"id": "u2", "role": "user", "content": "And now?"},
    ]
    first, second = upstream.inputs
    assert first["threadId"] == second["threadId"] != "c1"
    assert first["tools"] == [{"parameters": {"type": "object", "properties": {}}, **TOOL}]
    assert (first["protocolVersion"], "resume" in second, first["runId"] != second["runId"]) == ("1.0", False, True)


def test_the_state_goes_on_in_the_next_run_and_back_with_a_regeneration(upstream: Upstream, page: Page) -> None:
    change = {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/n", "value": 1}]}
    more = {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/n", "value": 2}]}
    wrong = {"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/x"}]}
    upstream.runs = [[START, change, said("One."), END], [START, wrong, more, END], [START, said("Again."), END]]
    assert {"type": "data-state", "id": "state", "data": {"n": 1}} in page.say("1")
    assert {"type": "data-state", "id": "state", "data": {"n": 2}} in page.say("2")
    page.post(trigger="regenerate-message", messages=page.kept()[:3])
    assert [one["state"] for one in upstream.inputs] == [{}, {"n": 1}, {"n": 1}]
    # The agent may remember the answer that was replaced.
    threads = [one["threadId"] for one in upstream.inputs]
    assert (threads[0] == threads[1], threads[1] != threads[2]) == (True, True)


def test_an_interrupt_is_answered_together_with_the_others_of_its_run(upstream: Upstream, page: Page) -> None:
    asked = [
        {"id": "i1", "reason": "tool_call", "toolCallId": "k1"},
        {"id": "i2", "reason": "tool_call", "toolCallId": "k2"},
    ]
    calls = [said("May I?"), called("k1", "pay"), called("k2", "pay")]
    upstream.runs = [[START, *calls, interrupted(*asked)]]
    chunks = page.say("Pay")
    assert [chunk["toolCallId"] for chunk in chunks if chunk["type"] == "tool-approval-request"] == ["k1", "k2"]
    ids = [chunk["approvalId"] for chunk in chunks if chunk["type"] == "tool-approval-request"]
    # The agent did not say that it takes other arguments.
    refused = page.approve(approvals={ids[0]: {"input": {"amount": 1}}})
    assert (refused.status_code, "does not take other arguments" in refused.text) == (409, True)
    paid = {"type": "TOOL_CALL_RESULT", "messageId": "m2", "toolCallId": "k1", "content": "paid"}
    upstream.runs = [[START, paid, {**paid, "toolCallId": "k2"}, said("Paid.", "m3"), END]]
    assert page.approve().status_code == 200
    resolved = {"status": "resolved", "payload": {"approved": True}}
    assert upstream.inputs[1]["resume"] == [{"interruptId": "i1", **resolved}, {"interruptId": "i2", **resolved}]
    assert [one["role"] for one in upstream.inputs[1]["messages"]] == ["user", "assistant"]
    outputs = [part.get("output") for part in page.kept()[-1]["parts"] if part["type"] == "tool-pay"]
    assert outputs == ["paid", "paid"]


def test_a_question_is_answered_by_the_next_message(upstream: Upstream, page: Page) -> None:
    question = {"id": "i1", "reason": "input_required", "message": "Which colour?"}
    upstream.runs = [[START, interrupted(question)], [START, said("Red it is."), END]]
    assert {"type": "data-interrupt", "id": "i1", "data": {"id": "i1", "value": question}} in page.say("Paint")
    page.say("red")
    assert upstream.inputs[1]["resume"] == [{"interruptId": "i1", "status": "resolved", "payload": "red"}]


def test_a_call_is_answered_by_its_approval_alone(upstream: Upstream, page: Page) -> None:
    asked = {"id": "i1", "reason": "tool_call", "toolCallId": "k1"}
    upstream.runs = [[START, called("k1", "pay"), interrupted(asked)], [START, said("Paid."), END]]
    page.say("Pay")
    page.approve(resume={"i1": {"approved": True, "editedArgs": {"amount": 666}}})
    resolved = {"status": "resolved", "payload": {"approved": True}}
    assert upstream.inputs[1]["resume"] == [{"interruptId": "i1", **resolved}]


def test_an_approval_that_the_user_ignores_is_cancelled(upstream: Upstream, page: Page) -> None:
    asked = {"id": "i1", "reason": "tool_call", "toolCallId": "k1"}
    upstream.runs = [[START, called("k1", "pay"), interrupted(asked)], [START, said("Fine."), END], [START, END]]
    for words in ("Pay", "Forget it", "Thanks"):
        page.say(words)
    assert upstream.inputs[1]["resume"] == [{"interruptId": "i1", "status": "cancelled"}]
    assert "resume" not in upstream.inputs[2]


def test_each_user_has_own_headers_and_threads(upstream: Upstream) -> None:
    async def headers(chat: Chat) -> dict[str, str]:
        return {"x-user": chat.user or ""}

    users = BearerTokens({"a": "ann", "b": "bob"})
    app = create_app(AGUIAgent(f"{upstream.url}/agent/", headers=headers), authenticate=users)
    upstream.runs = [[START, END], [START, END]]
    with serving(app) as url:
        Page(url, authorization="Bearer a").say("Hi")
        Page(url, authorization="Bearer b").say("Hi", id="c2")
    assert [one["x-user"] for one in upstream.headers] == ["ann", "bob"]
    assert upstream.inputs[0]["threadId"] != upstream.inputs[1]["threadId"]


def test_a_release_that_refuses_the_version_is_asked_again_without_it(upstream: Upstream, page: Page) -> None:
    upstream.runs = [Response("secret", 422), [START, said("Old."), END], [START, END]]
    assert texts(page.say("Hello")) == "Old."
    page.say("Hello again")
    assert ["protocolVersion" in one for one in upstream.inputs] == [True, False, False]


@pytest.mark.parametrize(
    "run",
    [
        [START, said("This is")],
        [],
        [START, {"type": "RUN_ERROR", "message": "secret"}],
        [START, "data: secret\n\n"],
        [START, "data: [1]\n\n"],
        [START, f"data: {'[' * 100_000}\n\n"],
        [START, f"data: {'x' * (17 * 1024 * 1024)}\n\n"],
        Response("secret", 500),
        Response("secret", 200, media_type="application/json"),
    ],
)
def test_what_is_no_whole_run_is_a_masked_error(upstream: Upstream, page: Page, run: Any) -> None:
    upstream.runs = [run, [START, said("Well."), END]]
    chunks = page.say("Hello")
    assert chunks[-1]["type"] == "error"
    assert "secret" not in json.dumps(chunks)
    assert texts(page.say("Hello again")) == "Well."


@pytest.mark.parametrize("path", ["away", "round"])
def test_a_redirect_to_another_host_is_not_followed(upstream: Upstream, path: str) -> None:
    with serving(create_app(AGUIAgent(f"{upstream.url}/{path}"))) as url:
        assert Page(url).say("Hello")[-1]["type"] == "error"


def test_events_that_are_malformed_or_unknown_cost_nothing_else(upstream: Upstream, page: Page) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"type": 5},
        {"type": "NEW_EVENT"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": 5, "delta": "x"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "x" * 600, "delta": "x"},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "x"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "none", "delta": "x"},
        {"type": "TOOL_CALL_RESULT", "toolCallId": "none", "messageId": "m", "content": "x"},
        {"type": "TOOL_CALL_END", "toolCallId": "none"},
        {"type": "STATE_SNAPSHOT", "snapshot": "x" * 600_000},
        {"type": "STATE_DELTA", "delta": 5},
        {"type": "ACTIVITY_DELTA", "messageId": "a", "activityType": "b", "patch": [5]},
        {"type": "MESSAGES_SNAPSHOT", "messages": [5, {"role": "tool"}]},
        {"type": "CUSTOM", "name": "///", "value": 1},
        {"type": "SUBAGENT_FINISHED"},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "e", "encryptedValue": 5},
    ]
    upstream.runs = [[START, ": a comment\n\n", *odd, said("Well."), {**END, "usage": 5, "outcome": 5, "result": 5}]]
    chunks = page.say("Hello")
    assert (texts(chunks), chunks[-1]) == ("Well.", {"type": "finish", "finishReason": "stop"})


def test_what_is_no_address_and_no_tool_is_refused() -> None:
    for url in ("localhost:8001/agent", "ftp://localhost/agent", "http://", ""):
        with pytest.raises(ValueError, match="AGUIAgent needs the address of an AG-UI agent"):
            AGUIAgent(url)
    with pytest.raises(TypeError, match="A tool of AGUIAgent is a dict"):
        AGUIAgent("http://localhost", tools=[{"name": "x"}])
