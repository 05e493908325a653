"""One route for a DeepAgent, like the AI Elements adapter of deepagentsdk.

The server keeps nothing: each request brings its messages, and a client that leaves stops the run.
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

from usechat.errors import RequestError
from usechat.ids import new_id
from usechat.integrations.deepagent_sdk.agent import DeepAgent, TranslatorMaker
from usechat.integrations.deepagent_sdk.translator import DeepAgentOptions
from usechat.integrations.langgraph.agent import is_graph
from usechat.protocol.requests import ChatRequest, Limits, decode_json, decode_request
from usechat.server.admission import ApprovalSigner
from usechat.server.chat_history import ClientHistory
from usechat.server.chats import Chats
from usechat.server.metrics import Metrics
from usechat.server.requests import VisibleHeaders, address_of, check_body, error_headers, guarded, json_body
from usechat.server.responses import StreamLimits, TurnResponse
from usechat.stores import Claim, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.chat import RunOptions
from usechat.turns.failures import explain
from usechat.turns.settings import ChatSettings, TurnLimits

__all__ = ["elements_route"]

_T = TypeVar("_T")
PerRequest: TypeAlias = _T | Callable[[Request], _T | Awaitable[_T]]
OnRequest: TypeAlias = Callable[[Request], object]

# A newer message of the same chat ends the run before it; of two chats in one thread the second waits.
_SETTINGS: Final = ChatSettings(turn=TurnLimits(linger=0))
_LIMITS: Final = Limits()
_STREAM: Final = StreamLimits()
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
    translator: TranslatorMaker | None = None,
    options: DeepAgentOptions | None = None,
    approval_secret: str | None = None,
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint for `Route("/api/chat", elements_route(agent), methods=["POST"])`, or for a FastAPI route.

    `on_request` refuses a request by raising. `initial_state` and `thread_id` are functions of the request, or values
    of which every request gets a copy. A LangGraph graph begins a new thread with the state. A graph with a
    checkpointer needs `thread_id` as a function, because this route knows no users. `generate_id` makes the ids of
    messages and parts. `translator` makes a translator from the chat; without it, `options` are those of the
    `DeepAgentTranslator`. The server signs approvals with `approval_secret`, of 32 bytes or more. Without a secret,
    only the process that asked for an approval accepts it.

    Raises:
        TypeError: The agent is not a DeepAgent, or it is a graph whose users would share one thread.
        ValueError: The secret is too short.
    """
    is_threaded = _check_graph(agent, thread_id, max_steps) if is_graph(agent) else False
    served = _served(agent, max_steps=max_steps, translator=translator, options=options)
    signer = ApprovalSigner(approval_secret, _SETTINGS.approval_ttl)
    history = ClientHistory(signer, generate_id or new_id)
    chats = Chats(served, _Threads(), history, _SETTINGS, Metrics())

    async def respond(request: Request) -> Response:
        if on_request is not None:
            await _ask_app(chats, on_request, request)
        asked = await _read(request)
        run = RunOptions(
            await _for_request(chats, initial_state, request), await _for_request(chats, thread_id, request)
        )
        if is_threaded and not run.thread_id:
            raise RequestError("This request belongs to no thread.")
        pending = chats.pending(asked, None, VisibleHeaders(request.scope["headers"]), run, address_of(request))
        # Two requests never meet, whatever ids their chats have, unless a graph keeps their thread.
        thread = hashlib.sha256((run.thread_id or "").encode()).hexdigest() if is_threaded else pending.head.turn
        pending.head = structs.replace(pending.head, chat=f"{thread}\n{asked.id}")
        if generate_id is not None and pending.head.message_id != asked.last.id:
            pending.head = structs.replace(pending.head, message_id=generate_id())
        return TurnResponse(await chats.open(pending), _STREAM, chats.metrics)

    def refused(error: RequestError) -> Response:
        chats.metrics.request_refused(error.status)
        return JSONResponse({"error": str(error)}, status_code=error.status, headers=error_headers(error))

    async def elements(request: Request) -> Response:
        return await guarded(respond, request, refused)

    return elements


def _check_graph(graph: Any, thread_id: object, max_steps: object) -> bool:
    """Whether the graph keeps threads.

    Raises:
        TypeError: Users would share a thread, or an option is not for graphs.
    """
    if max_steps is not None:
        raise TypeError("max_steps is not for graphs. Use graph.with_config(recursion_limit=…).")
    if graph.checkpointer and not callable(thread_id):
        raise TypeError(
            "This graph has a checkpointer, and this route knows no users. Pass a thread_id function that returns the "
            "thread of a request, or serve the graph with create_app(DeepAgent(graph))."
        )
    return bool(graph.checkpointer)


def _served(
    agent: object, *, max_steps: int | None, translator: TranslatorMaker | None, options: DeepAgentOptions | None
) -> DeepAgent:
    if is_graph(agent):
        return DeepAgent(agent, translator=translator, options=options)
    return DeepAgent(
        agent,
        initial_state=lambda chat: chat.request.context.state,
        thread_id=lambda chat: chat.request.context.thread_id,
        max_steps=max_steps,
        translator=translator,
        options=options,
    )


class _Threads(MemoryTurnStore):
    """Runs one turn of a thread at a time, also of different chats: of two at once, one would lose its updates."""

    async def claim(self, head: TurnHead) -> Claim:
        thread = head.chat.partition("\n")[0]
        for running in self._claims.values():
            if running.head.chat != head.chat and running.head.chat.partition("\n")[0] == thread:
                raise running.error()
        return await super().claim(head)


async def _ask_app(chats: Chats, on_request: OnRequest, request: Request) -> None:
    try:
        await _bounded(chats, on_request, request)
    except RequestError as error:
        # 400 is the default, so the app chose none.
        status = 401 if error.status == 400 else error.status
        raise RequestError(str(error), status=status, retry_after=error.retry_after) from error
    # The app may raise anything, and strangers must not read its text.
    except Exception as error:
        explain(error)
        raise RequestError(_REFUSED, status=401) from error


async def _for_request(chats: Chats, given: Any, request: Request) -> Any:
    """A copy of the value, or what the function returns for this request."""
    return await _bounded(chats, given, request) if callable(given) else copy.deepcopy(given)


async def _bounded(chats: Chats, hook: Callable[[Request], object], request: Request) -> Any:
    try:
        async with asyncio.timeout(_HOOK_SECONDS):
            return await chats.threads.call(hook, request)
    except TimeoutError:
        raise RequestError("The server is busy. Try again in a moment.", status=503, retry_after=5) from None


async def _read(request: Request) -> ChatRequest:
    body = await json_body(request, limit=_LIMITS.body)
    await check_body(body, _LIMITS)
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
    """The body with ids where it has none: the original's route accepts that, although `useChat` always sends them."""
    try:
        messages = _MESSAGES.decode(fields["messages"])
    except msgspec.MsgspecError:
        # `decode_request` says what is wrong with them.
        return msgspec.json.encode({"id": new_id(), **fields})
    if "id" in fields and all("id" in message for message in messages):
        return body
    named = [{"id": new_id(), **message} for message in messages]
    return msgspec.json.encode({"id": new_id(), **fields, "messages": named})
