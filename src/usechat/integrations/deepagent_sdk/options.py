"""What of a DeepAgent run a page is shown, and in which form."""

from collections.abc import Collection, Mapping, Set
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from usechat.integrations.deepagent_sdk.events import CRITICAL, EVENTS, TALK, TOOLS
from usechat.integrations.deepagent_sdk.parts import NOISY, SIDE_EVENTS

__all__ = ["DeepAgentOptions", "Shown", "SourceForm", "read_options"]

Shown: TypeAlias = Literal["all", "critical"] | Collection[str]
SourceForm: TypeAlias = Literal["data", "standard", "both"]

_FORMS: Final = ("data", "standard", "both")
_BATCH: Final = 20
_MOST: Final = 1_000


class DeepAgentOptions(Struct, frozen=True, kw_only=True):
    """What is shown of a run.

    `events`: all; the critical ones, which are text, reasoning, tools, todos, and the start and finish of sub-agents;
    or those that are named. A set of names without text, reasoning or a tool event is about the side events only.
    Steps, approvals, the structured output, usage and the end are always shown.

    `sources`: in the form `standard`, pages that were found become `source-url` and files that were written become
    `source-document` instead of `data-file-written`; `both` has that part as well.

    `batch`: the most side events that may be put together into one part; True is 20, and False puts none together.

    `transient`: the side events that are shown and not kept in the message.

    Raises:
        ValueError: one of them has another value.
    """

    events: Shown = "all"
    sources: SourceForm = "data"
    batch: bool | int = False
    transient: Collection[str] = NOISY

    def __post_init__(self) -> None:
        if isinstance(self.events, str) and self.events not in ("all", "critical"):
            raise ValueError(f'events is "all", "critical" or a set of names, not {self.events!r:.60}.')
        if not isinstance(self.events, str):
            _check_names(self.events, EVENTS, "events")
        if self.sources not in _FORMS:
            raise ValueError(f"sources is one of {', '.join(_FORMS)}, not {self.sources!r:.60}.")
        if not 0 <= self.batch <= _MOST:
            raise ValueError(f"batch is a number of events up to {_MOST:,}, not {self.batch!r:.60}.")
        _check_names(self.transient, SIDE_EVENTS.keys(), "transient")

    @property
    def shown(self) -> frozenset[str]:
        """The names of what is shown; those of tool events are all in it or none is."""
        if self.events == "all":
            return EVENTS
        names = CRITICAL if self.events == "critical" else frozenset(self.events)
        if not names & TALK:
            return names | TALK
        return names | TOOLS if names & TOOLS else names

    @property
    def together(self) -> int:
        """How many side events a part may hold."""
        return _BATCH if self.batch is True else max(self.batch, 1)


def _check_names(names: object, known: Set[str], option: str) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ValueError(f"{option} must be a set of names, not {names!r:.60}.")
    for name in cast("Collection[object]", names):
        if name not in known:
            raise ValueError(f"{name!r:.60} in {option} is none of {', '.join(sorted(known))}.")


def read_options(given: Mapping[str, Any]) -> DeepAgentOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is of the wrong kind.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        match name, value:
            case ("events", str() | list()) | ("transient", list()) | ("sources", str()):
                chosen[name] = value
            case "transient", str():
                chosen[name] = [value]
            case "batch", bool() | int():
                chosen[name] = value
            case "events" | "transient" | "sources" | "batch", _:
                raise ValueError(f"The option {name} is {_KINDS[name]}, not {value!r:.60}.")
            case _:
                raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(_KINDS)}.")
    return DeepAgentOptions(**chosen)


_KINDS: Final = {
    "events": "all, critical or a list of names",
    "sources": "data, standard or both",
    "batch": "true, false or a number",
    "transient": "a list of names",
}
