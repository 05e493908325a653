"""What model providers stream, as `usechat.events`: Chat Completions, Responses and Anthropic's Messages.

A decoder is a `Translator` of the provider's events, as objects of its SDK or as dicts. One model call is one step,
whose usage and finish reason come when the provider has ended it. `end` raises if the stream stopped before that.

The provider's deltas name a call by its place in the answer, so a decoder keeps the arguments of each place until
they are complete. All other books are those of `EventMapper`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, cast

import msgspec

from usechat import events as e
from usechat.protocol.chunks import FinishReason

__all__ = ["AnthropicDecoder", "ChatCompletionsDecoder", "IncompleteStreamError", "ResponsesDecoder", "field_of"]

_NOT_JSON: Final = "The model wrote arguments that are not valid JSON."
_FINISHES: Final[dict[str, FinishReason]] = {
    # Chat Completions.
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    # Responses.
    "max_output_tokens": "length",
    # Anthropic.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}
"""The finish reasons. One that asks for tools is none: what the agent does next decides how the message ends."""


class IncompleteStreamError(Exception):
    """A provider's stream ended before its answer did, or reported that the answer failed."""


def field_of(value: Any, name: str) -> Any:
    """A field of an SDK's object or of a dict; None if it has no such field."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else getattr(value, name, None)


def _list(value: Any, name: str) -> Iterable[Any]:
    return field_of(value, name) or ()


def _finish(reason: str) -> Iterator[e.AgentEvent]:
    if reason in _FINISHES:
        yield e.Finish(_FINISHES[reason])


class _Arguments:
    """A call whose arguments arrive in pieces."""

    def __init__(self, call_id: str, name: str, *, provider_executed: bool = False) -> None:
        self.id = call_id
        self.name = name
        self.provider_executed = provider_executed
        self.pieces: list[str] = []

    def start(self) -> e.ToolInputStart:
        return e.ToolInputStart(self.id, self.name, provider_executed=self.provider_executed)

    def delta(self, piece: str) -> Iterator[e.AgentEvent]:
        if piece:
            self.pieces.append(piece)
            yield e.ToolInputDelta(self.id, piece)

    def end(self) -> e.ToolCall | e.ToolInputError:
        return _call(self.id, self.name, "".join(self.pieces), provider_executed=self.provider_executed)


def _call(call_id: str, name: str, arguments: str, *, provider_executed: bool = False) -> e.ToolCall | e.ToolInputError:
    try:
        # A call without arguments may have no JSON at all.
        given: Any = msgspec.json.decode(arguments) if arguments.strip() else {}
    except msgspec.DecodeError:
        return e.ToolInputError(call_id, name, arguments, _NOT_JSON)
    return e.ToolCall(call_id, name, given, provider_executed=provider_executed)


class ChatCompletionsDecoder:
    """Reads the chunks of OpenAI's Chat Completions, also as LiteLLM, vLLM, OpenRouter and others write them.

    Those servers add `reasoning_content`, `reasoning`, `images` and `annotations` to a delta. Some leave out the id or
    the index of a call, give parallel calls the same index, or repeat the name of a call with each piece.
    """

    def __init__(self) -> None:
        self._calls: dict[int, _Arguments] = {}
        self._number = 0
        self._usage: Any = None
        self._model = ""
        self._reason = ""
        self._has_begun = False

    def translate(self, event: Any) -> Iterator[e.AgentEvent]:
        if not self._has_begun:
            self._has_begun = True
            yield e.Step()
        self._usage = field_of(event, "usage") or self._usage
        self._model = field_of(event, "model") or self._model
        for choice in _list(event, "choices"):
            # Of several choices the first one is the answer.
            if field_of(choice, "index"):
                continue
            delta = field_of(choice, "delta")
            if delta is not None:
                yield from self._delta(delta, field_of(event, "id"))
            if reason := field_of(choice, "finish_reason"):
                self._reason = reason
                yield from self._end_calls()

    def end(self) -> Iterator[e.AgentEvent]:
        if not self._reason:
            raise IncompleteStreamError("The stream of chat completions ended without a finish reason.")
        yield from self._end_calls()
        if self._usage is not None:
            read, written = (
                field_of(self._usage, "prompt_tokens_details"),
                field_of(self._usage, "completion_tokens_details"),
            )
            yield e.Usage(
                input_tokens=field_of(self._usage, "prompt_tokens"),
                output_tokens=field_of(self._usage, "completion_tokens"),
                total_tokens=field_of(self._usage, "total_tokens"),
                cache_read_tokens=field_of(read, "cached_tokens"),
                cache_write_tokens=field_of(self._usage, "cache_creation_input_tokens"),
                reasoning_tokens=field_of(written, "reasoning_tokens"),
                model=self._model,
            )
        yield from _finish(self._reason)

    def _delta(self, delta: Any, answer_id: Any) -> Iterator[e.AgentEvent]:
        if reasoning := field_of(delta, "reasoning_content") or field_of(delta, "reasoning"):
            yield e.Reasoning(reasoning)
        if text := field_of(delta, "content") or field_of(delta, "refusal"):
            yield e.Text(text)
        for position, piece in enumerate(_list(delta, "tool_calls")):
            yield from self._call_piece(piece, position, answer_id)
        for image in _list(delta, "images"):
            url = field_of(field_of(image, "image_url"), "url") or ""
            yield e.File(url, _media_type(url))
        for annotation in _list(delta, "annotations"):
            if cited := field_of(annotation, "url_citation"):
                yield e.Source(field_of(cited, "url"), field_of(cited, "title") or "")

    def _call_piece(self, piece: Any, position: int, answer_id: Any) -> Iterator[e.AgentEvent]:
        place, function = field_of(piece, "index"), field_of(piece, "function")
        place = position if place is None else place
        call, call_id, name = self._calls.get(place), field_of(piece, "id"), field_of(function, "name")
        if call is None or (call_id and call_id != call.id and name):
            if call is not None:
                yield call.end()
            self._number += 1
            call = self._calls[place] = _Arguments(call_id or f"{answer_id}-{self._number}", name or "")
            yield call.start()
        yield from call.delta(field_of(function, "arguments") or "")

    def _end_calls(self) -> Iterator[e.AgentEvent]:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            yield call.end()


class ResponsesDecoder:
    """Reads the events of OpenAI's Responses. Tools that OpenAI runs itself are calls with `provider_executed`.

    A server may send nothing but the whole response.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._has_items = False
        # By their place in the output, since other servers give all items the same id.
        self._calls: dict[int, _Arguments] = {}
        self._texts: set[int] = set()

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        read = self._READS.get(field_of(event, "type"))
        return () if read is None else read(self, event)

    def end(self) -> Iterable[e.AgentEvent]:
        if self._is_open:
            raise IncompleteStreamError("The stream of the response ended before the response did.")
        return ()

    def _created(self, _: Any) -> Iterator[e.AgentEvent]:
        self._is_open, self._has_items = True, False
        self._calls.clear()
        self._texts.clear()
        yield e.Step()

    def _text(self, event: Any) -> Iterator[e.AgentEvent]:
        self._texts.add(field_of(event, "output_index"))
        yield e.Text(field_of(event, "delta"))

    def _text_done(self, event: Any) -> Iterator[e.AgentEvent]:
        self._texts.add(field_of(event, "output_index"))
        yield e.Text(field_of(event, "text") or field_of(event, "refusal") or "", whole=True)

    def _reasoning(self, event: Any) -> Iterator[e.AgentEvent]:
        self._texts.add(field_of(event, "output_index"))
        yield e.Reasoning(field_of(event, "delta"))

    def _next_summary(self, event: Any) -> Iterator[e.AgentEvent]:
        # The last summary ends with its item, which has what the next turn needs of it.
        if field_of(event, "summary_index"):
            yield e.EndPart()

    def _annotation(self, event: Any) -> Iterator[e.AgentEvent]:
        return _cited(field_of(event, "annotation"))

    def _item_added(self, event: Any) -> Iterator[e.AgentEvent]:
        self._has_items = True
        item = field_of(event, "item")
        kind, call_id = field_of(item, "type"), field_of(item, "call_id") or field_of(item, "id")
        if kind == "function_call":
            call = self._calls[field_of(event, "output_index")] = _Arguments(call_id, field_of(item, "name"))
            yield call.start()
        elif kind in _HOSTED:
            yield e.ToolInputStart(
                field_of(item, "id"),
                field_of(item, "name") or _HOSTED[kind],
                provider_executed=True,
                dynamic=kind == "mcp_call",
            )

    def _arguments(self, event: Any) -> Iterable[e.AgentEvent]:
        call = self._calls.get(field_of(event, "output_index"))
        return () if call is None else call.delta(field_of(event, "delta"))

    def _item_done(self, event: Any) -> Iterator[e.AgentEvent]:
        self._has_items = True
        item, place = field_of(event, "item"), field_of(event, "output_index")
        match field_of(item, "type"):
            case "message":
                yield from self._message(item, is_told=place in self._texts)
            case "reasoning":
                yield from self._reasoning_item(item, is_told=place in self._texts)
            case "function_call":
                self._calls.pop(place, None)
                yield _call(field_of(item, "call_id"), field_of(item, "name"), field_of(item, "arguments") or "")
            case "custom_tool_call":
                yield e.ToolCall(field_of(item, "call_id"), field_of(item, "name"), field_of(item, "input"))
            case kind if kind in _HOSTED:
                yield from _hosted(item, kind)
            case _:
                pass

    def _message(self, item: Any, *, is_told: bool) -> Iterator[e.AgentEvent]:
        for part in _list(item, "content"):
            if not is_told:
                yield e.Text(field_of(part, "text") or field_of(part, "refusal") or "", whole=True)
            for annotation in _list(part, "annotations"):
                yield from _cited(annotation)
        yield e.EndPart()

    def _reasoning_item(self, item: Any, *, is_told: bool) -> Iterator[e.AgentEvent]:
        texts = [field_of(part, "text") for part in (*_list(item, "summary"), *_list(item, "content"))]
        for number, text in enumerate(() if is_told else texts):
            if number:
                yield e.EndPart()
            yield e.Reasoning(text)
        if encrypted := field_of(item, "encrypted_content"):
            kept = {"itemId": field_of(item, "id"), "reasoningEncryptedContent": encrypted}
            yield e.Reasoning("", metadata={"openai": kept})
        else:
            yield e.EndPart()

    def _completed(self, event: Any) -> Iterator[e.AgentEvent]:
        response = field_of(event, "response")
        if not self._is_open:
            yield from self._created(event)
        if not self._has_items:
            for place, item in enumerate(_list(response, "output")):
                yield from self._item_done({"item": item, "output_index": place})
        self._is_open = False
        usage = field_of(response, "usage")
        if usage is not None:
            yield e.Usage(
                input_tokens=field_of(usage, "input_tokens"),
                output_tokens=field_of(usage, "output_tokens"),
                total_tokens=field_of(usage, "total_tokens"),
                cache_read_tokens=field_of(field_of(usage, "input_tokens_details"), "cached_tokens"),
                reasoning_tokens=field_of(field_of(usage, "output_tokens_details"), "reasoning_tokens"),
                model=field_of(response, "model") or "",
            )
        yield from _finish(field_of(field_of(response, "incomplete_details"), "reason") or "stop")

    def _failed(self, event: Any) -> Iterable[e.AgentEvent]:
        error = field_of(field_of(event, "response"), "error") or event
        raise IncompleteStreamError(f"The response failed: {field_of(error, 'code')}: {field_of(error, 'message')}")

    _READS: ClassVar[dict[str, Callable[["ResponsesDecoder", Any], Iterable[e.AgentEvent]]]] = {
        "response.created": _created,
        "response.output_text.delta": _text,
        "response.output_text.done": _text_done,
        "response.output_text.annotation.added": _annotation,
        "response.refusal.delta": _text,
        "response.refusal.done": _text_done,
        "response.reasoning_summary_part.added": _next_summary,
        "response.reasoning_summary_text.delta": _reasoning,
        "response.reasoning_text.delta": _reasoning,
        "response.output_item.added": _item_added,
        "response.function_call_arguments.delta": _arguments,
        "response.output_item.done": _item_done,
        "response.completed": _completed,
        "response.incomplete": _completed,
        "response.failed": _failed,
        "error": _failed,
    }


_HOSTED: Final = {
    "code_interpreter_call": "code_interpreter",
    "file_search_call": "file_search",
    "image_generation_call": "image_generation",
    "mcp_call": "mcp",
    "web_search_call": "web_search",
}
"""The names of the tools that OpenAI runs, by the types of their items; an MCP call has a name of its own."""


def _hosted(item: Any, kind: str) -> Iterator[e.AgentEvent]:
    call_id, name = field_of(item, "id"), field_of(item, "name") or _HOSTED[kind]
    match kind:
        case "code_interpreter_call":
            given, result = {"code": field_of(item, "code")}, {"outputs": field_of(item, "outputs")}
        case "file_search_call":
            given, result = {"queries": field_of(item, "queries")}, {"results": field_of(item, "results")}
        case "mcp_call":
            call = _call(call_id, name, field_of(item, "arguments") or "")
            given, result = call.input, field_of(item, "output")
        case "web_search_call":
            given, result = {"action": field_of(item, "action")}, {"status": field_of(item, "status")}
        case _:
            given, result = {}, {"status": field_of(item, "status")}
    yield e.ToolCall(call_id, name, given, provider_executed=True, dynamic=kind == "mcp_call")
    if field_of(item, "error") or field_of(item, "status") == "failed":
        yield e.ToolError(call_id, "The tool failed.", provider_executed=True)
    else:
        yield e.ToolResult(call_id, result, provider_executed=True)
    if kind == "image_generation_call" and (image := field_of(item, "result")):
        media_type = f"image/{field_of(item, 'output_format') or 'png'}"
        yield e.File(f"data:{media_type};base64,{image}", media_type)


def _cited(annotation: Any) -> Iterator[e.AgentEvent]:
    match field_of(annotation, "type"):
        case "url_citation":
            yield e.Source(field_of(annotation, "url"), field_of(annotation, "title") or "")
        case "file_citation" | "container_file_citation" | "file_path":
            name = field_of(annotation, "filename") or field_of(annotation, "file_id")
            yield e.Document(name, "text/plain", name)
        case _:
            pass


class AnthropicDecoder:
    """Reads the raw events of Anthropic's Messages. `messages.stream()` adds events of its own, which say nothing new.

    Tools that Anthropic runs itself are calls with `provider_executed`.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._calls: dict[int, _Arguments] = {}
        self._usage: dict[str, int] = {}
        self._model = ""
        self._reason = ""

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        read = self._READS.get(field_of(event, "type"))
        return () if read is None else read(self, event)

    def end(self) -> Iterable[e.AgentEvent]:
        if self._is_open:
            raise IncompleteStreamError("The stream of the message ended before the message did.")
        return ()

    def _start(self, event: Any) -> Iterator[e.AgentEvent]:
        message = field_of(event, "message")
        self._is_open, self._reason = True, ""
        self._calls.clear()
        self._usage.clear()
        self._model = field_of(message, "model") or ""
        self._count(field_of(message, "usage"))
        yield e.Step()

    def _block(self, event: Any) -> Iterator[e.AgentEvent]:
        block = field_of(event, "content_block")
        match field_of(block, "type"):
            case "text":
                if text := field_of(block, "text"):
                    yield e.Text(text)
            case "thinking":
                if text := field_of(block, "thinking"):
                    yield e.Reasoning(text)
            case "redacted_thinking":
                yield e.Reasoning("", metadata={"anthropic": {"redactedData": field_of(block, "data")}})
            case "tool_use":
                yield self._begin(event, block)
            case "server_tool_use" | "mcp_tool_use":
                yield self._begin(event, block, provider_executed=True)
            case str(kind) if kind.endswith("_tool_result"):
                yield _provider_result(block)
            case _:
                pass

    def _begin(self, event: Any, block: Any, *, provider_executed: bool = False) -> e.ToolInputStart:
        call = _Arguments(field_of(block, "id"), field_of(block, "name"), provider_executed=provider_executed)
        self._calls[field_of(event, "index")] = call
        if given := field_of(block, "input"):
            # Other servers send all arguments at once.
            call.pieces.append(msgspec.json.encode(given).decode())
        return call.start()

    def _delta(self, event: Any) -> Iterator[e.AgentEvent]:
        delta = field_of(event, "delta")
        match field_of(delta, "type"):
            case "text_delta":
                yield e.Text(field_of(delta, "text"))
            case "thinking_delta":
                yield e.Reasoning(field_of(delta, "thinking"))
            case "signature_delta":
                yield e.Reasoning("", metadata={"anthropic": {"signature": field_of(delta, "signature")}})
            case "input_json_delta":
                call = self._calls.get(field_of(event, "index"))
                if call is not None:
                    yield from call.delta(field_of(delta, "partial_json"))
            case "citations_delta":
                yield _citation(field_of(delta, "citation"))
            case _:
                pass

    def _block_end(self, event: Any) -> Iterator[e.AgentEvent]:
        call = self._calls.pop(field_of(event, "index"), None)
        yield e.EndPart() if call is None else call.end()

    def _message_delta(self, event: Any) -> tuple[()]:
        self._reason = field_of(field_of(event, "delta"), "stop_reason") or self._reason
        self._count(field_of(event, "usage"))
        return ()

    def _stop(self, _: Any) -> Iterator[e.AgentEvent]:
        self._is_open = False
        read, written = self._usage.get("cache_read_input_tokens"), self._usage.get("cache_creation_input_tokens")
        # Anthropic counts what it reads from its cache, and writes to it, apart.
        yield e.Usage(
            input_tokens=self._usage.get("input_tokens", 0) + (read or 0) + (written or 0),
            output_tokens=self._usage.get("output_tokens"),
            cache_read_tokens=read,
            cache_write_tokens=written,
            model=self._model,
        )
        yield from _finish(self._reason)

    def _failed(self, event: Any) -> Iterable[e.AgentEvent]:
        error = field_of(event, "error")
        raise IncompleteStreamError(f"The message failed: {field_of(error, 'type')}: {field_of(error, 'message')}")

    def _count(self, usage: Any) -> None:
        """Take the counts, which are totals of the message each time."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            count = field_of(usage, name)
            if count is not None:
                self._usage[name] = count

    _READS: ClassVar[dict[str, Callable[["AnthropicDecoder", Any], Iterable[e.AgentEvent]]]] = {
        "message_start": _start,
        "content_block_start": _block,
        "content_block_delta": _delta,
        "content_block_stop": _block_end,
        "message_delta": _message_delta,
        "message_stop": _stop,
        "error": _failed,
    }


def _provider_result(block: Any) -> e.ToolResult | e.ToolError:
    call_id, content = field_of(block, "tool_use_id"), field_of(block, "content")
    code = None if isinstance(content, list | str) else field_of(content, "error_code")
    if code or field_of(block, "is_error"):
        return e.ToolError(call_id, f"The tool failed: {code}." if code else "The tool failed.", provider_executed=True)
    return e.ToolResult(call_id, content, provider_executed=True)


def _citation(citation: Any) -> e.Source | e.Document:
    if url := field_of(citation, "url"):
        return e.Source(url, field_of(citation, "title") or "")
    title = field_of(citation, "document_title") or field_of(citation, "title") or "Document"
    kind = "application/pdf" if field_of(citation, "type") == "page_location" else "text/plain"
    return e.Document(title, kind)


def _media_type(url: str) -> str:
    """The type that a data URL names; an image by its address may be any."""
    return url[5:].partition(";")[0].partition(",")[0] if url.startswith("data:") else "image/*"
