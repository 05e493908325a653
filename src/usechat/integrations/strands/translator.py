"""What `stream_async` of Strands yields, as events: dicts, live or from a recorded log."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import structs

from usechat import events as e
from usechat.errors import MappingError
from usechat.protocol.chunks import FinishReason

__all__ = ["Event", "StrandsTranslator", "log_translator"]

Event: TypeAlias = Mapping[str, Any]
_Said: TypeAlias = Iterator[e.AgentEvent]

_WAITS: Final = "Waits until the other calls are answered."
_FAILED: Final = "The tool failed."
_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    # A structured output ends the run with its call.
    "tool_use": "stop",
    "max_tokens": "length",
    "content_filtered": "content-filter",
    "guardrail_intervened": "content-filter",
}
# The keys by which a value that a tool streams is the event of an agent.
_AGENT_KEYS: Final = frozenset(
    {
        *("event", "message", "init_event_loop", "start", "start_event_loop", "delta", "result", "force_stop"),
        *("tool_stream_event", "tool_interrupt_event", "tool_cancel_event", "event_loop_throttled_delay"),
    }
)


class StrandsTranslator:
    """Translates the events of one run. Every delta comes twice, so only the raw `event` counts."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        # The call whose arguments are being streamed; their deltas do not name it.
        self._streamed = ""
        # The sub-agents by the calls that they work for, and the approvals that each has asked for.
        self._inner: dict[str, StrandsTranslator] = {}
        self._asked: dict[str, list[e.SubAgent]] = {}

    def translate(self, event: Event) -> Iterable[e.AgentEvent]:
        match event:
            case {"event": raw}:
                return self._raw(cast("Event", raw))
            case {"message": {"role": "assistant", "content": content}}:
                return _whole(cast("list[Event]", content))
            case {"message": {"content": content}}:
                return self._results(cast("list[Event]", content))
            case {"tool_stream_event": {"tool_use": {"toolUseId": str(call_id), "name": str(name)}, "data": data}}:
                return self._streams(call_id, name, data)
            case {"tool_interrupt_event": {"tool_use": {"toolUseId": str(call_id)}, "interrupts": interrupts}}:
                return self._interrupts(call_id, cast("Iterable[Any]", interrupts))
            case {"structured_output": output} if output is not None:
                return (e.Data("output", output),)
            case {"result": result} if result is not None:
                return _result(result)
            case dict():
                return ()
            case _:
                raise MappingError("An event of Strands is a dict.")

    def end(self) -> Iterable[e.AgentEvent]:
        return ()

    def _raw(self, event: Event) -> _Said:
        match event:
            case {"messageStart": _}:
                yield e.Step()
            case {"contentBlockStart": {"start": {"toolUse": {"toolUseId": str(call_id), "name": str(name)}}}}:
                self._streamed = call_id
                yield e.ToolInputStart(call_id, name)
            case {"contentBlockDelta": {"delta": delta}}:
                yield from self._delta(cast("Event", delta))
            case {"messageStop": {"stopReason": "max_tokens"}}:
                yield e.Finish("length")
            case {"metadata": {"usage": usage}}:
                yield _usage(cast("Event", usage))
            case _:
                pass

    def _delta(self, delta: Event) -> _Said:
        match delta:
            case {"text": str(text)}:
                yield e.Text(text)
            case {"reasoningContent": {"text": str(text)}}:
                yield e.Reasoning(text)
            case {"reasoningContent": {"signature": str(signature)}} if signature:
                yield e.Reasoning("", metadata={"strands": {"signature": signature}})
            case {"reasoningContent": {"redactedContent": bytes(data)}}:
                yield e.Reasoning("", metadata={"strands": {"redactedContent": base64.b64encode(data).decode()}})
            case {"toolUse": {"input": str(arguments)}} if arguments:
                yield e.ToolInputDelta(self._streamed, arguments)
            case {"citation": {"location": {"web": {"url": str(url)}}} as cited} if url:
                yield e.Source(url, cast("Event", cited).get("title") or "")
            case {"citation": {"title": str(title)} as cited} if title:
                is_pdf = "documentPage" in cast("Event", cited).get("location", ())
                yield e.Document(title, "application/pdf" if is_pdf else "text/plain")
            case _:
                pass

    def _results(self, content: Iterable[Event]) -> _Said:
        for block in content:
            match block:
                case {"toolResult": {"toolUseId": str(call_id), "content": said} as result}:
                    failed = cast("Event", result).get("status") == "error"
                    if inner := self._inner.pop(call_id, None):
                        yield e.SubAgent(call_id, inner._name, status="failed" if failed else "done", call_id=call_id)
                    values = [_value(one) for one in cast("list[Event]", said)]
                    output = values[0] if len(values) == 1 else values
                    if failed:
                        yield e.ToolError(call_id, output if isinstance(output, str) and output else _FAILED)
                    else:
                        yield e.ToolResult(call_id, output)
                case _:
                    pass

    def _streams(self, call_id: str, name: str, data: Any) -> _Said:
        """What a tool yields while it works: the events of an agent that it runs, or a preliminary result."""
        if not isinstance(data, Mapping) or not _AGENT_KEYS & cast("Event", data).keys():
            yield e.ToolProgress(call_id, data)
            return
        inner = self._inner.setdefault(call_id, StrandsTranslator(name))
        # The end of the call says the same, also for agents whose result nobody passes on.
        for event in () if "result" in data else inner.translate(cast("Event", data)):
            if isinstance(event, e.SubAgent):
                said = structs.replace(event, parent=event.parent or call_id)
            else:
                said = e.SubAgent(call_id, name, event, call_id=call_id)
            if isinstance(said.event, e.ApprovalRequest):
                # The agent above asks again, with the id that the answer must have.
                self._asked.setdefault(call_id, []).append(said)
            else:
                yield said

    def _interrupts(self, call_id: str, interrupts: Iterable[Any]) -> _Said:
        inner = self._asked.pop(call_id, [])
        for interrupt in interrupts:
            reason = _field(interrupt, "reason")
            # A reason that is no text is for the page's own code, which has it in the call's input.
            request = e.ApprovalRequest(_field(interrupt, "id"), call_id, reason if isinstance(reason, str) else "")
            for asked in inner:
                about = cast("e.ApprovalRequest", asked.event)
                if request.id.endswith(about.id):
                    inside = structs.replace(request, call_id=about.call_id)
                    yield structs.replace(asked, event=inside, status="waiting")
                    break
            else:
                yield request


def _whole(content: Iterable[Event]) -> _Said:
    """The calls and images of an assistant message; its text was streamed."""
    for block in content:
        match block:
            case {"toolUse": {"toolUseId": str(call_id), "name": str(name), "input": given}}:
                yield e.ToolCall(call_id, name, given)
            case {"image": _} if isinstance(image := _value(block), e.File):
                yield image
            case _:
                pass


def _usage(usage: Event) -> e.Usage:
    total, said = usage.get("totalTokens"), usage.get("outputTokens")
    # Some providers count cached tokens as input, others apart; the total always has them.
    used = total - said if isinstance(total, int) and isinstance(said, int) else usage.get("inputTokens")
    return e.Usage(
        input_tokens=used,
        output_tokens=said,
        total_tokens=total,
        cache_read_tokens=usage.get("cacheReadInputTokens"),
        cache_write_tokens=usage.get("cacheWriteInputTokens"),
    )


def _result(result: Any) -> _Said:
    reason = _field(result, "stop_reason")
    if reason == "interrupt":
        yield e.Pause(_WAITS)
        return
    # The text of a cancelled run is "Cancelled by user".
    if reason != "cancelled":
        # A hook may end the turn with words that no model streamed.
        content = cast("list[Event]", _field(_field(result, "message"), "content") or [])
        yield e.Text("".join(map(_text_in, content)), whole=True)
    yield e.Finish(_REASONS.get(reason, "other"))


def _text_in(block: Event) -> str:
    match block:
        case {"text": str(text)}:
            return text
        case {"citationsContent": {"content": content}}:
            return "".join(map(_text_in, cast("list[Event]", content)))
        case _:
            return ""


def _value(block: Event) -> Any:
    """What a block of a result says. Text of a JSON object or array is that: Strands writes dicts so."""
    match block:
        case {"json": value}:
            return value
        case {"text": str(text)}:
            if text[:1] in ("{", "["):
                with suppress(msgspec.DecodeError, RecursionError):
                    return msgspec.json.decode(text)
            return text
        case {"image": {"format": str(kind), "source": {"bytes": bytes(data)}}}:
            return e.File(f"data:image/{kind};base64,{base64.b64encode(data).decode()}", f"image/{kind}")
        case _:
            return block


def _field(value: Any, name: str) -> Any:
    return cast("Event", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def log_translator(options: Mapping[str, Any]) -> StrandsTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("Strands has no options.")
    return StrandsTranslator()
