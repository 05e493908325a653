"""A fake model provider on a loopback port: Chat Completions, Responses, Anthropic's Messages and Gemini.

It answers by `script.answer`, keeps every request that it gets, and notes which of its answers a client left.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from script import Call, Heard, Reply, answer

__all__ = ["Asked", "Provider"]

JSON: TypeAlias = dict[str, Any]
MODEL: Final = "fake-model"
# What each answer uses, so that a test can say what the sum must be.
USED: Final = {"input": 10, "output": 5, "cached": 2, "reasoning": 3}


class Asked(msgspec.Struct):
    """One request, as it came, and as the script heard it."""

    wire: str
    body: JSON
    heard: list[Heard]
    # Whether the client left before the answer had ended.
    is_left: bool = False


class Provider:
    """The app of the provider, and what it was asked."""

    url = ""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._numbers = count(1)
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/v1/messages", self._anthropic, methods=["POST"]),
                Route("/v1beta/models/{call:path}", self._gemini, methods=["POST"]),
                # Some SDKs look first who is there.
                Route("/{path:path}", _empty),
            ]
        )

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        return self._answer("chat", body, _heard_chat(body["messages"]), _chat_events, named=False)

    async def _responses(self, request: Request) -> Response:
        body = await request.json()
        return self._answer("responses", body, _heard_responses(body), _response_events, named=True)

    async def _anthropic(self, request: Request) -> Response:
        body = await request.json()
        names = [tool["name"] for tool in body.get("tools") or ()]
        events = partial(_anthropic_events, names=names, number=next(self._numbers))
        return self._answer("anthropic", body, _heard_anthropic(body), events, named=True)

    async def _gemini(self, request: Request) -> Response:
        body = await request.json()
        return self._answer("gemini", body, _heard_gemini(body), _gemini_events, named=False)

    def _answer(
        self, wire: str, body: JSON, heard: list[Heard], events: Callable[[Reply], Iterator[JSON]], *, named: bool
    ) -> Response:
        asked = Asked(wire, body, heard)
        self.asked.append(asked)
        # Claude's CLI puts words of its own after the user's.
        if [one.text for one in heard if one.role != "system"][-1:] == ["status 500"]:
            return JSONResponse({"error": {"type": "server_error", "message": "secret of the provider"}}, 500)
        reply = answer(heard)
        return StreamingResponse(_stream(asked, reply, events, named=named), media_type="text/event-stream")


async def _empty(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": []})


async def _stream(
    asked: Asked, reply: Reply, events: Callable[[Reply], Iterator[JSON]], *, named: bool
) -> AsyncGenerator[str, None]:
    is_over = False
    try:
        for event in events(reply):
            yield (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
            # Each event is a packet of its own.
            await asyncio.sleep(0)
        if reply.then == "hang":
            await asyncio.Event().wait()
        if reply.then == "break":
            raise ConnectionResetError("The script breaks the connection.")
        if asked.wire == "chat":
            yield "data: [DONE]\n\n"
        is_over = True
    finally:
        asked.is_left = not is_over and reply.then != "break"


def _pieces(text: str) -> list[str]:
    """The text in two pieces, as arguments are streamed."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


# Chat Completions.


def _heard_chat(messages: Sequence[JSON]) -> list[Heard]:
    heard = list[Heard]()
    for message in messages:
        calls = [
            Call(call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"), call["id"])
            for call in message.get("tool_calls") or ()
        ]
        text, files = _content(message.get("content"))
        role = "system" if message["role"] == "developer" else message["role"]
        heard.append(Heard(role, text, calls, message.get("tool_call_id") or "", files))
    return heard


def _content(content: Any) -> tuple[str, list[str]]:
    """The text and the media types of the files of a content of any of the wires."""
    if content is None or isinstance(content, str):
        return content or "", []
    texts, files = list[str](), list[str]()
    for part in content:
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text"):
            texts.append(part["text"])
        elif kind in ("image_url", "input_image", "image"):
            files.append("image")
        elif kind in ("file", "input_file", "document"):
            files.append("document")
    return "".join(texts), files


def _chat_events(reply: Reply) -> Iterator[JSON]:
    def chunk(delta: JSON, end: str | None = None, **rest: Any) -> JSON:
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        return {**head, "choices": [choice], "usage": None, **rest}

    yield chunk({"role": "assistant", "content": ""})
    for text in reply.reasoning:
        yield chunk({"reasoning_content": text})
    for text in reply.text:
        yield chunk({"content": text})
    if reply.cites:
        cited = {"url": reply.cites[0], "title": reply.cites[1], "start_index": 0, "end_index": 3}
        yield chunk({"annotations": [{"type": "url_citation", "url_citation": cited}]})
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        for piece in _pieces(json.dumps(call.input)):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if reply.then == "fail":
        yield {"error": {"message": "secret of the provider", "type": "server_error", "code": 500}}
        return
    if reply.then not in ("end", "length"):
        return
    yield chunk({}, "length" if reply.then == "length" else "tool_calls" if reply.calls else "stop")
    usage = {
        "prompt_tokens": USED["input"],
        "completion_tokens": USED["output"],
        "total_tokens": USED["input"] + USED["output"],
        "prompt_tokens_details": {"cached_tokens": USED["cached"]},
        "completion_tokens_details": {"reasoning_tokens": USED["reasoning"]},
    }
    yield chunk({}, choices=[], usage=usage)


# Responses.


def _heard_responses(body: JSON) -> list[Heard]:
    heard = [Heard("system", body["instructions"])] if body.get("instructions") else []
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "message":
                text, files = _content(item["content"])
                role: Any = "system" if item["role"] == "developer" else item["role"]
                heard.append(Heard(role, text, files=files))
            case "function_call":
                call = Call(item["name"], json.loads(item["arguments"] or "{}"), item["call_id"])
                if heard and heard[-1].role == "assistant":
                    heard[-1].calls.append(call)
                else:
                    heard.append(Heard("assistant", calls=[call]))
            case "function_call_output":
                text, _ = _content(item["output"])
                heard.append(Heard("tool", text, call_id=item["call_id"]))
            case _:
                pass
    return heard


class _Numbered:
    def __init__(self) -> None:
        self._number = -1
        self.output: list[JSON] = []

    def event(self, kind: str, **rest: Any) -> JSON:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **rest}

    def response(self, status: str, usage: JSON | None = None, reason: str = "") -> JSON:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": MODEL,
            "output": list(self.output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
            "error": {"code": "server_error", "message": "secret of the provider"} if status == "failed" else None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": None,
            "metadata": {},
            "temperature": 1.0,
            "top_p": 1.0,
        }


def _response_events(reply: Reply) -> Iterator[JSON]:
    said = _Numbered()
    yield said.event("created", response=said.response("in_progress"))
    if reply.reasoning:
        yield from _reasoning_item(said, reply.reasoning)
    if reply.text:
        yield from _message_item(said, reply)
    for call in reply.calls:
        yield from _call_item(said, call)
    if reply.then == "fail":
        yield said.event("failed", response=said.response("failed"))
    if reply.then not in ("end", "length"):
        return
    usage = {
        "input_tokens": USED["input"],
        "output_tokens": USED["output"],
        "total_tokens": USED["input"] + USED["output"],
        "input_tokens_details": {"cached_tokens": USED["cached"], "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": USED["reasoning"]},
    }
    if reply.then == "length":
        yield said.event("incomplete", response=said.response("incomplete", usage, "max_output_tokens"))
    else:
        yield said.event("completed", response=said.response("completed", usage))


def _reasoning_item(said: _Numbered, texts: Sequence[str]) -> Iterator[JSON]:
    at: JSON = {"item_id": "rs_1", "output_index": len(said.output), "summary_index": 0}
    yield said.event(
        "output_item.added", output_index=at["output_index"], item={"id": "rs_1", "type": "reasoning", "summary": []}
    )
    yield said.event("reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
    for text in texts:
        yield said.event("reasoning_summary_text.delta", **at, delta=text)
    part = {"type": "summary_text", "text": "".join(texts)}
    yield said.event("reasoning_summary_text.done", **at, text=part["text"])
    yield said.event("reasoning_summary_part.done", **at, part=part)
    item = {"id": "rs_1", "type": "reasoning", "summary": [part], "encrypted_content": "ENCRYPTED"}
    yield said.event("output_item.done", output_index=at["output_index"], item=item)
    said.output.append(item)


def _message_item(said: _Numbered, reply: Reply) -> Iterator[JSON]:
    place = len(said.output)
    at: JSON = {"item_id": "msg_1", "output_index": place, "content_index": 0}
    item: JSON = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    yield said.event("output_item.added", output_index=place, item=item)
    part: JSON = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    yield said.event("content_part.added", **at, part=part)
    for text in reply.text:
        yield said.event("output_text.delta", **at, delta=text, logprobs=[])
    if reply.then in ("hang", "break", "fail"):
        return
    annotations = list[JSON]()
    if reply.cites:
        url, title = reply.cites
        annotations.append({"type": "url_citation", "url": url, "title": title, "start_index": 0, "end_index": 3})
        yield said.event("output_text.annotation.added", **at, annotation_index=0, annotation=annotations[0])
    part = {**part, "text": "".join(reply.text), "annotations": annotations}
    yield said.event("output_text.done", **at, text=part["text"], logprobs=[])
    yield said.event("content_part.done", **at, part=part)
    item = {**item, "status": "completed", "content": [part]}
    yield said.event("output_item.done", output_index=place, item=item)
    said.output.append(item)


def _call_item(said: _Numbered, call: Call) -> Iterator[JSON]:
    place, item_id, arguments = len(said.output), f"fc_{call.id}", json.dumps(call.input)
    item = {"id": item_id, "type": "function_call", "status": "in_progress", "call_id": call.id, "name": call.name}
    yield said.event("output_item.added", output_index=place, item={**item, "arguments": ""})
    for piece in _pieces(arguments):
        yield said.event("function_call_arguments.delta", item_id=item_id, output_index=place, delta=piece)
    yield said.event(
        "function_call_arguments.done", item_id=item_id, output_index=place, name=call.name, arguments=arguments
    )
    item = {**item, "status": "completed", "arguments": arguments}
    yield said.event("output_item.done", output_index=place, item=item)
    said.output.append(item)


# Anthropic's Messages.


def _heard_anthropic(body: JSON) -> list[Heard]:
    heard = [Heard("system", _content(body["system"])[0])] if body.get("system") else []
    for message in body["messages"]:
        content = message["content"]
        blocks: list[JSON] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                text, _ = _content(block.get("content"))
                heard.append(Heard("tool", text, call_id=block["tool_use_id"]))
                continue
            text, files = _content([block])
            # Claude's CLI says where it has put an image, and what day it is.
            if text.startswith(("[Image: source: ", "<system-reminder>")):
                continue
            calls = [Call(block["name"], block["input"], block["id"])] if block["type"] == "tool_use" else []
            last = heard[-1] if heard else Heard("system")
            # Two messages of a user, one after the other, are blocks of one.
            if last.role != message["role"] or (text and last.text):
                last = Heard(message["role"])
                heard.append(last)
            last.text += text.strip("\n")
            last.files += files
            last.calls += calls
    return heard


def _declared(call: Call, names: Sequence[str]) -> tuple[str, JSON]:
    """The call as the request declares its tool: Claude's CLI puts the server before the name, and has one tool for all
    sub-agents."""
    if call.name == "helper" and "Agent" in names:
        about = call.input["question"]
        return "Agent", {"subagent_type": "helper", "description": about, "prompt": about}
    return next((name for name in names if name.endswith(f"__{call.name}")), call.name), call.input


def _anthropic_events(reply: Reply, names: Sequence[str], number: int) -> Iterator[JSON]:
    usage = {"input_tokens": USED["input"] - USED["cached"], "output_tokens": 1}
    usage |= {"cache_read_input_tokens": USED["cached"], "cache_creation_input_tokens": 0}
    # Claude's CLI takes messages with the same id for parts of one.
    message: JSON = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "ping"}
    index = 0
    deltas: list[JSON]
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": text} for text in reply.reasoning]
        deltas.append({"type": "signature_delta", "signature": "SIGNATURE"})
        yield from _block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if reply.text:
        deltas = [{"type": "text_delta", "text": text} for text in reply.text]
        if reply.cites:
            cited = {"type": "web_search_result_location", "url": reply.cites[0], "title": reply.cites[1]}
            deltas.append({"type": "citations_delta", "citation": {**cited, "cited_text": "x", "encrypted_index": "E"}})
        is_cut = reply.then in ("hang", "break", "fail")
        yield from _block(index, {"type": "text", "text": ""}, deltas, is_cut=is_cut)
        index += 1
    for call in reply.calls:
        deltas = [{"type": "input_json_delta", "partial_json": ""}]
        name, given = _declared(call, names)
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(json.dumps(given))]
        yield from _block(index, {"type": "tool_use", "id": call.id, "name": name, "input": {}}, deltas)
        index += 1
    if reply.then == "fail":
        yield {"type": "error", "error": {"type": "overloaded_error", "message": "secret of the provider"}}
    if reply.then not in ("end", "length"):
        return
    reason = "max_tokens" if reply.then == "length" else "tool_use" if reply.calls else "end_turn"
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": USED["output"]},
    }
    yield {"type": "message_stop"}


def _block(index: int, block: JSON, deltas: Sequence[JSON], *, is_cut: bool = False) -> Iterator[JSON]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    if not is_cut:
        yield {"type": "content_block_stop", "index": index}


# Gemini.


def _heard_gemini(body: JSON) -> list[Heard]:
    system = body.get("systemInstruction")
    heard = [Heard("system", "".join(part.get("text", "") for part in system["parts"]))] if system else []
    for content in body["contents"]:
        texts, calls, files = list[str](), list[Call](), list[str]()
        for part in content["parts"]:
            if call := part.get("functionCall"):
                calls.append(Call(call["name"], call.get("args") or {}, call.get("id") or ""))
            elif result := part.get("functionResponse"):
                heard.append(Heard("tool", _gemini_result(result["response"]), call_id=result.get("id") or ""))
            elif data := part.get("inlineData") or part.get("fileData"):
                # Gemini takes both spellings, and google-genai 2.34 sends the second.
                media_type = data.get("mimeType") or data["mime_type"]
                files.append("image" if media_type.startswith("image/") else "document")
            elif not part.get("thought"):
                texts.append(part.get("text", ""))
        if texts or calls or files:
            role = "assistant" if content.get("role") == "model" else "user"
            heard.append(Heard(role, "".join(texts), calls, files=files))
    return heard


def _gemini_result(response: JSON) -> str:
    """The text of a result: every result is an object, so a text stands in one."""
    match response:
        case {"result": str(text)}:
            return text
        case _:
            return json.dumps(response)


def _gemini_call(call: Call) -> JSON:
    if call.name.startswith("transfer_to_"):
        # ADK has one such tool for all agents.
        return {"id": call.id, "name": "transfer_to_agent", "args": {"agent_name": call.name[12:]}}
    return {"id": call.id, "name": call.name, "args": call.input}


def _gemini_events(reply: Reply) -> Iterator[JSON]:
    def chunk(*parts: JSON, **candidate: Any) -> JSON:
        content = {"role": "model", "parts": list(parts)}
        return {"candidates": [{"index": 0, "content": content, **candidate}], "modelVersion": MODEL}

    for text in reply.reasoning:
        yield chunk({"text": text, "thought": True})
    for text in reply.text:
        yield chunk({"text": text})
    if reply.calls:
        yield chunk(*({"functionCall": _gemini_call(call)} for call in reply.calls))
    if reply.then == "fail":
        yield {"error": {"code": 500, "message": "secret of the provider", "status": "INTERNAL"}}
    if reply.then not in ("end", "length"):
        return
    grounding: JSON = {}
    if reply.cites:
        web = {"uri": reply.cites[0], "title": reply.cites[1]}
        grounding = {"groundingMetadata": {"groundingChunks": [{"web": web}]}}
    used = {
        "promptTokenCount": USED["input"],
        # Gemini counts thoughts apart.
        "candidatesTokenCount": USED["output"] - USED["reasoning"],
        "thoughtsTokenCount": USED["reasoning"],
        "cachedContentTokenCount": USED["cached"],
        "totalTokenCount": USED["input"] + USED["output"],
    }
    # Bytes as base64, which come back as they were.
    signature = {"thoughtSignature": "SIGNATURE000"} if reply.reasoning else {}
    last = chunk(
        {"text": "", **signature}, finishReason="MAX_TOKENS" if reply.then == "length" else "STOP", **grounding
    )
    yield {**last, "usageMetadata": used}
