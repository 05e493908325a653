"""Random messages of a chat as a page posts them, with parts of all types and tool calls in all states."""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from json_values import FLAGS, OBJECTS, PROVIDERS, TEXTS, VALUES
from usechat.protocol.messages import UIMessage

__all__ = ["HISTORIES", "URLS"]

_Strategy = st.SearchStrategy[Any]
_Part = dict[str, Any]

# `new URL` leaves these as they are.
URLS: Final = st.sampled_from(
    (
        "https://example.com/cat.png",
        "https://example.com/a.pdf?b=1#c",
        "data:image/png;base64,iVBORw0KGgo=",
        "data:application/pdf;base64,JVBERi0=",
        "data:text/plain,hello",
        "data:audio/wav;base64,UklGRg==",
    )
)
_MEDIA: Final = st.sampled_from(("image/png", "image/*", "application/pdf", "text/plain", "audio/wav", "video/mp4", ""))
_METADATA: Final = st.none() | PROVIDERS
_TEXT: Final = st.none() | TEXTS
_FLAG: Final = st.none() | FLAGS


def _part(kind: str, required: Mapping[str, _Strategy], optional: Mapping[str, _Strategy]) -> st.SearchStrategy[_Part]:
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional=dict(optional))


_TEXTS: Final = _part("text", {"text": TEXTS}, {"state": st.just("done"), "providerMetadata": _METADATA})
_FILES: Final = _part(
    "file",
    {"mediaType": _MEDIA, "url": URLS},
    {"filename": _TEXT, "providerReference": st.none() | OBJECTS, "providerMetadata": _METADATA},
)
_STEERING: Final = _part("steering-message", {"id": TEXTS, "parts": st.lists(_TEXTS | _FILES, max_size=2)}, {})
_STEP: Final = st.just({"type": "step-start"})

_ASKED: Final[dict[str, _Strategy]] = {
    "isAutomatic": _FLAG,
    "requestReason": _TEXT,
    "inputSchemaInput": VALUES,
    "signature": _TEXT,
}
_CALL_IDS: Final = st.sampled_from(("c1", "c2", "c3", "call_4|x"))


def _approval(approved: _Strategy | None) -> st.SearchStrategy[_Part]:
    answer = {} if approved is None else {"approved": approved}
    return st.fixed_dictionaries({"id": TEXTS, **answer}, optional={**_ASKED, "reason": _TEXT})


_PERHAPS: Final[dict[str, _Strategy]] = {"approval": st.none() | _approval(None) | _approval(_FLAG)}
_STATES: Final[dict[str, tuple[dict[str, _Strategy], dict[str, _Strategy]]]] = {
    "input-streaming": ({}, {"rawInput": TEXTS}),
    "input-available": ({}, {}),
    "approval-requested": ({"approval": _approval(None)}, {}),
    "approval-responded": ({"approval": _approval(FLAGS)}, {}),
    "output-available": ({}, {"output": VALUES, "preliminary": _FLAG, **_PERHAPS}),
    "output-error": ({"errorText": TEXTS}, {"rawInput": VALUES, **_PERHAPS}),
    "output-denied": ({}, _PERHAPS),
}
_TOOL: Final[dict[str, _Strategy]] = {
    "input": VALUES,
    "title": _TEXT,
    "providerExecuted": _FLAG,
    "callProviderMetadata": _METADATA,
    "resultProviderMetadata": _METADATA,
}


def _call(state: str) -> st.SearchStrategy[_Part]:
    required, optional = _STATES[state]
    required = {"toolCallId": _CALL_IDS, "state": st.just(state), **required}
    static = st.sampled_from(("tool-look_up", "tool-a-b", "tool-")).flatmap(
        lambda kind: _part(kind, required, {**_TOOL, **optional})
    )
    dynamic = _part("dynamic-tool", {"toolName": TEXTS, **required}, {"dynamic": _FLAG, **_TOOL, **optional})
    return static | dynamic


_CALLS: Final = st.one_of(*(_call(state) for state in _STATES))
_REST: Final = st.one_of(
    _part("reasoning", {"text": TEXTS}, {"id": TEXTS, "state": st.just("done"), "providerMetadata": _METADATA}),
    _part("reasoning-file", {"mediaType": _MEDIA, "url": URLS}, {"providerMetadata": _METADATA}),
    _part("custom", {"kind": TEXTS}, {"providerMetadata": _METADATA}),
    _part("source-url", {"sourceId": TEXTS, "url": URLS}, {"title": _TEXT}),
    _part("source-document", {"sourceId": TEXTS, "mediaType": _MEDIA, "title": TEXTS}, {}),
    _part("data-chart", {"data": VALUES}, {"id": TEXTS}),
    _part("of-a-newer-client", {}, {"text": TEXTS}),
    _STEERING,
)
_ANSWER_PARTS: Final = st.one_of(_TEXTS, _FILES, _REST, _STEP, _CALLS, _CALLS)
_ASKED_PARTS: Final = st.one_of(_TEXTS, _TEXTS, _FILES, _REST)


def _message(role: Any, parts: st.SearchStrategy[_Part]) -> st.SearchStrategy[UIMessage]:
    return st.builds(UIMessage, st.just("m"), st.just(role), st.lists(parts, max_size=6))


HISTORIES: Final = st.lists(
    st.one_of(
        _message("system", _ASKED_PARTS),
        _message("user", _ASKED_PARTS),
        _message("assistant", _ANSWER_PARTS),
        _message("assistant", _ANSWER_PARTS),
    ),
    max_size=5,
)
