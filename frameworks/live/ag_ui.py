"""An AG-UI server of its own, with the events and the encoder of `ag-ui-protocol`, on a port of this process."""

import asyncio
import json
import os
import socket
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import uvicorn
from ag_ui import core as ui
from ag_ui.encoder import EventEncoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from live.raw_tools import FUNCTIONS, SCHEMAS
from usechat.integrations.ag_ui import AGUIAgent

__all__ = ["agent"]

# Since 0.1.19 and 0.1.20.
HAS_OUTCOMES = hasattr(ui, "Interrupt")
HAS_USAGE = hasattr(ui, "TokenUsage")
EDITABLE = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


class ProviderError(Exception):
    pass


class Run:
    """One run. It has no memory: all that it knows is in its input."""

    def __init__(self, given: ui.RunAgentInput) -> None:
        self.given = given
        self.messages = list(given.messages)
        self.frontend = {tool.name for tool in given.tools or ()}
        self.usage: list[Any] = []

    async def events(self) -> AsyncGenerator[ui.BaseEvent, None]:
        about = {"thread_id": self.given.thread_id, "run_id": self.given.run_id}
        yield ui.RunStartedEvent(**about)
        try:
            async with aclosing(self._steps()) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            yield ui.RunErrorEvent(message=str(error), code="provider")
            return
        yield ui.RunFinishedEvent(**about, **self._end())

    def _end(self) -> dict[str, Any]:
        end = dict[str, Any]()
        waiting = [call for call in self._open_calls() if call.function.name == "pay"]
        if HAS_OUTCOMES:
            end["outcome"] = ui.RunFinishedSuccessOutcome()
            if waiting:
                end["outcome"] = ui.RunFinishedInterruptOutcome(interrupts=[_interrupt(call) for call in waiting])
        if HAS_USAGE:
            end["usage"] = [ui.TokenUsage(**one) for one in self.usage]
        return end

    async def _steps(self) -> AsyncGenerator[ui.BaseEvent, None]:
        answers = {entry.interrupt_id: entry for entry in getattr(self.given, "resume", None) or ()}
        for call in self._open_calls() if answers else ():
            async for event in self._call(call, answers.get(f"int-{call.id}")):
                yield event
        while True:
            async for event in self._answer(self.messages):
                yield event
            calls = self._open_calls()
            # What waits for somebody else ends the run, also for the calls beside it.
            if not calls or any(call.function.name in {"pay", *self.frontend} for call in calls):
                return
            for call in calls:
                async for event in self._call(call):
                    yield event

    def _open_calls(self) -> list[ui.ToolCall]:
        answered = {message.tool_call_id for message in self.messages if message.role == "tool"}
        said = [message for message in self.messages if message.role == "assistant"]
        return [call for call in (said[-1].tool_calls or () if said else ()) if call.id not in answered]

    async def _call(self, call: ui.ToolCall, answer: Any = None) -> AsyncIterator[ui.BaseEvent]:
        given = json.loads(call.function.arguments)
        message_id = f"msg-{uuid.uuid4()}"
        payload = answer.payload if answer is not None and answer.status == "resolved" else None
        if answer is not None and not (payload and payload["approved"]):
            content = f"The user refused: {(payload or {}).get('reason')}"
        elif call.function.name == "helper":
            texts = list[str]()
            async for event in self._help(given["question"], call.id, texts):
                yield event
            content = "".join(texts)
        else:
            try:
                result = await FUNCTIONS[call.function.name](**((payload or {}).get("editedArgs") or given))
            except RuntimeError:
                # The event of a result has no field for an error; the message of a result has.
                about = {"id": message_id, "role": "tool", "tool_call_id": call.id}
                self.messages.append(ui.ToolMessage(**about, content="", error="The tool failed."))
                yield ui.MessagesSnapshotEvent(messages=self.messages)
                return
            content = result if isinstance(result, str) else json.dumps(result)
        self.messages.append(ui.ToolMessage(id=message_id, role="tool", tool_call_id=call.id, content=content))
        yield ui.ToolCallResultEvent(message_id=message_id, tool_call_id=call.id, content=content)

    async def _help(self, question: str, call_id: str, texts: list[str]) -> AsyncIterator[ui.BaseEvent]:
        name = f"helper-{uuid.uuid4()}"
        yield ui.SubagentStartedEvent(subagent_run_id=name, name="helper", parent_tool_call_id=call_id)
        async for event in self._answer([ui.UserMessage(id="q", role="user", content=question)]):
            event.subagent_run_id = name
            if isinstance(event, ui.TextMessageContentEvent):
                texts.append(event.delta)
            yield event
        yield ui.SubagentFinishedEvent(subagent_run_id=name, outcome=ui.SubagentFinishedSuccessOutcome())

    async def _answer(self, messages: list[Any]) -> AsyncIterator[Any]:  # noqa: C901
        """One model call. What it says is added to the messages."""
        message_id, open_part = f"msg-{uuid.uuid4()}", ""
        calls = dict[str, ui.ToolCall]()
        texts = list[str]()
        async for event in _provider(messages):
            match event["type"]:
                case "response.reasoning_summary_text.delta":
                    thought = f"{message_id}-thought"
                    if not open_part:
                        open_part = "reasoning"
                        yield ui.ReasoningStartEvent(message_id=thought)
                        yield ui.ReasoningMessageStartEvent(message_id=thought, role="reasoning")
                    yield ui.ReasoningMessageContentEvent(message_id=thought, delta=event["delta"])
                case "response.output_item.done" if event["item"]["type"] == "reasoning":
                    thought, item = f"{message_id}-thought", event["item"]
                    yield ui.ReasoningMessageEndEvent(message_id=thought)
                    yield ui.ReasoningEncryptedValueEvent(
                        subtype="message", entity_id=thought, encrypted_value=item["encrypted_content"]
                    )
                    yield ui.ReasoningEndEvent(message_id=thought)
                    said = "".join(part["text"] for part in item["summary"])
                    value = item["encrypted_content"]
                    messages.append(
                        ui.ReasoningMessage(id=thought, role="reasoning", content=said, encrypted_value=value)
                    )
                case "response.output_text.delta":
                    if open_part != "text":
                        open_part = "text"
                        yield ui.TextMessageStartEvent(message_id=message_id, role="assistant")
                    texts.append(event["delta"])
                    yield ui.TextMessageContentEvent(message_id=message_id, delta=event["delta"])
                case "response.output_item.added" if event["item"]["type"] == "function_call":
                    if open_part == "text":
                        open_part = "calls"
                        yield ui.TextMessageEndEvent(message_id=message_id)
                    item = event["item"]
                    function = ui.FunctionCall(name=item["name"], arguments="")
                    calls[item["id"]] = ui.ToolCall(id=item["call_id"], type="function", function=function)
                    yield ui.ToolCallStartEvent(
                        tool_call_id=item["call_id"], tool_call_name=item["name"], parent_message_id=message_id
                    )
                case "response.function_call_arguments.delta":
                    call = calls[event["item_id"]]
                    call.function.arguments += event["delta"]
                    yield ui.ToolCallArgsEvent(tool_call_id=call.id, delta=event["delta"])
                case "response.function_call_arguments.done":
                    yield ui.ToolCallEndEvent(tool_call_id=calls[event["item_id"]].id)
                case "response.failed":
                    raise ProviderError(event["response"]["error"]["message"])
                case "response.completed" | "response.incomplete":
                    used = event["response"]["usage"]
                    counts = {name: used[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
                    self.usage.append({"model": event["response"]["model"], **counts})
                case _:
                    pass
        if open_part == "text":
            yield ui.TextMessageEndEvent(message_id=message_id)
        messages.append(
            ui.AssistantMessage(
                id=message_id, role="assistant", content="".join(texts), tool_calls=list(calls.values()) or None
            )
        )


def _interrupt(call: ui.ToolCall) -> Any:
    message = f"May I call {call.function.name}?"
    return ui.Interrupt(
        id=f"int-{call.id}", reason="tool_call", tool_call_id=call.id, message=message, response_schema=EDITABLE
    )


async def _provider(messages: list[Any]) -> AsyncIterator[dict[str, Any]]:
    body = {"model": "fake", "stream": True, "input": [item for message in messages for item in _items(message)]}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:  # noqa: S113
        url = f"{os.environ['PROVIDER_URL']}/v1/responses"
        async with client.stream("POST", url, json={**body, "tools": SCHEMAS}) as response:
            if response.status_code != 200:
                raise ProviderError((await response.aread()).decode())
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


def _items(message: Any) -> list[dict[str, Any]]:
    """A message of AG-UI, as OpenAI's Responses take it."""
    match message.role:
        case "reasoning":
            summary = [{"type": "summary_text", "text": message.content}]
            return [{"type": "reasoning", "summary": summary, "encrypted_content": message.encrypted_value}]
        case "tool":
            output = message.error or message.content
            return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
        case "assistant":
            said = [{"role": "assistant", "content": message.content}] if message.content else []
            calls = [
                {"type": "function_call", "call_id": call.id, **call.function.model_dump()}
                for call in message.tool_calls or ()
            ]
            return said + calls
        case role:
            return [{"role": role, "content": _content(message.content)}]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part.text}
        if part.type == "text"
        else {
            "type": "input_image" if part.type == "image" else "input_file",
            "image_url": f"data:{part.source.mime_type};base64,{part.source.value}",
        }
        for part in content
    ]


async def _run(request: Request) -> Response:
    given = ui.RunAgentInput.model_validate_json(await request.body())
    encoder = EventEncoder()

    async def encoded() -> AsyncGenerator[str, None]:
        async with aclosing(Run(given).events()) as events:
            async for event in events:
                yield encoder.encode(event)
                await asyncio.sleep(0)

    return StreamingResponse(encoded(), media_type=encoder.get_content_type())


def _serve() -> str:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    app = Starlette(routes=[Route("/agent", _run, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/agent"


agent = AGUIAgent(
    _serve(), tools=[{"name": "get_location", "description": "Where the user is.", "parameters": {"type": "object"}}]
)
