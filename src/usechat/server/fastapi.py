"""The routes of a chat for FastAPI, with their documentation."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal, cast

import fastapi.routing
from fastapi import APIRouter, FastAPI
from fastapi.params import Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from usechat.protocol.messages import Role
from usechat.protocol.requests import Trigger
from usechat.server.auth import USER

__all__ = ["SSE_EXAMPLE", "ChatBody", "ChatList", "ChatMessage", "ChatPart", "ListedChat", "chat_router"]

_CHUNKS: Final = (
    '{"type":"start","messageId":"msg-1"}',
    '{"type":"start-step"}',
    '{"type":"text-start","id":"text-1"}',
    '{"type":"text-delta","id":"text-1","delta":"Hello"}',
    '{"type":"text-end","id":"text-1"}',
    '{"type":"finish-step"}',
    '{"type":"finish","finishReason":"stop"}',
)
SSE_EXAMPLE: Final = (
    "".join(f"id: 1d93adb5.{number}\ndata: {chunk}\n\n" for number, chunk in enumerate(_CHUNKS, 1)) + "data: [DONE]\n\n"
)


class ChatPart(BaseModel):
    """A part of a UIMessage; its other fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(min_length=1)


class ChatMessage(BaseModel):
    """A UIMessage of the AI SDK."""

    id: str
    role: Role
    parts: list[ChatPart] = Field(examples=[[{"type": "text", "text": "Hello"}]], min_length=1)
    metadata: Any = None


class ChatBody(BaseModel):
    """What `useChat()` posts; other fields reach the agent as they are."""

    # For the documentation only: `decode_request` reads the body.
    model_config = ConfigDict(extra="allow")

    id: str = Field(min_length=1, max_length=512)
    messages: list[ChatMessage] = Field(min_length=1)
    trigger: Trigger = "submit-message"
    messageId: str | None = None  # noqa: N815


class ListedChat(BaseModel):
    """A chat in the list; times are seconds since 1970."""

    id: str
    title: str
    created: float
    updated: float


class ChatList(BaseModel):
    """A page of the list; `next` is there if more may follow."""

    chats: list[ListedChat]
    next: str | None = None


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {"description": "One sentence for the user.", "content": {"text/plain": {"schema": {"type": "string"}}}}
        for status in statuses
    }


def _body_schema() -> dict[str, Any]:
    # Inlined: FastAPI names the models that it collects, so a reference could miss.
    schema = ChatBody.model_json_schema()
    models = schema.pop("$defs")
    models["ChatMessage"]["properties"]["parts"]["items"] = models["ChatPart"]
    schema["properties"]["messages"]["items"] = models["ChatMessage"]
    return schema


def _parameter(
    place: Literal["path", "query", "header"], name: str, text: str, schema: dict[str, Any]
) -> dict[str, Any]:
    return {"in": place, "name": name, "description": text, "required": place == "path", "schema": schema}


_STREAM: Final[dict[str, Any]] = {
    "description": "The turn as a UI message stream, in server-sent events.",
    "content": {"text/event-stream": {"schema": {"type": "string"}, "example": SSE_EXAMPLE}},
}
_CHAT_ID: Final = _parameter("path", "chat_id", "The chat's id.", {"type": "string", "minLength": 1, "maxLength": 512})
_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": 10_000}
_EVENT_ID: Final = {"type": "string", "examples": ["1d93adb5.4"]}


def _operation(
    method: Literal["GET", "POST", "DELETE"],
    name: str,
    summary: str,
    responses: dict[int | str, dict[str, Any]],
    **openapi: Any,
) -> dict[str, Any]:
    """The arguments of `add_api_route`; the first response is the one of a success."""
    status = int(next(iter(responses)))
    described = {"methods": [method], "name": name, "summary": summary, "status_code": status, "responses": responses}
    return {**described, "response_class": Response, "openapi_extra": openapi}


_OPERATIONS: Final = {
    "": _operation(
        "POST",
        "chat",
        "Send a message or a tool's result, and read the turn that answers it.",
        {200: _STREAM, **_refusals(400, 401, 404, 408, 409, 413, 415, 429, 503)},
        requestBody={"required": True, "content": {"application/json": {"schema": _body_schema()}}},
    ),
    "/{chat_id}/stream": _operation(
        "GET",
        "resume_chat",
        "Read the turn that runs in the chat: what it has said, and what it says next.",
        {200: _STREAM, 204: {"description": "Nothing runs in the chat."}, **_refusals(400, 401)},
        parameters=[
            _CHAT_ID,
            _parameter("query", "after", "The id of the last event that the client has.", _EVENT_ID),
            _parameter("header", "Last-Event-ID", "The same, as browsers send it.", _EVENT_ID),
        ],
    ),
    "/{chat_id}/stop": _operation(
        "POST",
        "stop_chat",
        "Stop the turn that runs in the chat; what it said is kept.",
        {204: {"description": "Nothing runs in the chat any more."}, **_refusals(400, 401, 403)},
        parameters=[
            _CHAT_ID,
            _parameter("query", "turn", "Stop this turn only: a newer one goes on.", {"type": "string"}),
        ],
    ),
    "/{chat_id}/messages": _operation(
        "GET",
        "chat_messages",
        "The messages of the chat, as the client builds them.",
        {200: {"description": "The messages.", "model": list[ChatMessage]}, **_refusals(400, 401, 404)},
        parameters=[
            _CHAT_ID,
            _parameter("query", "before", "Only messages before the one with this id.", {"type": "string"}),
            _parameter("query", "limit", "At most this many, the last ones.", _COUNT),
        ],
    ),
    "/{chat_id}": _operation(
        "DELETE",
        "delete_chat",
        "Delete the chat and its messages; what runs in it is stopped.",
        {204: {"description": "There is no such chat of the user's any more."}, **_refusals(400, 401, 403, 404, 503)},
        parameters=[_CHAT_ID],
    ),
    "s": _operation(
        "GET",
        "list_chats",
        "The user's chats, the most recent first.",
        {200: {"description": "A page of the list.", "model": ChatList}, **_refusals(400, 401, 403, 404)},
        parameters=[
            _parameter("query", "after", "The `next` of the page before.", {"type": "string"}),
            _parameter("query", "limit", "How many chats a page has.", {**_COUNT, "default": 50}),
        ],
    ),
}

_UNKNOWN_USER: Final = (
    "The router of a ChatEndpoint has dependencies, but nothing names the user, so everybody could read all chats. "
    "Write ChatEndpoint(agent, user=Depends(...)), or user=None if chats belong to nobody."
)


def chat_router(
    routes: Sequence[BaseRoute],
    path: str,
    serve: Callable[[], AbstractAsyncContextManager[None]],
    user: Depends | None,
    *,
    names_user: bool,
) -> APIRouter:
    """The router with the `routes` of a chat at `path`, and with `serve` as its lifespan.

    `user` is the dependency that gives the user of each request. `names_user` says that `user` or `authenticate` does.
    """
    identify = _unknown(routes) if user is None else _identified(user)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        if not names_user:
            _check_dependencies(app, routes, identify)
        async with serve():
            yield

    dependencies = [] if names_user and user is None else [Depends(identify)]
    router = APIRouter(tags=["chat"], lifespan=lifespan, dependencies=dependencies)
    for route in routes:
        if isinstance(route, WebSocketRoute):
            router.add_api_websocket_route(route.path, route.endpoint, route.name)
        elif isinstance(route, Route):
            router.add_api_route(route.path, route.endpoint, **_OPERATIONS[route.path_format.removeprefix(path)])
    return router


def _identified(found: Depends) -> Callable[..., Awaitable[None]]:
    async def identify(connection: HTTPConnection, user: Any = found) -> None:
        connection.scope[USER] = user

    return identify


def _unknown(routes: Sequence[BaseRoute]) -> Callable[..., Awaitable[None]]:
    checked = False

    async def check(connection: HTTPConnection) -> None:
        # Checked here as well: the lifespan of a mounted app does not run.
        nonlocal checked
        if not checked:
            _check_dependencies(connection.app, routes, check)
            checked = True

    return check


def _check_dependencies(app: FastAPI, routes: Sequence[BaseRoute], own: Callable[..., object]) -> None:
    """Refuse an app in which these routes have dependencies besides our own.

    Raises:
        RuntimeError: They have other dependencies.
    """
    ours = [route.endpoint for route in routes if isinstance(route, Route | WebSocketRoute)]
    # Newer releases keep the dependencies of `include_router` apart from the routes.
    effective: Callable[[Any], Iterable[Any]] = getattr(fastapi.routing, "iter_route_contexts", iter)
    for route in cast("Iterable[Any]", effective(app.routes)):
        if getattr(route, "endpoint", None) in ours and any(each.dependency is not own for each in route.dependencies):
            raise RuntimeError(_UNKNOWN_USER)
