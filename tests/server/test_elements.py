"""The route of a DeepAgent: what it refuses, what it hands on, and that no request meets another."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from support.hang import HANG_SECONDS
from support.loopback import STEP, last_two, parts, read_until, serving, text_part
from usechat import Chat, DeepAgent, RequestError, create_app, elements_route
from usechat.events import AgentEvent
from usechat.integrations.deepagent_sdk.translator import DeepAgentOptions, DeepAgentTranslator

Event = dict[str, Any]
HELLO = {"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}


class Agent:
    """Tells what it was given, asks for an approval, or waits to be aborted."""

    def __init__(self) -> None:
        self.called: list[dict[str, Any]] = []
        self.aborted = threading.Event()
        self.both = threading.Barrier(2, timeout=HANG_SECONDS)

    async def stream_with_events(
        self,
        *,
        messages: list[Any],
        state: Any,
        thread_id: str | None,
        abort: asyncio.Event,
        max_steps: int | None = None,
        resume: Any = None,
    ) -> AsyncIterator[Event]:
        self.called.append({"state": state, "thread_id": thread_id, "max_steps": max_steps, "resume": resume})
        text = "" if resume else messages[-1]["content"][0]["text"]
        yield {"type": "step-start", "stepNumber": 1}
        match text:
            case "wait":
                yield {"type": "text", "text": "I begin"}
                try:
                    await asyncio.sleep(HANG_SECONDS)
                finally:
                    if abort.is_set():
                        self.aborted.set()
            case "meet":
                state["todos"].append(thread_id)
                await asyncio.to_thread(self.both.wait)
                yield {"type": "text", "text": f"{thread_id}: {state['todos']}"}
            case "fail":
                yield {"type": "error", "error": ValueError("secret")}
            case "May I?":
                yield {"type": "tool-call", "toolCallId": "c-1", "toolName": "rm", "args": {"path": "/a"}}
                fields = {"approvalId": "a-1", "toolCallId": "c-1", "toolName": "rm", "args": {"path": "/a"}}
                yield {"type": "approval-requested", **fields}
            case "":
                yield {"type": "tool-result", "toolCallId": "c-1", "toolName": "rm", "result": "gone"}
                yield {"type": "text", "text": "Done."}
            case _:
                yield {"type": "text", "text": f"You said {text}."}
        yield {"type": "step-finish", "stepNumber": 1, "toolCalls": []}
        yield {"type": "done", "state": state, "text": ""}


@contextmanager
def served(agent: Agent, **options: Any) -> Generator[str]:
    app = Starlette(routes=[Route("/api/chat", elements_route(agent, **options), methods=["POST"])])
    with serving(app) as url:
        yield f"{url}/api/chat"


def post(url: str, text: str = "Hello", **options: Any) -> httpx.Response:
    message = {**HELLO, "parts": [{"type": "text", "text": text}]}
    return httpx.post(url, json={"id": "chat", "messages": [message]}, timeout=HANG_SECONDS, **options)


def test_a_message_is_answered_also_where_its_body_has_no_ids() -> None:
    agent = Agent()
    with served(agent, max_steps=3) as url:
        assert parts(post(url).text) == [STEP, text_part("You said Hello.")]
        bare = {"messages": [{"role": "user", "parts": HELLO["parts"]}]}
        assert parts(httpx.post(url, json=bare, timeout=HANG_SECONDS).text) == [STEP, text_part("You said Hello.")]
    assert agent.called[0] == {"state": None, "thread_id": None, "max_steps": 3, "resume": None}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "Invalid JSON body"),
        (b"", "Invalid JSON body"),
        (b"\xff", "Invalid JSON body"),
        (b"{}", "messages array is required"),
        (b"[]", "messages array is required"),
        (b"null", "messages array is required"),
        (b"7", "messages array is required"),
        (b'{"messages": {}}', "messages array is required"),
        (b'{"messages": "[]"}', "messages array is required"),
        (b'{"messages": []}', "messages must not be empty."),
        (b'{"messages": [{"role": "user"}]}', "messages[0].parts is missing."),
        (b'{"id": "c", "messages": [{"id": "m", "role": "user"}]}', "messages[0].parts is missing."),
        (b'{"id": "c", "messages": [7]}', "messages[0] must be an object."),
        (b'{"messages": [7]}', "messages[0] must be an object."),
    ],
)
def test_a_bad_body_gets_400_and_one_sentence(body: bytes, sentence: str) -> None:
    with served(Agent()) as url:
        answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=HANG_SECONDS)
        assert (answer.status_code, answer.json()) == (400, {"error": sentence})


def refuse(request: Request) -> None:
    match request.headers.get("x-who"):
        case "nobody":
            raise RequestError("Sign in first.")
        case "often":
            raise RequestError("Not so often.", status=429, retry_after=7)
        case "broken":
            raise KeyError("secret")
        case _:
            pass


async def refuse_async(request: Request) -> None:
    refuse(request)


@pytest.mark.parametrize("hook", [refuse, refuse_async])
def test_the_app_refuses_by_raising(hook: Any) -> None:
    agent = Agent()
    with served(agent, on_request=hook) as url:
        answers = {who: post(url, headers={"x-who": who}) for who in ("nobody", "often", "broken", "ann")}
        assert [(answer.status_code, answer.json()["error"]) for answer in list(answers.values())[:3]] == [
            (401, "Sign in first."),
            (429, "Not so often."),
            (401, "This request is not allowed."),
        ]
        assert answers["often"].headers["retry-after"] == "7"
        assert answers["ann"].status_code == 200
    assert len(agent.called) == 1


def test_what_the_app_raises_elsewhere_is_masked() -> None:
    def broken(_: Request) -> Any:
        raise KeyError("secret")

    with served(Agent(), initial_state=broken) as url:
        answer = post(url)
        assert answer.status_code == 500
        assert answer.json()["error"].startswith("Something went wrong.")
        assert "secret" not in answer.text


def test_who_leaves_aborts_the_run() -> None:
    agent = Agent()
    with served(agent) as url:
        body = {"id": "chat", "messages": [{**HELLO, "parts": [{"type": "text", "text": "wait"}]}]}
        with httpx.stream("POST", url, json=body, timeout=HANG_SECONDS) as response:
            read_until(response.iter_lines(), "I begin")
        assert agent.aborted.wait(HANG_SECONDS)


@pytest.mark.parametrize("by_function", [True, False])
def test_two_users_at_once_share_nothing(by_function: bool) -> None:
    agent = Agent()
    shared: dict[str, Any] = {"todos": []}

    async def thread(request: Request) -> str:
        return request.headers["x-who"]

    def fresh(_: Request) -> dict[str, Any]:
        return {"todos": []}

    with served(agent, initial_state=fresh if by_function else shared, thread_id=thread) as url:
        answers: dict[str, str] = {}

        def ask(who: str) -> None:
            # Both have the same chat.
            answers[who] = post(url, "meet", headers={"x-who": who}).text

        asking = [threading.Thread(target=ask, args=(who,)) for who in ("ann", "bob")]
        for thread_ in asking:
            thread_.start()
        for thread_ in asking:
            thread_.join(HANG_SECONDS)
    for who in ("ann", "bob"):
        assert parts(answers[who]) == [STEP, text_part(f"{who}: ['{who}']")]
    assert shared == {"todos": []}


def test_a_failure_is_masked_and_what_it_was_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(Agent()) as url:
        answer = post(url, "fail").text
    assert '"errorText":"Something went wrong. (Error ' in last_two(answer)[0]
    assert "secret" not in answer
    assert "ValueError: secret" in caplog.text


def test_ids_are_those_of_the_app_and_the_translator_is_its_own() -> None:
    class Loud(DeepAgentTranslator):
        def __init__(self, chat: Chat) -> None:
            super().__init__(continues=chat.continues)

        def translate(self, event: Any) -> Iterable[AgentEvent]:
            return super().translate({**event, "text": event["text"].upper()} if event["type"] == "text" else event)

    ids = iter(f"mine-{number}" for number in range(100))
    with served(Agent(), generate_id=lambda: next(ids), translator=Loud) as url:
        answer = post(url).text
    assert '{"type":"start","messageId":"mine-0"}' in answer
    assert '{"type":"text-delta","id":"mine-1","delta":"YOU SAID HELLO."}' in answer


def test_the_options_are_those_of_the_translator() -> None:
    with served(Agent(), options=DeepAgentOptions(events=["reasoning"])) as url:
        assert parts(post(url).text) == []


def test_an_approval_goes_to_the_page_and_back_to_the_agent() -> None:
    agent = Agent()
    question = {**HELLO, "parts": [{"type": "text", "text": "May I?"}]}
    with served(agent) as url:
        asked = parts(post(url, "May I?").text)
        call = asked[-1]
        assert (call["state"], call["toolCallId"]) == ("approval-requested", "c-1")
        answered = {**call, "state": "approval-responded", "approval": {**call["approval"], "approved": True}}
        body = {
            "id": "chat",
            "messages": [question, {"id": "a", "role": "assistant", "parts": [*asked[:-1], answered]}],
        }
        response = httpx.post(url, json=body, timeout=HANG_SECONDS)
        assert '"toolCallId":"c-1","output":"gone"' in response.text
        assert httpx.post(url, json=body, timeout=HANG_SECONDS).status_code == 409
        forged = {**answered, "approval": {"id": "a-1", "approved": True}}
        body["messages"] = [question, {"id": "a", "role": "assistant", "parts": [*asked[:-1], forged]}]
        assert httpx.post(url, json=body, timeout=HANG_SECONDS).status_code == 409
    [decision] = agent.called[-1]["resume"]["decisions"]
    assert (decision["type"], decision["approvalId"], decision["toolCallId"]) == ("approve", "a-1", "c-1")
    assert len(agent.called) == 2


def test_the_route_is_one_of_fastapi_too() -> None:
    app = FastAPI()
    app.post("/api/chat")(elements_route(Agent()))
    with serving(app) as url:
        assert parts(post(f"{url}/api/chat").text) == [STEP, text_part("You said Hello.")]


def test_what_is_no_agent_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="is no DeepAgent"):
        elements_route(Agent)


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_app_serves_the_agent_with_resume_stop_and_history(wrapped: bool) -> None:
    agent = Agent()
    with serving(create_app(DeepAgent(agent, throttle=0.5) if wrapped else agent)) as url:
        assert parts(post(f"{url}/api/chat").text) == [STEP, text_part("You said Hello.")]
        kept = httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS).json()
        assert [message["role"] for message in kept] == ["user", "assistant"]
        body = {"id": "other", "messages": [{**HELLO, "parts": [{"type": "text", "text": "wait"}]}]}
        with httpx.stream("POST", f"{url}/api/chat", json=body, timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            read_until(lines, "I begin")
            assert httpx.post(f"{url}/api/chat/other/stop", timeout=HANG_SECONDS).status_code == 204
            read_until(lines, '{"type":"abort"}')
        assert agent.aborted.wait(HANG_SECONDS)
