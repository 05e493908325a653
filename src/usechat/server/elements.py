"""One route for a DeepAgent, as the original's adapter for AI Elements is one.

Nothing is kept: the messages are those of each request, and whoever leaves stops the run.
"""

import asyncio
import copy
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw, structs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usechat.agents.chat import Chat, RunOptions
from usechat.agents.chat import Request as CameWith
from usechat.agents.deep_agent import DeepAgent, MapperMaker
from usechat.agents.langgraph import is_graph
from usechat.errors import RequestError
from usechat.ids import new_id
from usechat.protocol.requests import ChatRequest, Limits, check_cost, decode_json, decode_request
from usechat.server.bodies import VisibleHeaders, address_of, breathe, json_body
from usechat.server.chat_history import ClientHistory
from usechat.server.chat_settings import ChatSettings
from usechat.server.chats import ChatOpening, Chats
from usechat.server.guard import guarded
from usechat.server.metrics import Metrics
from usechat.server.responses import StreamLimits, TurnResponse
from usechat.server.signatures import ApprovalSigner
from usechat.sources.deep_agent import DeepAgentOptions
from usechat.stores import Claim, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.clocks import TurnLimits
from usechat.turns.failures import explain

__all__ = ["elements_route"]

_T = TypeVar("_T")
PerRequest: TypeAlias = _T | Callable[[Request], _T | Awaitable[_T]]
OnRequest: TypeAlias = Callable[[Request], object]

# Of two chats in one thread the second waits; a newer message of the same chat ends the run before it.
_SETTINGS: Final = ChatSettings(turn=TurnLimits(linger=0), conflict="queue")
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
    of which every request gets a copy. A graph of LangGraph begins a new thread with the state; one with a checkpointer
    needs `thread_id` as a function, since this route knows no users whose threads they are. `generate_id` makes the ids
    of messages and parts. `mapper` makes a mapper from the writer, else `options` are those of the `DeepAgentMapper`.
    Approvals are signed with `approval_secret`, of 32 bytes or more; without one, only the process that asked knows
    them again.

    Raises:
        TypeError: it is no agent of that kind, or a graph whose threads all would share.
        ValueError: the secret is too short.
    """
    is_threaded = _check_graph(agent, thread_id, max_steps) if is_graph(agent) else False
    served = _served(agent, max_steps=max_steps, mapper=mapper, options=options)
    signer = ApprovalSigner(approval_secret, _SETTINGS.approval_ttl)
    history = ClientHistory(signer, generate_id or new_id)
    chats = Chats(served, _Threads(), history, _SETTINGS, Metrics())

    async def answer(request: Request) -> Response:
        if on_request is not None:
            await _ask_app(chats, on_request, request)
        asked = await _read(request)
        run = RunOptions(
            await _for_request(chats, initial_state, request), await _for_request(chats, thread_id, request)
        )
        if is_threaded and not run.thread_id:
            raise RequestError("This request belongs to no thread.")
        came = CameWith(asked.extra, VisibleHeaders(request.scope["headers"]), run)
        thread = run.thread_id if is_threaded else None
        opening = _Opening(chats, asked, came, generate_id, thread=thread, address=address_of(request))
        return TurnResponse(await chats.open(opening), _STREAM, chats.metrics)

    def refused(error: RequestError) -> Response:
        chats.metrics.request_refused(error.status)
        return _refusal(error)

    async def elements(request: Request) -> Response:
        return await guarded(answer, request, refused)

    return elements


def _check_graph(graph: Any, thread_id: object, max_steps: object) -> bool:
    """Whether the graph keeps threads.

    Raises:
        TypeError: users would share one, or there is an option that is not for graphs.
    """
    if max_steps is not None:
        raise TypeError("A graph has a limit of its own: graph.with_config(recursion_limit=…) in place of max_steps.")
    if graph.checkpointer and not callable(thread_id):
        raise TypeError(
            "This graph has a checkpointer, and this route knows no users: give thread_id, a function of the request "
            "that says whose thread it is, or serve the graph by create_app(DeepAgent(graph))."
        )
    return bool(graph.checkpointer)


def _served(
    agent: object, *, max_steps: int | None, mapper: MapperMaker | None, options: DeepAgentOptions | None
) -> DeepAgent:
    if is_graph(agent):
        return DeepAgent(agent, mapper=mapper, options=options)

    def state(chat: Chat) -> Any:
        return chat.request.context.state

    def thread(chat: Chat) -> Any:
        return chat.request.context.thread_id

    return DeepAgent(agent, initial_state=state, thread_id=thread, max_steps=max_steps, mapper=mapper, options=options)


class _Threads(MemoryTurnStore):
    """Lets one turn of each thread run at a time, whichever chat it is of: two at once would lose what one wrote."""

    async def claim(self, head: TurnHead) -> Claim:
        thread = head.chat.partition("\n")[0]
        for running in self._claims.values():
            if running.head.chat != head.chat and running.head.chat.partition("\n")[0] == thread:
                raise running.error()
        return await super().claim(head)


class _Opening(ChatOpening):
    """A request for a turn that is nobody else's: two requests never meet, whatever ids their chats have.

    Where a graph has a `thread`, a newer request of the same chat ends the run that is still in it, and one of another
    chat waits for it.
    """

    __slots__ = ("_is_newer",)

    def __init__(
        self,
        chats: Chats,
        request: ChatRequest,
        came: CameWith,
        generate_id: Callable[[], str] | None,
        *,
        thread: str | None,
        address: str,
    ) -> None:
        super().__init__(chats, request, None, came, address)
        place = self.head.turn if thread is None else hashlib.sha256(thread.encode()).hexdigest()
        self.head = structs.replace(self.head, chat=f"{place}\n{request.id}")
        self._is_newer = False
        if generate_id is not None and self.head.message_id != request.last.id:
            self.head = structs.replace(self.head, message_id=generate_id())

    async def check(self, running: TurnHead) -> None:
        await super().check(running)
        self._is_newer = running.chat == self.head.chat
        if not self._is_newer:
            # The answer that is to be written again is not the one of the other chat.
            self.regenerates = None

    def is_awaited(self) -> bool:
        return self._is_newer


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
    """A copy of the value, or what the function gives for this request."""
    return await _bounded(chats, given, request) if callable(given) else copy.deepcopy(given)


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
        # What is wrong with them is told by whoever reads them.
        return msgspec.json.encode({"id": new_id(), **fields})
    if "id" in fields and all("id" in message for message in messages):
        return body
    named = [{"id": new_id(), **message} for message in messages]
    return msgspec.json.encode({"id": new_id(), **fields, "messages": named})


def _refusal(error: RequestError) -> Response:
    headers = {"cache-control": "no-store"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)
