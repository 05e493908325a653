"""What of an Agent Ops session a page is shown beside text and tools."""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from usechat.sources.agent_ops_frames import DEFAULT_CHANNEL, PASSED_OVER

__all__ = ["AgentOpsOptions", "read_options"]


class AgentOpsOptions(Struct, frozen=True, kw_only=True):
    """`forward` names frames that become data parts (`git-state` is `data-git-state`); `transient_status` shows the
    agent's status without keeping it in the message; `channel` is the one whose turn a log is read for.

    Raises:
        ValueError: a name in `forward` is none of the frames that can be forwarded.
    """

    forward: frozenset[str] = frozenset()
    transient_status: bool = False
    channel: str = DEFAULT_CHANNEL

    def __post_init__(self) -> None:
        if unknown := sorted(self.forward - PASSED_OVER):
            raise ValueError(f"{unknown[0]!r:.60} cannot be forwarded: what can is {', '.join(sorted(PASSED_OVER))}.")


def read_options(given: Mapping[str, Any]) -> AgentOpsOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is of the wrong kind.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        match name, value:
            case "forward", list() if all(isinstance(item, str) for item in cast("list[object]", value)):
                chosen[name] = frozenset(cast("list[str]", value))
            case "forward", str():
                chosen[name] = frozenset({value})
            case ("transient_status", bool()) | ("channel", str()):
                chosen[name] = value
            case "forward" | "transient_status" | "channel", _:
                raise ValueError(f"The option {name} is {_KINDS[name]}, not {value!r:.60}.")
            case _:
                raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(_KINDS)}.")
    return AgentOpsOptions(**chosen)


_KINDS = {"forward": "a list of frames", "transient_status": "true or false", "channel": "a text like web:default"}
