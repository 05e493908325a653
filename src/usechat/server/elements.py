"""One route for a DeepAgent, as the original's adapter for AI Elements is one.

Nothing is kept: the messages are those of each request, and whoever leaves stops the run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw, structs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usechat.agents.chat import Chat
from usechat.agents.chat import Request as CameWith
from usechat.agents.deep_agent import DeepAgent, MapperMaker
from usechat.agents.langgraph import is_graph
from usechat.errors import RequestError
from usechat.ids import new_id
from usechat.protocol.requests import ChatRequest, Limits, check_cost, decode_json, decode_request
from usechat.server.bodies import VisibleHeaders, breathe, json_body
from usechat.server.chat_history import ClientHistory
from usechat.server.chat_settings import ChatSettings
from usechat.server.chats import ChatOpening, Chats
from usechat.server.guard import guarded
from usechat.server.metrics import Metrics
from usechat.server.responses import StreamLimits, TurnResponse
from usechat.server.signatures import ApprovalSigner
from usechat.sources.deep_agent import DeepAgentOptions
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.clocks import TurnLimits
from usechat.turns.failures import explain
from usechat.turns.pump import pump
from usechat.turns.turn import Turn

__all__ = ["elements_route"]

_T = TypeVar("_T")
PerRequest: TypeAlias = _T | Callable[[Request], _T | Awaitable[_T]]
OnRequest: TypeAlias = Callable[[Request], object]

_SETTINGS: Final = ChatSettings(turn=TurnLimits(linger=0))
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()
_BODY_DEADLINE: Final = 30.0
_HOOK_SECONDS: Final = 8.0
_JSON: Final = msgspec.json.Decoder(dict[str, Raw] | list[Raw] | str | float | bool | None)
_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_REFUSED: Final = "This request is not allowed."
_INVALID: Final = "Invalid JSON body"
_NO_MESSAGES: Final = "messages array is required"


def elements_route(
    agent: object,
    *,
    on_request: OnRequest | None = None,
    initial_state: PerRequest[Any] = None,
    thread_id: PerRequest[str | None] = None,
    max_steps: int | None = None,
    generate_id: Callable[[], str] | None = None,
    mapper: MapperMaker | None = None,
    options: DeepAgentOptions | None = None,
    approval_secret: str | None = None,
) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of `Route("/api/chat", elements_route(agent), methods=["POST"])`, or of a FastAPI route.

    `on_request` refuses a request by raising. `initial_state` and `thread_id` are functions of the request, or values
    of which every request gets a copy. `generate_id` makes the ids of messages and parts. `mapper` makes a mapper from
    the writer, else `options` are those of the `DeepAgentMapper`. Approvals are signed with `approval_secret`, of 32
    bytes or more; without one, only the process that asked knows them again.

    Raises:
        TypeError: it is no agent of that kind.
        ValueError: the secret is too short.
    """
    if is_graph(agent):
        raise TypeError(
            "The threads of a graph belong to users, whom this route does not know: serve it by "
            "create_app(DeepAgent(graph))."
        )
    make = partial(DeepAgent, agent, max_steps=max_steps, mapper=mapper, options=options)
    signer = ApprovalSigner(approval_secret, _SETTINGS.approval_ttl)
    history = ClientHistory(signer, generate_id or new_id)
    chats = Chats(make(), MemoryTurnStore(), history, _SETTINGS, Metrics())

    async def answer(request: Request) -> Response:
        if on_request is not None:
            await _ask_app(chats, on_request, request)
        asked = await _read(request)
        served = make(
            initial_state=await _for_request(chats, initial_state, request),
            thread_id=await _for_request(chats, thread_id, request),
        )
        opening = _Opening(chats, asked, VisibleHeaders(request.scope["headers"]), served, generate_id)
        return TurnResponse(await chats.open(opening), _STREAM, chats.metrics)

    def refused(error: RequestError) -> Response:
        chats.metrics.request_refused(error.status)
        return _refusal(error)

    async def elements(request: Request) -> Response:
        return await guarded(answer, request, refused)

    return elements


class _Opening(ChatOpening):
    """A request for a turn that is nobody else's: two requests never meet, whatever ids their chats have."""

    __slots__ = ("_agent",)

    def __init__(
        self,
        chats: Chats,
        request: ChatRequest,
        headers: Mapping[str, str],
        agent: DeepAgent,
        generate_id: Callable[[], str] | None,
    ) -> None:
        super().__init__(chats, request, None, CameWith(request.extra, headers))
        self._agent = agent
        self.head = structs.replace(self.head, chat=f"{self.head.turn}\n{request.id}")
        if generate_id is not None and self.head.message_id != request.last.id:
            self.head = structs.replace(self.head, message_id=generate_id())

    def drive(self, turn: Turn) -> Awaitable[None]:
        events = self._agent.events(self._chat(turn))
        mapper = self._agent.mapper(turn.output.writer)
        return pump(events, mapper, turn.output, unused=self._chats.unused, threads=self._chats.threads)


async def _ask_app(chats: Chats, on_request: OnRequest, request: Request) -> None:
    try:
        await _bounded(chats, on_request, request)
    except RequestError as error:
        # That is its status where none was chosen.
        status = 401 if error.status == 400 else error.status
        raise RequestError(str(error), status=status, retry_after=error.retry_after) from error
    # What the app raises may be anything, and its text is not for strangers.
    except Exception as error:
        explain(error)
        raise RequestError(_REFUSED, status=401) from error


async def _for_request(chats: Chats, given: Any, request: Request) -> Any:
    """A value as it is; a function of the request as one of the chat, which gives what it gave for this request."""
    if not callable(given):
        return given
    value = await _bounded(chats, given, request)

    def of_chat(_: Chat) -> Any:
        return value

    return of_chat


async def _bounded(chats: Chats, hook: Callable[[Request], object], request: Request) -> Any:
    try:
        async with asyncio.timeout(_HOOK_SECONDS):
            return await chats.threads.call(hook, request)
    except TimeoutError:
        raise RequestError("The server is busy. Try again in a moment.", status=503, retry_after=5) from None


async def _read(request: Request) -> ChatRequest:
    body = await json_body(request, limit=_LIMITS.body, deadline=_BODY_DEADLINE)
    check_cost(body, _LIMITS)
    await breathe(body)
    try:
        fields = decode_json(_JSON, body, "", "")
    except RequestError:
        raise RequestError(_INVALID) from None
    top = cast("dict[str, Raw]", fields) if isinstance(fields, dict) else {}
    if not bytes(top.get("messages", b"")).lstrip().startswith(b"["):
        raise RequestError(_NO_MESSAGES)
    asked = decode_request(_with_ids(body, top), _LIMITS, checked=True)
    return asked if asked.last.id else structs.replace(asked, last=structs.replace(asked.last, id=new_id()))


def _with_ids(body: bytes, fields: dict[str, Raw]) -> bytes:
    """The body with ids for what has none, as the original's route takes it; `useChat` always sends them."""
    try:
        messages = _MESSAGES.decode(fields["messages"])
    except msgspec.MsgspecError:
        # What is wrong with it is told by whoever reads it.
        return body
    if "id" in fields and all("id" in message for message in messages):
        return body
    named = [{"id": new_id(), **message} for message in messages]
    return msgspec.json.encode({"id": new_id(), **fields, "messages": named})


def _refusal(error: RequestError) -> Response:
    headers = {"cache-control": "no-store"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)
