"""Google ADK's events, as objects or as the JSON of `model_dump_json(by_alias=True)`, in usechat's words."""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, cast

import msgspec

from usechat.errors import MappingError
from usechat.events import (
    AgentEvent,
    ApprovalRequest,
    Data,
    Document,
    File,
    Finish,
    Handoff,
    Reasoning,
    Source,
    Step,
    SubAgent,
    Text,
    ToolCall,
    ToolError,
    ToolInputStart,
    ToolResult,
    Usage,
)
from usechat.protocol import chunks as c

__all__ = ["ASKS", "CONFIRMS", "ADKTranslator", "log_translator", "read"]

CONFIRMS: Final = "adk_request_confirmation"
ASKS: Final = "adk_request_input"
_SIGNS_IN: Final = "adk_request_credential"
_TRANSFERS: Final = "transfer_to_agent"
_CODE: Final = "code_execution"
_FAILED: Final = "The agent failed."
# What ADK asks if the tool has no words of its own.
_NO_HINT: Final = "Please approve or reject the tool call"
_REASONS: Final[dict[str, c.FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"), "content-filter"
    ),
}
# Calls that are ADK's own.
_OWN: Final = (CONFIRMS, ASKS, _SIGNS_IN, _TRANSFERS, "set_model_response")


@cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def read(thing: Any, name: str) -> Any:
    """A field of an event or of its JSON; None if it has none."""
    if isinstance(thing, Mapping):
        return cast("Mapping[str, Any]", thing).get(_camel(name))
    return getattr(thing, name, None)


def _text(thing: Any, name: str) -> str:
    """A text, or the name of an enum, or ""."""
    value = read(thing, name)
    value = getattr(value, "value", value)
    return value if isinstance(value, str) else ""


def _object(thing: Any, name: str) -> dict[str, Any]:
    value = read(thing, name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


class ADKTranslator:
    """Translates the events of one turn.

    The first agent that speaks has the message, and one that it transfers to takes it over. What others say is in parts
    of their own. `others` are such agents of a message that is continued. `structured` are agents whose answer is a
    value by their `output_schema`.
    """

    def __init__(self, others: Collection[str] = (), structured: Collection[str] = ()) -> None:
        self._others = frozenset(others)
        self._structured = structured
        self._speaker = ""
        # The answer of the model is complete, so its next words are another step.
        self._is_complete = False
        # The other agents whose text was streamed, and comes again whole.
        self._streamed: set[str] = set()
        self._has_failed = False

    def translate(self, event: Any) -> Iterable[AgentEvent]:
        author = read(event, "author")
        if not isinstance(author, str) or not author:
            raise MappingError("This is no event of Google ADK: it has no author.")
        if author == "user":
            return self._results(event)
        is_free = not self._speaker and author not in self._others
        if is_free and any(map(_is_said, _parts(event))):
            # Agents that only run others have events without words.
            self._speaker = author
        return self._main(event) if is_free or author == self._speaker else self._other(event, author)

    def end(self) -> Iterable[AgentEvent]:
        # After most errors ADK also raises, and then this is not asked.
        return (c.Error(_FAILED),) if self._has_failed else ()

    def _main(self, event: Any) -> Iterator[AgentEvent]:
        parts, is_partial = _parts(event), bool(read(event, "partial"))
        if self._is_complete and any(map(_is_said, parts)):
            self._is_complete = False
            yield Step(lazy=True)
        for part in parts:
            yield from self._part(event, part, is_partial=is_partial)
        if is_partial:
            return
        yield from _about(event)
        if any(map(_is_said, parts)):
            self._is_complete = True
        code = _text(event, "error_code")
        # An answer that was cut off has a code, too.
        self._has_failed = bool(code) and not parts and code != "INVOCATION_ABORTED"
        if reason := _text(event, "finish_reason"):
            yield Finish(_REASONS.get(reason, "other"))
        to = read(read(event, "actions"), "transfer_to_agent")
        if to:
            yield Handoff(to, self._speaker)
            self._speaker = to

    def _other(self, event: Any, author: str) -> Iterator[AgentEvent]:
        """What an agent says that has not the message, in a part of its own."""
        branch = read(event, "branch") or ""
        part_id = branch or read(read(event, "node_info"), "path") or author
        # ADK 2.13 names the call in the branch, and 2.2 counts.
        _, _, call_id = branch.rpartition("@") if "@" in branch else ("", "", "")
        call_id = "" if call_id.isdigit() else call_id
        parts, is_partial = _parts(event), bool(read(event, "partial"))
        status = "running"
        for part in parts:
            for said in self._part(event, part, is_partial=is_partial):
                if isinstance(said, Text | Reasoning) and not is_partial and part_id in self._streamed:
                    continue
                status = "waiting" if isinstance(said, ApprovalRequest) else "running"
                yield SubAgent(part_id, author, said, status, call_id=call_id)
        if is_partial:
            self._streamed.add(part_id)
            return
        self._streamed.discard(part_id)
        for said in _about(event):
            yield SubAgent(part_id, author, said, status, call_id=call_id)
        if read(event, "error_code") and not parts:
            yield SubAgent(part_id, author, status="failed", call_id=call_id)
        elif any(map(_is_said, parts)) and not any(read(part, "function_call") for part in parts):
            yield SubAgent(part_id, author, status="done", call_id=call_id)

    def _part(self, event: Any, part: Any, *, is_partial: bool) -> Iterator[AgentEvent]:
        if text := read(part, "text"):
            if read(part, "thought"):
                yield Reasoning(text, whole=not is_partial, block=not is_partial)
            elif self._speaker == read(event, "author") and self._speaker in self._structured:
                yield from () if is_partial else _value(text)
            else:
                yield Text(text, whole=not is_partial, block=not is_partial)
        elif call := read(part, "function_call"):
            yield from _call(call, is_partial=is_partial)
        elif result := read(part, "function_response"):
            yield from _result(event, result)
        elif not is_partial:
            # What is below comes in pieces and again when the answer is complete.
            yield from _made(event, part)

    def _results(self, event: Any) -> Iterator[AgentEvent]:
        for part in _parts(event):
            if result := read(part, "function_response"):
                yield from _result(event, result)


def log_translator(options: Mapping[str, Any]) -> ADKTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("Google ADK has no options.")
    return ADKTranslator()


def _parts(event: Any) -> Sequence[Any]:
    return read(read(event, "content"), "parts") or ()


def _is_said(part: Any) -> bool:
    """Whether the model said it, and not ADK."""
    call = read(part, "function_call")
    return bool(read(part, "text") or read(part, "inline_data")) or bool(call and read(call, "name") not in _OWN)


def _made(event: Any, part: Any) -> Iterator[AgentEvent]:
    """A file, or code that the provider ran."""
    if blob := read(part, "inline_data"):
        yield File(_data_url(blob), _media_type(blob))
    elif file := read(part, "file_data"):
        yield File(_text(file, "file_uri"), _media_type(file))
    elif code := read(part, "executable_code"):
        given = {"language": _text(code, "language"), "code": _text(code, "code")}
        yield ToolCall(f"code-{read(event, 'id')}", _CODE, given, provider_executed=True)
    elif ran := read(part, "code_execution_result"):
        output = _text(ran, "output")
        if _text(ran, "outcome") in ("", "OUTCOME_OK"):
            yield ToolResult("", output, name=_CODE, provider_executed=True)
        else:
            yield ToolError("", output or "The code failed.", name=_CODE, provider_executed=True)


def _call(call: Any, *, is_partial: bool) -> Iterator[AgentEvent]:
    call_id, name, args = _text(call, "id"), _text(call, "name"), _object(call, "args")
    if is_partial:
        # The arguments come as values of JSON paths, which is no text to stream. Ids that ADK 2.2 makes itself change.
        if read(call, "will_continue") and name and name not in _OWN and call_id and not call_id.startswith("adk-"):
            yield ToolInputStart(call_id, name)
    elif name == CONFIRMS:
        asked, hint = _text(args.get("originalFunctionCall"), "id"), _text(args.get("toolConfirmation"), "hint")
        yield ApprovalRequest(call_id, asked, "" if hint.startswith(_NO_HINT) else hint)
    elif name == ASKS:
        wanted = {key: args[key] for key in ("message", "payload", "response_schema") if args.get(key)}
        yield Data("input-required", {"id": call_id, **wanted}, id=call_id)
    elif name == _SIGNS_IN:
        # The rest of its arguments are the app's secrets.
        yield Data("sign-in", {"id": call_id, "url": _sign_in_url(args)}, id=call_id)
    elif name not in _OWN:
        yield ToolCall(call_id, name, args)


def _value(text: str) -> Iterator[AgentEvent]:
    try:
        yield Data("output", msgspec.json.decode(text))
    except msgspec.DecodeError:
        yield Text(text)


def _sign_in_url(args: Mapping[str, Any]) -> str:
    match args.get("authConfig"):
        case {"exchangedAuthCredential": {"oauth2": {"authUri": str(url)}}}:
            return url
        case _:
            return ""


def _result(event: Any, result: Any) -> Iterator[AgentEvent]:
    call_id, response = _text(result, "id"), _object(result, "response")
    asked = _object(read(event, "actions"), "requested_tool_confirmations")
    # The result of a call that waits for the user only says so.
    if call_id in asked or read(result, "name") in _OWN:
        return
    match response:
        case {"error": error} if len(response) == 1 and error:
            yield ToolError(call_id, error if isinstance(error, str) else str(error))
        case {"result": value} if len(response) == 1:
            # ADK makes an object of every other result.
            yield ToolResult(call_id, value)
        case _:
            yield ToolResult(call_id, response)


def _about(event: Any) -> Iterator[AgentEvent]:
    """What a complete event says beside its content."""
    grounding = read(event, "grounding_metadata")
    for chunk in read(grounding, "grounding_chunks") or ():
        yield from _source(read(chunk, "web") or read(chunk, "maps") or read(chunk, "retrieved_context"))
    for citation in read(read(event, "citation_metadata"), "citations") or ():
        yield from _source(citation)
    if used := read(event, "usage_metadata"):
        yield _usage(used, read(event, "model_version"))
    actions = read(event, "actions")
    state = {key: value for key, value in _object(actions, "state_delta").items() if _is_shown(key)}
    if state:
        yield Data("state", state)
    for name, version in _object(actions, "artifact_delta").items():
        yield Data("artifact", {"filename": name, "version": version}, id=f"artifact-{name}")


def _source(cited: Any) -> Iterator[AgentEvent]:
    url, title = _text(cited, "uri"), _text(cited, "title")
    if url.startswith(("https://", "http://")):
        yield Source(url, title)
    elif url or title:
        yield Document(title or url, "text/plain", url.rpartition("/")[2])


def _usage(used: Any, model: Any) -> Usage:
    def total(*names: str) -> int | None:
        counts = [count for name in names if (count := read(used, name)) is not None]
        return sum(counts) if counts else None

    return Usage(
        input_tokens=total("prompt_token_count", "tool_use_prompt_token_count"),
        # Gemini counts thoughts apart.
        output_tokens=total("candidates_token_count", "thoughts_token_count"),
        total_tokens=read(used, "total_token_count"),
        cache_read_tokens=read(used, "cached_content_token_count"),
        reasoning_tokens=read(used, "thoughts_token_count"),
        model=model or "",
    )


def _is_shown(key: str) -> bool:
    """Whether a key of the state is the conversation's: others are the user's, the app's or ADK's own."""
    return ":" not in key and not key.startswith(("_", "adk_")) and "credential" not in key


def _media_type(file: Any) -> str:
    return _text(file, "mime_type") or "application/octet-stream"


def _data_url(blob: Any) -> str:
    data = read(blob, "data") or b""
    # In JSON it is the URL-safe kind of base64.
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data.replace("-", "+").replace("_", "/")
    return f"data:{_media_type(blob)};base64,{text}"
