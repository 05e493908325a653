import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from websockets.sync.client import connect

from support.hang import HANG_SECONDS
from support.loopback import STEP, ask, asking, message, parts, read_until, serving, text_part
from usechat.agents.chat import Chat
from usechat.protocol.verdict import judge, recorded_events
from usechat.server.endpoint import ChatEndpoint
from usechat.server.fastapi import SSE_EXAMPLE, ChatBody, ChatMessage

SENTENCE = {"text/plain": {"schema": {"type": "string"}}}


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text}"


async def until_stopped(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    await chat.stopping.wait()


async def signed_in(authorization: Annotated[str, Header()] = "") -> str:
    if authorization != "Bearer secret":
        raise HTTPException(403, "Not you.")
    return "ann"


def test_the_router_has_all_routes_of_a_chat_below_its_prefix() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(until_stopped).router(), prefix="/v1")
    with serving(app) as url:
        chat = f"{url}/v1/api/chat"
        with asking(chat) as lines:
            first = read_until(lines, "I begin")
            with httpx.stream("GET", f"{chat}/chat/stream", timeout=HANG_SECONDS) as resumed:
                replayed = read_until(resumed.iter_lines(), "I begin")
                assert httpx.post(f"{chat}/chat/stop", timeout=HANG_SECONDS).status_code == 204
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin")]
        assert replayed.startswith('data: {"type":"start"')
        messages = httpx.get(f"{chat}/chat/messages", timeout=HANG_SECONDS).json()
        assert [found["parts"] for found in messages] == [
            [{"type": "text", "text": "Hello"}],
            [STEP, text_part("I begin")],
        ]
        assert httpx.get(f"{chat}/chat/stream", timeout=HANG_SECONDS).status_code == 204
        TypeAdapter(list[ChatMessage]).validate_python(messages)


def test_the_body_is_read_by_us_and_not_by_the_model_of_the_documentation() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(echo).router("/chat"))
    with serving(app) as url:
        answer = httpx.post(f"{url}/chat", json={"id": "c"}, timeout=HANG_SECONDS)
        assert (answer.status_code, answer.text) == (400, "The body must have messages or message, and not both.")
        body = {"id": "c", "message": {"id": "m", "role": "user", "content": "Hi"}}
        assert parts(httpx.post(f"{url}/chat", json=body, timeout=HANG_SECONDS).text) == [
            STEP,
            text_part("You said: Hi"),
        ]


def test_dependencies_of_the_app_guard_the_router() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(echo).router(), dependencies=[Depends(signed_in)])
    with serving(app) as url:
        assert ask(f"{url}/api/chat").status_code == 403
        assert httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS).status_code == 403
        answer = ask(f"{url}/api/chat", headers={"authorization": "Bearer secret"})
        assert parts(answer.text) == [STEP, text_part("You said: Hello")]


def test_a_route_of_ones_own_responds_after_its_dependencies() -> None:
    app = FastAPI()
    endpoint = ChatEndpoint(echo)

    async def ask_agent(request: Request, user: Annotated[str, Depends(signed_in)]) -> Response:
        response = await endpoint.respond(request)
        response.headers["x-user"] = user
        return response

    app.add_api_route("/ask", ask_agent, methods=["POST"])
    with serving(app) as url:
        assert ask(f"{url}/ask").status_code == 403
        answer = ask(f"{url}/ask", headers={"authorization": "Bearer secret"})
        assert answer.headers["x-user"] == "ann"
        assert parts(answer.text) == [STEP, text_part("You said: Hello")]


def test_the_router_has_the_websocket_of_a_chat() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(echo).router(), prefix="/v1")
    frame: dict[str, Any] = {"type": "resume", "requestId": "r1", "id": "chat", "headers": {}, "body": {}}
    with serving(app) as url, connect(f"ws{url.removeprefix('http')}/v1/api/chat/ws") as socket:
        socket.send(json.dumps(frame))
        assert json.loads(socket.recv(timeout=HANG_SECONDS)) == {"type": "no-active", "requestId": "r1"}


def openapi() -> dict[str, Any]:
    app = FastAPI()
    app.include_router(ChatEndpoint(echo).router(), prefix="/v1")
    return json.loads(json.dumps(app.openapi()))["paths"]


def test_openapi_lists_what_each_route_takes_and_answers() -> None:
    listed = {
        f"{method} {path}": (
            sorted(operation["responses"]),
            [(parameter["in"], parameter["name"]) for parameter in operation.get("parameters", [])],
        )
        for path, operations in openapi().items()
        for method, operation in operations.items()
    }
    assert listed == {
        "post /v1/api/chat": (["200", "400", "401", "404", "408", "409", "413", "415", "429", "503"], []),
        "get /v1/api/chat/{chat_id}/stream": (
            ["200", "204", "400", "401"],
            [("path", "chat_id"), ("query", "after"), ("header", "Last-Event-ID")],
        ),
        "post /v1/api/chat/{chat_id}/stop": (["204", "400", "401", "403"], [("path", "chat_id"), ("query", "turn")]),
        "get /v1/api/chat/{chat_id}/messages": (
            ["200", "400", "401", "404"],
            [("path", "chat_id"), ("query", "before"), ("query", "limit")],
        ),
        "delete /v1/api/chat/{chat_id}": (["204", "400", "401", "403", "404", "503"], [("path", "chat_id")]),
        "get /v1/api/chats": (["200", "400", "401", "403", "404"], [("query", "after"), ("query", "limit")]),
    }


def test_openapi_has_the_request_model_and_a_stream_that_is_legal() -> None:
    post = openapi()["/v1/api/chat"]["post"]
    assert post["responses"]["200"]["content"] == {
        "text/event-stream": {"schema": {"type": "string"}, "example": SSE_EXAMPLE}
    }
    assert post["responses"]["404"]["content"] == SENTENCE
    body = post["requestBody"]["content"]["application/json"]["schema"]
    assert (body["required"], sorted(body["properties"])) == (
        ["id", "messages"],
        ["id", "messageId", "messages", "trigger"],
    )
    assert body["properties"]["messages"]["items"]["required"] == ["id", "role", "parts"]
    verdict = judge(recorded_events(SSE_EXAMPLE.encode()))
    assert (verdict.violation, verdict.message.parts) == (None, [STEP, text_part("Hello")])


def test_what_a_client_posts_fits_the_model_of_the_documentation() -> None:
    posted = {**message("Hello"), "trigger": "submit-message", "messageId": None, "extra": 1}
    assert ChatBody.model_validate(posted).model_dump(exclude_unset=True) == posted
