"""AG-UI: runs an agent that another server has, by one POST for each turn."""

import hashlib
import inspect
import ssl
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from usechat.errors import RequestError
from usechat.extras import missing
from usechat.integrations.ag_ui.thread import Thread, to_ag_ui
from usechat.integrations.ag_ui.translator import AGUIError, AGUITranslator
from usechat.integrations.edits import check_edits
from usechat.protocol.messages import is_tool_call
from usechat.protocol.sse import SseDecoder
from usechat.turns.chat import Approval, Chat
from usechat.turns.pending import PendingTurn

__all__ = ["AGUIAgent"]

_Event: TypeAlias = Mapping[str, Any]
_Headers: TypeAlias = Mapping[str, str]

# A snapshot of all messages, with their images, is one event.
_LARGEST_EVENT: Final = 16 * 1024 * 1024
_CONNECT_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
_ATTEMPTS: Final = 4
_VERSION: Final = "1.0"
_LAST: Final = ("RUN_FINISHED", "RUN_ERROR")


class AGUIAgent:
    """The agent at an address that speaks AG-UI, of release 1.0 or one before it, over HTTP and server-sent events.

    `headers` go with each request: a mapping, or a function of the chat, also an async one. `tools` are the page's
    tools as AG-UI declares them: dicts with `name`, `description` and the JSON schema `parameters`.
    """

    @classmethod
    def wrap(cls, thing: object) -> "AGUIAgent | None":
        """None: an address is just a text, so it is always wrapped."""
        return None

    def __init__(
        self,
        url: str,
        *,
        headers: _Headers | Callable[[Chat], _Headers | Awaitable[_Headers]] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Prepare the agent. Nothing is sent before the first turn.

        Raises:
            ValueError: It is no address of HTTP.
            TypeError: A tool is not declared as AG-UI does it.
            ImportError: httpx is not installed.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("AGUIAgent needs the address of an AG-UI agent, such as http://localhost:8001/agent.")
        for tool in tools:
            if not all(isinstance(tool.get(name), str) for name in ("name", "description")):
                raise TypeError('A tool of AGUIAgent is a dict such as {"name": …, "description": …, "parameters": …}.')
        if find_spec("httpx") is None:
            error = ModuleNotFoundError("No module named 'httpx'", name="httpx")
            raise ImportError(missing("AGUIAgent", error, "ag-ui")) from error
        self._url = url
        self._headers = headers
        # With the empty schema that releases before 1.0 want.
        self._tools: list[dict[str, Any]] = [
            {"parameters": {"type": "object", "properties": {}}, **tool} for tool in tools
        ]
        # Loading the certificates takes 20 ms.
        self._ssl: ssl.SSLContext | None = None
        # Releases before 0.1.10 refuse a field that they do not know.
        self._declares = True

    def translator(self, chat: Chat) -> AGUITranslator:
        parts = chat.continues.parts if chat.continues is not None else ()
        continued = [part["toolCallId"] for part in parts if is_tool_call(part)]
        denied = [approval.call_id for approval in chat.approvals if not approval.approved]
        names = [tool["name"] for tool in self._tools]
        return AGUITranslator(_thread(chat), tools=names, continued=continued, denied=denied)

    async def admit(self, pending: PendingTurn) -> bool:
        """Say whether the agent waits for these answers, and hand to `run` whether messages were replaced.

        Raises:
            RequestError: It does not, or waits for others, too, or an edit is no object.
        """
        check_edits(pending.approvals)
        kept = pending.state
        thread = Thread(cast("dict[str, Any]", kept)) if isinstance(kept, dict) else None
        if thread is not None and pending.approvals:
            given = {approval.id for approval in pending.approvals}
            asked = {interrupt_id for interrupt_id, about in thread.interrupts.items() if about["call"]}
            if given - asked:
                raise RequestError("This answers no approval that is open.", status=409)
            if asked - given:
                raise RequestError("The calls that wait together have to be answered together.", status=409)
            for approval in pending.approvals:
                if _edited(approval) is not None and not thread.interrupts[approval.id]["edits"]:
                    raise RequestError("The agent does not take other arguments for this call.", status=409)
        return pending.edits and pending.message.role == "user"

    async def run(self, chat: Chat) -> AsyncGenerator[_Event, None]:
        """Ask the agent, and yield the events of its run.

        Raises:
            AGUIError: It answered with something other than a stream of events.
        """
        thread = _thread(chat)
        given = await self._input(chat, thread)
        headers = self._headers(chat) if callable(self._headers) else self._headers
        headers = await headers if inspect.isawaitable(headers) else headers
        async with self._post(given, headers or {}) as response, aclosing(_events(response, chat)) as events:
            async for event in events:
                yield event
                if event.get("type") in _LAST:
                    return

    async def _input(self, chat: Chat, thread: Thread) -> dict[str, Any]:
        answers = {approval.call_id for approval in chat.approvals}
        messages = to_ag_ui(await chat.history(), thread, {*answers, *thread.paused})
        thread.known = {message["id"] for message in messages}
        body = chat.request.body
        given: dict[str, Any] = {
            "threadId": _thread_id(chat, thread.branch),
            "runId": str(uuid.uuid4()),
            "state": thread.state,
            "messages": messages,
            "tools": self._tools,
            "context": body["context"] if isinstance(body.get("context"), list) else [],
            "forwardedProps": body.get("forwardedProps") or {},
        }
        if resume := _resume(chat, thread):
            given["resume"] = resume
        return given

    @asynccontextmanager
    async def _post(self, given: dict[str, Any], headers: _Headers) -> AsyncGenerator[Any, None]:
        """The response to the run's input, which is closed in any case."""
        httpx = import_module("httpx")
        if self._ssl is None:
            self._ssl = httpx.create_ssl_context()
        # The turn itself has a clock for an agent that says nothing.
        timeout = httpx.Timeout(_CONNECT_SECONDS, read=None, write=_WRITE_SECONDS)
        async with httpx.AsyncClient(verify=self._ssl, timeout=timeout, follow_redirects=False) as client:
            headers = {**headers, "accept": "text/event-stream", "content-type": "application/json"}
            url = self._url
            for _ in range(_ATTEMPTS):
                declared = {"protocolVersion": _VERSION} if self._declares else {}
                content = msgspec.json.encode({**given, **declared})
                request = client.build_request("POST", url, content=content, headers=headers)
                response = await client.send(request, stream=True)
                try:
                    follow = response.next_request
                    # Another host must not get the headers, nor the messages.
                    if response.status_code in (307, 308) and follow is not None and _is_same(request.url, follow.url):
                        url = follow.url
                        continue
                    if response.status_code in (400, 422) and self._declares:
                        # The run has not begun, so it may be asked for again.
                        self._declares = False
                        continue
                    _check(response)
                    yield response
                    return
                finally:
                    await response.aclose()
        raise AGUIError("The AG-UI agent redirects again and again.")


def _thread(chat: Chat) -> Thread:
    """The thread of the chat, which the translator of the turn and its run share."""
    if not isinstance(chat.admitted, Thread):
        kept = cast("dict[str, Any]", chat.state) if isinstance(chat.state, dict) else {}
        thread = Thread(kept)
        if chat.admitted is True or (chat.admitted is None and chat.trigger == "regenerate-message"):
            thread.begin_branch(uuid.uuid4().hex)
        # Nothing keeps the state of a chat that its client keeps.
        with suppress(RuntimeError):
            chat.state = kept
        chat.admitted = thread
    return chat.admitted


def _thread_id(chat: Chat, branch: str) -> str:
    """A thread for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return hashlib.sha256(msgspec.json.encode((chat.user or "", chat.id, branch))).hexdigest()


def _resume(chat: Chat, thread: Thread) -> list[dict[str, Any]]:
    """Answers to all interrupts that wait; without one of them, an agent would refuse the run."""
    entries = {approval.id: _answer(_decision(approval)) for approval in chat.approvals}
    questions = [interrupt_id for interrupt_id, about in thread.interrupts.items() if not about["call"]]
    said = chat.request.body.get("resume")
    given = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    for interrupt_id in thread.interrupts:
        # A call is only answered by its approval, which the message shows.
        if interrupt_id in given and interrupt_id in questions:
            entries[interrupt_id] = _answer(given[interrupt_id])
        elif questions == [interrupt_id] and chat.continues is None:
            entries[interrupt_id] = _answer(chat.text)
        else:
            entries.setdefault(interrupt_id, {"status": "cancelled"})
    return [{"interruptId": interrupt_id, **entry} for interrupt_id, entry in entries.items()]


def _answer(payload: Any) -> dict[str, Any]:
    return {"status": "resolved", "payload": payload}


def _decision(approval: Approval) -> dict[str, Any]:
    decision: dict[str, Any] = {"approved": approval.approved}
    if approval.reason:
        decision["reason"] = approval.reason
    if approval.approved and (edited := _edited(approval)) is not None:
        decision["editedArgs"] = edited
    return decision


def _edited(approval: Approval) -> Any:
    return cast("dict[str, Any]", approval.extra).get("input") if isinstance(approval.extra, dict) else None


def _is_same(one: Any, other: Any) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def _check(response: Any) -> None:
    kind = response.headers.get("content-type", "")
    if response.status_code != 200:
        raise AGUIError(f"The AG-UI agent answered with status {response.status_code}.")
    if kind.partition(";")[0].strip().lower() != "text/event-stream":
        raise AGUIError(f"The AG-UI agent answered with {kind!r:.60}, and not with text/event-stream.")


async def _events(response: Any, chat: Chat) -> AsyncGenerator[_Event, None]:
    decoder = SseDecoder(max_event=_LARGEST_EVENT)
    async for piece in response.aiter_bytes():
        # Also a comment shows that the agent is still at work.
        chat.touch()
        for sent in decoder.feed(piece):
            try:
                event = msgspec.json.decode(sent.data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise AGUIError("The AG-UI agent sent an event that is not JSON.") from error
            if not isinstance(event, dict):
                raise AGUIError("The AG-UI agent sent an event that is no object.")
            yield cast("_Event", event)
