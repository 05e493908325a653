"""What may follow what. The diagrams of docs/concepts/protocol.md are drawn from these tables.

A row is a chunk, a column is a state in which it is legal, a cell is the state after it. What does not fit a table is
in `StreamState`, and nowhere else.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

__all__ = ["ANYTIME", "CALLS", "MESSAGE", "PARTS", "UNFINISHED", "CallState", "PartState", "Phase"]

Phase: TypeAlias = Literal["new", "open", "step", "ended", "failed"]
PartState: TypeAlias = Literal["closed", "open"]
CallState: TypeAlias = Literal[
    "new",
    "started",
    "streaming",
    "cut",
    "available",
    "requested",
    "approved",
    "refused",
    "preliminary",
    "done",
    "failed",
    "rejected",
    "denied",
]

MESSAGE: Final[dict[str, dict[Phase, Phase]]] = {
    "start": {"new": "open", "open": "open", "step": "step"},
    "start-step": {"new": "step", "open": "step", "step": "step"},
    "finish-step": {"new": "open", "open": "open", "step": "open"},
    "reset-step": {"new": "open", "open": "open", "step": "step"},
    "finish": {"new": "ended", "open": "ended", "step": "ended"},
    "abort": {"new": "ended", "open": "ended", "step": "ended"},
    "error": {"new": "failed", "open": "failed", "step": "failed"},
    "any other": {"new": "open", "open": "open", "step": "step"},
}
"""The phases of a message. A stream without `start` is legal: the client then makes the message id."""

PARTS: Final[dict[str, dict[PartState, PartState]]] = {
    "text-start": {"closed": "open"},
    "text-delta": {"open": "open"},
    "text-end": {"open": "closed"},
    "reasoning-start": {"closed": "open"},
    "reasoning-delta": {"open": "open"},
    "reasoning-end": {"open": "closed"},
}
"""The life of one text or reasoning part. The client keeps their ids apart, so both may use the same one."""

_UNFINISHED: Final[tuple[CallState, ...]] = ("started", "streaming", "cut")
_ANSWERABLE: Final[tuple[CallState, ...]] = ("requested", "approved", "refused")
_RUNNABLE: Final[tuple[CallState, ...]] = (
    "streaming",
    "cut",
    "available",
    "approved",
    "preliminary",
    "done",
    "failed",
)


def _all(states: Iterable[CallState], after: CallState) -> dict[CallState, CallState]:
    return dict.fromkeys(states, after)


CALLS: Final[dict[str, dict[CallState, CallState]]] = {
    "tool-input-start": {"new": "started"},
    "tool-input-delta": _all(("started", "streaming"), "streaming"),
    "tool-input-available": _all(("new", *_UNFINISHED), "available"),
    "tool-input-error": _all(("new", *_UNFINISHED), "rejected"),
    "tool-approval-request": _all(("streaming", "cut", "available", *_ANSWERABLE), "requested"),
    "tool-approval-response, approved": _all(_ANSWERABLE, "approved"),
    "tool-approval-response, refused": _all(_ANSWERABLE, "refused"),
    "tool-output-available, preliminary": _all(_RUNNABLE, "preliminary"),
    "tool-output-available": _all(_RUNNABLE, "done"),
    "tool-output-error": {**_all(("started", "requested", *_RUNNABLE), "failed"), "rejected": "rejected"},
    "tool-output-denied": _all(("refused", "denied"), "denied"),
}
"""The life of one tool call. A result may replace a result: in every client the last one counts. A `rejected` input may
be reported again as an error, because v5 and v6 servers do so."""

UNFINISHED: Final = frozenset(_UNFINISHED)
"""The states of a call whose input is not whole. An earlier stream began a `cut` input, and only the newest clients
accept more deltas for it."""

ANYTIME: Final = frozenset(
    (
        "message-metadata",
        "source-url",
        "source-document",
        "file",
        "reasoning-file",
        "custom",
        "steering-message",
        "data-*",
    )
)
"""The chunks that need nothing before them and change nothing but the message."""
