import json
import re
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from support.hang import HANG_SECONDS
from support.loopback import ABORTED, STEP, ask, asking, last_two, message, parts, read_until, serving, text_part
from usechat.protocol.verdict import judge, recorded_events
from usechat.server.endpoint import ChatEndpoint
from usechat.server.fastapi import SSE_EXAMPLE, ChatBody, ChatMessage
from usechat.turns.chat import Chat

SENTENCE = {"text/plain": {"schema": {"type": "string"}}}


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text}"


async def until_stopped(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    await chat.stopping.wait()


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


TOKENS = {"Bearer of-ada": "ada", "Bearer of-bob": "bob"}
ADA, BOB = ({"authorization": token} for token in TOKENS)
UNKNOWN_USER = (
    "The router of a ChatEndpoint has dependencies, but nothing names the user, so everybody could read all chats. "
    "Write ChatEndpoint(agent, user=Depends(...)), or user=None if chats belong to nobody."
)


async def current_user(authorization: Annotated[str, Header()] = "") -> str:
    if authorization not in TOKENS:
        raise HTTPException(403, "Not you.")
    return TOKENS[authorization]


async def greet(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"Hello, {chat.user}."


def of_users(user: Any = None, agent: Any = greet) -> FastAPI:
    app = FastAPI()
    app.include_router(ChatEndpoint(agent, user=user or Depends(current_user)).router())
    return app


def test_a_dependency_says_whose_a_chat_is_on_every_route() -> None:
    with serving(of_users()) as url, httpx.Client(base_url=f"{url}/api", timeout=HANG_SECONDS) as client:
        assert parts(ask(f"{url}/api/chat", headers=ADA).text) == [STEP, text_part("Hello, ada.")]
        stolen = ask(f"{url}/api/chat", headers=BOB)
        assert (stolen.status_code, stolen.text) == (404, "There is no such chat.")
        seen = {
            name: (
                len(client.get("/chat/chat/messages", headers=who).json()),
                [chat["id"] for chat in client.get("/chats", headers=who).json()["chats"]],
                client.get("/chat/chat/stream", headers=who).status_code,
            )
            for name, who in (("ada", ADA), ("bob", BOB))
        }
        assert seen == {"ada": (2, ["chat"], 204), "bob": (0, [], 204)}
        assert client.delete("/chat/chat", headers=BOB).status_code == 204
        assert len(client.get("/chat/chat/messages", headers=ADA).json()) == 2
        assert client.delete("/chat/chat", headers=ADA).status_code == 204
        assert client.get("/chat/chat/messages", headers=ADA).json() == []


def test_only_the_user_of_a_dependency_may_resume_and_stop_a_turn() -> None:
    with serving(of_users(agent=until_stopped)) as url, asking(f"{url}/api/chat", headers=ADA) as lines:
        read_until(lines, "I begin")
        chat = f"{url}/api/chat/chat"
        assert httpx.get(f"{chat}/stream", headers=BOB, timeout=HANG_SECONDS).status_code == 204
        assert httpx.post(f"{chat}/stop", headers=BOB, timeout=HANG_SECONDS).status_code == 204
        with httpx.stream("GET", f"{chat}/stream", headers=ADA, timeout=HANG_SECONDS) as resumed:
            read_until(resumed.iter_lines(), "I begin")
        assert httpx.post(f"{chat}/stop", headers=ADA, timeout=HANG_SECONDS).status_code == 204
        assert last_two("\n".join(lines)) == ABORTED


def test_a_dependency_that_refuses_guards_every_route() -> None:
    routes = ["POST chat", "GET chat/c/stream", "POST chat/c/stop", "GET chat/c/messages", "DELETE chat/c", "GET chats"]
    with serving(of_users()) as url:
        statuses = {
            route: httpx.request(route.split()[0], f"{url}/api/{route.split()[1]}", timeout=HANG_SECONDS).status_code
            for route in routes
        }
        assert statuses == dict.fromkeys(routes, 403)
        with pytest.raises(InvalidStatus) as refused, connect(f"ws{url.removeprefix('http')}/api/chat/ws"):
            pass
        assert refused.value.response.status_code == 403


def test_a_dependency_says_who_opens_a_websocket() -> None:
    frame: dict[str, Any] = {"type": "send", "requestId": "r1", "trigger": "submit-message", "headers": {}, "body": {}}
    frame |= message("Hello")
    with serving(of_users()) as url:
        with connect(f"ws{url.removeprefix('http')}/api/chat/ws", additional_headers=ADA) as socket:
            socket.send(json.dumps(frame))
            seen = ""
            while "ada" not in seen:
                seen = str(socket.recv(timeout=HANG_SECONDS))
        assert "Hello, ada." in seen


@pytest.mark.parametrize(
    ("found", "status"),
    [(None, 401), ("", 401), ({"id": "ada"}, 500)],
)
def test_a_dependency_that_finds_nobody_signs_nobody_in(found: object, status: int) -> None:
    async def find() -> object:
        return found

    with serving(of_users(Depends(find))) as url:
        assert ask(f"{url}/api/chat").status_code == status


def test_a_user_that_is_no_id_is_told_to_the_author(caplog: pytest.LogCaptureFixture) -> None:
    async def find() -> object:
        return {"id": "ada"}

    with serving(of_users(Depends(find))) as url:
        assert "dict" not in ask(f"{url}/api/chat").text
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "The user must be the user's id, a str, and is of the type dict."
    ]


def test_a_route_of_ones_own_responds_to_the_user_that_it_names() -> None:
    app = FastAPI()
    endpoint = ChatEndpoint(greet)

    async def ask_agent(request: Request, user: Annotated[str, Depends(current_user)]) -> Response:
        return await endpoint.respond(request, user=user)

    async def ask_as_nobody(request: Request) -> Response:
        return await endpoint.respond(request, user=None)

    app.add_api_route("/ask", ask_agent, methods=["POST"])
    app.add_api_route("/nobody", ask_as_nobody, methods=["POST"])
    with serving(app) as url:
        assert ask(f"{url}/ask").status_code == 403
        assert parts(ask(f"{url}/ask", headers=ADA).text) == [STEP, text_part("Hello, ada.")]
        assert ask(f"{url}/ask", headers=BOB).status_code == 404
        assert ask(f"{url}/nobody").status_code == 401


def test_an_endpoint_with_a_dependency_answers_nobody_in_a_route_that_does_not_name_the_user() -> None:
    app = FastAPI()
    app.add_api_route("/ask", ChatEndpoint(greet, user=Depends(current_user)).respond, methods=["POST"])
    with serving(app) as url:
        assert ask(f"{url}/ask", headers=ADA).status_code == 500


def test_nobody_names_the_user_by_a_parameter_of_the_query() -> None:
    app = FastAPI()
    app.add_api_route("/ask", ChatEndpoint(greet).respond, methods=["POST"])
    app.include_router(ChatEndpoint(greet).router())
    with serving(app) as url:
        for path in ("/ask", "/api/chat"):
            assert parts(ask(f"{url}{path}?user=ada").text) == [STEP, text_part("Hello, None.")]


async def guard() -> None:
    pass


def in_app(endpoint: ChatEndpoint) -> FastAPI:
    app = FastAPI(dependencies=[Depends(guard)])
    app.include_router(endpoint.router())
    return app


def in_router(endpoint: ChatEndpoint) -> FastAPI:
    app, outer = FastAPI(), APIRouter()
    outer.include_router(endpoint.router(), dependencies=[Depends(guard)])
    app.include_router(outer, prefix="/v1")
    return app


@pytest.mark.anyio
@pytest.mark.parametrize("make", [in_app, in_router])
async def test_a_router_with_dependencies_and_without_a_user_does_not_start(
    make: Callable[[ChatEndpoint], FastAPI],
) -> None:
    app = make(ChatEndpoint(greet))
    with pytest.raises(RuntimeError, match=f"^{re.escape(UNKNOWN_USER)}$"):
        async with app.router.lifespan_context(app):
            pass
    served = [
        ChatEndpoint(greet, user=None),
        ChatEndpoint(greet, user=Depends(current_user)),
        ChatEndpoint(greet, authenticate=lambda connection: None),
    ]
    for app in map(make, served):
        async with app.router.lifespan_context(app):
            pass


def test_where_no_lifespan_runs_it_does_not_answer() -> None:
    app = FastAPI()
    app.mount("/inner", in_app(ChatEndpoint(greet)))
    with serving(app) as url:
        assert ask(f"{url}/inner/api/chat").status_code == 500


def test_dependencies_guard_a_router_whose_chats_belong_to_nobody() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(greet, user=None).router(), dependencies=[Depends(current_user)])
    with serving(app) as url:
        assert ask(f"{url}/api/chat").status_code == 403
        assert parts(ask(f"{url}/api/chat", headers=ADA).text) == [STEP, text_part("Hello, None.")]


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (
            lambda: ChatEndpoint(echo, user=current_user),
            TypeError,
            "user must be FastAPI's Depends(...) or None, and is a function; a function that takes the connection is "
            "authenticate.",
        ),
        (
            lambda: ChatEndpoint(echo, user=Depends(current_user), authenticate=lambda connection: None),
            ValueError,
            "Either user or authenticate says who is asking.",
        ),
        (
            lambda: ChatEndpoint(echo, user=Depends(current_user)).routes(),
            ValueError,
            "user=Depends(...) is for router(), in a FastAPI app: give routes() an authenticate.",
        ),
    ],
)
def test_a_user_that_cannot_be_found_so_is_refused_at_once(
    make: Callable[[], object], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(sentence)}$"):
        make()


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
